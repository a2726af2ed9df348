"""A proposal of the Square attack, computed with masks for the windows."""

from __future__ import annotations

import torch
from torch import Tensor

from .perturbation import add_perturbation


def square_window(
    best: Tensor,
    x: Tensor,
    u: Tensor,
    patterns: Tensor,
    radius: float | Tensor,
    sides: tuple[int, int],
    norm: str,
    lower: float = 0.0,
    upper: float = 1.0,
) -> Tensor:
    """Compute one proposal of the Square attack: reference of ``pyrobust.ops.square_window``.

    The signature and formula are those of the op.

    >>> x, u = torch.full((1, 1, 1, 4), 0.5), torch.tensor([[0.0, -1.0, 0.0, 1.0, 1.0, 1.0]])
    >>> square_window(x, x, u, torch.tensor([[0.6, -0.8], [0.6, -0.8]]).double(), 0.25, (1, 2), "l2")
    tensor([[[[0.6500, 0.3000, 0.5000, 0.5000]]]])
    """
    if x.dim() != 4:
        images = best.reshape(len(x), 1, 1, -1), x.reshape(len(x), 1, 1, -1)
        moved = square_window(*images, u, patterns, radius=radius, sides=sides, norm=norm, lower=lower, upper=upper)
        return moved.view(x.shape)
    first, second = _window(x, u[:, :2], sides), _window(x, u[:, 2:4], sides)
    second = second & ~first
    clean = x.double()
    delta = best.double() - clean
    power = 2 if norm == "l2" else 1

    def length(values: Tensor, where: Tensor) -> Tensor:
        sizes: Tensor = torch.linalg.vector_norm((values * where).flatten(2), power, dim=2)
        return sizes[:, :, None, None]

    had = length(delta, first) ** power + length(delta, second) ** power
    used = delta.abs().pow(power).sum((1, 2, 3))
    unused = (torch.as_tensor(radius, dtype=torch.float64, device=x.device) ** power - used).clamp(min=0)
    unused = unused.expand(len(x))[:, None, None, None]
    budget = had + unused / x.shape[1] if norm == "l2" else had * x.shape[1] + unused
    chosen = torch.where(u[:, 4, None] > 0, patterns[0], patterns[1])
    drawn = torch.zeros_like(clean).masked_scatter(first, chosen[:, None].expand(-1, x.shape[1], -1))
    new = drawn * torch.where(u[:, 5:] > 0, 1.0, -1.0)[:, :, None, None] + delta / (length(delta, first) + 1e-12)
    new = new * first * budget ** (1 / power) / (length(new, first) + 1e-12)
    if norm == "l1":
        return torch.where(first, new, torch.where(second, 0.0, delta)).to(x.dtype)
    clipped = torch.minimum(torch.maximum(new, lower - clean), upper - clean)
    kept = first & (clipped == new)
    unspent = (budget - length(clipped, first & ~kept) ** 2).clamp(min=0)
    clipped = torch.where(kept, clipped * (unspent / (length(clipped, kept) ** 2 + 1e-12)).sqrt(), clipped)
    changed = add_perturbation(x, clipped.to(x.dtype), lower, upper)
    return torch.where(first, changed, torch.where(second, x, best))


def _window(x: Tensor, u: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return a bool mask [B, C, H, W] of the pixels of windows at random positions."""
    real = torch.float64 if x.dtype == torch.float64 else torch.float32
    inside = []
    for k, (size, side) in enumerate(zip(x.shape[2:], sides, strict=True)):
        room = size - side
        corner = ((u[:, k].to(real) + 1) * (0.5 * (room + 1))).long().clamp(0, room)
        position = torch.arange(size, device=x.device) - corner[:, None]
        inside.append((position >= 0) & (position < side))
    return (inside[0][:, None, :, None] & inside[1][:, None, None, :]).expand(x.shape)
