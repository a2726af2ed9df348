"""Intervals and rows of coefficients of batches whose examples lie innermost."""

from __future__ import annotations

import torch
from torch import Tensor

from .relaxation import relax_coefficients


def relu_intervals(center: Tensor, radius: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """The interval of max(z, slope·z): the twin of ``pyrobust.ops.relu_intervals``.

    Args:
        center: [n, N].
        radius: [n, N] or [n, 1].
        slope: in [0, 1].

    Returns:
        (center, radius), [n, N] each.

    >>> relu_intervals(torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0]]))
    (tensor([[1.5000, 0.5000]]), tensor([[1.5000, 0.5000]]))
    """
    lower, upper = (torch.where(end > 0, end, slope * end) for end in (center - radius, center + radius))
    return (lower + upper) / 2, (upper - lower) / 2


def relax_lanes(a: Tensor, center: Tensor, radius: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """Coefficients of max(z, slope·z) become those of z: the twin of ``pyrobust.ops.relax_lanes``.

    Args:
        a: [n, S, N].
        center: [n, N].
        radius: [n, N] or [n, 1].
        slope: in [0, 1].

    Returns:
        (coefficients [n, S, N], bias [S, N]).

    >>> relax_lanes(torch.tensor([[[-1.0]]]), torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    (tensor([[[-0.7500]]]), tensor([[-0.7500]]))
    """
    ends = ((center - radius).t(), (center + radius).t())
    coefficients, bias = relax_coefficients(a.permute(2, 1, 0), *ends, slope)
    return coefficients.permute(2, 1, 0), bias.t()


def least_lanes(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """The least value of each row over the box: the twin of ``pyrobust.ops.least_lanes``.

    Args:
        a: [n, S, N].
        center: [n, N].
        radius: [n, N] or [n, 1].

    Returns:
        [S, N].

    >>> least_lanes(torch.tensor([[[-2.0]]]), torch.ones(1, 1), torch.ones(1, 1))
    tensor([[-4.]])
    """
    return (a * center.unsqueeze(1) - a.abs() * radius.unsqueeze(1)).sum(0)
