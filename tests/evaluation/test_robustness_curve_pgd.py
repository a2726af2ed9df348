"""Robustness curves under PGD: their cost, and that they are not above separate runs for each point."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobust.attacks import BIM, PGD
from pyrobust.evaluation.robustness_curve import robustness_curve
from pyrobust.zoo import load_data, load_model


class Counted:
    """A model that counts the rows pushed through it."""

    def __init__(self, model):
        self.model, self.rows = model, 0

    def __call__(self, batch: Tensor) -> Tensor:
        self.rows += len(batch)
        return self.model(batch)


def digits():
    data = load_data("digits")
    return load_model("zoo:digits-smooth-0.25"), data.x[:120], data.y[:120]


def mnist():
    folder = os.environ.get("PYROBUST_DATA")
    if not folder:
        pytest.skip("PYROBUST_DATA is not set")
    layers = [nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(1568, 100), nn.ReLU(), nn.Linear(100, 10))
    net.load_state_dict(torch.load(Path(folder) / "nets" / "mnist_cnn_a_adv.pt", weights_only=True))
    with np.load(Path(folder) / "images" / "mnist_sdp.npz") as images:
        return net, torch.from_numpy(images["X"]), torch.from_numpy(images["y"])


@pytest.mark.parametrize(("source", "norm", "largest"), [(digits, "linf", 0.3), (mnist, "l2", 3.0)])
def test_cost_of_twenty_points(source, norm, largest):
    net, x, y = source()
    model = Counted(net)
    grid = [largest * (i + 1) / 20 for i in range(20)]
    curve = robustness_curve(PGD, model, x, y, grid, steps=10, norm=norm)
    spent = model.rows
    assert curve.forwards == spent
    rows, separate = [], []
    for epsilon in grid:
        model.rows = 0
        attack = PGD(model, epsilon, norm, steps=10)
        x_adv = attack.generate(x, y)
        rows.append(model.rows)
        separate.append(attack.evaluate(x, y, x_adv)["robust_accuracy"])
    # An attack that succeeds stops, so a run gets cheaper with epsilon; this is one in which hardly any does.
    assert spent <= 5 * max(rows)
    assert spent <= sum(rows) / 3.5
    assert (curve.robust_accuracy <= np.array(separate) + 0.01 + 1e-12).all()
    assert separate[0] - separate[-1] > 0.1, "an easy grid: nothing to search for"
    assert (np.diff(curve.counts) <= 0).all()


def test_an_epsilon_for_each_example_matches_separate_runs():
    """Without random numbers, each example is broken at the epsilon at which separate runs break it."""
    net, x, y = digits()
    model = net.double()
    x, y = x[:40].double(), y[:40]
    grid = [0.0, 0.02, 0.05, 0.08, 0.12, 0.2]
    curve = robustness_curve(BIM, model, x, y, grid, steps=5)
    broken = np.where((model(x).argmax(1) == y).numpy(), math.inf, 0.0)
    for epsilon in reversed(grid[1:]):
        attack = BIM(model, epsilon, steps=5)
        for i in range(len(x)):
            x_adv = attack.generate(x[i : i + 1], y[i : i + 1])
            if broken[i] > 0 and int(model(x_adv).argmax()) != int(y[i]):
                broken[i] = epsilon
    assert len(set(broken.tolist())) > 3
    assert (curve.broken_epsilon <= broken).all()
    assert (curve.broken_epsilon == broken).mean() > 0.9  # lower only where a small perturbation settled more


def test_the_batch_size_does_not_matter():
    net, x, y = digits()
    net, x = net.double(), x.double()
    grid = [0.02, 0.05, 0.1, 0.15]
    whole = robustness_curve(PGD, net, x, y, grid, steps=4)
    parts = robustness_curve(PGD, net, x, y, grid, steps=4, batch_size=7)
    assert whole.broken_epsilon.tolist() == parts.broken_epsilon.tolist()


def test_gpu_matches_cpu(cuda):
    net, x, y = digits()
    net, x = net.double(), x.double()
    grid = [0.02, 0.05, 0.1, 0.15]
    here = robustness_curve(BIM, net, x, y, grid, steps=4)
    there = robustness_curve(BIM, net.to(cuda), x.to(cuda), y.to(cuda), grid, steps=4)
    assert (here.broken_epsilon == there.broken_epsilon).mean() > 0.97
