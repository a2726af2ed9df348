"""Small helpers of attacks: copy the chosen examples of a batch, and count the changed coordinates of each example."""

from __future__ import annotations

import torch
from torch import Tensor


def put_rows(chosen: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Copy the chosen examples into target, in place: reference of ``pyrobust.ops.put_rows``.

    Args:
        chosen: [B], bool.
        source: same shape and dtype as target.
        target: [B, ...]; updated.

    Returns:
        target.

    >>> put_rows(torch.tensor([False, True]), torch.ones(2, 2), torch.zeros(2, 2))
    tensor([[0., 0.],
            [1., 1.]])
    """
    return torch.where(chosen.view(-1, *[1] * (target.dim() - 1)), source, target, out=target)


def count_changed(x_adv: Tensor, x: Tensor) -> Tensor:
    """Count each example's coordinates in which x_adv and x differ: reference of ``pyrobust.ops.count_changed``.

    Args:
        x_adv: [B, ...], float.
        x: [B, ...], float.

    Returns:
        int64 [B].

    >>> count_changed(torch.tensor([[0.0, 0.5]]), torch.tensor([[0.0, 0.25]]))
    tensor([1])
    """
    return (x_adv != x).flatten(1).sum(1)
