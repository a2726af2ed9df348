"""Emulated CUDA kernels with shared memory against the reference, for any rows, threads per row and blocks."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from emulation import Blocks, build
from op_inputs import same_bits
from torch import Tensor

from pyrobust import reference

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


def test_a_wrong_relaxation_is_detected(blocks: Blocks, tmp_path: Path) -> None:
    wrong = Blocks(build("blocks.cpp", tmp_path, "a chord too low"))
    a, (lower, upper) = coefficients((2, 3, 40), 1), torch.ones(2, 2, 40, dtype=torch.float64)
    for emulated, same in ((blocks, True), (wrong, False)):
        bias = emulated.relax_coefficients(a, -lower, upper, 0.0)[1]
        assert torch.allclose(bias, reference.relax_coefficients(a, -lower, upper)[1]) == same
