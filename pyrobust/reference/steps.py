"""Steps of attacks."""

from __future__ import annotations

import torch
from torch import Tensor

from .perturbation import _toward, add_perturbation


def linf_step(
    x_adv: Tensor,
    gradient: Tensor,
    x: Tensor,
    step: Tensor,
    epsilon: float | Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """A step along the sign of the gradient within ball and box: the twin of ``pyrobust.ops.linf_step``.

    The ends of the interval that x' may lie in, [max(x - epsilon, lower), min(x + epsilon, upper)], are numbers of x's
    dtype on x's side of the real ones.

    Args:
        x_adv: [B, ...], float.
        gradient: of x_adv's shape and dtype.
        x: the examples, in [lower, upper].
        step: [B] or [1].
        epsilon: radius of the ball, a number or [B].
        lower: least value of the result.
        upper: greatest value of the result.

    Returns:
        Of x_adv's shape and dtype.

    >>> x = torch.tensor([[0.5, 0.1]])
    >>> linf_step(x, torch.tensor([[2.0, -1.0]]), x, torch.tensor([0.25]), epsilon=0.125)
    tensor([[0.6250, 0.0000]])
    """
    column = [-1] + [1] * (x.dim() - 1)
    radius = _toward_zero(torch.as_tensor(epsilon, dtype=torch.float64, device=x.device).reshape(column), x.dtype)
    high = add_perturbation(x, radius.expand(x.shape), lower, upper)
    low = add_perturbation(x, -radius.expand(x.shape), lower, upper)
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    moved = x_adv.to(real) + step.to(real).reshape(column) * gradient.to(real).sign().nan_to_num(nan=0.0)
    inside = moved.maximum(low.to(real)).minimum(high.to(real))
    nearest = inside.to(x.dtype)
    beyond = (nearest.to(real) - inside) * (inside - x.to(real)) > 0
    return torch.where(beyond, _toward(nearest, x), nearest)


def _toward_zero(value: Tensor, dtype: torch.dtype) -> Tensor:
    nearest = value.to(dtype)
    return torch.where(nearest.double().abs() > value.abs(), _toward(nearest, torch.zeros_like(nearest)), nearest)


def l1_step(
    x_adv: Tensor,
    gradient: Tensor,
    x: Tensor,
    step: Tensor,
    keep: Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """The perturbation after a sparse step, not projected: the twin of ``pyrobust.ops.l1_step``.

    Args:
        x_adv: [B, ...], float.
        gradient: of x_adv's shape and dtype.
        x: the examples.
        step: [B] or [1].
        keep: [B] or [1], int64.
        lower: least value of an input.
        upper: greatest value of an input.

    Returns:
        Of x_adv's shape and dtype.

    >>> x = torch.full((1, 4), 0.5)
    >>> l1_step(x, torch.tensor([[3.0, -2.0, 1.0, 0.0]]), x, torch.tensor([1.0]), torch.tensor([2]))
    tensor([[ 0.5000, -0.5000,  0.0000,  0.0000]])
    """
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    stuck = ((x_adv.double() >= upper) & (gradient > 0)) | ((x_adv.double() <= lower) & (gradient < 0))
    gradient = gradient.masked_fill(stuck, 0)
    size = gradient.to(real).abs().reshape(len(x), -1)
    kth = size.sort(dim=1, descending=True).values.gather(1, keep.expand(len(x)).unsqueeze(1) - 1)
    chosen = (size >= kth) & (size > 0)
    move = (step.double().reshape(-1, 1) / chosen.sum(1, keepdim=True).clamp(min=1)).to(real)
    delta = (x_adv.to(real) - x.to(real)).reshape(len(x), -1)
    sign = gradient.to(real).sign().reshape(len(x), -1)
    return torch.where(chosen, delta + move * sign, delta).to(x.dtype).reshape(x.shape)
