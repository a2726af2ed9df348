"""The linear relaxation of ReLU, applied to coefficients."""

from __future__ import annotations

import torch
from torch import Tensor


def relax_coefficients(a: Tensor, lower: Tensor, upper: Tensor, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """Replace max(z, slope·z) by its linear relaxation: reference of ``pyrobust.ops.relax_coefficients``.

    Args:
        a: [B, S, n], coefficients of f(z) = max(z, slope·z).
        lower: [B, n], bounds of z.
        upper: [B, n].
        slope: in [0, 1].

    Returns:
        (coefficients [B, S, n], bias [B, S]).

    >>> relax_coefficients(torch.tensor([[[1.0], [-1.0]]]), torch.tensor([[-1.0]]), torch.tensor([[3.0]]))
    (tensor([[[ 1.0000],
             [-0.7500]]]), tensor([[ 0.0000, -0.7500]]))
    """
    l, u = lower.unsqueeze(1), upper.unsqueeze(1)  # noqa: E741 - the field's names
    stable = (l >= 0) | (u <= 0)
    line = torch.where(l >= 0, torch.ones_like(l), slope)
    chord = torch.where(stable, line, (u - slope * l) / torch.where(stable, 1, u - l))
    below = torch.where(stable, line, torch.where(u > -l, torch.ones_like(l), slope))
    intercept = torch.where(stable, 0, (1 - chord) * u)
    return torch.where(a < 0, a * chord, a * below), torch.where(a < 0, a * intercept, 0).sum(2)
