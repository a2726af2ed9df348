"""Emulated elementwise CUDA kernels: the reference's bits, no write out of bounds."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from emulation import ELEMENT_OPS, Elements, build
from op_inputs import same_bits
from projection_inputs import REALS
from step_inputs import inputs, near, per_row
from torch import Tensor

from pyrobust import reference

BOX = (-0.1, 0.9)


def expected(
    op: str, x_adv: Tensor, gradient: Tensor, x: Tensor, before: Tensor, step: Tensor, epsilon: Tensor
) -> Tensor:
    if op == "add_perturbation":
        return reference.add_perturbation(x, gradient, *BOX)
    if op == "linf_step":
        return reference.linf_step(x_adv, gradient, x, step, epsilon, *BOX)
    return reference.linf_momentum_step(x_adv, gradient, x, before, step, epsilon, *BOX, share=0.75)


@pytest.mark.parametrize("dtype", REALS)
def test_any_place_in_memory_and_any_rows(elements: Elements, dtype: torch.dtype) -> None:
    """Vary alignment, rows that begin within a pack, shared or per-row radii, and packs per thread."""
    for op, n in itertools.product(ELEMENT_OPS, (1, 2, 3, 4, 5, 7, 64, 1001)):
        for rows in (1, 2, 17):
            x_adv, gradient, x = inputs(rows, n, dtype, BOX, seed=n)
            before = inputs(rows, n, dtype, BOX, seed=n + 1)[0]
            for per_row_step, per_row_epsilon in ((False, False), (True, False), (False, True), (True, True)):
                step = per_row(rows if per_row_step else 1, 0.0, 0.2, 1)
                epsilon = per_row(rows if per_row_epsilon else 1, 0.0, 0.3, 2)
                case = (x_adv, gradient, x, before, step, epsilon)
                want = expected(op, x_adv, gradient, x, before, step.expand(rows), epsilon.expand(rows))
                for offset, blocks in ((0, 1), (1, 3), (4, 2)):
                    got = elements.run(op, *case, BOX, offset=offset, blocks=blocks)
                    assert same_bits(got, want), (op, n, rows, offset)


@pytest.mark.parametrize("op", ELEMENT_OPS)
def test_bad_elements_and_rows_are_nan(elements: Elements, op: str) -> None:
    x_adv, gradient, x = inputs(4, 5, torch.float32, BOX)
    x[0, 0], x[3, 4] = 1.5, torch.nan
    step, epsilon = torch.tensor([0.1, torch.inf, 0.1, 0.1]), torch.tensor([0.1, 0.1, -1.0, 0.1])
    got = elements.run(op, x_adv, gradient, x, x_adv, step, epsilon, BOX, offset=0, blocks=1)
    rows = [1, 0, 0, 1] if op == "add_perturbation" else [1, 5, 5, 1]
    assert got.isnan().sum(1).tolist() == rows


def test_rounding_to_nearest_is_detected(elements: Elements, tmp_path: Path) -> None:
    wrong = Elements(build("elements.cpp", tmp_path, "rounds to nearest"))
    x_adv, gradient, x = inputs(50, 40, torch.float32, BOX)
    epsilon = per_row(50, 0.0, 0.01, 2)
    case = (x_adv, gradient, x, x, torch.tensor([1.0]), epsilon, BOX)
    assert near(elements.run("linf_step", *case, offset=0, blocks=1), x, epsilon)
    assert not near(wrong.run("linf_step", *case, offset=0, blocks=1), x, epsilon)
