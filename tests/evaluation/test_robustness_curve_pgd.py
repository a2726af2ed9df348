"""Robustness curves under PGD: their cost, and that they are not above separate runs for each point."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

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


@pytest.mark.parametrize(("norm", "largest"), [("linf", 0.3), ("l2", 1.6)])
def test_cost_of_twenty_points(norm, largest):
    net, x, y = digits()
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


def test_gpu_matches_cpu(cuda):
    net, x, y = digits()
    net, x = net.double(), x.double()
    grid = [0.02, 0.05, 0.1, 0.15]
    here = robustness_curve(BIM, net, x, y, grid, steps=4)
    there = robustness_curve(BIM, net.to(cuda), x.to(cuda), y.to(cuda), grid, steps=4)
    assert (here.broken_epsilon == there.broken_epsilon).mean() > 0.97
