"""Euclidean projections onto the simplex, the l1 ball, and the intersection of the l1 ball and a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrobust.errors import InputError

from . import native
from .rows import box, check_alike, check_float, check_out, nhwc, project, project_rows, radii
from .transforms import batch_of_rows, differentiable, keep


def project_simplex(v: Tensor, radius: float | Tensor = 1.0, *, out: Tensor | None = None) -> Tensor:
    """Project each row onto the simplex {z ≥ 0, Σ z = radius}.

    zᵢ = max(vᵢ - θ, 0) with the θ that makes the sum equal the radius (Held, Wolfe and Crowder, "Validation of
    subgradient optimization", 1974). The exact sum of the returned numbers is at most the radius. In float32 and
    float64, it is at least (1 - 2⁻²⁰)·radius, unless some positive zᵢ are below the dtype's smallest normal number.

    Gradient: dz_F = dv_F - mean(dv_F) + dradius / |F| on F = {z > 0}.

    Args:
        v: [..., D], float32, float64, bfloat16 or float16, finite, D ≥ 1.
        radius: 0 to 2⁹⁶⁰; a number, or a float tensor that broadcasts to the shape [...] of the rows.
        out: tensor to write to, either v itself or a tensor of the same shape, dtype and device; not allowed if v or
            radius needs a derivative.

    Returns:
        [..., D], same dtype as v. On a GPU a row whose v or radius is out of range is NaN.

    Raises:
        InputError: D = 0, a radius of the wrong shape or out of range, a v that is not finite (CPU), or an unsuitable
            out.
        InputTypeError: an unsupported dtype.

    >>> project_simplex(torch.tensor([0.5, 1.0, -2.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """
    if isinstance(v, Tensor) and v.dim() and v.shape[-1] == 0:
        raise InputError("project_simplex: v", "[..., D] with D >= 1", tuple(v.shape))
    return project_rows("project_simplex", _SIMPLEX, _SIMPLEX_INTO, v, radius, out)


def project_l1_ball(v: Tensor, radius: float | Tensor, *, out: Tensor | None = None) -> Tensor:
    """Project each row onto the l1 ball {‖z‖₁ ≤ radius}.

    A row with ‖v‖₁ ≤ radius (compared exactly) is returned bit for bit. For other rows, zᵢ = sign(vᵢ)·max(|vᵢ| - θ, 0)
    with the θ that gives ‖z‖₁ = radius (Duchi, Shalev-Shwartz, Singer and Chandra, "Efficient projections onto the
    l1-ball for learning in high dimensions", 2008). The returned numbers satisfy |zᵢ| ≤ |vᵢ| and, in exact arithmetic,
    ‖z‖₁ ≤ radius.

    Gradient: the identity for a row inside the ball; else, with s = sign(z) and F = {z ≠ 0},
    dz_F = dv_F - s_F·(⟨s_F, dv_F⟩ - dradius) / |F|.

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

    >>> project_l1_ball(torch.tensor([[0.5, -0.25], [-3.0, 2.0]]), 1.0)
    tensor([[ 0.5000, -0.2500],
            [-1.0000,  0.0000]])
    """
    return project_rows("project_l1_ball", _L1_BALL, _L1_BALL_INTO, v, radius, out)


def project_l1_ball_box(
    delta: Tensor,
    x: Tensor,
    radius: float | Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Project each example's delta onto the exact intersection {‖z‖₁ ≤ radius, lower ≤ x + z ≤ upper}.

    zᵢ = sign(δᵢ)·clip(|δᵢ| - θ, 0, uᵢ), where the room uᵢ in the direction of δᵢ is upper - xᵢ or xᵢ - lower. θ is 0 if
    this choice gives a z in the ball; otherwise, θ is the number that gives ‖z‖₁ = radius (Croce and Hein, "Mind the
    box: l1-APGD for sparse adversarial attacks on image classifiers", 2021). The returned numbers satisfy both
    constraints exactly: Σ |z| ≤ radius, and the real number x + z is in the box. ``add_perturbation`` adds z to x and
    keeps the rounded sum in the box, too.

    Gradient: let s = sign(z), C = {|z| = u > 0} and F = {0 < |z| < u}. Then dz_C = -dx_C. If θ = 0, dz_F = dδ_F;
    otherwise, dz_F = dδ_F - s_F·(⟨s_F, dδ_F⟩ - ⟨s_C, dx_C⟩ - dradius) / |F|.

    Args:
        delta: [B, ...], float32, float64, bfloat16 or float16, finite.
        x: same shape and dtype as delta, in [lower, upper].
        radius: 0 to 2⁹⁶⁰; a number, or a float tensor [B].
        lower: smallest value of x + z; a binary64 number, whatever the dtype of x.
        upper: largest value of x + z, a binary64 number.
        out: tensor to write to, delta itself or a tensor of its shape, dtype and device; not allowed if an argument
            needs a derivative.

    Returns:
        [B, ...], same dtype as delta; channels_last if delta and x are. On a GPU an example with an argument out of
        range is NaN.

    Raises:
        InputError: mismatched shapes, a radius or box out of range, an unsuitable out, or (CPU) a delta that is not
            finite or an x outside the box.
        InputTypeError: an unsupported dtype.

    >>> x = torch.tensor([[0.75, 0.5, 0.5]])
    >>> project_l1_ball_box(torch.tensor([[2.0, -0.5, 0.25]]), x, 0.5)
    tensor([[ 0.2500, -0.2500,  0.0000]])
    """
    op = "project_l1_ball_box"
    check_float(op, "delta", delta)
    check_float(op, "x", x)
    if delta.dim() < 1:
        raise InputError(f"{op}: delta", "[B, ...]", "a scalar")
    check_alike(op, "delta", delta, x)
    lower, upper = box(op, lower, upper)
    column = radii(op, radius, delta.shape[:1], delta.device)
    if delta.numel() == 0:
        return delta.clone() if out is None else check_out(op, delta, out)
    if nhwc(delta, x):
        # Both are channels_last: take the elements in memory order.
        y, point = delta.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1)
        inner = None if out is None else check_out(op, delta, out).permute(0, 2, 3, 1)
        z = _box_rows(y, point, column, lower, upper, inner)
        return z.permute(0, 3, 1, 2) if out is None else out
    return _box_rows(delta.contiguous(), x.contiguous(), column, lower, upper, out)


def _box_rows(delta: Tensor, x: Tensor, column: Tensor, lower: float, upper: float, out: Tensor | None) -> Tensor:
    rows = (delta.reshape(len(delta), -1), x.reshape(len(x), -1))
    arguments = (*rows, column, lower, upper)
    return project("project_l1_ball_box", _L1_BALL_BOX, _L1_BALL_BOX_INTO, arguments, delta, out)


# --- fake kernels and gradients of the raw ops

_SIMPLEX_INTO: Callable[..., None] = torch.ops.pyrobust.project_simplex.into
_L1_BALL_INTO: Callable[..., None] = torch.ops.pyrobust.project_l1_ball.into
_L1_BALL_BOX_INTO: Callable[..., None] = torch.ops.pyrobust.project_l1_ball_box.into


def _save_simplex(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    keep(ctx, output)
    ctx.one_radius = inputs[1].numel() == 1


def _save_l1_ball(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    inside = (output == inputs[0]).all(1, keepdim=True)
    keep(ctx, output, inside)
    ctx.one_radius = inputs[1].numel() == 1


def _save_box(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float, float], output: Tensor) -> None:
    delta, x, radius, lower, upper = inputs
    # The room is in float64, since upper is not rounded to x's dtype. A z that fills it differs from it by at most
    # one step.
    point, size = x, output.abs()
    if x.dtype != torch.float64:
        point, size = x.double(), size.double()
    room = torch.where(delta > 0, upper - point, point - lower)
    info = torch.finfo(x.dtype)
    reach = size * (1 + info.eps) + info.smallest_normal * info.eps
    same = output == delta
    clipped = ~same & (reach >= room)
    keep(ctx, output, clipped, (same | clipped).all(1, keepdim=True))
    ctx.one_radius = radius.numel() == 1


def _backward_simplex(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    (z,) = ctx.saved_tensors
    free = z != 0
    mean = _mean(grad, z, free)
    return torch.where(free, grad - mean.to(grad.dtype), 0), _of_radius(ctx, mean)


def _backward_l1_ball(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    z, inside = ctx.saved_tensors
    free = z != 0
    mean = _mean(grad, z, free).masked_fill(inside, 0)
    moved = torch.addcmul(grad, z.sign(), mean.to(grad.dtype), value=-1)
    return torch.where(free | inside, moved, 0), _of_radius(ctx, mean)


def _backward_box(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    z, clipped, inside = ctx.saved_tensors
    free = ~clipped & (z != 0)
    mean = _mean(grad, z, free).masked_fill(inside, 0)
    moved = torch.addcmul(grad, z.sign(), mean.to(grad.dtype), value=-1)
    # x moves a clipped element directly, and the free elements through the threshold.
    of_delta = torch.where(free | (inside & ~clipped), moved, 0)
    of_x = torch.where(clipped & (z != 0), -moved, 0)
    return of_delta, of_x, _of_radius(ctx, mean), None, None


def _mean(grad: Tensor, z: Tensor, free: Tensor) -> Tensor:
    """Return the mean of sign(z)·grad over each row's free elements, [R, 1], float32 or float64; 0 if none is free."""
    real = torch.float64 if z.dtype == torch.float64 else torch.float32
    total = torch.where(free, grad * z.sign(), 0).sum(1, keepdim=True, dtype=real)
    return total / free.sum(1, keepdim=True).clamp(min=1)


def _of_radius(ctx: Any, mean: Tensor) -> Tensor:
    """Return the gradient with respect to the radius, float64: [R], or [1] if all rows share the radius."""
    rows = mean[:, 0].double()
    return rows.sum(0, keepdim=True) if ctx.one_radius else rows


def _jvp_simplex(ctx: Any, v: Tensor | None, radius: Tensor | None) -> Tensor:
    (z,) = ctx.saved_tensors
    free = z != 0
    moved = torch.zeros_like(z) if v is None else v
    mean = (_mean(moved, z, free) - _share(radius, free)).to(z.dtype)
    return torch.where(free, moved - mean, 0)


def _jvp_l1_ball(ctx: Any, v: Tensor | None, radius: Tensor | None) -> Tensor:
    z, inside = ctx.saved_tensors
    free = z != 0
    moved = torch.zeros_like(z) if v is None else v
    mean = (_mean(moved, z, free) - _share(radius, free)).masked_fill(inside, 0).to(z.dtype)
    return torch.where(free | inside, moved - z.sign() * mean, 0)


def _jvp_box(ctx: Any, delta: Tensor | None, x: Tensor | None, radius: Tensor | None, *_: None) -> Tensor:
    z, clipped, inside = ctx.saved_tensors
    free, full = ~clipped & (z != 0), clipped & (z != 0)
    moved = torch.zeros_like(z) if delta is None else delta
    room = torch.zeros_like(z) if x is None else torch.where(full, -x, 0)
    spent = _mean(room, z, full) * full.sum(1, keepdim=True).clamp(min=1) / free.sum(1, keepdim=True).clamp(min=1)
    mean = (_mean(moved, z, free) + spent - _share(radius, free)).masked_fill(inside, 0).to(z.dtype)
    return torch.where(free | (inside & ~clipped), moved - z.sign() * mean, room)


def _share(radius: Tensor | None, free: Tensor) -> Tensor | float:
    """Return the radius's tangent divided by the number of free elements of each row, [R, 1]; 0.0 without a tangent."""
    return 0.0 if radius is None else radius[:, None] / free.sum(1, keepdim=True).clamp(min=1)


native.fake("project_simplex", "project_l1_ball", "project_l1_ball_box", like=0)
native.fake("project_simplex.into", "project_l1_ball.into", "project_l1_ball_box.into")
_SIMPLEX = differentiable("project_simplex", _save_simplex, _backward_simplex, _jvp_simplex, batch_of_rows)
_L1_BALL = differentiable("project_l1_ball", _save_l1_ball, _backward_l1_ball, _jvp_l1_ball, batch_of_rows)
_L1_BALL_BOX = differentiable("project_l1_ball_box", _save_box, _backward_box, _jvp_box, batch_of_rows)
