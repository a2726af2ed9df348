"""SPSA: estimates against exact gradients, queries, and models without gradients."""

from __future__ import annotations

import pytest
import torch
from attack_models import Counting, fooled_alone, halfspace, images, inside, random, small_net
from torch import Tensor

from pyrobust.attacks import SPSA
from pyrobust.zoo import load_data, load_model


def test_first_step_is_adams_on_the_estimate() -> None:
    """Adam's first step is step_size·sign(g); with one vector v, g of a linear margin w·x is (w·v)·v."""
    weight = torch.tensor([3.0, -1.0, 0.5, 2.0])
    model = halfspace(weight, 50.0)
    x = torch.full((1, 4), 0.5)
    x_adv = SPSA(model, 0.25, steps=1, samples=1, step_size=0.0625)(x, torch.tensor([0]))
    moved = (x_adv - x)[0]
    torch.testing.assert_close(moved.abs(), torch.full((4,), 0.0625))
    assert float(weight @ moved) < 0
    x_adv = SPSA(model, 0.25, steps=1, samples=2000, step_size=0.0625)(x, torch.tensor([0]))
    torch.testing.assert_close((x_adv - x)[0], -0.0625 * weight.sign())


def test_queries() -> None:
    """One for x, 2·samples + 1 in each step, in forward passes of no more rows than the batch."""
    counting = Counting(halfspace(torch.ones(6), 50.0))
    attack = SPSA(counting, 0.1, steps=3, samples=5, batch_size=8)
    attack(random(4, 6), torch.zeros(4, dtype=torch.int64))
    assert attack.forwards == counting.rows == 4 * (1 + 3 * (2 * 5 + 1))
    assert max(counting.batches) <= 8
    counting.batches.clear()
    attack(random(1, 6), torch.zeros(1, dtype=torch.int64))
    assert counting.rows == 1 + 3 * 11


def test_fewer_rows_share_forward_passes() -> None:
    """After the others have left, the vectors of the last example share forward passes, with the same result."""
    # Weights whose differences never cancel: the sign of a derivative of 0 would be that of rounding.
    counting = Counting(halfspace(torch.tensor([1.0, 1.013, 0.987, 1.029, 0.971, 1.0]), -0.5))
    x, y = random(8, 6, seed=4), torch.zeros(8, dtype=torch.int64)
    x[1:] = 0.52 / 6  # one step of 0.01 per coordinate crosses the boundary
    x_adv = SPSA(counting, 0.1, steps=3, samples=8, batch_size=8)(x, y)
    assert counting.batches == [8] * (1 + 2 * 8 + 1) + 2 * [8, 8, 1]
    alone = SPSA(counting, 0.1, steps=3, samples=8)(x[:1], y[:1])
    torch.testing.assert_close(x_adv[:1], alone, rtol=0, atol=1e-6)


def test_models_without_a_gradient() -> None:
    """A quantized net: PGD has nothing to follow, differences across the steps have."""
    net = small_net(torch.float32)

    def model(x: Tensor) -> Tensor:
        return net((x * 16).round() / 16)

    x, _ = images(10, torch.float32)
    y = model(x).argmax(1)
    attack = SPSA(model, 0.2, delta=0.05, step_size=0.05, steps=10, samples=16)
    assert attack.evaluate(x, y, attack(x, y))["robust_accuracy"] < 0.5
    goal = model(x).topk(2).indices[:, 1]
    x_adv = attack(x, y, targeted=True, target_labels=goal)
    assert float((model(x_adv).argmax(1) == goal).float().mean()) > 0.4
    assert inside(x_adv, x, "linf", 0.2)


def test_nan_logits_move_nothing() -> None:
    def model(x: Tensor) -> Tensor:
        z = x[:, 0] - 0.25
        return torch.stack([z, -z], 1).masked_fill(x[:, 1:2] > 0.55, torch.nan)

    x = torch.full((2, 2), 0.549)
    x_adv = SPSA(model, 0.4, steps=3, samples=4, delta=0.1)(x, torch.zeros(2, dtype=torch.int64))
    assert inside(x_adv, x, "linf", 0.4)


def test_on_a_grid() -> None:
    """The differences are at least one level wide, where the default ones would be none."""
    net, (x, _) = small_net(torch.float32), images(12, torch.float32)
    x = (x * 15).round() / 15
    y = net(x).argmax(1)
    attack = SPSA(net, 3 / 15, grid="1/15", steps=10, samples=16, step_size=0.05)
    x_adv = attack(x, y)
    assert bool(((x_adv * 15 - (x_adv * 15).round()).abs() < 1e-5).all())
    assert sum(fooled_alone(net, x_adv, y)) >= 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_models_of_half_precision(dtype: torch.dtype) -> None:
    """Adam's offset and small squares are 0 in float16."""
    digits, model = load_data("digits"), load_model("zoo:digits-smooth-0.25").to(dtype)
    x, y = digits.x[:8].to(dtype), digits.y[:8]
    x_adv = SPSA(model, 0.3, steps=10, samples=16, step_size=0.05)(x, y)
    assert x_adv.dtype == dtype
    assert bool((model(x_adv).argmax(1) != y).any())
