"""Shared inputs and checks of the attack-step tests."""

from __future__ import annotations

import torch
from projection_inputs import examples, moved_at_most
from torch import Tensor

SIZES = (1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000)


def inputs(rows: int, size: int, dtype: torch.dtype, box: tuple[float, float] = (0.0, 1.0), seed: int = 0):
    """Return (x_adv, gradient, x), with gradients of all magnitudes, zeros, ties and occasional NaN."""
    draw = torch.Generator().manual_seed(seed)
    x = examples((rows, size), dtype, *box, seed=seed)
    by = torch.randn(rows, size, generator=draw, dtype=torch.float64) * 0.05 * (box[1] - box[0])
    x_adv = (x.double() + by).clamp(*box).to(dtype)
    x_adv = torch.where((x_adv.double() < box[0]) | (x_adv.double() > box[1]), x, x_adv)
    scale = 2.0 ** torch.randint(-12, 3, (rows, 1), generator=draw).double()
    gradient = (torch.randn(rows, size, generator=draw, dtype=torch.float64) * scale).to(dtype)
    kind = torch.randint(10, (rows, size), generator=draw)
    gradient = torch.where(kind == 0, 0, torch.where(kind == 1, scale.to(dtype), gradient))
    return x_adv, gradient, x


def near(x_adv: Tensor, x: Tensor, epsilon: Tensor) -> bool:
    """Return whether |x_adv - x| ≤ epsilon[B] everywhere, unrounded."""
    side = torch.where(x_adv < x, -1, 1)
    return bool(moved_at_most(x_adv.double(), x.double(), epsilon.double().view(-1, 1) * side).all())


def per_row(rows: int, low: float, high: float, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(rows, generator=draw, dtype=torch.float64)
