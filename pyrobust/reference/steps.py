"""Steps of attacks."""

from __future__ import annotations

import torch
from torch import Tensor

from .perturbation import _toward, add_perturbation
from .projections import project_l1_ball_box


def linf_step(
    x_adv: Tensor,
    gradient: Tensor,
    x: Tensor,
    step: Tensor,
    epsilon: float | Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """Step along the sign of the gradient within the ball and the box: reference of ``pyrobust.ops.linf_step``.

    The signature and formula are those of the op. The formula clips the result to an interval; the ends of this
    interval are rounded toward x, to x's dtype.

    >>> x = torch.tensor([[0.5, 0.1]])
    >>> linf_step(x, torch.tensor([[2.0, -1.0]]), x, torch.tensor([0.25]), epsilon=0.125)
    tensor([[0.6250, 0.0000]])
    """
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    column = [-1] + [1] * (x.dim() - 1)
    moved = x_adv.to(real) + step.to(real).reshape(column) * gradient.to(real).sign().nan_to_num(nan=0.0)
    return _within(moved, x, epsilon, lower, upper)


def _within(moved: Tensor, x: Tensor, epsilon: float | Tensor, lower: float, upper: float) -> Tensor:
    column = [-1] + [1] * (x.dim() - 1)
    radius = _toward_zero(torch.as_tensor(epsilon, dtype=torch.float64, device=x.device).reshape(column), x.dtype)
    high = add_perturbation(x, radius.expand(x.shape), lower, upper)
    low = add_perturbation(x, -radius.expand(x.shape), lower, upper)
    real = moved.dtype
    inside = moved.maximum(low.to(real)).minimum(high.to(real))
    nearest = inside.to(x.dtype)
    beyond = (nearest.to(real) - inside) * (inside - x.to(real)) > 0
    return torch.where(beyond, _toward(nearest, x), nearest)


def _toward_zero(value: Tensor, dtype: torch.dtype) -> Tensor:
    nearest = value.to(dtype)
    return torch.where(nearest.double().abs() > value.abs(), _toward(nearest, torch.zeros_like(nearest)), nearest)


def linf_momentum_step(
    x_adv: Tensor,
    gradient: Tensor,
    x: Tensor,
    before: Tensor,
    step: Tensor,
    epsilon: float | Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
    *,
    share: float = 0.75,
) -> Tensor:
    """Step along the sign of the gradient with momentum: reference of ``pyrobust.ops.linf_momentum_step``.

    The signature and formula are those of the op.

    >>> x, before = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 0.25]])
    >>> linf_momentum_step(x, torch.tensor([[1.0, -1.0]]), x, before, torch.tensor([0.125]), epsilon=0.5)
    tensor([[0.5938, 0.4688]])
    """
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    z = linf_step(x_adv, gradient, x, step, epsilon=epsilon, lower=lower, upper=upper).to(real)
    fraction = torch.tensor(share, dtype=real)
    moved = (fraction * z + 2 * (1 - fraction) * x_adv.to(real)) - (1 - fraction) * before.to(real)
    return _within(moved, x, epsilon, lower, upper)


def l1_step(
    x_adv: Tensor,
    gradient: Tensor,
    x: Tensor,
    step: Tensor,
    keep: Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """Return the perturbation after a sparse step, not projected: reference of ``pyrobust.ops.l1_step``.

    The signature and formula are those of the op.

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


def l1_step_in_ball(
    x_adv: Tensor,
    gradient: Tensor,
    x: Tensor,
    step: Tensor,
    keep: Tensor,
    epsilon: float | Tensor,
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """Take the sparse step, project and round toward x: reference of ``pyrobust.ops.l1_step_in_ball``.

    The signature and formula are those of the op.

    >>> x, gradient = torch.full((1, 4), 0.5), torch.tensor([[3.0, -2.0, 1.0, 0.0]])
    >>> l1_step_in_ball(x, gradient, x, torch.tensor([1.0]), torch.tensor([2]), epsilon=0.5)
    tensor([[0.7500, 0.2500, 0.5000, 0.5000]])
    """
    delta = l1_step(x_adv, gradient, x, step, keep=keep, lower=lower, upper=upper)
    return add_perturbation(x, project_l1_ball_box(delta, x, epsilon, lower, upper), lower, upper)
