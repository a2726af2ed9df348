"""Rows times a factor each."""

from __future__ import annotations

from torch import Tensor


def scale_rows(x: Tensor, scale: Tensor) -> Tensor:
    """Multiply each row by its factor: reference of ``pyrobust.ops.scale_rows``.

    Args:
        x: [B, D].
        scale: [B].

    Returns:
        [B, D].

    >>> import torch
    >>> scale_rows(torch.ones(2, 2), torch.tensor([1.0, 2.0]))
    tensor([[1., 1.],
            [2., 2.]])
    """
    return x * scale[:, None]
