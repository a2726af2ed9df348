"""The smallest step onto a hyperplane within a box, by sorting."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def hyperplane_step(
    x: Tensor, at: Tensor, w: Tensor, value: Tensor, norm: str, lower: float = 0.0, upper: float = 1.0
) -> Tensor:
    """Find the smallest step onto a hyperplane within a box: reference of ``pyrobust.ops.hyperplane_step``.

    The signature and the formula are the same as for the op. The coordinates are sorted by the step size at which each
    coordinate is clipped by the box. A running sum then shows which coordinate is the last one to be clipped.

    >>> x, w = torch.tensor([[0.5, 0.75]]), torch.tensor([[1.0, 2.0]])
    >>> hyperplane_step(x, x, w, torch.tensor([-1.0]), "linf")
    tensor([[0.5000, 0.2500]])
    """
    points, slopes = x.double(), w.double().nan_to_num(0.0, 0.0, 0.0)
    gap = ((slopes * (at.double() - points)).sum(-1) - value.double()).nan_to_num(0.0).unsqueeze(-1)
    # The factor is a power of two; with it, squares do not vanish.
    exponent = slopes.abs().amax(-1, keepdim=True).frexp().exponent.clamp(-1000, 1000)
    factor = torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), -exponent)
    weight = (slopes.abs() * factor).expand_as(points)
    direction = slopes.sign() * gap.sign()
    room = torch.where(direction > 0, upper - points, points - lower).clamp(min=0) * direction.abs()
    gap = gap.abs() * factor
    moves = _by_weight(weight, room, gap) if norm == "l1" else _by_rate(weight, room, gap, norm)
    return (direction * moves).to(x.dtype)


def _by_rate(weight: Tensor, room: Tensor, gap: Tensor, norm: str) -> Tensor:
    rate = weight if norm == "l2" else torch.ones_like(weight)
    moving = (room > 0) & (rate > 0)
    ends, order = torch.where(moving, room / rate, math.inf).sort(-1)
    full, slope = (torch.where(moving, a, 0.0).gather(-1, order) for a in (weight * room, weight * rate))
    # The gain of the coordinates that reach their face before each end, and the slope of the other coordinates.
    before = full.cumsum(-1) - full
    remaining = slope.flip(-1).cumsum(-1).flip(-1)
    reached = before + ends.nan_to_num(posinf=0.0) * remaining >= gap
    position = reached.to(torch.uint8).argmax(-1, keepdim=True)
    t = ((gap - before.gather(-1, position)) / remaining.gather(-1, position)).clamp(min=0)
    t = torch.where(reached.any(-1, keepdim=True), t, math.inf)
    return torch.where(moving, torch.minimum(room, t * rate), 0.0)


def _by_weight(weight: Tensor, room: Tensor, gap: Tensor) -> Tensor:
    descending, order = weight.sort(-1, descending=True)
    total = (weight * room).gather(-1, order).cumsum(-1)
    enough = total >= gap
    position = enough.to(torch.uint8).argmax(-1, keepdim=True)
    last = torch.where(enough.any(-1, keepdim=True), descending.gather(-1, position), 0.0)
    gain = [torch.where(which, weight * room, 0.0).sum(-1, keepdim=True) for which in (weight > last, weight == last)]
    share = ((gap - gain[0]) / gain[1]).nan_to_num(0.0).clamp(0, 1)
    return torch.where(weight > last, room, torch.where(weight == last, share * room, 0.0))
