"""Argument errors of the five projections."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from projection_inputs import OPS, REALS, call, normal_values, raw

from pyrobust import ops
from pyrobust.errors import InputError, InputTypeError

INFINITE = (math.nan, math.inf, -math.inf)


@pytest.mark.parametrize("op", OPS)
def test_a_bad_radius(op: str) -> None:
    v = torch.zeros(2, 3)
    for value in (-1.0, -1e-300, *INFINITE):
        for radius in (value, *(torch.tensor(values, dtype=torch.float64) for values in (value, [1.0, value]))):
            with pytest.raises(InputError, match=rf"^{op}: radius: expected .* got"):
                call(op, v, radius)
    for shape in ((3,), (1, 2), (2, 1), (0,), (2, 2)):
        with pytest.raises(InputError, match=rf"^{op}: radius: expected a shape that broadcasts to \(2,\), got"):
            call(op, v, torch.ones(shape))
    for wrong in ("1", None, [1.0], torch.tensor(1), torch.tensor([1, 2]), 1j):
        with pytest.raises(InputTypeError, match=rf"^{op}: radius: expected .* got"):
            call(op, v, wrong)
    with pytest.raises(InputError, match=rf"^{op}: radius: expected it on cpu, got meta"):
        call(op, v, torch.ones(2, device="meta"))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [1, 8, 19, 300])
def test_a_non_finite_v(op: str, size: int) -> None:
    name = "delta" if op == "project_l1_ball_box" else "v"
    for value, dtype in itertools.product(INFINITE, REALS):
        for place in {0, size // 2, size - 1}:
            v = normal_values(5, size, dtype=dtype)
            v[3, place] = value
            with pytest.raises(InputError, match=rf"^{op}: {name}: expected finite numbers, got {value} in row 3$"):
                call(op, v, 0.5)


@pytest.mark.parametrize("op", OPS)
def test_a_v_of_another_type_or_shape(op: str) -> None:
    name = "delta" if op == "project_l1_ball_box" else "v"
    for dtype in (torch.int64, torch.uint8, torch.bool, torch.cfloat):
        with pytest.raises(InputTypeError, match=rf"^{op}: {name}: expected a float tensor, got torch"):
            call(op, torch.zeros(2, 3, dtype=dtype), 1.0)
    with pytest.raises(InputError, match=rf"^{op}: {name}: expected .*, got a scalar"):
        call(op, torch.tensor(1.0), 1.0)
    arguments = ([1.0], torch.zeros(1), 1.0) if op == "project_l1_ball_box" else ([1.0], 1.0)
    with pytest.raises(InputTypeError, match=rf"^{op}: {name}: expected a tensor, got list"):
        getattr(ops, op)(*arguments)


X = torch.full((2, 3), 0.5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": X[:, :2]}, InputError, r"delta: expected the shape of x, \(2, 2\), got \(2, 3\)"),
        ({"x": X[0]}, InputError, r"delta: expected the shape of x, \(3,\), got \(2, 3\)"),
        ({"x": X.to("meta")}, InputError, "delta: expected x's device, meta, got cpu"),
        ({"x": X.double()}, InputTypeError, "delta: expected x's dtype, torch.float64, got torch.float32"),
        ({"x": X.long()}, InputTypeError, "x: expected a float tensor, got torch.int64"),
        ({"x": None}, InputTypeError, "x: expected a tensor, got NoneType"),
        ({"x": X * torch.tensor([[1], [2 + 2**-22]])}, InputError, r"x: .* in \[0, 1\], got 1.00000012 in row 1"),
        ({"x": X * torch.tensor([[1], [-2.8e-45]])}, InputError, r"x: .* in \[0, 1\], got -1.4.*e-45 in row 1"),
        ({"x": X / X.new_tensor([[1], [0]])}, InputError, r"x: expected values in \[0, 1\], got inf in row 1"),
        ({"x": X * torch.nan}, InputError, r"x: expected values in \[0, 1\], got nan in row 0"),
        ({"lower": math.nan}, InputError, "lower, upper: expected finite numbers, lower <= upper, got nan, 1.0"),
        ({"lower": -math.inf}, InputError, "lower, upper: expected finite numbers, lower <= upper, got -inf, 1.0"),
        ({"upper": -0.5}, InputError, "lower, upper: expected finite numbers, lower <= upper, got 0.0, -0.5"),
        ({"lower": "0"}, InputTypeError, "lower: expected .*, got '0'"),
        ({"upper": None}, InputTypeError, "upper: expected .*, got None"),
        # The float32 nearest to 0.3 lies above it.
        ({"x": X * 0.6, "upper": 0.3}, InputError, r"x: expected values in \[0, 0.3\], got 0.300000012 in row 0"),
    ],
)
def test_bad_arguments_of_the_box(change: dict[str, object], error: type[Exception], message: str) -> None:
    arguments = {"delta": torch.full((2, 3), 7.0), "x": X, "radius": 1.0, "lower": 0.0, "upper": 1.0}
    with pytest.raises(error, match=rf"^project_l1_ball_box: {message}$"):
        ops.project_l1_ball_box(**arguments | change)


@pytest.mark.parametrize("op", OPS)
def test_the_raw_op_refuses_too(op: str) -> None:
    good, unit_radius = torch.zeros(2, 3), torch.ones(1, dtype=torch.float64)
    bad_v = [torch.zeros(3), torch.zeros(2, 3, 1), torch.zeros(3, 2).T, torch.zeros(2, 3).long()]
    bad_radius = [
        unit_radius.float(),
        unit_radius[0],
        torch.ones(3, dtype=torch.float64),
        torch.ones(4, dtype=torch.float64)[::2],
        *(unit_radius * value for value in (-1.0, math.nan, math.inf)),
    ]
    for v, radius in [*((v, unit_radius) for v in bad_v), *((good, radius) for radius in bad_radius)]:
        function, arguments = raw(op, v, radius)
        with pytest.raises(RuntimeError, match=rf"^{op}: \w+.*: expected"):
            function(*arguments)
