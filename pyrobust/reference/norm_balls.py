"""Euclidean projections onto the l2 ball and the l∞ ball, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from .projections import _column


def project_l2_ball(v: Tensor, radius: float | Tensor) -> Tensor:
    """Project each row onto {‖z‖₂ ≤ radius}: reference of ``pyrobust.ops.project_l2_ball``.

    z = v·min(1, radius / ‖v‖₂).

    Args:
        v: [..., D], float.
        radius: ≥ 0; a number, or a tensor that broadcasts to the shape [...] of the rows.

    Returns:
        [..., D], same dtype as v.

    >>> project_l2_ball(torch.tensor([[3.0, -4.0], [0.5, 0.0]]), 1.0)
    tensor([[ 0.6000, -0.8000],
            [ 0.5000,  0.0000]])
    """
    if v.shape[-1] == 0:
        return v.clone()
    y, column = v.double(), _column(radius, v)
    # Squares of y / largest neither overflow nor vanish. A row of zeros is divided by one.
    largest = y.abs().amax(-1, keepdim=True)
    unit = y / torch.where(largest > 0, largest, 1.0)
    length = unit.square().sum(-1, keepdim=True).sqrt().clamp(min=1.0)
    return torch.where(length * largest <= column, y, unit / length * column).to(v.dtype)


def project_linf_ball(v: Tensor, radius: float | Tensor) -> Tensor:
    """Project each row onto {‖z‖_∞ ≤ radius}: reference of ``pyrobust.ops.project_linf_ball``.

    zᵢ = clip(vᵢ, -radius, radius).

    Args:
        v: [..., D], float.
        radius: ≥ 0; a number, or a tensor that broadcasts to the shape [...] of the rows.

    Returns:
        [..., D], same dtype as v.

    >>> project_linf_ball(torch.tensor([[3.0, -4.0], [0.5, 0.0]]), torch.tensor([1.0, 2.0]))
    tensor([[ 1.0000, -1.0000],
            [ 0.5000,  0.0000]])
    """
    column = _column(radius, v)
    return v.double().maximum(-column).minimum(column).to(v.dtype)
