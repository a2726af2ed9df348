"""Euclidean projections onto the simplex, the l1 ball, and the intersection of the l1 ball and a box.

All computations are in float64, with one rounding to the argument's dtype at the end. Each projection onto the simplex
or an l1 ball subtracts a threshold θ, which is found by sorting. Rows are shifted first, so that the numbers that
decide θ are small and lose no digits by cancellation.
"""

from __future__ import annotations

import torch
from torch import Tensor


def project_simplex(v: Tensor, radius: float | Tensor = 1.0) -> Tensor:
    """Project each row onto {z ≥ 0, Σ z = radius}: reference of ``pyrobust.ops.project_simplex``.

    zᵢ = max(vᵢ - θ, 0) with θ such that Σ z = radius. With v in descending order, θ = (v₁ + … + v_k - radius) / k for
    the largest k whose v_k is above this θ. Sources: Held, Wolfe and Crowder, "Validation of subgradient optimization",
    1974; Duchi, Shalev-Shwartz, Singer and Chandra, "Efficient projections onto the l1-ball for learning in high
    dimensions", 2008.

    Args:
        v: [..., D], float, D ≥ 1.
        radius: ≥ 0; a number, or a tensor that broadcasts to the shape [...] of the rows.

    Returns:
        [..., D], same dtype as v.

    >>> project_simplex(torch.tensor([0.5, 1.0, -2.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """
    return _simplex(v.double(), _column(radius, v)).to(v.dtype)


def project_l1_ball(v: Tensor, radius: float | Tensor) -> Tensor:
    """Project each row onto {‖z‖₁ ≤ radius}: reference of ``pyrobust.ops.project_l1_ball``.

    Rows inside the ball are unchanged. The absolute values of any other row are projected onto the simplex, and the
    signs are then restored (Duchi et al., 2008).

    Args:
        v: [..., D], float.
        radius: ≥ 0; a number, or a tensor that broadcasts to the shape [...] of the rows.

    Returns:
        [..., D], same dtype as v.

    >>> project_l1_ball(torch.tensor([[0.5, -0.25], [-3.0, 2.0]]), 1.0)
    tensor([[ 0.5000, -0.2500],
            [-1.0000,  0.0000]])
    """
    if v.shape[-1] == 0:
        return v.clone()
    magnitude, column = v.double().abs(), _column(radius, v)
    inside = magnitude.sum(-1, keepdim=True) <= column
    z = _simplex(magnitude, column).copysign(v.double()).to(v.dtype)
    return torch.where(inside, v, z)


def project_l1_ball_box(
    delta: Tensor, x: Tensor, radius: float | Tensor, lower: float = 0.0, upper: float = 1.0
) -> Tensor:
    """Project each delta onto {‖z‖₁ ≤ radius, lower ≤ x + z ≤ upper}.

    Reference of ``pyrobust.ops.project_l1_ball_box``. zᵢ = sign(δᵢ)·clip(|δᵢ| - θ, 0, uᵢ), where uᵢ is the distance
    from xᵢ to the end of [lower, upper] in the direction of δᵢ. θ is 0 if that gives a z in the ball; otherwise, θ is
    the number that gives Σ |z| = radius. Σ |z| is piecewise linear in θ, with breaks at |δᵢ| and |δᵢ| - uᵢ. Bisection
    finds two neighbouring breaks such that the radius lies between the values of Σ |z| at these breaks. Linear
    interpolation between them gives θ.
    Source: Croce and Hein, "Mind the box: l1-APGD for sparse adversarial attacks on image classifiers", 2021.

    Args:
        delta: [B, ...], float.
        x: [B, ...], float, in [lower, upper].
        radius: ≥ 0; a number, or [B].
        lower: smallest value of x + z.
        upper: largest value of x + z.

    Returns:
        [B, ...], same dtype as delta.

    >>> x = torch.tensor([[0.75, 0.5, 0.5]])
    >>> project_l1_ball_box(torch.tensor([[2.0, -0.5, 0.25]]), x, 0.5)
    tensor([[ 0.2500, -0.2500,  0.0000]])
    """
    if delta.numel() == 0:
        return delta.clone()
    y, point = delta.double().flatten(1).reshape(len(delta), -1), x.double().reshape(len(x), -1)
    column = _column(radius, y)
    # No |zᵢ| exceeds the radius, so a uᵢ above it makes no difference.
    room = torch.where(y > 0, upper - point, point - lower).minimum(column)
    magnitude = y.abs()
    z = magnitude.minimum(room)
    # Differences below are taken from an |δᵢ| near θ, so a large |δ| loses no digits.
    anchor, _ = _bracket(magnitude, room, magnitude.sort(descending=True).values, column)
    shifted = magnitude - anchor
    high, low = _bracket(shifted, room, torch.cat([shifted, shifted - room], 1).sort(descending=True).values, column)
    sloped = (shifted >= high) & (shifted - room <= low)
    remainder = column - (shifted - high).clamp(min=0).minimum(room).sum(1, keepdim=True)
    threshold = high - remainder / sloped.sum(1, keepdim=True).clamp(min=1)
    z = torch.where(z.sum(1, keepdim=True) <= column, z, (shifted - threshold).clamp(min=0).minimum(room))
    return z.copysign(y).reshape(delta.shape).to(delta.dtype)


def _column(radius: float | Tensor, v: Tensor) -> Tensor:
    """Return the radius of each row, [..., 1], float64."""
    rows = torch.as_tensor(radius, dtype=torch.float64, device=v.device)
    return rows.expand(v.shape[:-1])[..., None]


def _simplex(v: Tensor, radius: Tensor) -> Tensor:
    """Project v [..., D] onto the simplex of radius [..., 1], both float64."""
    # Entries that are below the row's maximum by at least the radius are zero in the result, and do not count.
    w = (v - v.amax(-1, keepdim=True)).maximum(-radius)
    ordered = w.sort(descending=True).values
    excess = ordered.cumsum(-1) - radius
    k = torch.arange(1, v.shape[-1] + 1, dtype=torch.float64, device=v.device)
    support = (k * ordered > excess).sum(-1, keepdim=True).clamp(min=1)
    threshold = excess.gather(-1, support - 1) / support
    z = (w - threshold).clamp(min=0)
    # One step of Newton's method corrects the rounding of the running sums.
    threshold = threshold + (z.sum(-1, keepdim=True) - radius) / support
    return (w - threshold).clamp(min=0)


def _bracket(magnitude: Tensor, room: Tensor, points: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last point whose sum Σ clip(magnitude - point, 0, room) is below the radius, and the next point.

    All arguments are float64 [B, ...]; the radius is [B, 1]. The points of each row descend. If the sum at the first
    point is not below the radius, the result is the first two points. If the sum at every point is below the radius,
    the result is the last point twice.
    """
    last = points.shape[1] - 1
    below = torch.zeros_like(radius, dtype=torch.int64)
    above = torch.full_like(below, last)
    for _ in range(last.bit_length()):
        middle = (below + above + 1) // 2
        total = (magnitude - points.gather(1, middle)).clamp(min=0).minimum(room).sum(1, keepdim=True)
        less = total < radius
        below = torch.where(less, middle, below)
        above = torch.where(less, above, middle - 1).maximum(below)
    return points.gather(1, below), points.gather(1, (below + 1).clamp(max=last))
