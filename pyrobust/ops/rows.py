"""Argument checks and memory layouts shared by the ops on rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.checks import number
from pyrobust.errors import InputError, InputTypeError

from . import native

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_LARGEST_RADIUS = 2.0**960  # limit of the native ops: sums of squares below it cannot overflow


def check_float(op: str, name: str, value: Tensor) -> None:
    """Refuse anything but a float tensor of a supported dtype."""
    if not isinstance(value, Tensor):
        raise InputTypeError(f"{op}: {name}: expected a tensor, got {type(value).__name__}")
    if value.dtype not in _DTYPES:
        raise InputTypeError(f"{op}: {name}: expected a float tensor, got {value.dtype}")


def check_alike(op: str, name: str, value: Tensor, x: Tensor) -> None:
    """Refuse a tensor that differs from x in shape, dtype or device."""
    if value.shape != x.shape:
        raise InputError(f"{op}: {name}: expected the shape of x, {tuple(x.shape)}, got {tuple(value.shape)}")
    if value.dtype != x.dtype:
        raise InputTypeError(f"{op}: {name}: expected x's dtype, {x.dtype}, got {value.dtype}")
    if value.device != x.device:
        raise InputError(f"{op}: {name}: expected x's device, {x.device}, got {value.device}")


def box(op: str, lower: float, upper: float) -> tuple[float, float]:
    """Return the bounds of the box as floats; refuse non-finite or reversed ones."""
    lower, upper = number(f"{op}: lower", lower), number(f"{op}: upper", upper)
    if not (math.isfinite(lower) and math.isfinite(upper) and lower <= upper):
        raise InputError(f"{op}: lower, upper: expected finite numbers, lower <= upper, got {lower}, {upper}")
    return lower, upper


def radii(op: str, radius: float | Tensor, rows: torch.Size, device: torch.device) -> Tensor:
    """Return the radius as float64 [1], or [R] with one for each row; the native ops check a tensor's values.

    >>> radii("project_l1_ball", 2, torch.Size([3]), torch.device("cpu"))
    tensor([2.], dtype=torch.float64)
    """
    if not isinstance(radius, Tensor):
        radius = number(f"{op}: radius", radius)
        if not 0 <= radius <= _LARGEST_RADIUS:
            raise InputError(f"{op}: radius: expected 0 to 2**960, got {radius}")
        return torch.full((1,), radius, dtype=torch.float64, device=device)
    check_float(op, "radius", radius)
    if radius.device != device:
        raise InputError(f"{op}: radius: expected it on {device}, got {radius.device}")
    if radius.numel() != 1:
        extra = radius.dim() - len(rows)
        if extra > 0 or any(a not in (1, b) for a, b in zip(radius.shape, rows[-radius.dim() :], strict=True)):
            raise InputError(
                f"{op}: radius: expected a shape that broadcasts to {tuple(rows)}, got {tuple(radius.shape)}"
            )
        radius = radius.expand(rows)
    return radius.to(torch.float64).reshape(-1).contiguous()


def project_rows(op: str, raw: Callable[..., Tensor], v: Tensor, radius: float | Tensor) -> Tensor:
    """Check the arguments of a projection of the rows of v [..., D] and call its native op on [R, D].

    >>> project_rows("project_l1_ball", torch.ops.pyrobust.project_l1_ball, torch.tensor([3.0, 1.0]), 2.0)
    tensor([2., 0.])
    """
    check_float(op, "v", v)
    if v.dim() < 1:
        raise InputError(f"{op}: v: expected [..., D], got a scalar")
    column = radii(op, radius, v.shape[:-1], v.device)
    if v.numel() == 0:
        return v.clone()
    return native.call(raw, v.reshape(-1, v.shape[-1]).contiguous(), column).reshape(v.shape)


def nhwc(*tensors: Tensor) -> bool:
    """Whether every tensor is dense in channels_last only, so that [N, H, W, C] is a view of it.

    >>> nhwc(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
    True
    """
    return all(
        t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last) for t in tensors
    )


def round_inward(bound: float, dtype: torch.dtype, side: int) -> float:
    """Round the bound to the dtype: down for side 1 (an upper bound), up for side -1 (a lower bound).

    >>> round_inward(0.1, torch.float32, 1) < 0.1 < round_inward(0.1, torch.float32, -1)
    True
    """
    info = torch.finfo(dtype)
    _, exponent = math.frexp(bound)
    step = max(math.ldexp(info.eps, exponent - 1), info.smallest_normal * info.eps)
    steps = bound / step
    number = (math.floor(steps) if side > 0 else math.ceil(steps)) * step
    return min(max(number, info.min), info.max)
