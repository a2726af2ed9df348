"""Linear relaxation of packed rows of coefficients, and the minimum of each row over a box."""

from __future__ import annotations

import torch
from torch import Tensor


def relax_rows(
    a: Tensor,
    image: Tensor,
    lower_slope: Tensor,
    upper_slope: Tensor,
    lower_intercept: Tensor,
    upper_intercept: Tensor,
) -> Tensor:
    """Replace activations by their linear relaxations, in place: reference of ``pyrobust.ops.relax_rows``.

    Args:
        a: [R, n]; updated.
        image: [R]; for each row of a, the index of the row of the other arguments that it uses.
        lower_slope: [B, n].
        upper_slope: [B, n].
        lower_intercept: [B, n].
        upper_intercept: [B, n].

    Returns:
        [R], the sums of coefficients times intercepts.

    >>> a, one = torch.tensor([[2.0, -2.0]]), torch.ones(1, 2)
    >>> relax_rows(a, torch.tensor([0]), 0 * one, one / 2, 0 * one, one), a
    (tensor([-2.]), tensor([[ 0., -1.]]))
    """
    constant = concretize_rows(a, image, lower_intercept, upper_intercept)
    a.mul_(torch.where(a < 0, upper_slope[image], lower_slope[image]))
    return constant


def concretize_rows(a: Tensor, image: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return each row's minimum over the box of its image: reference of ``pyrobust.ops.concretize_rows``.

    Args:
        a: [R, n].
        image: [R]; for each row of a, the index of the row of low and high that it uses.
        low: [B, n].
        high: [B, n].

    Returns:
        [R].

    >>> concretize_rows(torch.tensor([[1.0, -1.0]]), torch.tensor([0]), torch.zeros(1, 2), torch.ones(1, 2))
    tensor([-1.])
    """
    return (a * torch.where(a < 0, high[image], low[image])).sum(1)
