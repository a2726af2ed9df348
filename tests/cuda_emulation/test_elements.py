"""Emulated CUDA kernels of elements, and of blocks that share memory: the reference's bits, no write beside them."""

from __future__ import annotations

import itertools

import pytest
import torch
from emulation import ELEMENT_OPS, Blocks, Elements
from op_inputs import same_bits
from projection_inputs import REALS, inputs, per_row
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


# --- blocks

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def lines_of(images: int, n: int, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(4, images, n, generator=generator, dtype=torch.float64))


def coefficients(shape: tuple[int, ...], seed: int) -> Tensor:
    """Draw coefficients of both signs and zeros."""
    a = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a[..., ::5] = 0
    return a


@pytest.mark.parametrize("n", [0, 1, 31, 33, 255, 257, 600])
def test_relax_rows(blocks: Blocks, n: int) -> None:
    for lanes, (rows, images) in itertools.product((32, 256), ((1, 1), (19, 3), (40, 2))):
        a, image = coefficients((rows, n), n), torch.arange(rows) % images
        lines = lines_of(images, n, n + 1)
        got, want = a.clone(), a.clone()
        torch.testing.assert_close(
            blocks.relax_rows(lanes, got, image, *lines), reference.relax_rows(want, image, *lines), **CLOSE
        )
        assert same_bits(got, want)  # one product each
        least = blocks.relax_rows(lanes, a, image, *lines[2:])
        torch.testing.assert_close(least, reference.concretize_rows(a, image, *lines[2:]), **CLOSE)


@pytest.mark.parametrize("lanes", [32, 256])
def test_rows_of_no_image_and_nan(blocks: Blocks, lanes: int) -> None:
    a = coefficients((20, 40), 1)
    a[7, 3] = torch.nan
    image = torch.arange(20) % 2
    image[4], image[11] = -1, 2
    before = a.clone()
    constant = blocks.relax_rows(lanes, a, image, *lines_of(2, 40, 2))
    assert constant.isnan().nonzero()[:, 0].tolist() == [4, 7, 11]
    assert torch.equal(a[[4, 11]], before[[4, 11]]), "relaxations of an image out of range were read"


@pytest.mark.parametrize("n", [1, 40, 255, 300])
def test_relax_coefficients_and_gradients(blocks: Blocks, n: int) -> None:
    for batch, rows, slope in ((1, 1, 0.0), (3, 4, 0.0), (2, 5, 0.125)):
        a = coefficients((batch, rows, n), n)
        low, high = torch.randn(2, batch, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        lower, upper = torch.minimum(low, high), torch.maximum(low, high)
        inputs = tuple(tensor.clone().requires_grad_() for tensor in (a, lower, upper))
        want = reference.relax_coefficients(*inputs, slope)
        for got, expected in zip(blocks.relax_coefficients(a, lower, upper, slope), want, strict=True):
            torch.testing.assert_close(got, expected.detach(), **CLOSE)
        gradients = coefficients((batch, rows, n), n + 1), coefficients((batch, rows), n + 2)
        expected_gradients = torch.autograd.grad(want, inputs, gradients)
        result = blocks.relax_coefficients_backward(*gradients, a, lower, upper, slope)
        for got, expected in zip(result, expected_gradients, strict=True):
            torch.testing.assert_close(got, expected, **CLOSE)
