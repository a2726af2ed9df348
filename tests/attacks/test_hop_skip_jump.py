"""HopSkipJump: closed forms, queries, starts, and models of which only the class is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_models import Counting, fooled_alone, halfspace, images, inside, random, small_net
from torch import Tensor, nn

from pyrobust.attacks import HopSkipJump

NORMS = ["linf", "l2"]
WEIGHT = random(10, seed=5) * 2 - 1


def decisions(model: nn.Module) -> Any:
    """A model that reveals nothing but its class."""
    return lambda x: nn.functional.one_hot(model(x).argmax(1), 5).to(x.dtype)


@pytest.mark.parametrize("norm", NORMS)
def test_distances_to_a_hyperplane(norm: str) -> None:
    x = random(12, 10, seed=6) * 0.2 + 0.4  # far from the clip range
    y = torch.zeros(12, dtype=torch.int64)
    gap = 0.1 + 0.02 * torch.arange(12)
    bias = gap - x @ WEIGHT
    length = WEIGHT.norm() if norm == "l2" else WEIGHT.abs().sum()

    row = 6
    net = halfspace(WEIGHT, float(bias[row]))
    result = HopSkipJump(net, norm=norm, steps=8).minimum(x[row : row + 1], y[:1], indices=[row])
    exact = float(gap[row] / length)
    assert exact <= float(result.distance) * (1 + 1e-5)
    assert float(result.distance) <= 1.03 * exact


def test_the_queries_are_those_of_the_published_budget() -> None:
    """One for x, the tries of a start, 10 halvings in each bisection, samples·√t for a direction, and the jumps."""
    weight = torch.tensor([1.0, 0.0])
    counting = Counting(halfspace(weight, -0.25))
    x, y = torch.tensor([[0.75, 0.5]]), torch.tensor([0])
    options: dict[str, Any] = {"samples": 9, "max_samples": 16, "starts": torch.zeros(1, 2), "batch_size": 4}
    attack = HopSkipJump(counting, norm="l2", steps=4, **options)
    result = attack.minimum(x, y, margin=False)
    jumps = counting.rows - (1 + 1 + 1 + 5 * 10 + 9 + 12 + 15 + 16 + 1)
    assert 4 <= jumps <= 4 * 24
    assert result.forwards == counting.rows
    assert result.backwards == 0


@pytest.mark.parametrize("norm", NORMS)
def test_starts_and_targets(norm: str) -> None:
    net = small_net()
    x, _ = images(12)
    y = net(x).argmax(1)
    goal = y.roll(1)
    goal = torch.where(goal == y, net(x).topk(2).indices[:, 1], goal)
    far = HopSkipJump(decisions(net), norm=norm, steps=3, samples=20, dtype=torch.float64)
    near = HopSkipJump(decisions(net), norm=norm, steps=3, samples=20, dtype=torch.float64, starts=x)
    found = near.minimum(x, y, targeted=True, target_labels=goal)
    there = torch.isin(goal, y)
    assert bool(found.success[there].all())
    assert torch.equal(net(found.x_adv[there]).argmax(1), goal[there])
    assert inside(found.x_adv[there], x[there], norm, found.distance[there].tolist())
    assert float(far.minimum(x, y).distance.median()) > 0
    # With one step and one start, the result lies on the way to that start.
    lone = HopSkipJump(decisions(net), norm="l2", steps=1, samples=1, dtype=torch.float64, starts=x[y != y[0]][:1])
    result = lone.minimum(x[:1], y[:1])
    assert float(result.distance) < float((x[y != y[0]][0] - x[0]).norm())


def test_no_start() -> None:
    """A model of one class: nothing is found, after the tries of a start."""
    counting = Counting(halfspace(torch.ones(4), 50.0))
    result = HopSkipJump(counting, norm="l2", steps=2).minimum(random(3, 4), torch.zeros(3, dtype=torch.int64))
    assert result.distance.tolist() == [torch.inf] * 3
    assert torch.equal(result.x_adv, random(3, 4))
    assert counting.rows <= 3 * (1 + 100 + 16)


def test_nan_is_no_success_of_a_target() -> None:
    """NaN logits predict no class: they count as wrong, and never as the target."""

    def model(x: Tensor) -> Tensor:
        logits = torch.stack([x[:, 0], 0.6 + 0 * x[:, 0]], 1)
        return logits.masked_fill(x[:, 1:] > 0.9, torch.nan)

    x, y = torch.full((2, 2), 0.7), torch.zeros(2, dtype=torch.int64)
    attack = HopSkipJump(model, norm="l2", steps=3, samples=20)
    found = attack.minimum(x, y, targeted=True, target_labels=1 - y)
    assert bool((found.x_adv[:, 0] <= 0.6).all())
    assert bool((found.x_adv[:, 1] <= 0.9).all())


def test_on_a_grid() -> None:
    """Directions are told from differences of at least one level."""
    net, (x, _) = small_net(torch.float32), images(6, torch.float32)
    x = (x * 15).round() / 15
    y = net(x).argmax(1)
    result = HopSkipJump(net, norm="l2", grid="1/15", steps=5).minimum(x, y)
    free = HopSkipJump(net, norm="l2", steps=5).minimum(x, y)
    assert bool(((result.x_adv * 15 - (result.x_adv * 15).round()).abs() < 1e-5).all())
    assert fooled_alone(net, result.x_adv, y) == [True] * 6
    assert float(result.distance.median()) <= 1.3 * float(free.distance.median())
