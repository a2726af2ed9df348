"""scale_rows: oracle, bits, gradient, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError

DTYPES = (torch.float32, torch.float64)
#: Around a vector, a block of 256 threads and a chunk of 16,384 elements; and empty.
SHAPES = [(1, 1), (3, 7), (5, 255), (2, 257), (3, 16385), (300, 64), (0, 4), (4, 0)]


def inputs(rows: int, n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Draw rows with zeros, infinities and NaN, and factors of both signs."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(rows, n, generator=generator, dtype=torch.float64)
    x[:, ::5], x[:, 1::50], x[:, 2::60] = 0, torch.inf, torch.nan
    return x.to(dtype), torch.randn(rows, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_the_reference(device: torch.device, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x, scale = (t.to(device) for t in inputs(*shape, dtype))
        # one product for each element: the same bits
        torch.testing.assert_close(
            ops.scale_rows(x, scale), reference.scale_rows(x, scale), rtol=0, atol=0, equal_nan=True
        )


def test_by_hand(device: torch.device) -> None:
    x, scale = torch.tensor([[1.0, -2.0], [3.0, 0.5]]), torch.tensor([2.0, -4.0])
    assert ops.scale_rows(x.to(device), scale.to(device)).tolist() == [[2.0, -4.0], [-12.0, -2.0]]


def test_threads_change_no_bit(threads: int) -> None:
    x, scale = inputs(300, 64)
    torch.testing.assert_close(ops.scale_rows(x, scale), reference.scale_rows(x, scale), rtol=0, atol=0, equal_nan=True)


def test_the_raw_op_checks_too() -> None:
    raw, x, scale = torch.ops.pyrobust.scale_rows, torch.zeros(3, 2), torch.zeros(3)
    with pytest.raises(RuntimeError, match=r"scale_rows: scale: expected \[3\], got \[2\]"):
        raw(x, scale[:2])
    with pytest.raises(RuntimeError, match="scale_rows: x: expected a contiguous tensor"):
        raw(torch.zeros(2, 3).T, scale)
    with pytest.raises(RuntimeError, match="scale_rows: scale: expected the dtype of x"):
        raw(x, scale.double())


def test_tensors_that_are_not_contiguous() -> None:
    x, scale = inputs(6, 20)
    turned, every_other = x.T.contiguous().T, torch.stack([scale, scale], 1).flatten()[::2]
    torch.testing.assert_close(
        ops.scale_rows(turned, every_other), ops.scale_rows(x, scale), rtol=0, atol=0, equal_nan=True
    )


def test_gradient() -> None:
    x, scale = torch.randn(3, 4).double().requires_grad_(), torch.randn(3).double().requires_grad_()
    assert torch.autograd.gradcheck(ops.scale_rows, (x, scale))


@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck(device: torch.device, dtype: torch.dtype) -> None:
    x, scale = torch.randn(4, 20, dtype=dtype, device=device), torch.randn(4, dtype=dtype, device=device)
    torch.library.opcheck(torch.ops.pyrobust.scale_rows.default, (x.requires_grad_(), scale.requires_grad_()))


@pytest.mark.parametrize(
    ("x", "scale", "error", "message"),
    [
        (torch.zeros(3), torch.zeros(3), InputError, r"x: expected \[B, D\], got \(3,\)"),
        (torch.zeros(3, 2), torch.zeros(2), InputError, r"scale: expected shape \(3,\), got \(2,\)"),
        (torch.zeros(3, 2), torch.zeros(3).double(), InputTypeError, "scale: expected float32 or float64 like x"),
        (torch.zeros(3, 2).half(), torch.zeros(3).half(), InputTypeError, "x: expected float32 or float64"),
        ([[1.0]], torch.zeros(1), InputTypeError, "x: expected a tensor, got list"),
    ],
)
def test_refused(x: Any, scale: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"scale_rows: {message}"):
        ops.scale_rows(x, scale)
