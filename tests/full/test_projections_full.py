"""Projections of millions of rows of every kind, size and dtype, checked in exact arithmetic and against the reference.

A few thousand rows run with the other tests; the full run has ten million.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from pyrobust import ops, reference

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
from projection_inputs import (
    KINDS,
    REALS,
    box_holds,
    examples,
    l1_holds,
    l2_holds,
    moved_at_most,
    rows_of,
    shrinks,
    simplex_holds,
    tolerance,
)

SIZES = (1, 2, 3, 5, 8, 10, 17, 33, 64, 100)
BOXES = ((0.0, 1.0), (-0.1, 0.3), (0.0, 1e-3))
OPS = ("project_simplex", "project_l1_ball", "project_l1_ball_box", "project_l2_ball", "project_linf_ball")


def violations(op: str, dtype: torch.dtype, rows: int, seed: int) -> Counter[str]:
    """Count the rows, and the violations of each property, over about ``rows`` rows of every kind and size."""
    counts: Counter[str] = Counter()
    each = max(3, rows // (len(KINDS) * len(SIZES)))
    for kind, size in itertools.product(KINDS, SIZES):
        v, radius = rows_of.__wrapped__(kind, each, size, dtype, seed)
        counts["rows"] += len(v)
        if op == "project_l1_ball_box":
            box = BOXES[(size + seed) % len(BOXES)]
            x = examples((each, size), dtype, *box, seed=seed)
            z = ops.project_l1_ball_box(v, x, radius, *box)
            x_adv = ops.add_perturbation(x, z, *box)
            want = reference.project_l1_ball_box(v.double(), x.double(), radius, *box)
            counts["outside the box"] += int((~box_holds(x, z, *box)).sum())
            moved = moved_at_most(x_adv, x, z) & (x_adv.double() >= box[0]) & (x_adv.double() <= box[1])
            counts["moved too far"] += int((~moved.all(1)).sum())
            inside = l1_holds(v, radius) & box_holds(x, v, *box)
        else:
            z = getattr(ops, op)(v, radius)
            want = getattr(reference, op)(v.double(), radius)
            inside = torch.zeros(each, dtype=torch.bool)
        if op == "project_simplex":
            counts["outside"] += int((~simplex_holds(z, radius)).sum())
        else:
            counts["grown"] += int((~shrinks(z, v)).sum())
        if op in ("project_l1_ball", "project_l1_ball_box"):
            counts["outside"] += int((~l1_holds(z, radius)).sum())
        if op == "project_l1_ball":
            inside = l1_holds(v, radius)
        if op == "project_l2_ball":
            counts["outside"] += int((~l2_holds(z, radius)).sum())
            inside = l2_holds(v, radius)
            far = (z.double() - want).abs().amax(1)
        elif op == "project_linf_ball":
            counts["outside"] += int((z.double().abs() > radius[:, None]).any(1).sum())
            inside = (v.double().abs() <= radius[:, None]).all(1)
            far = (z.double() - want).abs().amax(1)
        else:
            far = (z.double() - want).abs().sum(1)
        counts["far"] += int((far > tolerance(radius, size, dtype)).sum())
        counts["changed inside"] += int((inside & (z != v).any(1)).sum())
        counts["inside"] += int(inside.sum())
    return counts


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("rows", "seeds"), [(3000, [77]), pytest.param(25_200, range(20), marks=pytest.mark.full)], ids=["few", "millions"]
)
def test_no_property_is_violated(op: str, dtype: torch.dtype, rows: int, seeds: Iterable[int]) -> None:
    counts = sum((violations(op, dtype, rows, seed) for seed in seeds), Counter[str]())
    done, inside = counts.pop("rows"), counts.pop("inside", 0)  # a sum leaves out what is 0
    assert inside > done / 20 or op == "project_simplex"
    assert not {fault: count for fault, count in counts.items() if count}, f"of {done} rows"
    assert done >= 0.8 * rows * len(list(seeds))
    print(f"{op} {dtype}: {done} rows, no violation")


def test_violations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference rounds to nearest and therefore violates the constraints, which the checks must detect."""
    for op in OPS:
        monkeypatch.setattr(ops, op, getattr(reference, op))
        counts = violations(op, torch.float32, 3000, seed=77)
        assert counts["outside"] > counts["rows"] / 100
        assert counts["far"] == 0
