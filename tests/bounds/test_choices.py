"""Bounds over products of finite sets: exact where the network is linear, sound everywhere in exact arithmetic."""

from __future__ import annotations

import functools
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.bounds.exact import exact_of
from support.bounds.nets import Moved
from support.bounds.sets import values_at, violated
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel, Choices
from pyrobust.bounds.specification import margins
from pyrobust.errors import InputError, InputTypeError

PARTS, POINTS, SIZE, HIDDEN = 3, 3, 2, 3
METHODS = ("ibp", "crown-ibp", "crown")
NUMBERS = st.one_of(
    st.floats(-2, 2, width=32),
    st.sampled_from([0.0, 1e-40, -1e-30, 1 / 3, 1e10, -1e20]).map(lambda v: torch.tensor(v).item()),
)


def net(name: str) -> nn.Sequential:
    torch.manual_seed(3)
    if name == "linear":
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(PARTS * SIZE, 3)]
    else:
        layers = [Moved(lambda x: x.mT), nn.Conv1d(SIZE, HIDDEN, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * HIDDEN, 3)]
    return nn.Sequential(*layers).eval().requires_grad_(False)


@functools.cache
def bounded(name: str, dtype: torch.dtype = torch.float32) -> BoundedModel:
    return BoundedModel(net(name).to(dtype), torch.zeros(1, PARTS, SIZE, dtype=dtype))


def inputs(points: Tensor, changes: int) -> Tensor:
    """All inputs [N, P, m] of one set [K, P, m]."""
    every = itertools.product(range(len(points)), repeat=PARTS)
    return torch.stack([points[list(c), range(PARTS)] for c in every if sum(map(bool, c)) <= changes])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["linear", "convolution"])
@settings(max_examples=10)
@given(
    values=st.lists(NUMBERS, min_size=PARTS * POINTS * SIZE, max_size=PARTS * POINTS * SIZE),
    changes=st.integers(0, 3),
    method=st.sampled_from(METHODS),
)
@example([0.0] * 12 + [1.7e38] * 6, 1, "crown")
@example([0.0] * 12 + [1.7e38] * 6, 3, "crown-ibp")
def test_exact_outputs_are_inside(
    name: str, dtype: torch.dtype, values: list[float], changes: int, method: str
) -> None:
    points = torch.tensor(values, dtype=dtype).view(1, POINTS, PARTS, SIZE)
    if points.abs().max() > 1e38 and dtype == torch.float64:
        points *= 1e270
    model, choices = bounded(name, dtype), Choices(points, changes)
    every = inputs(points[0], changes)
    for rows, bounds in (
        (torch.eye(3, dtype=torch.float64)[None], model.bounds(choices=choices, method=method)),
        (margins(torch.tensor([0]), 3), model.margins(y=[0], choices=choices, method=method)),
    ):
        exact = values_at(exact_of(every), model.model, rows)
        assert violated(exact, bounds.lower, bounds.upper) == 0
        if name == "linear" and points.abs().max() < 1e38:
            least = np.min(exact.lower, 0) / exact.divisor
            rounding = 1e-12 * (1 + points.abs().max().item())
            assert (least - bounds.lower.numpy() <= rounding).all()
    deployed, forward = model.bounds(choices=choices, method=method, semantics="float32"), model.model(every).double()
    assert bool(((deployed.lower <= forward) & (forward <= deployed.upper) | forward.isnan()).all())


def test_limits_of_each_example_and_memory() -> None:
    points = torch.randn(9, POINTS, PARTS, SIZE, generator=torch.Generator().manual_seed(0))
    changes = torch.arange(9) % 5
    model = bounded("convolution")
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
    model, choices = bounded("convolution"), Choices(points, 2)
    every = inputs(points[0], 2).double()
    hidden = nn.functional.conv1d(
        every.transpose(1, 2), model.model[1].weight.double(), model.model[1].bias.double()
    ).detach()
    ranges = model.intermediate_bounds(choices=choices)["1 (aten.conv1d)"]
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
        for bound, point_set in zip(lower, points, strict=True):
            every = inputs(point_set, changes).flatten(1).tolist()
            exact = min(sum(Fraction(a) * Fraction(v) for a, v in zip(rows[0].tolist(), x, strict=True)) for x in every)
            assert Fraction(bound) <= exact
            assert exact - Fraction(bound) <= 1e-11 * point_set.abs().max().item()


def test_sums_that_overflow_on_the_way_prove_nothing() -> None:
    model = BoundedModel(nn.Flatten().eval(), torch.zeros(1, 1, 4, dtype=torch.float64))
    points = torch.tensor([[[[0.5, 0.0, 0.0, 0.0]], [[1.0, 1.0, -1.0, -1.0]]]], dtype=torch.float64)
    rows = 1.7e308 * torch.ones(1, 4, dtype=torch.float64)
    assert model.bounds(choices=Choices(points), C=rows).lower.item() <= 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.zeros(1, 2, PARTS, SIZE), -1), InputError, "changes: expected"),
        ((torch.zeros(1, 2, PARTS, SIZE), 1.5), InputTypeError, "changes: expected"),
        ((torch.zeros(1, 2, PARTS, SIZE), torch.ones(2).long()), InputError, r"changes: .* tensor \[1\]"),
        ((torch.zeros(1, 2, PARTS, SIZE), torch.tensor([-1])), InputError, "changes: expected at least 0"),
        ((torch.zeros(1, 0, PARTS, SIZE),), InputError, "points: expected shape"),
        ((torch.zeros(1, 2, PARTS, SIZE).fill_(torch.nan),), InputError, "points: expected finite"),
    ],
)
def test_wrong_sets(arguments: tuple[object, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Choices(*arguments)


def test_wrong_calls() -> None:
    model = bounded("convolution")
    choices = Choices(torch.zeros(1, 2, PARTS, SIZE))
    with pytest.raises(InputError, match="choices: expected no x"):
        model.bounds(torch.zeros(1, PARTS, SIZE), 0.1, choices=choices)
    with pytest.raises(InputError, match="choices: expected points"):
        model.bounds(choices=Choices(torch.zeros(1, 2, PARTS + 1, SIZE)))
    with pytest.raises(InputTypeError, match="choices: expected Choices"):
        model.bounds(choices=torch.zeros(1, 2, PARTS, SIZE))
