"""Bounds from intervals and from rows of coefficients, in batch-last layout [..., N]."""

from __future__ import annotations

import torch
from torch import Tensor

from .relaxation import relax_coefficients


def batch_last_relu_intervals(center: Tensor, radius: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """Compute the interval of max(z, slope·z): reference of ``pyrobust.ops.batch_last_relu_intervals``.

    Args:
        center: [n, N].
        radius: [n, N] or [n, 1].
        slope: in [0, 1].

    Returns:
        (center, radius), [n, N] each.

    >>> batch_last_relu_intervals(torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0]]))
    (tensor([[1.5000, 0.5000]]), tensor([[1.5000, 0.5000]]))
    """
    lower, upper = (torch.where(bound > 0, bound, slope * bound) for bound in (center - radius, center + radius))
    return (lower + upper) / 2, (upper - lower) / 2


def batch_last_relax(a: Tensor, center: Tensor, radius: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """Replace coefficients of max(z, slope·z) by coefficients of z: reference of ``pyrobust.ops.batch_last_relax``.

    Args:
        a: [n, S, N].
        center: [n, N].
        radius: [n, N] or [n, 1].
        slope: in [0, 1].

    Returns:
        (coefficients [n, S, N], bias [S, N]).

    >>> batch_last_relax(torch.tensor([[[-1.0]]]), torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    (tensor([[[-0.7500]]]), tensor([[-0.7500]]))
    """
    ends = ((center - radius).t(), (center + radius).t())
    coefficients, bias = relax_coefficients(a.permute(2, 1, 0), *ends, slope)
    return coefficients.permute(2, 1, 0), bias.t()


def batch_last_concretize(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """Compute the minimum of each row's Σ a·z over the box: reference of ``pyrobust.ops.batch_last_concretize``.

    Args:
        a: [n, S, N].
        center: [n, N].
        radius: [n, N] or [n, 1].

    Returns:
        [S, N].

    >>> batch_last_concretize(torch.tensor([[[-2.0]]]), torch.ones(1, 1), torch.ones(1, 1))
    tensor([[-4.]])
    """
    return (a * center.unsqueeze(1) - a.abs() * radius.unsqueeze(1)).sum(0)
