"""Addition of a perturbation, rounded toward the example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import native
from .rows import box, check_alike, check_float, nhwc, round_inward
from .transforms import batch_of_rows, differentiable, keep, untracked


def add_perturbation(x: Tensor, z: Tensor, lower: float = 0.0, upper: float = 1.0) -> Tensor:
    """Add z to x, rounded so that the result is never further from x than |z| and never outside the box.

    The result x_adv is x + z rounded toward x, then clipped. The exact rounding error of the floating-point sum (Knuth,
    TAOCP 2, 4.2.2) shows whether that sum must be moved toward x. In exact arithmetic, |x_adv - x| ≤ |z|, x_adv - x has
    the sign of z or is zero, and lower ≤ x_adv ≤ upper. If z lies in an l1, l2 or l∞ ball, so does x_adv - x, in every
    dtype.

    Gradient: 1 with respect to x and z where x_adv lies strictly between the two bounds, each rounded into the box to a
        number of x's dtype; else 0.

    Args:
        x: float32, float64, bfloat16 or float16, in [lower, upper].
        z: same shape and dtype as x; not NaN.
        lower: smallest value of the result; a binary64 number, whatever the dtype of x.
        upper: largest value of the result, a binary64 number.

    Returns:
        Same shape and dtype as x; channels_last if x and z are. On a GPU an element whose x or z is out of range is
        NaN.

    Raises:
        InputError: mismatched shapes or devices, or (CPU) a NaN or an x outside the box.
        InputTypeError: an unsupported dtype.

    >>> x = torch.tensor([0.5, 0.5, 0.5])
    >>> add_perturbation(x, torch.tensor([2.0**-25, 0.25, -3.0]))  # the first sum would round to 0.5 + 2**-24
    tensor([0.5000, 0.7500, 0.0000])
    """
    op = "add_perturbation"
    check_float(op, "x", x)
    check_float(op, "z", z)
    check_alike(op, "z", z, x)
    lower, upper = box(op, lower, upper)
    if x.numel() == 0:
        return x.clone()
    rows = x.shape[0] if x.dim() else 1
    if nhwc(x, z):
        p, q = x.permute(0, 2, 3, 1), z.permute(0, 2, 3, 1)
        x_adv = native.call(_ADD, p.reshape(rows, -1), q.reshape(rows, -1), lower, upper)
        return x_adv.reshape(p.shape).permute(0, 3, 1, 2)
    p, q = x.contiguous().reshape(rows, -1), z.contiguous().reshape(rows, -1)
    if untracked(p, q):  # torch's Python wrapper for gradients takes as long as the kernel
        with torch._C._AutoDispatchBelowAutograd():
            x_adv = native.call(_RAW, p, q, lower, upper)
    else:
        x_adv = native.call(_ADD, p, q, lower, upper)
    return x_adv.reshape(x.shape)


# --- fake kernel and gradient of the raw op


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, float, float], output: Tensor) -> None:
    # One byte per element. The result is compared with the bounds rounded into the box.
    _, _, lower, upper = inputs
    low, high = round_inward(lower, output.dtype, -1), round_inward(upper, output.dtype, 1)
    keep(ctx, (output > low) & (output < high))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
    (inside,) = ctx.saved_tensors
    moved = torch.where(inside, grad, 0)
    return moved, moved, None, None


def _jvp(ctx: Any, x: Tensor | None, z: Tensor | None, *_: None) -> Tensor:
    (inside,) = ctx.saved_tensors
    moved = sum(tangent for tangent in (x, z) if tangent is not None)
    return torch.where(inside, moved, 0)


native.fake("add_perturbation", like=0)
_RAW: Callable[..., Tensor] = torch.ops.pyrobust.add_perturbation.default
_ADD = differentiable("add_perturbation", _save, _backward, _jvp, batch_of_rows)
