"""Projections onto the l2 and l∞ balls: exact constraints, oracle, bits."""

from __future__ import annotations

import functools
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
    inward,
    l2_holds,
    rows_of,
    shrinks,
    smallest,
)
from torch import Tensor

from pyrobust import _C, ops, reference

OPS = ("project_l2_ball", "project_linf_ball")
ROWS = 12


def of_norm(op: str, kind: str, size: int, dtype: torch.dtype, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Scale the l1 radii to the norm."""
    v, radius = rows_of(kind, rows, size, dtype)
    if kind in ("sphere", "sums that round"):
        exact = v.double().square().sum(1).sqrt() if op == "project_l2_ball" else v.double().abs().amax(1)
        return v, exact
    if kind in ("normal", "alternating", "signed zeros", "equal"):
        radius = radius / (math.sqrt(size) if op == "project_l2_ball" else size)
    return v, radius


def pythagoras(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return points on the sphere, just inside and just outside: 1² + 2² + 2² = 3², scaled, with adjacent radii."""
    scale = 2.0 ** torch.arange(rows).double().sub(rows // 2)
    v = torch.tensor([1.0, -2.0, 2.0, 0.0, -0.0]).double() * scale[:, None]
    step = torch.where(torch.arange(rows) % 3 == 0, math.inf, -math.inf).double()
    radius = torch.where(torch.arange(rows) % 3 == 1, 3 * scale, (3 * scale).nextafter(step))
    return v.to(dtype), radius


def faults(op: str, v: Tensor, radius: Tensor, z: Tensor) -> dict[str, Tensor]:
    """Return for each guarantee of the op the rows of z that break it: bool [rows]."""
    changed = torch.tensor([not same_bits(a, b) for a, b in zip(z, v, strict=True)])
    if op == "project_linf_ball":
        inside = (v.double().abs() <= radius[:, None]).all(1)
        outside = (z.double().abs() > radius[:, None]).any(1)
        far = z.double() != exact_linf_projection(v, radius).double()
        far = far.any(1)
        short = torch.zeros_like(far)
    else:
        inside, outside = l2_holds(v, radius), ~l2_holds(z, radius)
        want = reference.project_l2_ball(v.double(), radius)
        relative = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}.get(v.dtype, 1e-6)
        room = relative * radius + (v.shape[1] + 1) * smallest(v.dtype)
        # Scaled to keep squares from underflow and overflow.
        scale = room.clamp(min=smallest(torch.float64))
        far = ((z.double() - want) / scale[:, None]).square().sum(1) > 1.0 + 1e-9
        length = (z.double() / radius[:, None]).square().sum(1).sqrt()
        least = 1 - 2.0**-21 - v.shape[1] * smallest(v.dtype) / radius
        short = ~inside & (length < least) & (v.dtype in (torch.float32, torch.float64))
    return {
        "far": far,
        "short": short,
        "outside": outside,
        "grown": ~shrinks(z, v),
        "changed inside": inside & changed,
        "unchanged outside": ~inside & ~changed,
    }


def exact_linf_projection(v: Tensor, radius: Tensor) -> Tensor:
    bound = torch.tensor([inward(value, v.dtype, 1) for value in radius.tolist()], dtype=v.dtype)[:, None]
    return v.maximum(-bound).minimum(bound)


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
        v, radius = of_norm(op, kind, size, dtype)
        check(op, v, radius, getattr(ops, op)(v, radius))


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_at_the_sphere(op: str, dtype: torch.dtype) -> None:
    v, radius = pythagoras(20, dtype)
    check(op, v, radius, getattr(ops, op)(v, radius))
    if op == "project_l2_ball":
        changed = (getattr(ops, op)(v, radius) != v).any(1)
        assert changed.tolist() == [row % 3 == 2 for row in range(20)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "spike", "huge", "tiny", "sums that round"])
@pytest.mark.parametrize("op", OPS)
def test_large_rows(op: str, kind: str, dtype: torch.dtype) -> None:
    v, radius = of_norm(op, kind, LARGE, dtype, rows=2)
    check(op, v, radius, getattr(ops, op)(v, radius))


def test_the_checks_detect_faults() -> None:
    v, radius = of_norm("project_l2_ball", "normal", 1000, torch.float32, rows=200)
    naive = v * (radius.float() / v.norm(dim=1)).clamp(max=1)[:, None]
    flags = faults("project_l2_ball", v, radius, naive)
    assert flags["outside"].sum() > 20
    assert not flags["far"].any()
    z = ops.project_l2_ball(v, radius)
    for fault, wrong in {
        "far": z * (1 - 1e-5),
        "short": z * (1 - 2**-20),
        "outside": z * (1 + 2**-20),
        "grown": -z,
        "unchanged outside": v,
    }.items():
        assert faults("project_l2_ball", v, radius, wrong)[fault].any(), fault
    assert faults("project_l2_ball", v, radius * 100, z * 0.5)["changed inside"].any()
    naive = v.maximum(-radius.float()[:, None]).minimum(radius.float()[:, None])
    assert faults("project_linf_ball", v, radius / 1000, naive)["outside"].any()
    assert l2_holds(torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([3.0]).double()).all()
    assert not l2_holds(torch.tensor([[1.0, 2.0, 2.0, 1e-30]]), torch.tensor([3.0]).double()).any()
    assert not l2_holds(
        torch.tensor([[1.0, 2.0, 2.0, 5e-324]], dtype=torch.float64), torch.tensor([3.0]).double()
    ).any()


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45])


@given(st.lists(numbers, min_size=1, max_size=40), st.floats(0, 1e38), st.sampled_from(REALS))
def test_any_row(row: list[float], radius: float, dtype: torch.dtype) -> None:
    v = torch.tensor([row], dtype=torch.float64)
    v = v.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)
    for op in OPS:
        check(op, v, torch.tensor([radius], dtype=torch.float64), getattr(ops, op)(v, radius))
    z = ops.project_l2_ball(v, radius)
    assert sum(Fraction(value) ** 2 for value in z[0].tolist()) <= Fraction(radius) ** 2


def test_by_hand() -> None:
    v = torch.tensor([[3.0, -4.0], [0.5, -0.0]])
    z = ops.project_l2_ball(v, torch.tensor([2.5, 1.0]))
    torch.testing.assert_close(z, torch.tensor([[1.5, -2.0], [0.5, -0.0]]), rtol=1e-6, atol=0)
    assert ops.project_l2_ball(v, 5.0).tolist() == v.tolist()
    assert ops.project_linf_ball(v, 3.5).tolist() == [[3.0, -3.5], [0.5, 0.0]]
    for op in OPS:
        assert getattr(ops, op)(v, 0.0).abs().sum() == 0
    # 0.1 lies between two float32 numbers: expect the one inside.
    assert ops.project_linf_ball(v, 0.1)[0, 0].item() == 0.09999999403953552


# --- the same bits at every SIMD level, thread count and split


@functools.cache
def plain(op: str, kind: str, size: int, dtype: torch.dtype) -> Tensor:
    level, threads = _C.simd_level(), torch.get_num_threads()
    _C.set_simd_level(_C.simd_levels()[0])
    torch.set_num_threads(1)
    z = getattr(ops, op)(*of_norm(op, kind, size, dtype))
    _C.set_simd_level(level)
    torch.set_num_threads(threads)
    return z


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_the_same_bits_at_every_level_and_thread_count(
    op: str, dtype: torch.dtype, simd_level: str, threads: int
) -> None:
    for kind in SOME_KINDS:
        for size in SOME_SIZES:
            got = getattr(ops, op)(*of_norm(op, kind, size, dtype))
            assert same_bits(got, plain(op, kind, size, dtype)), (kind, size)


@pytest.mark.parametrize("op", OPS)
def test_the_same_bits_for_every_split_of_rows(op: str, threads: int) -> None:
    for size in (1, 10, 129, 3072):
        v, radius = of_norm(op, "normal", size, torch.float32, rows=200)
        whole = getattr(ops, op)(v, radius)
        for cuts in ([1] * 200, [7, 100, 93]):
            parts = zip(v.split(cuts), radius.split(cuts), strict=True)
            assert same_bits(torch.cat([getattr(ops, op)(*part) for part in parts]), whole)
