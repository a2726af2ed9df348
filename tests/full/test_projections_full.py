"""The guarantees of the projections, in exact arithmetic and against the reference, for ten million rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.projection_inputs import BOXES, KINDS, REALS, check, examples, moved_at_most, rows_of, run

from pyrobust import ops

SIZES = (1, 2, 3, 5, 8, 10, 17, 33, 64, 100)
OPS = ("project_simplex", "project_l1_ball", "project_l1_ball_box", "project_l2_ball", "project_linf_ball")
ROWS = 25_200 // (len(KINDS) * len(SIZES))


@pytest.mark.full
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_millions_of_rows(op: str, dtype: torch.dtype) -> None:
    for seed, kind, size in itertools.product(range(20), KINDS, SIZES):
        v, radius = rows_of.__wrapped__(kind, ROWS, size, dtype, seed)
        if op != "project_l1_ball_box":
            check(op, (v, radius), run(op, (v, radius)))
            continue
        box = BOXES[(size + seed) % len(BOXES)]
        x = examples((ROWS, size), dtype, *box, seed=seed)
        operands = v, x, radius, *box
        z = run(op, operands)
        check(op, operands, z)
        x_adv = ops.add_perturbation(x, z, *box)
        assert (moved_at_most(x_adv, x, z) & (x_adv.double() >= box[0]) & (x_adv.double() <= box[1])).all()
