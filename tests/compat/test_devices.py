"""The reference's interface on every device: the classifier decides where it runs, the image may be anywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobust import RandomizedSmoothing
from pyrobust.compat.smoothing import Smooth

SIGMA = 0.5


class Halves(nn.Module):
    """Which side of a plane the image is on; notes where it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: set[torch.device] = set()

    def forward(self, batch: Tensor) -> Tensor:
        self.seen.add(batch.device)
        # One element only: a sum would depend on the order of its terms, and so on the device.
        score = batch.flatten(1)[:, 0] * self.weight
        return torch.stack([score, -score], 1)


def image() -> Tensor:
    return torch.linspace(0.3, 1, 12).reshape(3, 2, 2)


@pytest.mark.parametrize("batch_size", [7, 64, 1000])
def test_a_classifier_there_and_images_anywhere(device: torch.device, batch_size: int) -> None:
    here = Smooth(Halves(), 2, SIGMA, seed=3)
    base_label, base_radius = here.certify(image(), 20, 400, 0.01, batch_size)
    assert base_label == here.predict(image(), 400, 0.01, batch_size) == 0
    assert base_radius > 0.1
    model = Halves().to(device)
    for x in (image(), image().to(device), image().to(device).double()):
        smooth = Smooth(model, 2, SIGMA, seed=3)
        label, radius = smooth.certify(x, 20, 400, 0.01, batch_size)
        assert (type(label), type(radius)) == (int, float)
        # The last bits of a normal may move a vote, and a vote moves the radius by less than a hundredth.
        assert (label, radius) == (0, pytest.approx(base_radius, abs=0.01 if device.type == "cuda" else 0.0))
        prediction = smooth.predict(x, 400, 0.01, batch_size)
        assert type(prediction) is int
        assert prediction == 0
    assert model.seen == {device}


def test_counts_are_arrays_on_the_host(device: torch.device) -> None:
    model = Halves().to(device)
    counts = Smooth(model, 2, SIGMA, seed=3)._sample_noise(image().to(device), 500, 64)
    assert type(counts) is np.ndarray
    assert counts.dtype == np.int64
    assert counts.sum() == 500
    want = RandomizedSmoothing(Halves(), 2, SIGMA, seed=3).votes(image()[None], n=500)[0, :2]
    assert np.abs(counts - want).sum() <= (4 if device.type == "cuda" else 0)


def test_a_plain_function_runs_where_the_image_is(device: torch.device) -> None:
    seen = set()

    def halves(batch: Tensor) -> Tensor:
        seen.add(batch.device)
        score = batch.flatten(1)[:, 0]
        return torch.stack([score, -score], 1)

    assert Smooth(halves, 2, SIGMA).certify(image().to(device), 20, 400, 0.01, 100)[0] == 0
    assert seen == {device}


def test_a_classifier_that_moves_between_calls(device: torch.device) -> None:
    model = Halves()
    smooth = Smooth(model, 2, SIGMA)
    assert smooth.predict(image(), 400, 0.01, 100) == 0
    model.to(device)
    assert smooth.predict(image(), 400, 0.01, 100) == 0
    assert model.seen == {torch.device("cpu"), device}
