"""Argument checks and memory layouts shared by the ops on rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import number
from pyrobust.errors import InputError, InputTypeError

from . import native
from .transforms import transformed, untracked

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LARGEST_RADIUS = 2.0**960  # limit of the native ops: sums of squares below it cannot overflow


def check_float(op: str, name: str, value: Tensor) -> None:
    """Refuse anything but a float tensor of a supported dtype."""
    if not isinstance(value, Tensor):
        raise InputTypeError(f"{op}: {name}", "a tensor", type(value).__name__)
    if value.dtype not in _DTYPES:
        raise InputTypeError(f"{op}: {name}", "a float tensor", value.dtype)


def check_alike(op: str, name: str, value: Tensor, x: Tensor) -> None:
    """Refuse a tensor that differs from x in shape, dtype or device."""
    if value.shape != x.shape:
        raise InputError(f"{op}: {name}", f"the shape of x, {tuple(x.shape)}", tuple(value.shape))
    if value.dtype != x.dtype:
        raise InputTypeError(f"{op}: {name}", f"x's dtype, {x.dtype}", value.dtype)
    if value.device != x.device:
        raise InputError(f"{op}: {name}", f"x's device, {x.device}", value.device)


def box(op: str, lower: float, upper: float) -> tuple[float, float]:
    """Return the bounds of the box as floats; refuse non-finite or reversed bounds."""
    if type(lower) is not float or type(upper) is not float:
        lower, upper = number(f"{op}: lower", lower), number(f"{op}: upper", upper)
    if not (math.isfinite(lower) and math.isfinite(upper) and lower <= upper):
        raise InputError(f"{op}: lower, upper", "finite numbers, lower <= upper", f"{lower}, {upper}")
    return lower, upper


def radii(op: str, radius: float | Tensor, rows: torch.Size, device: torch.device) -> Tensor:
    """Return the radius as float64 [1], or as float64 [R] if each row has its own radius.

    The values of a radius tensor are not checked here but by the native ops.

    >>> radii("project_l1_ball", 2, torch.Size([3]), torch.device("cpu"))
    tensor([2.], dtype=torch.float64)
    """
    if not isinstance(radius, Tensor):
        radius = number(f"{op}: radius", radius)
        if not 0 <= radius <= LARGEST_RADIUS:
            raise InputError(f"{op}: radius", "0 to 2**960", radius)
        return torch.full((1,), radius, dtype=torch.float64, device=device)
    check_float(op, "radius", radius)
    if radius.device != device:
        raise InputError(f"{op}: radius", f"it on {device}", radius.device)
    if radius.numel() != 1:
        extra = radius.dim() - len(rows)
        if extra > 0 or any(a not in (1, b) for a, b in zip(radius.shape, rows[-radius.dim() :], strict=True)):
            raise InputError(f"{op}: radius", f"a shape that broadcasts to {tuple(rows)}", tuple(radius.shape))
        radius = radius.expand(rows)
    return radius.to(torch.float64).reshape(-1).contiguous()


def plain_column(value: float | Tensor) -> Tensor | None:
    """Return a number as float64 [1] and a tensor of step sizes or radii as float64 [B]; None if checks are needed.

    >>> plain_column(0.5), plain_column(-0.5)
    (tensor([0.5000], dtype=torch.float64), None)
    """
    if type(value) is float:
        return constant(value) if 0 <= value <= LARGEST_RADIUS else None
    if type(value) is not Tensor or value.dim() != 1 or value.dtype not in _DTYPES or value.requires_grad:
        return None
    return value if value.dtype == torch.float64 else value.to(torch.float64)


def project_rows(
    op: str,
    raw: Callable[..., Tensor],
    into: Callable[..., None],
    v: Tensor,
    radius: float | Tensor,
    out: Tensor | None,
) -> Tensor:
    """Check the arguments of a projection of the rows of v [..., D], and call its native op on them as [R, D].

    >>> ball = torch.ops.pyrobust.project_l1_ball
    >>> project_rows("project_l1_ball", ball.default, ball.into, torch.tensor([3.0, 1.0]), 2.0, None)
    tensor([2., 0.])
    """
    if out is None and type(v) is Tensor and v.dim() == 2 and v.is_cpu and v.is_contiguous() and untracked(v):
        column = plain_column(radius) if type(radius) is float else None
        if column is not None and v.numel() and v.dtype in _DTYPES:
            z = torch.empty_like(v)
            native.call(into, v, column, z)
            return z
    check_float(op, "v", v)
    if v.dim() < 1:
        raise InputError(f"{op}: v", "[..., D]", "a scalar")
    column = radii(op, radius, v.shape[:-1], v.device)
    if v.numel() == 0:
        return v.clone() if out is None else check_out(op, v, out)
    rows = v if v.dim() == 2 and v.is_contiguous() else v.reshape(-1, v.shape[-1]).contiguous()
    return project(op, raw, into, (rows, column), v, out)


@functools.lru_cache(maxsize=64)
def constant(radius: float) -> Tensor:
    """Return the radius as float64 [1]; all calls with this radius share the tensor, which the ops only read."""
    with torch.inference_mode(False):
        return torch.full((1,), radius, dtype=torch.float64)


def project(
    op: str,
    raw: Callable[..., Tensor],
    into: Callable[..., None],
    arguments: tuple[Any, ...],
    v: Tensor,
    out: Tensor | None,
) -> Tensor:
    """Call a native projection on the rows [R, D] of v. Return the result in v's shape, in ``out`` if that is given.

    >>> ball, v = torch.ops.pyrobust.project_l1_ball, torch.tensor([[3.0, 1.0]])
    >>> project("project_l1_ball", ball.default, ball.into, (v, torch.tensor([2.0]).double()), v, None)
    tensor([[2., 0.]])
    """
    rows = arguments[0]
    tensors = [value for value in arguments if isinstance(value, Tensor)]
    if out is not None:
        check_out(op, v, out)
        if transformed() or (torch.is_grad_enabled() and any(value.requires_grad for value in tensors)):
            raise InputError(
                f"{op}: out",
                "arguments without a derivative, since out= has none",
                hint="leave it out, or call it under torch.no_grad()",
            )
        alone = not torch.compiler.is_compiling() and not any(_share_memory(out, value) for value in tensors)
        direct = alone and out.is_contiguous()
        z = out.view(rows.shape) if direct else torch.empty_like(rows)
        native.call(into, *arguments, z)
        return out if direct else out.copy_(z.view(v.shape))
    if untracked(*tensors):  # avoid the cost of gradient support
        z = torch.empty_like(rows)
        native.call(into, *arguments, z)
    else:
        z = native.call(raw, *arguments)
    return z if v.dim() == 2 else z.reshape(v.shape)


def _share_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def check_out(op: str, v: Tensor, out: Tensor) -> Tensor:
    """Refuse an ``out`` that cannot hold the projection of v.

    >>> check_out("project_l1_ball", torch.zeros(2), torch.zeros(3))
    Traceback (most recent call last):
    pyrobust.errors.InputError: project_l1_ball: out: expected v's shape, (2,), got (3,)
    """
    check_float(op, "out", out)
    for what, expected, got in (
        ("shape", tuple(v.shape), tuple(out.shape)),
        ("dtype", v.dtype, out.dtype),
        ("device", v.device, out.device),
    ):
        if expected != got:
            raise InputError(f"{op}: out", f"v's {what}, {expected}", got)
    if out.requires_grad and torch.is_grad_enabled():
        raise InputError(f"{op}: out", "no gradient, since out= has none", hint="call it under torch.no_grad()")
    return out


def nhwc(*tensors: Tensor) -> bool:
    """Whether every tensor is contiguous only in channels_last format, so that its view [N, H, W, C] is contiguous.

    >>> nhwc(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
    True
    """
    # Under torch.func.vmap the memory format is not known.
    return not transformed() and all(
        t.dim() == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last) for t in tensors
    )


def round_inward(bound: float, dtype: torch.dtype, side: int) -> float:
    """Round the bound to the dtype: an upper bound (side 1) is rounded down, a lower bound (side -1) is rounded up.

    >>> round_inward(0.1, torch.float32, 1) < 0.1 < round_inward(0.1, torch.float32, -1)
    True
    """
    info = torch.finfo(dtype)
    _, exponent = math.frexp(bound)
    step = max(math.ldexp(info.eps, exponent - 1), info.smallest_normal * info.eps)
    steps = bound / step
    number = (math.floor(steps) if side > 0 else math.ceil(steps)) * step
    return min(max(number, info.min), info.max)
