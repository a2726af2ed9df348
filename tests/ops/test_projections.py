"""The five projections: exact constraints, oracle, optimality, and the same bits however they run."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from op_inputs import same_bits
from projection_faults import BOXES, Arguments, arguments, check, faults, run
from projection_inputs import (
    KINDS,
    LARGE,
    OPS,
    PLAIN,
    REALS,
    SIZES,
    SOME_KINDS,
    SOME_SIZES,
    l1_holds,
    l2_holds,
    rows_of,
    smallest,
)
from torch import Tensor

from pyrobust import _C, ops, reference

BOX = "project_l1_ball_box"
FLOATS = (torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_every_kind_and_size(op: str, kind: str, dtype: torch.dtype) -> None:
    for i, size in enumerate(SIZES):
        for box in (BOXES[0], BOXES[1 + i % 3]) if op == BOX else BOXES[:1]:
            case = arguments(op, kind, size, dtype, box=box)
            check(op, case, run(op, case))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["normal", "spike", "alternating", "sums that round"])
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
    for rest, holds in ((0.0, True), (1e-30, False), (5e-324, False)):
        assert l2_holds(torch.tensor([[1.0, 2.0, 2.0, rest]], dtype=torch.float64), radius).all() == holds


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45])


@given(st.lists(numbers, min_size=1, max_size=40), st.floats(0, 1e38), st.sampled_from(REALS))
def test_any_row(row: list[float], radius: float, dtype: torch.dtype) -> None:
    top = torch.finfo(dtype).max
    v = torch.tensor([row], dtype=torch.float64).clamp(-top, top).to(dtype)
    for op, power in zip(PLAIN, (1, 1, 2, 0), strict=True):
        most = min(radius, 3e4) if op == "project_simplex" else radius
        z = getattr(ops, op)(v, most)
        check(op, (v, torch.tensor([most], dtype=torch.float64)), z)
        if power:
            assert sum(abs(Fraction(value)) ** power for value in z[0].tolist()) <= Fraction(most) ** power


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12), st.floats(0, 2.0**960))
def test_any_float64(row: list[float], radius: float) -> None:
    case = torch.tensor([row], dtype=torch.float64), torch.tensor([radius], dtype=torch.float64)
    for op in PLAIN[:2]:
        check(op, case, run(op, case))


unit = st.floats(0, 1, width=16)


@given(
    st.lists(st.tuples(st.floats(-4, 4, width=16), unit), min_size=1, max_size=30),
    st.floats(0, 50),
    st.sampled_from((*FLOATS, torch.float16)),
)
def test_any_row_in_a_box(row: list[tuple[float, float]], radius: float, dtype: torch.dtype) -> None:
    delta, x = torch.tensor(row, dtype=dtype).T[:, None].contiguous()
    z = ops.project_l1_ball_box(delta, x, radius)
    check(BOX, (delta, x, torch.tensor([radius], dtype=torch.float64), 0.0, 1.0), z)
    assert sum(abs(Fraction(value)) for value in z[0].tolist()) <= Fraction(radius)
    assert all(0 <= Fraction(a) + Fraction(b) <= 1 for a, b in zip(x[0].tolist(), z[0].tolist(), strict=True))


@pytest.mark.parametrize("kind", ["normal", "ties", "spike", "equal", "tiny", "huge", "alternating", "geometric"])
@pytest.mark.parametrize(
    ("op", "dtype"), [*itertools.product(("project_simplex", "project_l1_ball"), FLOATS), (BOX, torch.float64)]
)
def test_optimality_conditions(op: str, dtype: torch.dtype, kind: str) -> None:
    """Check for one threshold: subtracted where free; at least |v| where zero, at most |v| - u where clipped."""
    for size, box in itertools.product(SIZES[::2], BOXES[:3] if op == BOX else BOXES[:1]):
        case = arguments(op, kind, size, dtype, box=box)
        v, radius, z = case[0], case[-3] if op == BOX else case[1], run(op, case)
        a, b = (t.double() if op == "project_simplex" else t.double().abs() for t in (v, z))
        full = torch.zeros_like(a, dtype=torch.bool)
        if op == BOX:
            full = b >= torch.where(v > 0, box[1] - case[1], case[1] - box[0]) - 4e-16 * (1 + b)
        slack = 2 * torch.finfo(dtype).eps * b + 1e-15 * a.abs() + 1e-6 * radius[:, None] + 2 * smallest(dtype)
        above = torch.where(b > 0, a - b + slack, math.inf).amin(1)  # the threshold is at most this
        below = torch.where(full, 0.0, a - b - slack).amax(1)  # and at least this
        assert (below <= above).all(), (size, box)
        reached = b.sum(1) >= radius * (1 - 2e-6) - size * smallest(dtype)
        assert (reached | (below <= 0) & (op != "project_simplex")).all(), (size, box)


# --- the same bits at every SIMD level, thread count and split


@functools.cache
def plain(op: str, kind: str, size: int, dtype: torch.dtype) -> Tensor:
    """Return the result of the lowest SIMD level with one thread."""
    level, threads = _C.simd_level(), torch.get_num_threads()
    _C.set_simd_level(_C.simd_levels()[0])
    torch.set_num_threads(1)
    z = run(op, split_case(op, kind, size, dtype))
    _C.set_simd_level(level)
    torch.set_num_threads(threads)
    return z


def split_case(op: str, kind: str, size: int, dtype: torch.dtype) -> Arguments:
    return arguments(op, kind, size, dtype, rows=12 if size < LARGE else 2, box=BOXES[1])


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_the_same_bits_at_every_level_and_thread_count(
    op: str, dtype: torch.dtype, simd_level: str, threads: int
) -> None:
    for kind in SOME_KINDS:
        for size in [*SOME_SIZES, LARGE] if (kind, dtype) == ("normal", torch.float32) else SOME_SIZES:
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
            assert same_bits(torch.cat([run(op, (*part, *ends)) for part in parts]), run(op, case))


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
def test_the_threshold_lies_digits_below_the_largest_element(dtype: torch.dtype) -> None:
    delta = torch.tensor([[-2.6e33, 4.15e34, -1048576, 0, 1.8e16]], dtype=dtype)
    x = torch.tensor([[0.1195, 0.9232, 0.9156, 0.7363, 0.7693]], dtype=dtype)
    z = ops.project_l1_ball_box(delta, x, 1.0)
    want = torch.tensor([[-0.1195, 0.0768, -0.573, 0.0, 0.2307]], dtype=dtype)
    torch.testing.assert_close(z, want, rtol=0, atol=1e-6)


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
