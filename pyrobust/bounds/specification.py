"""Specifications C: rows of numbers whose products with the outputs are bounded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import finite_values, float_tensor, shape_text
from pyrobust.errors import InputError


def margins(y: Tensor, classes: int) -> Tensor:
    """Return the specification of the margins: rows e_y − e_j for j ≠ y, ascending, float64 [B, K − 1, K].

    >>> margins(torch.tensor([1]), 3)
    tensor([[[-1.,  1.,  0.],
             [ 0.,  1., -1.]]], dtype=torch.float64)
    """
    identity = torch.eye(classes, dtype=torch.float64, device=y.device)
    others = torch.arange(classes, device=y.device).expand(len(y), classes)
    others = others[others != y[:, None]].view(len(y), classes - 1)
    return identity[y][:, None, :] - identity[others]


def check_rows(rows: Any, batch: int, outputs: int, device: torch.device) -> Tensor:
    """Return a specification as float64 [S, K] or [B, S, K] on a device."""
    rows = float_tensor("C", rows, dtype=torch.float64)
    shared = rows.dim() == 2
    if rows.dim() not in (2, 3) or rows.shape[-1] != outputs or not (shared or len(rows) == batch):
        raise InputError("C", f"shape (S, {outputs}) or ({batch}, S, {outputs})", shape_text(rows.shape))
    return finite_values("C", rows.detach().to(device, torch.float64)).contiguous()
