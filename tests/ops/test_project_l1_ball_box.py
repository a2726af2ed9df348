"""Projection onto the intersection of l1 ball and box: exact constraints, oracle, brute force, bits."""

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
from projection_inputs import (
    KINDS,
    LARGE,
    REALS,
    SIZES,
    SOME_KINDS,
    SOME_SIZES,
    box_holds,
    examples,
    l1_holds,
    rows_of,
    shrinks,
    tolerance,
)
from torch import Tensor

from pyrobust import _C, ops, reference

ROWS = 12
# The usual box; a box whose ends are not float32 numbers; a small box; a point.
BOXES = [(0.0, 1.0), (-0.1, 0.3), (0.0, 1e-3), (0.5, 0.5)]
Arguments = tuple[Tensor, Tensor, Tensor, float, float]


def arguments(kind: str, size: int, dtype: torch.dtype, box: tuple[float, float], rows: int = ROWS) -> Arguments:
    delta, radius = rows_of(kind, rows, size, dtype)
    return delta, examples((rows, size), dtype, *box, seed=size), radius, *box


def faults(delta: Tensor, x: Tensor, radius: Tensor, lower: float, upper: float, z: Tensor) -> dict[str, Tensor]:
    """Return for each guarantee of the op the rows of z that break it: bool [rows]."""
    want = reference.project_l1_ball_box(delta.double(), x.double(), radius, lower, upper)
    inside = l1_holds(delta, radius) & box_holds(x, delta, lower, upper)
    changed = (z != delta).any(1)
    return {
        "far": (z.double() - want).abs().sum(1) > tolerance(radius, delta.shape[1], delta.dtype),
        "outside the ball": ~l1_holds(z, radius),
        "outside the box": ~box_holds(x, z, lower, upper),
        "grown": ~shrinks(z, delta),
        "changed inside": inside & changed,
        "unchanged outside": ~inside & ~changed,
    }


def check(case: Arguments, z: Tensor) -> None:
    assert z.dtype == case[0].dtype
    assert z.shape == case[0].shape
    faults_of_op = {name: rows.nonzero()[:, 0].tolist() for name, rows in faults(*case, z).items() if rows.any()}
    assert not faults_of_op, f"rows of size {z.shape[1]}, box {case[3:]}"


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_and_size(kind: str, dtype: torch.dtype) -> None:
    for i, size in enumerate(SIZES):
        for box in (BOXES[0], BOXES[1 + i % 3]):
            case = arguments(kind, size, dtype, box)
            check(case, ops.project_l1_ball_box(*case))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "ties", "spike", "alternating", "sums that round"])
def test_large_rows(kind: str, dtype: torch.dtype) -> None:
    case = arguments(kind, LARGE, dtype, BOXES[1], rows=2)
    check(case, ops.project_l1_ball_box(*case))


def test_the_checks_detect_faults() -> None:
    delta, x, radius, lower, upper = arguments("normal", 1000, torch.float32, BOXES[1], rows=200)
    z = ops.project_l1_ball_box(delta, x, radius, lower, upper)
    nearest = reference.project_l1_ball_box(delta, x, radius, lower, upper)
    flags = faults(delta, x, radius, lower, upper, nearest)
    assert flags["outside the box"].sum() > 100  # an oracle rounded to nearest leaves the box
    assert flags["outside the ball"].any()
    assert not flags["far"].any()
    for fault, wrong in {
        "far": z * (1 - 1e-5),
        "outside the ball": z * (1 + 2**-20),
        "outside the box": z.nextafter(z * 2),
        "grown": z.roll(1, 1),
        "unchanged outside": delta,
    }.items():
        assert faults(delta, x, radius, lower, upper, wrong)[fault].any(), fault


# --- independent of the oracle


def brute_force_projection(y: list[Fraction], room: list[Fraction], radius: Fraction) -> list[Fraction]:
    """Project by brute force: the nearest feasible point over all faces. Returns |z| for y ≥ 0."""
    nearest: tuple[Fraction, list[Fraction]] | None = None
    for state in itertools.product("0fu", repeat=len(y)):
        free = [i for i, s in enumerate(state) if s == "f"]
        used = sum((room[i] for i, s in enumerate(state) if s == "u"), Fraction(0))
        thresholds = [Fraction(0)]
        if free:
            thresholds.append((used + sum(y[i] for i in free) - radius) / len(free))
        for threshold in thresholds:
            z = [{"0": Fraction(0), "f": a - threshold, "u": u}[s] for s, a, u in zip(state, y, room, strict=True)]
            if all(0 <= value <= u for value, u in zip(z, room, strict=True)) and sum(z) <= radius:
                distance = sum((a - b) ** 2 for a, b in zip(y, z, strict=True))
                if nearest is None or distance < nearest[0]:
                    nearest = distance, z
    assert nearest is not None
    return nearest[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_brute_force(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    for size in (1, 2, 3, 4):
        x = examples((25, size), dtype, 0.0, 1.0, seed=size)
        delta = torch.randint(-8, 9, (25, size), generator=draw).to(dtype) / 8  # ties and faces met exactly
        delta[::2] += 0.3 * torch.randn(13, size, generator=draw).to(dtype)
        radius = torch.randint(0, 9, (25,), generator=draw).double() / 4
        z = ops.project_l1_ball_box(delta, x, radius)
        for row in range(25):
            y, p = ([Fraction(value) for value in t[row].tolist()] for t in (delta, x))
            room = [1 - a if d > 0 else a for a, d in zip(p, y, strict=True)]
            want = brute_force_projection([abs(value) for value in y], room, Fraction(radius[row].item()))
            got = [abs(Fraction(value)) for value in z[row].tolist()]
            error = sum(abs(a - b) for a, b in zip(got, want, strict=True))
            assert error <= Fraction(1, 10**6) * Fraction(radius[row].item()), (delta[row], x[row], radius[row])


@pytest.mark.parametrize("kind", ["normal", "ties", "spike", "equal", "tiny", "huge", "alternating", "geometric"])
def test_optimality_conditions(kind: str) -> None:
    """Check for one threshold ≥ 0: subtracted where free, at least |δ| where zero, at most |δ| - u where clipped."""
    for size, box in itertools.product(SIZES[::2], BOXES[:3]):
        case = arguments(kind, size, torch.float64, box)
        delta, x, radius, lower, upper = case
        a, b = delta.abs(), ops.project_l1_ball_box(*case).abs()
        room = torch.where(delta > 0, upper - x, x - lower)
        full = b >= room - 4e-16 * (1 + b)
        slack = 1e-14 * a + 1e-6 * radius[:, None] + 1e-300
        above = torch.where(b > 0, a - b + slack, math.inf).amin(1)  # the threshold is at most this
        below = torch.where(full, 0.0, a - b - slack).amax(1)  # and at least this
        assert (below <= above).all(), (size, box)
        reached = b.sum(1) >= radius * (1 - 1e-6) - 1e-300
        assert (reached | (below <= 0)).all(), (size, box)


unit = st.floats(0, 1, width=16)


@given(
    st.lists(st.tuples(st.floats(-4, 4, width=16), unit), min_size=1, max_size=30),
    st.floats(0, 50),
    st.sampled_from(REALS[:2] + REALS[3:]),
)
def test_any_row(row: list[tuple[float, float]], radius: float, dtype: torch.dtype) -> None:
    delta = torch.tensor([[d for d, _ in row]], dtype=dtype)
    x = torch.tensor([[p for _, p in row]], dtype=dtype)
    z = ops.project_l1_ball_box(delta, x, radius)
    check((delta, x, torch.tensor([radius], dtype=torch.float64), 0.0, 1.0), z)
    assert sum(abs(Fraction(value)) for value in z[0].tolist()) <= Fraction(radius)
    assert all(0 <= Fraction(a) + Fraction(b) <= 1 for a, b in zip(x[0].tolist(), z[0].tolist(), strict=True))


def test_by_hand() -> None:
    x = torch.tensor([[0.0, 1.0, 0.5, 0.25]])
    delta = torch.tensor([[-1.0, 1.0, 2.0, -2.0]])
    # No room for the first two; 0.5 and 0.25 for the others.
    assert ops.project_l1_ball_box(delta, x, 1.0).tolist() == [[0.0, 0.0, 0.5, -0.25]]
    assert ops.project_l1_ball_box(delta, x, 0.75).tolist() == [[0.0, 0.0, 0.5, -0.25]]
    assert ops.project_l1_ball_box(delta, x, 0.5).tolist() == [[0.0, 0.0, 0.25, -0.25]]
    assert ops.project_l1_ball_box(delta, x, 0.0).tolist() == [[0.0] * 4]
    # Clipping before shrinking would give (0.75, 0): a clipped first element leaves more of the radius to the second.
    x, delta = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 1.0]])
    assert ops.project_l1_ball_box(delta, x, 1.25).tolist() == [[1.0, 0.25]]
    assert ops.project_l1_ball_box(delta, x, 1.25, -1.0, 9.0).tolist() == [[1.25, 0.0]]


def test_without_a_box_it_equals_the_ball_projection() -> None:
    for kind in ("normal", "ties", "geometric"):
        v, radius = rows_of(kind, ROWS, 100, torch.float64)
        z = ops.project_l1_ball_box(v, torch.zeros_like(v), radius, -1e3, 1e3)
        assert ((z - ops.project_l1_ball(v, radius)).abs().sum(1) <= 1e-12 * radius).all()


def test_adding_the_result_stays_in_ball_and_box() -> None:
    """Add the result to x as an attack does, in the dtype of the model."""
    for dtype in REALS:
        delta, x, radius, lower, upper = arguments("normal", 1000, dtype, BOXES[1])
        z = ops.project_l1_ball_box(delta, x, radius, lower, upper)
        x_adv = ops.add_perturbation(x, z, lower, upper).double()
        assert ((x_adv >= lower) & (x_adv <= upper)).all()
        for row in range(ROWS):
            moved = sum(
                abs(Fraction(a) - Fraction(b)) for a, b in zip(x_adv[row].tolist(), x[row].tolist(), strict=True)
            )
            assert moved <= Fraction(radius[row].item())


# --- the same bits at every SIMD level, thread count and split


@functools.cache
def plain(kind: str, size: int, dtype: torch.dtype) -> Tensor:
    level, threads = _C.simd_level(), torch.get_num_threads()
    _C.set_simd_level(_C.simd_levels()[0])
    torch.set_num_threads(1)
    z = ops.project_l1_ball_box(*arguments(kind, size, dtype, BOXES[1]))
    _C.set_simd_level(level)
    torch.set_num_threads(threads)
    return z


@pytest.mark.parametrize("dtype", REALS)
def test_the_same_bits_at_every_level_and_thread_count(dtype: torch.dtype, simd_level: str, threads: int) -> None:
    for kind in SOME_KINDS:
        for size in SOME_SIZES:
            got = ops.project_l1_ball_box(*arguments(kind, size, dtype, BOXES[1]))
            assert same_bits(got, plain(kind, size, dtype)), (kind, size)


@pytest.mark.parametrize("dtype", REALS)
def test_the_same_bits_for_every_split_of_rows(dtype: torch.dtype, threads: int) -> None:
    for size in (1, 10, 129, 3072):
        delta, x, radius, lower, upper = arguments("normal", size, dtype, BOXES[1], rows=200)
        whole = ops.project_l1_ball_box(delta, x, radius, lower, upper)
        for cuts in ([1] * 200, [7, 100, 93]):
            parts = zip(delta.split(cuts), x.split(cuts), radius.split(cuts), strict=True)
            assert same_bits(torch.cat([ops.project_l1_ball_box(*part, lower, upper) for part in parts]), whole)


@pytest.mark.parametrize("shape", [(5,), (4, 3, 8, 8), (2, 3, 5, 7), (2, 1, 4, 4), (3, 2, 2, 2, 2)])
def test_layouts(shape: tuple[int, ...]) -> None:
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
        assert l1_holds(
            z.flatten(1) if z.dim() > 1 else z[:, None], torch.full((shape[0],), 0.7, dtype=torch.float64)
        ).all()


# --- regressions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_threshold_lies_digits_below_the_largest_element(dtype: torch.dtype) -> None:
    delta = torch.tensor([[-2.6e33, 4.15e34, -1048576, 0, 1.8e16]], dtype=dtype)
    x = torch.tensor([[0.1195, 0.9232, 0.9156, 0.7363, 0.7693]], dtype=dtype)
    z = ops.project_l1_ball_box(delta, x, 1.0)
    want = torch.tensor([[-0.1195, 0.0768, -0.573, 0.0, 0.2307]], dtype=dtype)
    torch.testing.assert_close(z, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("size", "low", "spike"),
    [(16384, 0.0003650421858765185, 511.4880065917969), (150528, 5.181760207051411e-05, 55.67216491699219)]
    + [(size, 3.6670917324954644e-05, spike) for size in (16384, 16385, 150528) for spike in (1000.0, 1e7, 1e20)],
)
def test_a_large_element_without_room_among_small_ones(size: int, low: float, spike: float, dtype: torch.dtype) -> None:
    for background in (0.0, 0.5):
        delta, x = torch.full((1, size), low, dtype=dtype), torch.full((1, size), background, dtype=dtype)
        delta[0, 13], x[0, 13] = spike, 1 - 2**-20
        case = (delta, x, torch.tensor([1.0], dtype=torch.float64), 0.0, 1.0)
        check(case, ops.project_l1_ball_box(*case))


def test_subnormals_count_where_the_thread_flushes_them() -> None:
    v, ones = torch.full((1, 100), 1e-39), torch.ones(1, 100)
    x = torch.tensor([0.0, 1.0]).repeat(50)[None]
    want = ops.project_l1_ball(v, 1e-40), ops.project_l2_ball(v, 5e-39), ops.project_l1_ball_box(ones - 2 * x, x, 3.0)
    assert torch.set_flush_denormal(True)
    try:
        got = (
            ops.project_l1_ball(v, 1e-40),
            ops.project_l2_ball(v, 5e-39),
            ops.project_l1_ball_box(ones - 2 * x, x, 3.0),
        )
    finally:
        torch.set_flush_denormal(False)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert l1_holds(got[0], torch.tensor([1e-40], dtype=torch.float64)).all()
