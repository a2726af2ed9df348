"""Smooth on every device: it runs on the classifier's device, and the image may be on any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobust import RandomizedSmoothing
from pyrobust.compat.smoothing import Smooth

SIGMA = 0.5


class Halves(nn.Module):
    """Classifies by the side of a plane and records the devices of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: set[torch.device] = set()

    def forward(self, batch: Tensor) -> Tensor:
        self.seen.add(batch.device)
        # A single element: a sum would depend on the order of its terms, and so on the device.
        score = batch.flatten(1)[:, 0] * self.weight
        return torch.stack([score, -score], 1)


def image() -> Tensor:
    return torch.linspace(0.3, 1, 12).reshape(3, 2, 2)


def test_classifier_and_images_on_any_device(device: torch.device) -> None:
    on_cpu = Smooth(Halves(), 2, SIGMA, seed=3)
    base_label, base_radius = on_cpu.certify(image(), 20, 400, 0.01, 64)
    assert base_label == on_cpu.predict(image(), 400, 0.01, 64) == 0
    assert base_radius > 0.1
    model = Halves().to(device)
    for x in (image(), image().to(device), image().to(device).double()):
        smooth = Smooth(model, 2, SIGMA, seed=3)
        label, radius = smooth.certify(x, 20, 400, 0.01, 64)
        assert (type(label), type(radius)) == (int, float)
        # The last bits of a normal variable may change a vote, which changes the radius by less than 0.01.
        assert (label, radius) == (0, pytest.approx(base_radius, abs=0.01 if device.type == "cuda" else 0.0))
        prediction = smooth.predict(x, 400, 0.01, 64)
        assert type(prediction) is int
        assert prediction == 0
    assert model.seen == {device}


def test_counts_are_arrays_on_the_host(device: torch.device) -> None:
    model = Halves().to(device)
    counts = Smooth(model, 2, SIGMA, seed=3)._sample_noise(image().to(device), 500, 64)
    assert type(counts) is np.ndarray
    assert counts.dtype == np.int64
    assert counts.sum() == 500
    expected = RandomizedSmoothing(Halves(), 2, SIGMA, seed=3).votes(image()[None], n=500)[0, :2]
    assert np.abs(counts - expected).sum() <= (4 if device.type == "cuda" else 0)


def test_plain_function_runs_on_the_images_device(device: torch.device) -> None:
    seen = set()

    def halves(batch: Tensor) -> Tensor:
        seen.add(batch.device)
        score = batch.flatten(1)[:, 0]
        return torch.stack([score, -score], 1)

    assert Smooth(halves, 2, SIGMA).certify(image().to(device), 20, 400, 0.01, 100)[0] == 0
    assert seen == {device}


def test_classifier_moved_between_calls(device: torch.device) -> None:
    model = Halves()
    smooth = Smooth(model, 2, SIGMA)
    assert smooth.predict(image(), 400, 0.01, 100) == 0
    model.to(device)
    assert smooth.predict(image(), 400, 0.01, 100) == 0
    assert model.seen == {torch.device("cpu"), device}
