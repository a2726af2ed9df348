"""The five projections: exact constraints, oracles, and the same bits however they run."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.op_inputs import lowest_level, same_bits
from support.projection_inputs import (
    BOXES,
    KINDS,
    LARGE,
    OPS,
    PLAIN,
    REALS,
    SIZES,
    SOME_KINDS,
    SOME_SIZES,
    Arguments,
    arguments,
    check,
    faults,
    fit,
    l1_holds,
    l2_holds,
    rows_of,
    run,
    smallest,
)
from torch import Tensor

from pyrobust import ops, reference

BOX = "project_l1_ball_box"
FLOATS = (torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_every_kind_and_size(op: str, kind: str, dtype: torch.dtype) -> None:
    # A third of the sizes: each kind has every size in one of the dtypes, each dtype has every size in some kinds.
    for i in range((list(KINDS).index(kind) + REALS.index(dtype)) % 3, len(SIZES), 3):
        case = arguments(op, kind, SIZES[i], dtype, box=BOXES[i % 4])
        check(op, case, run(op, case))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["normal", "spike", "sums that round"])
@pytest.mark.parametrize("op", OPS)
def test_large_rows(op: str, kind: str, dtype: torch.dtype) -> None:
    case = arguments(op, kind, LARGE, dtype, rows=2, box=BOXES[1])
    check(op, case, run(op, case))


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", ["project_l2_ball", "project_linf_ball"])
def test_at_the_sphere(op: str, dtype: torch.dtype) -> None:
    """Project points on the sphere, just inside and just outside: 1² + 2² + 2² = 3², scaled, with adjacent radii."""
    scale = 2.0 ** torch.arange(20).double().sub(10)
    v = (torch.tensor([1.0, -2.0, 2.0, 0.0, -0.0]).double() * scale[:, None]).to(dtype)
    side = torch.where(torch.arange(20) % 3 == 0, math.inf, -math.inf).double()
    radius = torch.where(torch.arange(20) % 3 == 1, 3 * scale, (3 * scale).nextafter(side))
    z = run(op, (v, radius))
    check(op, (v, radius), z)
    assert op != "project_l2_ball" or (z != v).any(1).tolist() == [row % 3 == 2 for row in range(20)]


@pytest.mark.parametrize("op", OPS)
def test_the_checks_detect_faults(op: str) -> None:
    """Detect the reference, close but rounded to nearest, and each planted fault."""
    case = arguments(op, "normal", 1000, torch.float32, rows=200, box=BOXES[1])
    flags, z = faults(op, case, run(op, case, reference)), run(op, case)
    assert op == "project_linf_ball" or not flags["far"].any()
    assert flags["off the simplex" if op == "project_simplex" else "outside"].sum() > 5
    wrong = {"far": z * (1 - 1e-5), "outside": z * (1 + 2**-20), "grown": -z, "unchanged outside": case[0]}
    if op == "project_simplex":
        wrong = {"far": wrong["far"]}
        for off in (z * (1 - 2**-18), z * (1 + 2**-20), z - 1e-30):
            assert faults(op, case, off)["off the simplex"].any()
    if op == "project_l2_ball":
        wrong["short"] = z * (1 - 2**-20)
    if op == BOX:
        assert flags["outside the box"].sum() > 100
        wrong["outside the box"] = z.nextafter(z * 2)
    for fault, result in wrong.items():
        assert faults(op, case, result)[fault].any(), fault
    if op in PLAIN[1:]:
        v, radius = rows_of("signed zeros", 4, 9, torch.float32)
        assert faults(op, (v, radius * 10), v + 0.0)["changed inside"].any()


def test_sums_of_squares_are_compared_exactly() -> None:
    radius = torch.tensor([3.0]).double()
    for coordinate, holds in ((0.0, True), (1e-30, False), (5e-324, False)):
        assert l2_holds(torch.tensor([[1.0, 2.0, 2.0, coordinate]], dtype=torch.float64), radius).all() == holds


# --- the same bits at every SIMD level, thread count and split


@functools.cache
def plain(op: str, kind: str, size: int, dtype: torch.dtype) -> Tensor:
    with lowest_level():
        return run(op, split_case(op, kind, size, dtype))


def split_case(op: str, kind: str, size: int, dtype: torch.dtype) -> Arguments:
    return arguments(op, kind, size, dtype, rows=12 if size < LARGE else 2, box=BOXES[1])


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_the_same_bits_at_every_level_and_thread_count(
    op: str, dtype: torch.dtype, simd_level: str, threads: int
) -> None:
    for number, kind in enumerate(SOME_KINDS):
        sizes = SOME_SIZES[(number + REALS.index(dtype)) % 3 :: 3]  # each dtype has every size in some kinds
        for size in [*sizes, LARGE] if (kind, dtype) == ("normal", torch.float32) else sizes:
            got = run(op, split_case(op, kind, size, dtype))
            assert same_bits(got, plain(op, kind, size, dtype)), (kind, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", OPS)
def test_the_same_bits_for_every_split_of_rows(op: str, dtype: torch.dtype, threads: int) -> None:
    for size in (1, 10, 129, 3072):
        case = arguments(op, "normal", size, dtype, rows=100, box=BOXES[1])
        tensors, ends = (case[:3], case[3:]) if op == BOX else (case, ())
        for cuts in ([1] * 100, [7, 60, 33]):
            parts = zip(*(t.split(cuts) for t in tensors), strict=True)
            assert same_bits(torch.cat([run(op, (*rows, *ends)) for rows in parts]), run(op, case))


@pytest.mark.parametrize("shape", [(5,), (4, 3, 8, 8), (2, 3, 5, 7), (2, 1, 4, 4), (3, 2, 2, 2, 2)])
def test_layouts_of_the_box(shape: tuple[int, ...]) -> None:
    """Keep a layout shared by all tensors; values differ only by the order of the sums."""
    draw = torch.Generator().manual_seed(0)
    delta, x = torch.randn(shape, generator=draw), torch.rand(shape, generator=draw)
    want = ops.project_l1_ball_box(delta, x, 0.7)
    assert want.is_contiguous()
    formats = [torch.channels_last] if len(shape) == 4 else []
    for ours, theirs in itertools.product([torch.contiguous_format, *formats], repeat=2):
        y, p = delta.contiguous(memory_format=ours), x.contiguous(memory_format=theirs)
        z = ops.project_l1_ball_box(y, p, 0.7)
        torch.testing.assert_close(z, want, rtol=1e-6, atol=1e-7)
        assert z.stride() == (y.stride() if ours == theirs else want.stride())
        assert l1_holds(z.reshape(shape[0], -1), torch.full(shape[:1], 0.7, dtype=torch.float64)).all()


# --- regressions


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("size", "low", "spike"),
    [
        (16384, 0.0003650421858765185, 511.4880065917969),
        (150528, 5.181760207051411e-05, 55.67216491699219),
        (16384, 3.6670917324954644e-05, 1e7),
        (16385, 3.6670917324954644e-05, 1e20),
        (150528, 3.6670917324954644e-05, 1000.0),
    ],
)
def test_a_large_element_without_room_among_small_ones(size: int, low: float, spike: float, dtype: torch.dtype) -> None:
    for background in (0.0, 0.5):
        delta, x = torch.full((1, size), low, dtype=dtype), torch.full((1, size), background, dtype=dtype)
        delta[0, 13], x[0, 13] = spike, 1 - 2**-20
        case = (delta, x, torch.tensor([1.0], dtype=torch.float64), 0.0, 1.0)
        check(BOX, case, run(BOX, case))


def test_subnormals_count_where_the_thread_flushes_them() -> None:
    v, ones = torch.full((1, 100), 1e-39), torch.ones(1, 100)
    x = torch.tensor([0.0, 1.0]).repeat(50)[None]

    def results() -> list[Tensor]:
        box = ops.project_l1_ball_box(ones - 2 * x, x, 3.0)
        return [ops.project_l1_ball(v, 1e-40), ops.project_l2_ball(v, 5e-39), box]

    want = results()
    assert torch.set_flush_denormal(True)
    try:
        got = results()
    finally:
        torch.set_flush_denormal(False)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert l1_holds(got[0], torch.tensor([1e-40], dtype=torch.float64)).all()


# --- rows of any range, against exact rational arithmetic


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
) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-45])
unit = st.sampled_from([0.0, 1.0, 0.5]) | st.floats(0, 1, width=32)
radii = st.builds(lambda m, e: math.ldexp(m, e), st.floats(0.5, 1), st.integers(-60, 60)) | st.just(1.0)


def near(op: str, z: list[Fraction], v: list[float], x: list[float], radius: float, slack: Fraction) -> bool:
    """Return whether a row is the exact projection, up to its last digits and the smallest numbers of its dtype."""
    if op in ("project_l2_ball", "project_linf_ball"):  # radii in which every element is rounded
        slack *= len(z)
    if op == "project_l2_ball":
        return l2_distance_is_small(z, v, radius, slack)
    return sum(abs(a - b) for a, b in zip(z, exact_projection(op, v, x, radius), strict=True)) <= slack


@given(st.data(), st.integers(1, 9), st.sampled_from(REALS), st.integers(1, 3))
def test_rows_of_any_range(data: st.DataObject, size: int, dtype: torch.dtype, count: int) -> None:
    """Each row has a radius of its own; the reference in float64 has to keep the tolerance as well."""
    rows = data.draw(st.lists(st.lists(numbers, min_size=size, max_size=size), min_size=count, max_size=count))
    points = data.draw(st.lists(st.lists(unit, min_size=size, max_size=size), min_size=count, max_size=count))
    each = data.draw(st.lists(radii, min_size=count, max_size=count))
    v, x = fit(torch.tensor(rows).double(), dtype), torch.tensor(points).to(dtype)
    radius = torch.tensor(each).double()
    for op in OPS:
        extra = (x, radius, 0.0, 1.0) if op == "project_l1_ball_box" else (radius,)
        if (op, dtype) == ("project_simplex", torch.float16) and radius.amax() > 3e4:
            continue  # more than a float16 holds
        z = getattr(ops, op)(v, *extra)
        check(op, (v, *extra), z)  # every guarantee, by comparisons without rounding
        if dtype not in (torch.float32, torch.float64):
            continue
        for values in (z, getattr(reference, op)(v, *extra)):
            for i, row in enumerate(values.tolist()):
                slack = Fraction(each[i]) / 10**6 + size * Fraction(smallest(dtype))
                assert near(op, [*map(Fraction, row)], v[i].tolist(), x[i].tolist(), each[i], slack), (op, i, row)
