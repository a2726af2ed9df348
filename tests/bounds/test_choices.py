"""Bounds over products of finite sets: exact where the network is linear, sound everywhere in exact arithmetic."""

from __future__ import annotations

import functools
import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel, Choices
from pyrobust.errors import InputError, InputTypeError

PARTS, POINTS, SIZE, HIDDEN = 3, 3, 2, 3
METHODS = ("ibp", "crown-ibp", "crown")
NUMBERS = st.one_of(
    st.floats(-2, 2, width=32),
    st.sampled_from([0.0, 1e-40, -1e-30, 1 / 3, 1e10, -1e20]).map(lambda v: torch.tensor(v).item()),
)


class Net(nn.Module):
    """The mean of the parts and a linear layer; or a convolution over them, ReLU, and the mean or the maximum."""

    def __init__(self, pool: str, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.pool = pool
        self.conv = nn.Conv1d(SIZE, HIDDEN, 2)
        self.out = nn.Linear(SIZE if pool == "linear" else HIDDEN, 3)
        self.to(dtype).eval()

    def forward(self, x: Tensor) -> Tensor:
        if self.pool == "linear":
            return self.out(x.mean(1))
        z = torch.relu(self.conv(x.transpose(1, 2)))
        return self.out(z.amax(2) if self.pool == "max" else z.mean(2))

    def exact(self, x: Tensor) -> list[Fraction]:
        """The outputs in exact arithmetic, of one input [P, m]."""
        words = [[Fraction(v) for v in row] for row in x.tolist()]
        if self.pool == "linear":
            pooled = [sum(column) / len(words) for column in zip(*words, strict=True)]
        else:
            weight, bias = self.conv.weight.tolist(), self.conv.bias.tolist()
            hidden = [
                [
                    max(
                        Fraction(0),
                        Fraction(bias[h])
                        + sum(Fraction(weight[h][d][k]) * words[p + k][d] for d in range(SIZE) for k in range(2)),
                    )
                    for p in range(len(words) - 1)
                ]
                for h in range(HIDDEN)
            ]
            pooled = [max(row) if self.pool == "max" else sum(row) / len(row) for row in hidden]
        return [
            Fraction(b) + sum(Fraction(w) * z for w, z in zip(row, pooled, strict=True))
            for row, b in zip(self.out.weight.tolist(), self.out.bias.tolist(), strict=True)
        ]


@functools.cache
def bounded(pool: str, dtype: torch.dtype) -> BoundedModel:
    return BoundedModel(Net(pool, dtype), torch.zeros(1, PARTS, SIZE, dtype=dtype))


def inputs(points: Tensor, changes: int) -> Tensor:
    """All inputs [N, P, m] of one set [K, P, m]."""
    every = itertools.product(range(len(points)), repeat=PARTS)
    return torch.stack([points[list(c), range(PARTS)] for c in every if sum(map(bool, c)) <= changes])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pool", ["linear", "mean", "max"])
@settings(max_examples=8)
@given(
    values=st.lists(NUMBERS, min_size=PARTS * POINTS * SIZE, max_size=PARTS * POINTS * SIZE),
    changes=st.integers(0, 3),
    method=st.sampled_from(METHODS),
)
def test_exact_outputs_are_inside(
    pool: str, dtype: torch.dtype, values: list[float], changes: int, method: str
) -> None:
    points = torch.tensor(values, dtype=dtype).view(1, POINTS, PARTS, SIZE)
    model, choices = bounded(pool, dtype), Choices(points, changes)
    every = inputs(points[0], changes)
    outputs = [model.model.exact(x) for x in every]
    margins = [min(row[0] - row[j] for row in outputs) for j in (1, 2)]
    result = model.bounds(choices=choices, method=method)
    for j, (low, high) in enumerate(zip(result.lower[0].tolist(), result.upper[0].tolist(), strict=True)):
        assert Fraction(low) <= min(row[j] for row in outputs)
        assert Fraction(high) >= max(row[j] for row in outputs)
    lower = model.margins(y=[0], choices=choices, method=method).lower[0].tolist()
    assert all(Fraction(low) <= value for low, value in zip(lower, margins, strict=True))
    if pool == "linear":
        rounding = 1e-12 * (1 + points.abs().max().item())
        assert all(value - Fraction(low) <= rounding for low, value in zip(lower, margins, strict=True))
    deployed, forward = model.bounds(choices=choices, method=method, semantics="float32"), model.model(every).double()
    assert bool(((deployed.lower <= forward) & (forward <= deployed.upper)).all())


def test_limits_of_each_example_and_memory() -> None:
    points = torch.randn(9, POINTS, PARTS, SIZE, generator=torch.Generator().manual_seed(0))
    changes = torch.arange(9) % 5
    model = bounded("mean", torch.float32)
    whole = model.margins(y=[1] * 9, choices=Choices(points, changes), method="crown-ibp").lower
    apart = [
        model.margins(y=[1], choices=Choices(points[i : i + 1], int(changes[i])), method="crown-ibp").lower
        for i in range(9)
    ]
    small = model.margins(y=[1] * 9, choices=Choices(points, changes), method="crown-ibp", memory_limit=40_000).lower
    torch.testing.assert_close(whole, torch.cat(apart), rtol=0, atol=1e-12)
    torch.testing.assert_close(whole, small, rtol=0, atol=1e-12)
    hull = model.margins(y=[1] * 9, x_lower=points.amin(1), x_upper=points.amax(1), method="crown-ibp").lower
    assert bool((whole >= hull - 1e-12).all())
    assert bool((whole > hull + 1e-3).any())


def test_linear_and_intermediate_bounds_hold_on_the_sets() -> None:
    points = torch.randn(1, POINTS, PARTS, SIZE, generator=torch.Generator().manual_seed(1))
    model, choices = bounded("mean", torch.float32), Choices(points, 2)
    every = inputs(points[0], 2).double()
    hidden = nn.functional.conv1d(
        every.transpose(1, 2), model.model.conv.weight.double(), model.model.conv.bias.double()
    ).detach()
    ranges = model.intermediate_bounds(choices=choices)["conv (aten.conv1d)"]
    torch.testing.assert_close(ranges.lower.view_as(hidden[:1])[0], hidden.amin(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(ranges.upper.view_as(hidden[:1])[0], hidden.amax(0), rtol=0, atol=1e-12)
    linear = model.linear_bounds(choices=choices)
    below = (linear.lower_A[0] * every[:, None]).sum((2, 3)) + linear.lower_b
    assert bool((below <= model.model(every.float()).double() + 1e-6).all())


def test_rounding_of_the_sums_over_the_points_alone() -> None:
    """Rows of the input itself, which nothing but the minimum over the points rounds."""
    torch.manual_seed(0)
    model = BoundedModel(nn.Flatten().eval(), torch.zeros(1, PARTS, SIZE, dtype=torch.float64))
    points, rows = torch.randn(60, POINTS, PARTS, SIZE, dtype=torch.float64), torch.randn(1, PARTS * SIZE).double()
    points[::2] *= 10.0 ** torch.randint(-8, 9, (30, 1, PARTS, SIZE))  # the sums cancel
    for changes in (1, 3):
        lower = model.bounds(choices=Choices(points, changes), C=rows).lower[:, 0].tolist()
        for bound, own in zip(lower, points, strict=True):
            every = inputs(own, changes).flatten(1).tolist()
            exact = min(sum(Fraction(a) * Fraction(v) for a, v in zip(rows[0].tolist(), x, strict=True)) for x in every)
            assert Fraction(bound) <= exact
            assert exact - Fraction(bound) <= 1e-11 * own.abs().max().item()


def test_sums_that_overflow_on_the_way_prove_nothing() -> None:
    model = BoundedModel(nn.Flatten().eval(), torch.zeros(1, 1, 4, dtype=torch.float64))
    points = torch.tensor([[[[0.5, 0.0, 0.0, 0.0]], [[1.0, 1.0, -1.0, -1.0]]]], dtype=torch.float64)
    rows = 1.7e308 * torch.ones(1, 4, dtype=torch.float64)
    assert model.bounds(choices=Choices(points), C=rows).lower.item() <= 0


def test_huge_points_prove_nothing_false() -> None:
    points = torch.zeros(1, 2, PARTS, SIZE, dtype=torch.float64)
    points[0, 1] = 1.7e308
    for pool, method in itertools.product(("linear", "mean", "max"), METHODS):
        for changes in (1, 3):
            lower = bounded(pool, torch.float64).margins(y=[0], choices=Choices(points, changes), method=method).lower
            outputs = [bounded(pool, torch.float64).model.exact(x) for x in inputs(points[0], changes)]
            exact = [min(row[0] - row[j] for row in outputs) for j in (1, 2)]
            assert all(
                low == float("-inf") or Fraction(low) <= e for low, e in zip(lower[0].tolist(), exact, strict=True)
            )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.zeros(1, 2, PARTS, SIZE), -1), InputError, "changes: expected"),
        ((torch.zeros(1, 2, PARTS, SIZE), 1.5), InputTypeError, "changes: expected"),
        ((torch.zeros(1, 2, PARTS, SIZE), torch.ones(2).long()), InputError, r"changes: .* tensor \[1\]"),
        ((torch.zeros(1, 2, PARTS, SIZE), torch.ones(1)), InputTypeError, "changes: expected integers"),
        ((torch.zeros(1, 2, PARTS, SIZE), torch.tensor([-1])), InputError, "changes: expected at least 0"),
        ((torch.zeros(1, 0, PARTS, SIZE),), InputError, "points: expected shape"),
        ((torch.zeros(1, PARTS),), InputError, "points: expected shape"),
        ((torch.zeros(1, 2, PARTS, SIZE).fill_(torch.nan),), InputError, "points: expected finite"),
        ((["1"],), InputTypeError, "points: expected"),
    ],
)
def test_wrong_sets(arguments: tuple[object, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Choices(*arguments)


def test_wrong_calls() -> None:
    model = bounded("mean", torch.float32)
    choices = Choices(torch.zeros(1, 2, PARTS, SIZE))
    with pytest.raises(InputError, match="choices: expected no x"):
        model.bounds(torch.zeros(1, PARTS, SIZE), 0.1, choices=choices)
    with pytest.raises(InputError, match="choices: expected points"):
        model.bounds(choices=Choices(torch.zeros(1, 2, PARTS + 1, SIZE)))
    with pytest.raises(InputTypeError, match="choices: expected Choices"):
        model.bounds(choices=torch.zeros(1, 2, PARTS, SIZE))
