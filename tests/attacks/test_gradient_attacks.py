"""PGD, BIM and APGD: iterates and rules by hand."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.attack_models import NORMS, Recording, halfspace, images, inside, small_net
from torch import Tensor, nn

from pyrobust.attacks import APGD, BIM, PGD
from pyrobust.attacks.engine.norms import NORMS as NORM_OBJECTS
from pyrobust.attacks.engine.norms import Ball

FAR = halfspace(torch.tensor([1.0, -2.0]), 50.0)  # no point in the clip range fools it


@pytest.mark.parametrize("norm", NORMS)
def test_iterates_of_bim(norm: str) -> None:
    """x + t·α·d, d = (-1, 1) for linf, (-1, 2)/√5 for l2 and (-1/2, 1) for l1, in the ball."""
    model = Recording(FAR, gradients=True)
    x = torch.tensor([[0.5, 0.25]])
    x_adv = BIM(model, 0.25, norm, steps=5, step_size=0.0625, batch_size=4).generate(x, torch.tensor([0]))
    unit = {"linf": (-1.0, 1.0), "l2": (-1 / math.sqrt(5), 2 / math.sqrt(5)), "l1": (-0.5, 1.0)}[norm]
    moved = torch.tensor([0.0, 0.0])
    assert len(model.seen) == 5
    for seen in [*model.seen, x_adv]:
        torch.testing.assert_close(seen - x, moved[None], rtol=0, atol=1e-6)
        moved = moved + 0.0625 * torch.tensor(unit)
        moved = NORM_OBJECTS[norm].project(moved[None], Ball(x, torch.tensor([0.25]).double(), 0.0, 1.0))[0]


def test_default_step_is_two_and_a_half_radii_over_the_steps() -> None:
    model = Recording(FAR, gradients=True)
    x = torch.full((2, 2), 0.5)
    BIM(model, steps=10, batch_size=4).generate(x, torch.tensor([0, 0]), epsilon=torch.tensor([0.2, 0.4]))
    moved = (model.seen[1] - x)[:, 1]
    torch.testing.assert_close(moved, torch.tensor([0.05, 0.1]))


class Ridge(nn.Module):
    """The loss is highest at the top, beyond which the gradient changes its sign."""

    def __init__(self, top: float) -> None:
        super().__init__()
        self.top = top

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([10 + (x[:, 0] - self.top).abs(), 0 * x[:, 0]], 1)


def test_momentum_by_hand() -> None:
    """The gradient changes sign at 0.6; momentum 1 continues where plain steps turn back."""

    x, y = torch.tensor([[0.5]]), torch.tensor([0])
    paths = {}
    for momentum in (0.0, 1.0):
        model = Recording(Ridge(0.6), gradients=True)
        BIM(model, 0.5, steps=6, step_size=0.08, momentum=momentum, batch_size=2).generate(x, y)
        paths[momentum] = [round(float(seen), 2) for seen in model.seen]
    assert paths[0.0] == [0.5, 0.58, 0.66, 0.58, 0.66, 0.58]
    # velocity: 1, 2, 1, 0, -1: up, up, up, stop, back
    assert paths[1.0] == [0.5, 0.58, 0.66, 0.74, 0.74, 0.66]


def test_best_iterate_is_returned() -> None:
    """The iterate of highest loss is 0.58, which is not the last iterate."""

    for steps in (3, 4, 5, 6):
        x_adv = BIM(Ridge(0.59), 0.5, steps=steps, step_size=0.08).generate(torch.tensor([[0.5]]), torch.tensor([0]))
        assert float(x_adv) == pytest.approx(0.58)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [1, 5, 300])
def test_random_starts_are_uniform_in_the_ball(norm: str, size: int) -> None:
    """(distance/epsilon)^D is uniform on [0, 1], and both signs are equally likely."""
    model = Recording(halfspace(torch.zeros(size), 50.0), gradients=True)
    x = torch.zeros(400, size)
    PGD(model, 0.5, norm, -9.0, 9.0, steps=1, batch_size=400).generate(x, torch.zeros(400, dtype=torch.int64))
    start = model.seen[0]
    share = (NORM_OBJECTS[norm].distance(start, x) / 0.5) ** size
    assert inside(start[:20], x[:20], norm, 0.5, -9, 9)
    assert abs(float(share.mean()) - 0.5) < 4 * math.sqrt(1 / 12 / 400)
    assert abs(float(start.sign().mean())) < 4 / math.sqrt(400 * size)


def test_restarts_differ_and_stop_on_success() -> None:
    """Two valleys: only starts on one side lead to success."""

    def valleys(x: Tensor) -> Tensor:
        z = x[:, 0]
        return torch.stack([torch.where(z > 0.5, 0.31 - (z - 0.5), 0.6 + z) * 10, 0 * z], 1)

    x, y = torch.full((64, 1), 0.5), torch.zeros(64, dtype=torch.int64)
    rates, forwards = [], []
    for restarts in (1, 6):
        attack = PGD(valleys, 0.375, steps=10, restarts=restarts, batch_size=64)
        rates.append(attack.evaluate(x, y, attack.generate(x, y))["robust_accuracy"])
        forwards.append(attack.forwards)
    assert 0.3 < rates[0] < 0.7
    assert rates[1] < 0.1
    assert forwards[1] < 3 * forwards[0]


def iterates(steps: int, value: Any, **options: Any) -> list[float]:
    """APGD's iterates in one dimension, with logits (20 - value(x), 0)."""

    class Line(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = value(x[:, 0])
            return torch.stack([20 - z, 0 * z], 1)

    model = Recording(Line(), gradients=True)
    APGD(model, 1.0, "l2", -10, 10, steps=steps, batch_size=2, **options).generate(
        torch.tensor([[0.0]]), torch.tensor([0])
    )
    return [float(seen) for seen in model.seen]


def test_apgd_first_steps_by_hand() -> None:
    """On a slope, z = Π(x + 2), then x + 0.75·(z − x) + 0.25·(x − previous)."""
    start, first, second, *_ = iterates(10, lambda x: x)
    assert -1 <= start <= 1
    assert first == pytest.approx(1.0)  # the end of the ball
    assert second == pytest.approx(1.0)
    # A maximum inside the ball is overshot: from 1 back to -1.
    start, first, second, *_ = iterates(20, lambda x: -((x - 0.1) ** 2))
    edge = 1.0 if start < 0.1 else -1.0
    assert first == pytest.approx(edge)
    middle = edge + 0.75 * (-edge - edge) + 0.25 * (edge - start)
    assert second == pytest.approx(max(-1.0, min(1.0, middle)), abs=1e-6)


def test_apgd_halves_its_step_and_returns_to_the_best_point() -> None:
    """Around a maximum the step shrinks: the best iterate comes much closer than a step of 2 allows."""
    path = iterates(100, lambda x: -((x - 0.123456) ** 2))
    errors = [abs(x - 0.123456) for x in path]
    assert min(errors[:22]) > 1e-3
    assert min(errors) < 1e-3
    jumps = [abs(b - a) for a, b in pairwise(path)]
    assert max(jumps[-6:]) < 0.1 < max(jumps[:20])


def test_apgd_restarts_and_targets() -> None:
    x, y = images(16)
    net = Recording(small_net())
    by_targets = []
    for targets in (1, 3, 9):
        attack = APGD(net, 0.04, loss="dlr-targeted", steps=10, targets=targets)
        by_targets.append(attack.evaluate(x, y, attack.generate(x, y))["robust_accuracy"])
    assert by_targets[0] >= by_targets[1] >= by_targets[2]
    attack = APGD(net, 1e-3, loss="dlr-targeted", steps=10, targets=9, restarts=2, batch_size=16)
    attack.generate(x[1:2], y[1:2])
    assert attack.forwards == 1 + 1 + 4 * 2 * 11  # clean, ranking of the targets, K - 1 targets twice


def test_multi_epsilon_phases_of_l1() -> None:
    attack = APGD(FAR, 0.25, "l1", steps=100, multi_epsilon=True)
    assert attack._schedule() == [(3.0, 30), (2.0, 30), (1.0, 40)]
    assert APGD(FAR, 0.25, "l1", steps=11, multi_epsilon=True)._schedule() == [(3.0, 4), (2.0, 4), (1.0, 3)]
    assert APGD(FAR, 0.25, "l1", steps=2, multi_epsilon=True)._schedule() == [(3.0, 1), (1.0, 1)]
    x, y = images(16)
    for steps in (1, 2, 3, 20):
        attack = APGD(small_net(), 0.8, "l1", steps=steps, multi_epsilon=True)
        x_adv = attack.generate(x, y)
        assert inside(x_adv, x, "l1", 0.8)
        assert attack.evaluate(x, y, x_adv)["robust_accuracy"] < 14 / 16


def test_saturated_softmax() -> None:
    """Logits 300 apart: the other class's probability underflows in float32, yet the attacks succeed."""
    model = halfspace(torch.full((10,), 60.0), -300.0)
    x, y = torch.ones(1, 10), torch.tensor([0])
    assert torch.softmax(model(x), 1).tolist() == [[1.0, 0.0]]
    for norm, epsilon in (("linf", 0.51), ("l2", 1.6), ("l1", 5.1)):
        for attack in (PGD(model, epsilon, norm, steps=40), APGD(model, epsilon, norm)):
            assert attack.evaluate(x, y, attack.generate(x, y))["robust_accuracy"] == 0


# --- a trained net

#: Radii, and the robust accuracy on 200 images that the original code of APGD-CE finds (100 steps, mean of 8 seeds).
ORIGINAL = {"linf": (0.325, 0.565), "l2": (2.0, 0.602)}


@pytest.mark.skipif(not os.environ.get("PYROBUST_DATA"), reason="PYROBUST_DATA is not set")
@pytest.mark.parametrize("norm", sorted(ORIGINAL))
def test_apgd_is_as_strong_as_the_original(norm: str) -> None:
    folder = Path(os.environ["PYROBUST_DATA"])
    layers = [nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(1568, 100), nn.ReLU(), nn.Linear(100, 10))
    net.load_state_dict(torch.load(folder / "nets" / "mnist_cnn_a_adv.pt", weights_only=True))
    with np.load(folder / "images" / "mnist_sdp.npz") as data:
        x, y = torch.from_numpy(data["X"]), torch.from_numpy(data["y"])
    epsilon, original = ORIGINAL[norm]
    attack = APGD(net, epsilon, norm, seed=1)
    x_adv = attack.generate(x, y)
    assert inside(x_adv[:10], x[:10], norm, epsilon)
    result = attack.evaluate(x, y, x_adv)
    assert result["clean_accuracy"] == 195 / 200
    assert result["robust_accuracy"] <= original + 2 / 200  # seeds differ slightly
