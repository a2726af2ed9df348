"""Losses against autograd and by hand, verdicts by hand, the vote histogram against a loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.reference import count_votes

BOTH = pytest.mark.parametrize("rooms", [ops, reference], ids=["ops", "reference"])


def by_autograd(value, logits: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    result = value(leaf, y, target)
    return result.detach(), torch.autograd.grad(result.sum(), leaf)[0]


def logit_of(z: Tensor, y: Tensor) -> Tensor:
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
    "margin": lambda z, y, t: other(z, y) - logit_of(z, y),
    "targeted_margin": lambda z, y, t: logit_of(z, t) - other(z, t),
    "lead_of_target": lambda z, y, t: logit_of(z, t) - logit_of(z, y),
    "dlr": lambda z, y, t: -(logit_of(z, y) - other(z, y)) / (down(z, 0) - down(z, 2) + 1e-12),
    "targeted_dlr": lambda z, y, t: (logit_of(z, t) - other(z, t)) / targeted_scale(z),
    "dlr_toward": lambda z, y, t: -(logit_of(z, y) - logit_of(z, t)) / targeted_scale(z),
}


@BOTH
@pytest.mark.parametrize("name", FORMULAS)
@settings(max_examples=12)
@given(data=st.data())
def test_value_and_derivative(rooms, name: str, data: st.DataObject) -> None:
    classes, rows = data.draw(st.integers(4, 12)), data.draw(st.integers(1, 6))
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    logits = torch.rand(rows, classes, generator=draw, dtype=torch.float64) * 8 - 4
    y, target = (
        torch.tensor(data.draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))) for _ in "yt"
    )
    before = logits.clone()
    value, slope, size = rooms.logit_loss(logits, y, target, name)
    wanted_value, wanted_slope = by_autograd(FORMULAS[name], logits, y, target)
    torch.testing.assert_close(value, wanted_value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slope * size[:, None], wanted_slope, rtol=1e-9, atol=1e-12)
    largest = slope.abs().amax(1)
    torch.testing.assert_close(largest, (largest > 0).double(), rtol=1e-12, atol=0)
    assert torch.equal(logits, before)


@BOTH
def test_cross_entropy_where_the_softmax_rounds_to_one(rooms) -> None:
    y = torch.tensor([0])
    value, slope, size = rooms.logit_loss(torch.tensor([[60.0, 0.0, 10.0]]), y, y, "cross_entropy")
    assert value.tolist() == pytest.approx([math.exp(-50)], rel=1e-4)
    assert size.tolist() == pytest.approx([math.exp(-50)], rel=1e-4)  # softmax(z) - 1 would be 0
    assert slope[0].tolist() == pytest.approx([-1.0, math.exp(-10), 1.0], rel=1e-4)
    value, slope, size = rooms.logit_loss(torch.tensor([[1e4, -1e4]]), y + 1, y, "cross_entropy")
    assert (value.tolist(), slope.tolist(), size.tolist()) == ([2e4], [[1.0, -1.0]], [1.0])
    # Even a probability of exp(-20000) has a direction.
    value, slope, size = rooms.logit_loss(torch.tensor([[1e4, -1e4]]), y, y, "cross_entropy")
    assert (value.tolist(), slope.tolist(), size.tolist()) == ([0.0], [[-1.0, 1.0]], [0.0])


@BOTH
def test_ties_go_to_the_first_class(rooms) -> None:
    logits, y, target = torch.tensor([[1.0, 4.0, 2.0, 2.0]]), torch.tensor([1]), torch.tensor([0])

    def loss(name: str) -> list[list]:
        return [tensor.tolist()[0] for tensor in rooms.logit_loss(logits, y, target, name)]

    assert loss("margin") == [-2.0, [0.0, -1.0, 1.0, 0.0], 1.0]
    assert loss("targeted_margin") == [-3.0, [1.0, -1.0, 0.0, 0.0], 1.0]
    assert loss("lead_of_target") == [-3.0, [1.0, -1.0, 0.0, 0.0], 1.0]


@BOTH
def test_losses_of_non_finite_logits(rooms) -> None:
    inf, nan, y = math.inf, math.nan, torch.tensor([0])

    def loss(name: str, *row: float) -> tuple[float, list[float]]:
        value, slope, _ = rooms.logit_loss(torch.tensor([row]), y, y + (len(row) > 1), name)
        return value.item(), slope[0].tolist()

    for name in ops.logits.LOSSES:
        assert math.isnan(loss(name, nan, 1.0, 0.0, 0.0)[0]), name
        assert math.isnan(loss(name, 1.0, nan, 0.0, 0.0)[0]), name
    assert loss("cross_entropy", 1.0, -inf, -inf) == (0.0, [0.0, 0.0, 0.0])
    assert loss("cross_entropy", 1.0) == (0.0, [0.0])
    assert loss("cross_entropy", -inf, 2.0, -inf) == (inf, [-1.0, 1.0, 0.0])
    assert loss("cross_entropy", inf, 2.0, -inf) == (0.0, [-1.0, 1.0, 0.0])
    assert math.isnan(loss("cross_entropy", 0.0, inf)[0])
    assert loss("margin", 1.0, -inf) == (-inf, [-1.0, 1.0])
    assert loss("margin", 1.0, inf) == (inf, [-1.0, 1.0])
    assert loss("lead_of_target", inf, 1.0) == (-inf, [-1.0, 1.0])


@BOTH
def test_verdicts_by_hand(rooms) -> None:
    inf, nan = math.inf, math.nan
    rows = [[2.0, 1.0], [1.0, 2.0], [1.0, 1.0], [1.0, 0.75], [0.75, 1.0], [nan, 1.0], [1.0, inf], [1.0, -inf]]
    logits, y = torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64)

    def verdicts(**options) -> list[int]:
        return rooms.logit_verdict(logits, y, **options).tolist()

    assert verdicts() == [0, 1, 2, 0, 1, 2, 2, 2]
    assert verdicts(tolerance=0.25) == [0, 1, 2, 0, 2, 2, 2, 2]
    assert verdicts(tolerance=0.25, both=True) == [0, 1, 2, 2, 2, 2, 2, 2]
    assert verdicts(targeted=True) == [1, 0, 2, 1, 0, 2, 2, 2]
    assert verdicts(targeted=True, tolerance=0.25) == [1, 0, 2, 2, 0, 2, 2, 2]
    assert verdicts(targeted=True, tolerance=0.25, both=True) == [1, 0, 2, 2, 2, 2, 2, 2]
    # A third class at -inf makes the scale infinite: unclear verdicts count as close.
    third = torch.tensor([[1.0, 2.0, -inf], [2.0, 1.0, -inf]])
    assert rooms.logit_verdict(third, y[:2], tolerance=1e-3).tolist() == [2, 0]
    assert rooms.logit_verdict(torch.tensor([[1.0]]), y[:1]).tolist() == [2]


# --- votes

VALUES = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 65504.0]


def winner(row: list[float]) -> int:
    if any(math.isnan(value) or value == math.inf for value in row) or max(row) == -math.inf:
        return len(row)
    return row.index(max(row))  # ties go to the first


@given(
    st.integers(1, 6).flatmap(
        lambda classes: st.lists(
            st.tuples(st.lists(st.sampled_from(VALUES), min_size=classes, max_size=classes), st.integers(0, 2)),
            min_size=1,
            max_size=20,
        )
    ),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_against_a_loop(rows: list[tuple[list[float], int]], dtype: torch.dtype) -> None:
    classes = len(rows[0][0])
    want = [[5] * (classes + 1) for _ in range(3)]
    for row, image in rows:
        want[image][winner(row)] += 1
    counts = torch.full((3, classes + 1), 5)
    logits = torch.tensor([row for row, _ in rows], dtype=dtype)
    assert count_votes(logits, torch.tensor([image for _, image in rows]), counts) is counts
    assert counts.tolist() == want


@pytest.mark.parametrize("classes", [1, 10])
def test_no_rows(classes: int) -> None:
    counts = torch.zeros(0, classes + 1, dtype=torch.int64)
    assert count_votes(torch.empty(0, classes), torch.empty(0, dtype=torch.int64), counts).shape == (0, classes + 1)
