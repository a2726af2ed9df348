"""Euclidean projections onto the l2 ball and the l∞ ball."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import native
from .rows import project_rows
from .transforms import batch_of_rows, differentiable, keep


def project_l2_ball(v: Tensor, radius: float | Tensor, *, out: Tensor | None = None) -> Tensor:
    """Project each row onto the l2 ball {‖z‖₂ ≤ radius}.

    A row with ‖v‖₂ ≤ radius (compared exactly) is returned bit for bit. For any other row, z = v·radius / ‖v‖₂ (Boyd
    and Vandenberghe, "Convex optimization", 2004, 8.1.1). In float32 and float64, the returned z then has ‖z‖₂ ≥ (1 -
    2⁻²¹)·radius, unless some nonzero |zᵢ| are below the dtype's smallest normal number. All returned numbers satisfy
    |zᵢ| ≤ |vᵢ| and, in exact arithmetic, Σ z² ≤ radius².

    Gradient: the identity for a row inside the ball; for any other row, with n = v / ‖v‖₂,
    dz = (dv - n·⟨n, dv⟩)·radius / ‖v‖₂ + n·dradius.

    Args:
        v: [..., D], float32, float64, bfloat16 or float16, finite.
        radius: 0 to 2⁹⁶⁰; a number, or a float tensor that broadcasts to the shape [...] of the rows.
        out: tensor to write to, either v itself or a tensor of the same shape, dtype and device; not allowed if v or
            radius needs a derivative.

    Returns:
        [..., D], same dtype as v. On a GPU a row whose v or radius is out of range is NaN.

    Raises:
        InputError: a radius of the wrong shape or out of range, a v that is not finite (CPU), or an unsuitable out.
        InputTypeError: an unsupported dtype.

    >>> project_l2_ball(torch.tensor([[3.0, -4.0], [0.5, 0.0]]), 1.0)
    tensor([[ 0.6000, -0.8000],
            [ 0.5000,  0.0000]])
    """
    return project_rows("project_l2_ball", _L2_BALL, _L2_BALL_INTO, v, radius, out)


def project_linf_ball(v: Tensor, radius: float | Tensor, *, out: Tensor | None = None) -> Tensor:
    """Project each row onto the l∞ ball {‖z‖_∞ ≤ radius}.

    zᵢ = vᵢ where |vᵢ| ≤ radius, else ±radius rounded inward to the dtype (Boyd and Vandenberghe,
    "Convex optimization", 2004, 8.1.1). |zᵢ| ≤ radius holds exactly, even if the dtype cannot represent the radius.

    Gradient: dzᵢ = dvᵢ where |vᵢ| ≤ radius, else sign(vᵢ)·dradius.

    Args:
        v: [..., D], float32, float64, bfloat16 or float16, finite.
        radius: 0 to 2⁹⁶⁰; a number, or a float tensor that broadcasts to the shape [...] of the rows.
        out: tensor to write to, either v itself or a tensor of the same shape, dtype and device; not allowed if v or
            radius needs a derivative.

    Returns:
        [..., D], same dtype as v. On a GPU a row whose v or radius is out of range is NaN.

    Raises:
        InputError: a radius of the wrong shape or out of range, a v that is not finite (CPU), or an unsuitable out.
        InputTypeError: an unsupported dtype.

    >>> project_linf_ball(torch.tensor([[3.0, -4.0], [0.5, 0.0]]), torch.tensor([1.0, 2.0]))
    tensor([[ 1.0000, -1.0000],
            [ 0.5000,  0.0000]])
    """
    return project_rows("project_linf_ball", _LINF_BALL, _LINF_BALL_INTO, v, radius, out)


# --- fake kernels and gradients of the raw ops

_L2_BALL_INTO: Callable[..., None] = torch.ops.pyrobust.project_l2_ball.into
_LINF_BALL_INTO: Callable[..., None] = torch.ops.pyrobust.project_linf_ball.into


def _save_l2_ball(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    v, radius = inputs
    keep(ctx, v, radius, (output - v).abs().amax(1, keepdim=True) == 0)  # takes half the time of comparing elements


def _save_linf_ball(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    # One byte per element: the sign where clipped, else zero.
    v, radius = inputs
    keep(ctx, (v > output).to(torch.int8) - (v < output).to(torch.int8))
    ctx.one_radius, ctx.dtype = radius.numel() == 1, v.dtype


def _along_l2(ctx: Any, u: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return n = v / ‖v‖₂ [R, D], radius / ‖v‖₂ [R, 1] (1 for rows inside) and n·u [R, 1] (0 for rows inside)."""
    v, radius, inside = ctx.saved_tensors
    real = torch.float64 if v.dtype == torch.float64 else torch.float32
    # Squares of v / largest neither overflow nor vanish. A row of zeros is inside.
    largest = v.abs().amax(1, keepdim=True).to(real)
    largest = torch.where(largest > 0, largest, 1)
    unit = v / largest
    length = torch.linalg.vector_norm(unit, dim=1, keepdim=True).clamp(min=1)
    scale = (radius[:, None] / length / largest).masked_fill(inside, 1)
    along = torch.zeros_like(length) if u is None else torch.linalg.vecdot(unit, u.to(real)).unsqueeze(1) / length
    return unit / length, scale.to(real), along.masked_fill(inside, 0)


def _backward_l2_ball(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    unit, scale, along = _along_l2(ctx, grad)
    of_v = (grad * scale - unit * (along * scale)).to(grad.dtype)
    of_radius = along[:, 0].double()
    return of_v, of_radius.sum(0, keepdim=True) if ctx.saved_tensors[1].numel() == 1 else of_radius


def _jvp_l2_ball(ctx: Any, v: Tensor | None, radius: Tensor | None) -> Tensor:
    unit, scale, along = _along_l2(ctx, v)
    moved = torch.zeros_like(unit) if v is None else v * scale - unit * (along * scale)
    if radius is not None:
        moved = moved + unit * radius[:, None].to(unit.dtype).masked_fill(ctx.saved_tensors[2], 0)
    return moved.to(ctx.saved_tensors[0].dtype)


def _backward_linf_ball(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    (clipped,) = ctx.saved_tensors
    of_v = grad.masked_fill(clipped != 0, 0)
    if not ctx.needs_input_grad[1]:
        return of_v, None
    real = torch.float64 if grad.dtype == torch.float64 else torch.float32
    of_radius = (grad * clipped).sum(1, dtype=real).double()
    return of_v, of_radius.sum(0, keepdim=True) if ctx.one_radius else of_radius


def _jvp_linf_ball(ctx: Any, v: Tensor | None, radius: Tensor | None) -> Tensor:
    (clipped,) = ctx.saved_tensors
    moved = torch.zeros_like(clipped, dtype=ctx.dtype) if v is None else v.masked_fill(clipped != 0, 0)
    return moved if radius is None else moved + clipped * radius[:, None].to(ctx.dtype)


native.fake("project_l2_ball", "project_linf_ball", like=0)
native.fake("project_l2_ball.into", "project_linf_ball.into")
_L2_BALL = differentiable("project_l2_ball", _save_l2_ball, _backward_l2_ball, _jvp_l2_ball, batch_of_rows)
_LINF_BALL = differentiable("project_linf_ball", _save_linf_ball, _backward_linf_ball, _jvp_linf_ball, batch_of_rows)
