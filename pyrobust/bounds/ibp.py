"""Interval bounds in one call."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .model import BoundedModel


def compute_ibp_bounds(model: nn.Module, x: Tensor, epsilon: Any) -> tuple[Tensor, Tensor]:
    """Interval bounds of the outputs over the l∞ ball around each example, not clipped (Gowal et al., 2018).

    Args:
        model: a module in evaluation mode, see ``BoundedModel``.
        x: [B, ...].
        epsilon: a number of at least 0, or one for each example.

    Returns:
        (lower, upper), float64 [B, K], proved.

    Raises:
        InputError, InputTypeError, ModelError: as of ``BoundedModel``.

    >>> import torch
    >>> lower, upper = compute_ibp_bounds(nn.Linear(2, 3).eval(), torch.zeros(1, 2), 0.1)
    >>> bool((lower <= upper).all())
    True
    """
    bounds = BoundedModel(model, x).bounds(x, epsilon, method="ibp")
    return bounds.lower, bounds.upper
