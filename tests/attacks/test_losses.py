"""The objectives against autograd and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from attack_models import random
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyrobust.attacks import losses
from pyrobust.errors import InputError


def by_autograd(value, logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    result = value(leaf, y, target)
    return result.detach(), torch.autograd.grad(result.sum(), leaf)[0]


def own(z: Tensor, y: Tensor) -> Tensor:
    return z.gather(1, y[:, None])[:, 0]


def other(z: Tensor, y: Tensor) -> Tensor:
    return z.masked_fill(torch.nn.functional.one_hot(y, z.shape[1]).bool(), -math.inf).amax(1)


def down(z: Tensor, k: int) -> Tensor:
    return z.sort(dim=1, descending=True).values[:, k]


def targeted_scale(z: Tensor) -> Tensor:
    return down(z, 0) - (down(z, 2) + down(z, 3)) / 2 + 1e-12


FORMULAS = {
    "cross_entropy": lambda z, y, t: torch.nn.functional.cross_entropy(z, y, reduction="none"),
    "targeted_cross_entropy": lambda z, y, t: -torch.nn.functional.cross_entropy(z, t, reduction="none"),
    "margin": lambda z, y, t: other(z, y) - own(z, y),
    "targeted_margin": lambda z, y, t: own(z, t) - other(z, t),
    "dlr": lambda z, y, t: -(own(z, y) - other(z, y)) / (down(z, 0) - down(z, 2) + 1e-12),
    "targeted_dlr": lambda z, y, t: (own(z, t) - other(z, t)) / targeted_scale(z),
    "dlr_toward": lambda z, y, t: -(own(z, y) - own(z, t)) / targeted_scale(z),
}


@pytest.mark.parametrize("name", FORMULAS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_value_and_derivative(name: str, data: st.DataObject) -> None:
    classes, rows = data.draw(st.integers(4, 12)), data.draw(st.integers(1, 6))
    logits = random(rows, classes, seed=data.draw(st.integers(0, 999)), dtype=torch.float64) * 8 - 4
    y, target = (
        torch.tensor(data.draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))) for _ in "yt"
    )
    before = logits.clone()
    got = getattr(losses, name)(logits, y, target)
    for mine, wanted in zip(got, by_autograd(FORMULAS[name], logits, y, target), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-12)
    assert torch.equal(logits, before)


def test_cross_entropy_where_the_softmax_rounds_to_one() -> None:
    value, slope = losses.cross_entropy(torch.tensor([[60.0, 0.0, 10.0]]), torch.tensor([0]), torch.tensor([0]))
    assert value.tolist() == pytest.approx([math.exp(-50)])
    assert slope[0, 0] < 0  # softmax(z) - 1 would be 0
    assert slope[0, 0] == -(slope[0, 1] + slope[0, 2])
    value, slope = losses.cross_entropy(torch.tensor([[1e4, -1e4]]), torch.tensor([1]), torch.tensor([0]))
    assert value.tolist() == [2e4]
    assert slope.tolist() == [[1.0, -1.0]]


def test_names() -> None:
    logits, y = random(2, 5), torch.tensor([0, 1])
    for name in losses.LOSSES:
        for targeted in (False, True):
            value, slope = losses.named_loss(logits, y, y, name=name, targeted=targeted)
            assert value.shape == (2,)
            assert slope.shape == (2, 5)
    for name in ("hinge", None, ""):
        with pytest.raises(InputError, match=r"^loss: expected one of ce, margin, dlr, got"):
            losses.check_loss(name, losses.LOSSES)


@pytest.mark.parametrize(("name", "targeted", "least"), [("dlr", False, 3), ("dlr", True, 4), ("margin", False, 2)])
def test_too_few_classes(name: str, targeted: bool, least: int) -> None:
    y = torch.tensor([0])
    losses.named_loss(random(1, least), y, y, name=name, targeted=targeted)
    with pytest.raises(InputError, match=rf"^loss: expected at least {least} classes"):
        losses.named_loss(random(1, least - 1), y, y, name=name, targeted=targeted)
