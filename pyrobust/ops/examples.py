"""Bookkeeping for attacks on a batch: copying chosen examples, and counting changed coordinates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError

from . import native
from .rows import check_alike, check_float, nhwc
from .transforms import refuse_tangents


def put_rows(chosen: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Copy the chosen examples into another batch, in place and without host synchronisation.

    ``target[b] = source[b]`` where ``chosen[b]``. The op has no gradient.

    Args:
        chosen: [B], bool.
        source: same shape and dtype as target.
        target: [B, ...], float32, float64, bfloat16 or float16; updated.

    Returns:
        target.

    Raises:
        InputError: mismatched shapes, dtypes or devices.
        InputTypeError: an unsupported dtype.

    >>> put_rows(torch.tensor([True, False]), torch.ones(2, 3), torch.zeros(2, 3))
    tensor([[1., 1., 1.],
            [0., 0., 0.]])
    """
    op = "put_rows"
    check_float(op, "target", target)
    check_float(op, "source", source)
    if source.shape != target.shape or source.dtype != target.dtype or source.device != target.device:
        raise InputError(
            f"{op}: source",
            f"target's {tuple(target.shape)}, {target.dtype} on {target.device}",
            f"{tuple(source.shape)}, {source.dtype} on {source.device}",
        )
    if not isinstance(chosen, Tensor) or chosen.dtype != torch.bool:
        raise InputTypeError(f"{op}: chosen", "a bool tensor", getattr(chosen, "dtype", type(chosen).__name__))
    if target.dim() < 1 or chosen.shape != target.shape[:1]:
        raise InputError(f"{op}: chosen", f"shape {tuple(target.shape[:1])}", tuple(chosen.shape))
    refuse_tangents(op, source, target)
    if nhwc(target):
        p, q = source.detach().permute(0, 2, 3, 1), target.detach().permute(0, 2, 3, 1)
    elif target.is_contiguous():
        p, q = source.detach(), target.detach()
    else:  # rows are not contiguous in memory
        return torch.where(chosen.view(-1, *[1] * (target.dim() - 1)), source, target, out=target)
    if target.numel() > 0:
        native.call(_PUT, chosen.contiguous(), p.reshape(len(p), -1).contiguous(), q.view(len(q), -1))
    return target


def count_changed(x_adv: Tensor, x: Tensor) -> Tensor:
    """Count the changed coordinates of each example: the l0 norm of x_adv - x.

    Args:
        x_adv: [B, ...], float32, float64, bfloat16 or float16; NaN counts as changed.
        x: same shape and dtype as x_adv.

    Returns:
        int64 [B]. The op has no gradient.

    Raises:
        InputError: mismatched shapes or devices.
        InputTypeError: an unsupported dtype.

    >>> count_changed(torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[0.0, 0.25, 0.75]]))
    tensor([2])
    """
    op = "count_changed"
    check_float(op, "x", x)
    check_float(op, "x_adv", x_adv)
    check_alike(op, "x_adv", x_adv, x)
    if x.dim() < 1:
        raise InputError(f"{op}: x", "[B, ...]", "a scalar")
    if x.numel() == 0:
        return torch.zeros(len(x), dtype=torch.int64, device=x.device)
    if nhwc(x_adv, x):
        x_adv, x = x_adv.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1)
    refuse_tangents(op, x_adv, x)
    p, q = (t.detach().reshape(len(t), -1).contiguous() for t in (x_adv, x))
    return native.call(_COUNT, p, q)


# --- fake kernels and gradients of the raw ops

_PUT: Callable[..., None] = torch.ops.pyrobust.put_rows
_COUNT: Callable[..., Tensor] = torch.ops.pyrobust.count_changed

native.fake("put_rows")
native.fake("count_changed", result=lambda x_adv, x: x.new_empty(x.shape[:1], dtype=torch.int64))
