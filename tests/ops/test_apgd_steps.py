"""Fused Auto-PGD steps: the same bits as the separate ops, inside ball and box."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from projection_inputs import REALS
from step_inputs import SIZES, inputs, near, per_row

from pyrobust import ops, reference

# --- linf_momentum_step


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("box", [(0.0, 1.0), (-0.5, 0.75), (0.0, 255.0)])
def test_linf_momentum_step_matches_the_reference(
    box: tuple[float, float], dtype: torch.dtype, simd_level: str, threads: int
) -> None:
    for size in SIZES:
        x_adv, gradient, x = inputs(6, size, dtype, box, seed=size)
        before = inputs(6, size, dtype, box, seed=size + 1)[0]
        gradient[0, 0] = torch.nan
        step, epsilon = per_row(6, 0.0, 0.2, 1), per_row(6, 0.0, 0.3, 2)
        arguments = (x_adv, gradient, x, before, step, epsilon, *box)
        for share in (0.75, 0.7, 0.0, 1.0):
            got = ops.linf_momentum_step(*arguments, share=share)
            assert torch.equal(got, reference.linf_momentum_step(*arguments, share=share)), (size, share)
            assert near(got, x, epsilon)
            assert ((got.double() >= box[0]) & (got.double() <= box[1])).all()
        # Without momentum the op equals linf_step.
        assert torch.equal(got, ops.linf_step(x_adv, gradient, x, step, epsilon, *box))


def test_linf_momentum_step_by_hand() -> None:
    x = torch.full((1, 4), 0.5)
    gradient, before = torch.tensor([[1.0, -1.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.25, 0.75, 0.0]])
    got = ops.linf_momentum_step(x, gradient, x, before, torch.tensor([0.25]), 0.1875)
    # 0.5 + 0.75·(±0.1875 or 0) + 0.25·(0.5 - before), at most 0.1875 from 0.5
    assert got.tolist() == [[0.640625, 0.421875, 0.4375, 0.6875]]


# --- l1_step_in_ball


@pytest.mark.parametrize("dtype", REALS)
def test_l1_step_in_ball_matches_the_separate_ops(dtype: torch.dtype, simd_level: str, threads: int) -> None:
    """Compare bits at all row lengths: a few rows, many rows in a block, and a partial block."""
    box = (-0.5, 0.75)
    for rows, size in ((1, 1), (7, 33), (3, 3072), (23, 3072), (501, 100), (2, 50000)):
        x_adv, gradient, x = inputs(rows, size, dtype, box, seed=size)
        step, epsilon = per_row(rows, 0.0, 2.0, 1), per_row(rows, 0.0, 1.5, 2)
        keep = torch.full((rows,), max(1, size // 20))
        got = ops.l1_step_in_ball(x_adv, gradient, x, step, keep, epsilon, *box)
        delta = ops.l1_step(x_adv, gradient, x, step, keep, *box)
        z = ops.project_l1_ball_box(delta, x, epsilon, *box)
        assert torch.equal(got, ops.add_perturbation(x, z, *box)), (rows, size)


@pytest.mark.parametrize("dtype", REALS)
def test_l1_step_in_ball_matches_the_reference(dtype: torch.dtype) -> None:
    x_adv, gradient, x = inputs(20, 300, dtype)
    step, keep = per_row(20, 0.0, 2.0, 1), torch.full((20,), 15)
    for epsilon in (0.0, 0.25, 2.0):
        got = ops.l1_step_in_ball(x_adv, gradient, x, step, keep, epsilon)
        want = reference.l1_step_in_ball(x_adv, gradient, x, step, keep, epsilon)
        torch.testing.assert_close(got, want, rtol=0, atol=max(4 * torch.finfo(dtype).eps, 1e-12))
        moved = zip(got.double().tolist(), x.double().tolist(), strict=True)
        for row, clean in moved:
            spent = sum(abs(Fraction(a) - Fraction(b)) for a, b in zip(row, clean, strict=True))
            assert spent <= Fraction(epsilon)
        assert ((got.double() >= 0) & (got.double() <= 1)).all()
