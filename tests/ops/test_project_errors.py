"""Argument errors of the five projections."""

from __future__ import annotations

import math

import pytest
import torch
from projection_inputs import OPS, REALS, call, normal_values, raw
from torch import Tensor

from pyrobust import ops
from pyrobust.errors import InputError, InputTypeError


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("value", [-1.0, -1e-300, math.nan, math.inf, -math.inf])
def test_a_bad_radius(op: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"^{op}: radius: expected .* got"):
        call(op, torch.zeros(2, 3), value)
    for radius in (torch.tensor(value, dtype=torch.float64), torch.tensor([1.0, value], dtype=torch.float64)):
        with pytest.raises(InputError, match=rf"^{op}: radius: expected .* got"):
            call(op, torch.zeros(2, 3), radius)


@pytest.mark.parametrize("op", OPS)
def test_a_radius_of_another_shape_type_or_device(op: str) -> None:
    v = torch.zeros(2, 3)
    for shape in ((3,), (1, 2), (2, 1), (0,), (2, 2)):
        with pytest.raises(InputError, match=rf"^{op}: radius: expected a shape that broadcasts to \(2,\), got"):
            call(op, v, torch.ones(shape))
    for wrong in ("1", None, [1.0], torch.tensor(1), torch.tensor([1, 2]), 1j):
        with pytest.raises(InputTypeError, match=rf"^{op}: radius: expected .* got"):
            call(op, v, wrong)
    with pytest.raises(InputError, match=rf"^{op}: radius: expected it on cpu, got meta"):
        call(op, v, torch.ones(2, device="meta"))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1, 8, 19, 300])
def test_a_non_finite_v(op: str, value: float, size: int) -> None:
    name = "delta" if op == "project_l1_ball_box" else "v"
    for place in {0, size // 2, size - 1}:
        v = normal_values(5, size)
        v[3, place] = value
        for dtype in REALS:
            with pytest.raises(InputError, match=rf"^{op}: {name}: expected .* in row 3"):
                call(op, v.to(dtype), 0.5)


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


BOX = {"delta": torch.zeros(2, 3), "x": torch.full((2, 3), 0.5), "radius": 1.0, "lower": 0.0, "upper": 1.0}


@pytest.mark.parametrize(
    ("argument", "value", "named"),
    [
        ("x", torch.full((2, 4), 0.5), "delta"),
        ("x", torch.full((3,), 0.5), "delta"),
        ("x", torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.5, 1.0000001]]), "x"),
        ("x", torch.tensor([[0.5, 0.5, 0.5], [-1e-45, 0.5, 0.5]]), "x"),
        ("x", torch.tensor([[0.5, math.nan, 0.5], [0.5, 0.5, 0.5]]), "x"),
        ("x", torch.full((2, 3), math.inf), "x"),
        ("lower", math.nan, "lower, upper"),
        ("lower", -math.inf, "lower, upper"),
        ("upper", -0.5, "lower, upper"),
        ("x", BOX["x"].to("meta"), "delta"),
    ],
)
def test_bad_values_of_the_box(argument: str, value: Tensor | float, named: str) -> None:
    with pytest.raises(InputError, match=rf"^project_l1_ball_box: {named}: expected .* got"):
        ops.project_l1_ball_box(**BOX | {argument: value})


@pytest.mark.parametrize(
    ("argument", "value", "named"),
    [
        ("x", BOX["x"].double(), "delta"),
        ("x", torch.zeros(2, 3, dtype=torch.int64), "x"),
        ("x", None, "x"),
        ("lower", "0", "lower"),
        ("upper", None, "upper"),
    ],
)
def test_bad_types_of_the_box(argument: str, value: object, named: str) -> None:
    with pytest.raises(InputTypeError, match=rf"^project_l1_ball_box: {named}: expected .* got"):
        ops.project_l1_ball_box(**BOX | {argument: value})


def test_the_ends_of_the_box_are_not_rounded() -> None:
    """Refuse x = float32(0.3) for the box [0, 0.3]: the float32 nearest to 0.3 lies above it."""
    x = torch.full((1, 2), 0.3)
    with pytest.raises(InputError, match=r"^project_l1_ball_box: x: expected .* row 0"):
        ops.project_l1_ball_box(torch.zeros(1, 2), x, 1.0, 0.0, 0.3)


@pytest.mark.parametrize("op", OPS)
def test_the_raw_op_refuses_too(op: str) -> None:
    good, unit_radius = torch.zeros(2, 3), torch.ones(1, dtype=torch.float64)
    bad_v = [torch.zeros(3), torch.zeros(2, 3, 1), torch.zeros(3, 2).T, torch.zeros(2, 3).long()]
    bad_radius = [
        unit_radius.float(),
        unit_radius[0],
        torch.ones(3, dtype=torch.float64),
        torch.ones(4, dtype=torch.float64)[::2],
        -unit_radius,
        unit_radius * math.nan,
        unit_radius * math.inf,
    ]
    for v, radius in [*((v, unit_radius) for v in bad_v), *((good, radius) for radius in bad_radius)]:
        function, arguments = raw(op, v, radius)
        with pytest.raises(RuntimeError, match=rf"^{op}: \w+.*: expected"):
            function(*arguments)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["project_simplex", "project_l1_ball", "project_l2_ball", "project_linf_ball"])
def test_the_first_value_that_is_not_finite_is_named(name: str, value: float) -> None:
    v = torch.zeros(3, 5)
    v[1, 2] = value
    with pytest.raises(InputError, match=rf"^{name}: v: expected finite numbers, got {value} in row 1$"):
        getattr(ops, name)(v, 1.0)


def test_the_first_value_outside_the_box_is_named() -> None:
    delta, x = torch.full((2, 4), 7.0), torch.full((2, 4), 0.5)
    x[1, 3] = 1.5
    with pytest.raises(InputError, match=r"x: expected values in \[0, 1\], got 1.5 in row 1$"):
        ops.project_l1_ball_box(delta, x, 1.0, 0.0, 1.0)
    delta[0, 1] = math.nan
    with pytest.raises(InputError, match=r"delta: expected finite numbers, got nan in row 0$"):
        ops.project_l1_ball_box(delta, torch.full((2, 4), 0.5), 1.0, 0.0, 1.0)
