"""Reference projections against brute force in rational arithmetic, and at any scale."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.reference import (
    project_l1_ball,
    project_l1_ball_box,
    project_l2_ball,
    project_linf_ball,
    project_simplex,
)

EPS = Fraction(1, 10**13)
values = st.fractions(-4, 4, max_denominator=64).filter(lambda f: f.denominator & (f.denominator - 1) == 0)
radii = st.integers(0, 64).map(lambda n: Fraction(n, 16))


def nearest_on_faces(y: list[Fraction], room: list[Fraction], radius: Fraction, full: bool) -> list[Fraction]:
    """Return the point of {0 ≤ z ≤ room, Σ z ≤ radius} nearest to y over all faces; full requires Σ z = radius."""
    best: tuple[Fraction, list[Fraction]] | None = None
    for state in itertools.product("0fu", repeat=len(y)):
        free = [i for i, s in enumerate(state) if s == "f"]
        fixed = sum((room[i] for i, s in enumerate(state) if s == "u"), Fraction(0))
        thresholds = [] if full else [Fraction(0)]
        if free:
            thresholds.append((fixed + sum(y[i] for i in free) - radius) / len(free))
        elif full:
            thresholds.append(Fraction(0))
        for threshold in thresholds:
            z = [{"0": Fraction(0), "f": a - threshold, "u": u}[s] for s, a, u in zip(state, y, room, strict=True)]
            total = sum(z)
            if all(0 <= v <= u for v, u in zip(z, room, strict=True)) and (
                total == radius if full else total <= radius
            ):
                distance = sum((a - b) ** 2 for a, b in zip(y, z, strict=True))
                if best is None or distance < best[0]:
                    best = distance, z
    assert best is not None
    return best[1]


def row(numbers: list[Fraction]) -> torch.Tensor:
    return torch.tensor([[float(f) for f in numbers]], dtype=torch.float64)


@pytest.mark.parametrize("project", [project_simplex, project_l1_ball, project_l1_ball_box])
@given(pairs=st.lists(st.tuples(values, st.integers(0, 64)), min_size=1, max_size=5), radius=radii)
def test_by_brute_force(project: Any, pairs: list[tuple[Fraction, int]], radius: Fraction) -> None:
    v, x = [a for a, _ in pairs], [Fraction(n, 64) for _, n in pairs]
    room, extra = [radius] * len(v), ()
    if project is project_l1_ball_box:
        room, extra = [1 - p if a > 0 else p for a, p in zip(v, x, strict=True)], (row(x),)
    if project is project_simplex:
        want = nearest_on_faces(v, room, radius, full=True)
    else:
        size = nearest_on_faces([abs(a) for a in v], room, radius, full=False)
        want = [b if a > 0 else -b for a, b in zip(v, size, strict=True)]
    got = project(row(v), *extra, float(radius))[0].tolist()
    assert sum(abs(Fraction(a) - b) for a, b in zip(got, want, strict=True)) <= EPS


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e-3, 1.0, 1e30, 1e300])
def test_any_scale(scale: float) -> None:
    v = torch.tensor([[3.0, -1.0, 0.5, 0.0]], dtype=torch.float64) * scale
    for project, want in (
        (project_simplex, [2.75, 0.0, 0.25, 0.0]),
        (project_l1_ball, [2.5, -0.5, 0.0, 0.0]),
        (project_linf_ball, [3.0, -1.0, 0.5, 0.0]),
    ):
        torch.testing.assert_close(project(v, 3.0 * scale), torch.tensor([want]).double() * scale, rtol=1e-14, atol=0)
    want = v * (1.5 / math.sqrt(10.25))
    torch.testing.assert_close(project_l2_ball(v, 1.5 * scale), want, rtol=1e-14, atol=0)
    box = project_l1_ball_box(v, torch.zeros_like(v), 3.0 * scale, -2.0 * scale, 2.0 * scale)
    torch.testing.assert_close(box, torch.tensor([[2.0, -0.75, 0.25, 0.0]]).double() * scale, rtol=1e-14, atol=0)


@pytest.mark.parametrize("huge", [1e16, 1e30, 1e300])
def test_a_huge_entry_takes_nothing_from_the_others(huge: float) -> None:
    v = torch.tensor([[huge, huge, 0.5, 0.25, -0.125]], dtype=torch.float64)
    assert project_l1_ball(v, 3.0).tolist() == [[1.5, 1.5, 0.0, 0.0, 0.0]]
    assert project_simplex(v, 1e-300).tolist() == [[5e-301, 5e-301, 0.0, 0.0, 0.0]]
    x = torch.full_like(v, 0.5)
    assert project_l1_ball_box(v, x, 1.0).tolist() == [[0.5, 0.5, 0.0, 0.0, 0.0]]
    assert project_l1_ball_box(v, x, 1.25).tolist() == [[0.5, 0.5, 0.25, 0.0, 0.0]]
    assert project_l1_ball_box(v, x, 0.25).tolist() == [[0.125, 0.125, 0.0, 0.0, 0.0]]
    assert project_l1_ball_box(v, x, 2.0).tolist() == [[0.5, 0.5, 0.5, 0.25, -0.125]]


def test_many_entries_are_summed_without_loss() -> None:
    draw = torch.Generator().manual_seed(0)
    v = torch.randn(1, 200_000, generator=draw, dtype=torch.float64)
    for z in (project_l1_ball(v, 1000.0), project_l1_ball_box(v, torch.full_like(v, 0.5), 1000.0)):
        assert abs(math.fsum(z.abs()[0].tolist()) - 1000.0) <= 1e-10
    assert abs(math.fsum(project_simplex(v, 1000.0)[0].tolist()) - 1000.0) <= 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_shapes_radii_and_dtypes(dtype: torch.dtype) -> None:
    v = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    radius = torch.tensor([[0.5], [2.0]])
    for project in (project_simplex, project_l1_ball, project_l2_ball, project_linf_ball):
        z = project(v, radius)
        assert z.dtype == dtype
        for i in range(2):
            for j in range(3):
                assert torch.equal(z[i, j], project(v[i, j], radius[i].item()))
    for project in (project_l1_ball, project_l2_ball, project_linf_ball):
        assert torch.equal(project(v, 100.0), v)
        assert project(v[:, :0], 1.0).shape == (2, 0, 5)
        assert project(v[..., :0], 1.0).shape == (2, 3, 0)
    assert project_simplex(v[:, :0], 1.0).shape == (2, 0, 5)
    x = torch.full_like(v, 0.5)
    z = project_l1_ball_box(v, x, radius[:, 0])
    assert z.dtype == dtype
    assert torch.equal(z[1], project_l1_ball_box(v, x, 2.0)[1])
    assert project_l1_ball_box(v[:0], x[:0], 1.0).shape == (0, 3, 5)
