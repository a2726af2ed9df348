"""Rows times a factor each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError
from pyrobust.ops import native

_OP: Callable[..., Tensor] = torch.ops.pyrobust.scale_rows


def scale_rows(x: Tensor, scale: Tensor) -> Tensor:
    """Multiply each row of x by its factor: y[b, d] = scale[b]·x[b, d], rounded once. Differentiable in both.

    Args:
        x: [B, D], float32 or float64.
        scale: [B], same dtype and device as x.

    Returns:
        [B, D], contiguous.

    Raises:
        InputError: mismatched shapes or devices.
        InputTypeError: an unsupported dtype.

    >>> scale_rows(torch.ones(2, 2), torch.tensor([1.0, 2.0]))
    tensor([[1., 1.],
            [2., 2.]])
    """
    for name, value in (("x", x), ("scale", scale)):
        if not isinstance(value, Tensor):
            raise InputTypeError(f"scale_rows: {name}", "a tensor", type(value).__name__)
        if value.dtype not in (torch.float32, torch.float64) or value.dtype != x.dtype:
            got = f"{value.dtype}, x {x.dtype}"
            raise InputTypeError(f"scale_rows: {name}", "float32 or float64 like x", got)
    if x.dim() != 2:
        raise InputError("scale_rows: x", "[B, D]", tuple(x.shape))
    if scale.shape != x.shape[:1]:
        raise InputError("scale_rows: scale", f"shape ({x.shape[0]},)", tuple(scale.shape))
    if scale.device != x.device:
        raise InputError("scale_rows: scale", f"x's device, {x.device}", scale.device)
    return native.call(_OP, x.contiguous(), scale.contiguous())


# --- fake kernel and gradient of the raw op


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    x, scale = ctx.saved_tensors
    return scale_rows(gradient, scale), (gradient * x).sum(1)


native.fake("scale_rows", like=0)
torch.library.register_autograd("pyrobust::scale_rows", _backward, setup_context=_keep)
