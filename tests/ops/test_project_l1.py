"""Projections onto the simplex and the l1 ball: exact constraints, oracle, optimality, bits."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
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
    l1_holds,
    rows_of,
    shrinks,
    simplex_holds,
    smallest,
    tolerance,
)
from torch import Tensor

from pyrobust import _C, ops, reference

OPS = ("project_simplex", "project_l1_ball")
ROWS = 12


def faults(op: str, v: Tensor, radius: Tensor, z: Tensor) -> dict[str, Tensor]:
    """Return for each guarantee of the op the rows of z that break it: bool [rows]."""
    want = getattr(reference, op)(v.double(), radius)
    far = (z.double() - want).abs().sum(1) > tolerance(radius, v.shape[1], v.dtype)
    if op == "project_simplex":
        return {"far": far, "off the simplex": ~simplex_holds(z, radius)}
    inside = l1_holds(v, radius)
    changed = torch.tensor([not same_bits(a, b) for a, b in zip(z, v, strict=True)])
    return {
        "far": far,
        "outside": ~l1_holds(z, radius),
        "grown": ~shrinks(z, v),
        "changed inside": inside & changed,
        "unchanged outside": ~inside & ~changed,
    }


def check(op: str, v: Tensor, radius: Tensor, z: Tensor) -> None:
    assert z.dtype == v.dtype
    assert z.shape == v.shape
    faults_of_op = {
        name: rows.nonzero()[:, 0].tolist() for name, rows in faults(op, v, radius, z).items() if rows.any()
    }
    assert not faults_of_op, f"rows of size {v.shape[1]}"


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_every_kind_and_size(op: str, kind: str, dtype: torch.dtype) -> None:
    for size in SIZES:
        v, radius = rows_of(kind, ROWS, size, dtype)
        check(op, v, radius, getattr(ops, op)(v, radius))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "ties", "spike", "alternating", "sums that round"])
@pytest.mark.parametrize("op", OPS)
def test_large_rows(op: str, kind: str, dtype: torch.dtype) -> None:
    v, radius = rows_of(kind, 3, LARGE, dtype)
    check(op, v, radius, getattr(ops, op)(v, radius))


def test_the_checks_detect_faults() -> None:
    """Detect the constraint violations of a plain float32 implementation, and every planted fault."""
    v, radius = rows_of("normal", 200, 1000, torch.float32)
    radius *= 0.5
    naive = v.sign() * (v.abs() - naive_threshold(v, radius)).clamp(min=0)
    assert 50 < int((~l1_holds(naive, radius)).sum()) < 200
    assert not faults("project_l1_ball", v, radius, naive)["far"].any()  # but it is close
    z = ops.project_l1_ball(v, radius)
    for fault, wrong in {
        "far": z * (1 - 1e-5),
        "outside": z * (1 + 2**-20),
        "grown": z.roll(1, 1),
        "unchanged outside": v,
    }.items():
        assert faults("project_l1_ball", v, radius, wrong)[fault].any(), fault
    inside, large = rows_of("signed zeros", 4, 9, torch.float32)
    wrong = torch.where(inside == 0, 0.0, inside)
    assert faults("project_l1_ball", inside, large * 10, wrong)["changed inside"].any()
    z = ops.project_simplex(v, radius)
    for wrong in (z * (1 - 2**-18), z * (1 + 2**-20), z - 1e-30):
        assert faults("project_simplex", v, radius, wrong)["off the simplex"].any()


def naive_threshold(v: Tensor, radius: Tensor) -> Tensor:
    """Compute Duchi's threshold as usually written, in float32."""
    ordered = v.abs().sort(descending=True).values
    k = torch.arange(1, v.shape[1] + 1)
    above = (ordered.cumsum(1) - radius.float()[:, None]) / k
    support = (ordered > above).sum(1, keepdim=True)
    return above.gather(1, support - 1)


# --- independent of the oracle


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "ties", "spike", "equal", "tiny", "huge", "alternating", "geometric"])
@pytest.mark.parametrize("op", OPS)
def test_optimality_conditions(op: str, kind: str, dtype: torch.dtype) -> None:
    """Check for one threshold: |vᵢ| - |zᵢ| equals it where z ≠ 0, |vᵢ| ≤ it where z = 0; outside, Σ |z| = radius."""
    for size in SIZES:
        v, radius = rows_of(kind, ROWS, size, dtype, seed=1)
        z = getattr(ops, op)(v, radius)
        a, b = (v, z) if op == "project_simplex" else (v.abs(), z.abs())
        a, b = a.double(), b.double()
        outside = (a.sum(1) > radius * (1 + 1e-9)) | (op == "project_simplex")
        slack = 2 * torch.finfo(dtype).eps * b + 1e-15 * a.abs() + 1e-6 * radius[:, None] + 2 * smallest(dtype)
        removed = a - b
        highest = torch.where(b > 0, removed - slack, -math.inf).amax(1)
        lowest = torch.where(b > 0, removed + slack, math.inf).amin(1)
        assert (highest <= lowest)[outside].all()
        assert (torch.where(b == 0, a - slack, -math.inf).amax(1) <= lowest)[outside].all()
        short = b.sum(1) < radius * (1 - 2e-6) - size * smallest(dtype)
        assert not (short & outside).any()


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12), st.floats(0, 2.0**960))
def test_any_float64(row: list[float], radius: float) -> None:
    v = torch.tensor([row], dtype=torch.float64)
    each = torch.tensor([radius], dtype=torch.float64)
    for op in OPS:
        check(op, v, each, getattr(ops, op)(v, radius))


@given(st.lists(numbers, min_size=1, max_size=40), st.floats(0, 1e38), st.sampled_from(REALS))
def test_any_row(row: list[float], radius: float, dtype: torch.dtype) -> None:
    v = torch.tensor([row], dtype=torch.float64)
    v = v.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)
    z = ops.project_l1_ball(v, radius)
    check("project_l1_ball", v, torch.tensor([radius], dtype=torch.float64), z)
    assert sum(abs(Fraction(value)) for value in z[0].tolist()) <= Fraction(radius)
    radius = min(radius, 3e4)
    z = ops.project_simplex(v, radius)
    check("project_simplex", v, torch.tensor([radius], dtype=torch.float64), z)
    assert sum(Fraction(value) for value in z[0].tolist()) <= Fraction(radius)


def test_by_hand() -> None:
    v = torch.tensor([3.0, -1.0, 0.5, -0.0])
    assert ops.project_l1_ball(v, 2.0).tolist() == [2.0, 0.0, 0.0, 0.0]
    assert ops.project_l1_ball(v, 3.0).tolist() == [2.5, -0.5, 0.0, 0.0]
    assert ops.project_l1_ball(v, 4.5).tolist() == [3.0, -1.0, 0.5, 0.0]
    assert ops.project_l1_ball(v, 0.0).tolist() == [0.0] * 4
    assert ops.project_simplex(v, 2.0).tolist() == [2.0, 0.0, 0.0, 0.0]
    assert ops.project_simplex(v, 3.5).tolist() == [3.0, 0.0, 0.5, 0.0]
    assert ops.project_simplex(torch.zeros(4)).tolist() == [0.25] * 4
    assert ops.project_simplex(torch.tensor([-5.0]), 2.0).tolist() == [2.0]


# --- the same bits at every SIMD level, thread count and split


@contextmanager
def lowest_level_and_one_thread() -> Iterator[None]:
    """Run at the lowest SIMD level with one thread."""
    level, threads = _C.simd_level(), torch.get_num_threads()
    _C.set_simd_level(_C.simd_levels()[0])
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _C.set_simd_level(level)
        torch.set_num_threads(threads)


@functools.cache
def plain(op: str, kind: str, size: int, dtype: torch.dtype) -> Tensor:
    with lowest_level_and_one_thread():
        return getattr(ops, op)(*rows_of(kind, ROWS if size < LARGE else 2, size, dtype))


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_the_same_bits_at_every_level_and_thread_count(
    op: str, dtype: torch.dtype, simd_level: str, threads: int
) -> None:
    for kind in SOME_KINDS:
        for size in [*SOME_SIZES, LARGE] if (kind, dtype) == ("normal", torch.float32) else SOME_SIZES:
            v, radius = rows_of(kind, ROWS if size < LARGE else 2, size, dtype)
            assert same_bits(getattr(ops, op)(v, radius), plain(op, kind, size, dtype)), (kind, size)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_the_same_bits_for_every_split_of_rows(op: str, dtype: torch.dtype, threads: int) -> None:
    for size in (1, 10, 129, 3072):
        v, radius = rows_of("normal", 100, size, dtype)
        whole = getattr(ops, op)(v, radius)
        for cuts in ([1] * 100, [7, 60, 33], [99, 1]):
            parts = zip(v.split(cuts), radius.split(cuts), strict=True)
            assert same_bits(torch.cat([getattr(ops, op)(*part) for part in parts]), whole)
        same = getattr(ops, op)(v, 0.5)
        assert same_bits(getattr(ops, op)(v, torch.full((100,), 0.5)), same)
        assert same_bits(getattr(ops, op)(v.reshape(4, 5, 5, size), 0.5), same.reshape(4, 5, 5, size))
