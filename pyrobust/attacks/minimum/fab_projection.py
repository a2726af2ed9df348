"""FAB's projection of a point onto a hyperplane within a box, in closed form for each norm.

Croce and Hein (2020), "Minimally distorted Adversarial Examples with a Fast Adaptive Boundary Attack", equation (5).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobust.ops.hyperplane_step import hyperplane_step

from ..engine.norms import Ball, Norm

# Newton steps between convergence tests.
_STEPS_PER_TEST = 4
# How many numbers fit the caches: larger batches are processed in parts.
_CACHED = 1 << 17
# Number of largest weights that the greedy step tries before it sorts all weights.
_TOP = 256


def step_onto(points: Tensor, at: Tensor, w: Tensor, value: Tensor, norm: Norm, ball: Ball) -> Tensor:
    """Find the smallest steps from points [..., B, D] onto hyperplanes value[B] + w[B, D]·(z - at[B, D]) = 0 in a box.

    On a GPU this is one kernel launch. On the CPU, and if elements have their own clip ranges or radii,
    ``step_to_hyperplane`` is used, and elements of w that are not finite become 0, in place. The kernel treats them as
    0.

    >>> x, w = torch.tensor([[0.5, 0.75]]), torch.tensor([[1.0, 2.0]])
    >>> from pyrobust.attacks.engine.norms import NORMS
    >>> ball = Ball(x, torch.ones(1).double(), 0.0, 1.0)
    >>> step_onto(x, x, w, torch.tensor([-1.0]), NORMS["linf"], ball)  # the second coordinate stops at its face
    tensor([[0.5000, 0.2500]])
    """
    lower, upper, radius = norm.box(ball)
    if w.is_cuda and isinstance(lower, float) and isinstance(upper, float):
        # Newton's steps would need many launches, and their tests would wait for the device.
        return hyperplane_step(points, at, w, value, norm=norm.name, lower=lower, upper=upper)
    w.nan_to_num_(0.0, 0.0, 0.0)
    gap = -value.to(w.dtype)
    if points is not at:
        seen = torch.stack([(w * (at - point)).sum(1) for point in points.reshape(-1, *w.shape)])
        gap = seen.view(points.shape[:-1]).add_(gap)
    return step_to_hyperplane(points, w, gap.nan_to_num_(0.0), norm.name, lower, upper, radius=radius)


def step_to_hyperplane(
    x: Tensor,
    w: Tensor,
    gap: Tensor,
    norm: str,
    lower: float | Tensor,
    upper: float | Tensor,
    radius: Tensor | None = None,
) -> Tensor:
    """Find the smallest step that leads from x onto a hyperplane and ends in the box.

    The step is ``argmin ‖d‖ₚ`` subject to ``w·d = gap`` and ``lower ≤ x + d ≤ upper``. Each coordinate moves by some mᵢ
    ≥ 0 in the direction that closes the gap; this reduces the gap by |wᵢ|·mᵢ. The capacity cᵢ of the coordinate is its
    distance to the box's face in that direction. Then

    - linf: mᵢ = min(cᵢ, t); l2: mᵢ = min(cᵢ, t·|wᵢ|). In both norms, t is the number for which the reductions add up to
      the gap. It is a root of a concave, piecewise linear function, which Newton's method, started at t = 0, reaches
      from below in finitely many steps;
    - l1: coordinates move to the face in order of decreasing ``|wᵢ|``, the last one as far as the rest of the gap
      requires.

    If the hyperplane does not meet the box, every coordinate with wᵢ ≠ 0 (and, if there are radii, radiusᵢ > 0) moves
    by its capacity cᵢ.

    Args:
        x: [..., B, D], float, in the box.
        w: [B, D], normals of the hyperplanes.
        gap: [..., B], required change of w·x, of either sign.
        norm: "linf", "l2" or "l1".
        lower: lower end of the box: one number for all coordinates, or [D].
        upper: upper end of the box: one number for all coordinates, or [D].
        radius: [D], for linf: the unit in which each coordinate moves, so that mᵢ = min(cᵢ, t·radiusᵢ).

    Returns:
        [..., B, D], the steps d.

    >>> x, w, gap = torch.tensor([[0.5, 0.9]]), torch.tensor([[1.0, 2.0]]), torch.tensor([0.5])
    >>> step_to_hyperplane(x, w, gap, "linf", 0.0, 1.0)  # the second coordinate stops at its face
    tensor([[0.3000, 0.1000]])
    >>> step_to_hyperplane(x, w, gap, "l1", 0.0, 1.0)
    tensor([[0.3000, 0.1000]])
    >>> step_to_hyperplane(x, w, torch.tensor([-0.5]), "l1", 0.0, 1.0)
    tensor([[-0.0000, -0.2500]])
    """
    rows = max(1, _CACHED // max(1, w.shape[1]))
    if rows >= len(w):
        return _step(x, w, gap, norm, lower, upper, radius=radius)
    blocks = [slice(begin, begin + rows) for begin in range(0, len(w), rows)]
    return torch.cat(
        [_step(x[..., block, :], w[block], gap[..., block], norm, lower, upper, radius=radius) for block in blocks],
        dim=-2,
    )


def _step(
    x: Tensor,
    w: Tensor,
    gap: Tensor,
    norm: str,
    lower: float | Tensor,
    upper: float | Tensor,
    radius: Tensor | None,
) -> Tensor:
    # Squares of the weights must not underflow.
    size = w.abs().amax(-1, keepdim=True).clamp_(min=torch.finfo(w.dtype).tiny)
    w, gap = w / size, gap / size.squeeze(-1)
    direction = w.sign() * gap.sign().unsqueeze(-1)
    capacity = torch.where(direction > 0, upper - x, x - lower).mul_(direction.abs())
    weight = w.abs()
    gap = gap.abs().unsqueeze(-1)
    if norm == "l1":
        move = _greedy(weight, capacity, gap)
    else:
        rate = weight if norm == "l2" else torch.ones_like(weight) if radius is None else radius.expand_as(weight)
        move = torch.minimum(capacity, _root(weight, capacity, rate, gap) * rate)
    return move.mul_(direction)


def _root(weight: Tensor, capacity: Tensor, rate: Tensor, gap: Tensor) -> Tensor:
    """Return the least t [..., B, 1] with Σ weight·min(capacity, t·rate) = gap; the largest float if there is none."""
    full = weight * capacity
    slope = weight * rate
    t = torch.zeros_like(gap)
    largest = torch.finfo(gap.dtype).max
    for step in range(1, full.shape[-1] + 2):  # each step but the last saturates a coordinate
        rising = t * slope
        tangent = ((full > rising) * slope).sum(-1, keepdim=True)
        missing = gap - torch.minimum(full, rising, out=rising).sum(-1, keepdim=True)
        # From below, the tangent of a concave function never overshoots the root; rounding must not decrease t.
        following = torch.where(tangent > 0, t + missing / tangent, largest).clamp_(max=largest)
        following = torch.where(missing > 0, torch.maximum(following, t), t)
        if step % _STEPS_PER_TEST == 0 and bool((following == t).all()):
            return following
        t = following
    return t


def _greedy(weight: Tensor, capacity: Tensor, gap: Tensor) -> Tensor:
    """Solve a fractional knapsack: moves m [..., B, D] of least Σm with Σ weight·m = gap and 0 ≤ m ≤ capacity."""
    if weight.shape[-1] <= 4 * _TOP:
        return _in_order(*weight.sort(dim=-1, descending=True), capacity, gap)[0]
    move, reached = _in_order(*weight.topk(_TOP), capacity, gap)
    open_coordinates = ~reached.reshape(-1, len(weight)).all(0)
    if bool(open_coordinates.any()):
        order = weight[open_coordinates].sort(dim=-1, descending=True)
        move[..., open_coordinates, :] = _in_order(
            *order, capacity[..., open_coordinates, :], gap[..., open_coordinates, :]
        )[0]
    return move


def _in_order(descending: Tensor, order: Tensor, capacity: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """Move the coordinates ``order`` [B, n] one by one; return the moves and whether they close the gap."""
    order = order.expand(*capacity.shape[:-1], -1)
    room = capacity.gather(-1, order)
    gain = room * descending
    total = gain.cumsum(-1)
    move = ((gap - (total - gain)) / descending.clamp_min(torch.finfo(gap.dtype).tiny)).clamp_(min=0)
    moves = torch.zeros_like(capacity).scatter_(-1, order, torch.minimum(move, room))
    return moves, total[..., -1] >= gap.squeeze(-1)
