"""Projections of rows whose elements span the whole exponent range, against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st
from projection_inputs import smallest
from torch import Tensor

from pyrobust import ops, reference

DTYPES = (torch.float32, torch.float64)


def threshold(sizes: list[Fraction], rooms: list[Fraction], radius: Fraction) -> Fraction:
    """Return the exact θ with Σ clip(a - θ, 0, u) = radius, for a sum that is above the radius at the lowest break."""

    def total(theta: Fraction) -> Fraction:
        return sum((min(max(a - theta, Fraction(0)), u) for a, u in zip(sizes, rooms, strict=True)), Fraction(0))

    breaks = sorted({*sizes, *(a - u for a, u in zip(sizes, rooms, strict=True))})
    low = max(theta for theta in breaks if total(theta) > radius)
    high = min(theta for theta in breaks if total(theta) <= radius)
    return low + (high - low) * (total(low) - radius) / (total(low) - total(high))


def exact_projection(op: str, v: list[float], x: list[float], radius: float) -> list[Fraction]:
    """Project one row in rational arithmetic; x is used by the box [0, 1] alone."""
    y, r = [Fraction(value) for value in v], Fraction(radius)
    if op == "project_linf_ball":
        return [max(-r, min(r, value)) for value in y]
    if op == "project_simplex":
        low = min(y) - 2 * r
        theta = threshold([*y, low], [max(y) - low] * len(y) + [Fraction(0)], r)
        return [max(value - theta, Fraction(0)) for value in y]
    sizes = [abs(value) for value in y]
    rooms = sizes
    if op == "project_l1_ball_box":
        points = map(Fraction, x)
        rooms = [min(abs(a), 1 - p if a > 0 else p) for a, p in zip(y, points, strict=True)]
    theta = threshold([*sizes, r], [*rooms, Fraction(0)], r) if sum(rooms) > r else Fraction(0)
    z = [min(max(a - theta, Fraction(0)), u) for a, u in zip(sizes, rooms, strict=True)]
    return [-a if value < 0 else a for a, value in zip(z, y, strict=True)]


def l2_distance_is_small(z: list[Fraction], v: list[float], radius: float, tolerance: Fraction) -> bool:
    """Return whether z is within the tolerance of v·min(1, radius / ‖v‖₂), by squares alone."""
    y, r = [Fraction(value) for value in v], Fraction(radius)
    squares = sum((value**2 for value in y), Fraction(0))
    if squares <= r**2:
        return z == y
    # A rational factor within 2⁻⁸⁰ of the exact one.
    shift = 2 ** (200 + 2 * max(0, -math.floor(math.log2(squares.numerator) - math.log2(squares.denominator))))
    factor = r * shift / math.isqrt(int(squares * shift**2))
    return sum(abs(a - b * factor) for a, b in zip(z, y, strict=True)) <= tolerance


numbers = st.builds(
    lambda mantissa, exponent: math.ldexp(mantissa, exponent), st.floats(-1, 1, width=16), st.integers(-140, 126)
) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e30, -1e30])
unit = st.sampled_from([0.0, 1.0, 0.5]) | st.floats(0, 1, width=32)
radii = st.builds(lambda m, e: math.ldexp(m, e), st.floats(0.5, 1), st.integers(-60, 60)) | st.just(1.0)
OPS = ("project_simplex", "project_l1_ball", "project_l1_ball_box", "project_l2_ball", "project_linf_ball")


def check(op: str, z: Tensor, v: Tensor, x: Tensor, radius: float) -> None:
    got = [Fraction(value) for value in z.tolist()]
    slack = Fraction(radius) / 10**6 + len(got) * Fraction(smallest(z.dtype))
    if op in ("project_l2_ball", "project_linf_ball"):  # radii in which every element is rounded
        slack *= len(got)
    where = f"{op} {z.dtype}: {v.tolist()}, x {x.tolist()}, radius {radius}, got {z.tolist()}"
    if op == "project_l2_ball":
        assert l2_distance_is_small(got, v.tolist(), radius, slack), where
        return
    want = exact_projection(op, v.tolist(), x.tolist(), radius)
    assert sum(abs(a - b) for a, b in zip(got, want, strict=True)) <= slack, where


@given(st.data(), st.integers(1, 9), st.sampled_from(DTYPES), st.integers(1, 3))
def test_rows_of_any_range(data: st.DataObject, size: int, dtype: torch.dtype, count: int) -> None:
    """Each row has a radius of its own; the oracle in float64 has to keep the tolerance as well."""
    rows = data.draw(st.lists(st.lists(numbers, min_size=size, max_size=size), min_size=count, max_size=count))
    points = data.draw(st.lists(st.lists(unit, min_size=size, max_size=size), min_size=count, max_size=count))
    each = data.draw(st.lists(radii, min_size=count, max_size=count))
    v, x, radius = torch.tensor(rows, dtype=dtype), torch.tensor(points, dtype=dtype), torch.tensor(each).double()
    for op in OPS:
        for module in (ops, reference):
            extra = (x,) if op == "project_l1_ball_box" else ()
            z = getattr(module, op)(v, *extra, radius)
            for i in range(count):
                check(op, z[i], v[i], x[i], each[i])
