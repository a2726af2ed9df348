"""The nearest adversarial point of each example so far, and ways to move it nearer still."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrobust.clip import LIMIT
from pyrobust.ops.examples import put_rows
from pyrobust.ops.logits import ROBUST

from ..engine.norms import keep_largest, per_example
from ..engine.state import AttackState
from ..losses import margin, targeted_margin
from .fab_projection import step_onto

# Number of secant steps between x and the nearest adversarial point, as in Croce and Hein's FAB.
_SECANT_STEPS = 3
# Secant steps aim at this share of the adversarial side's margin: a point on the boundary itself is not adversarial.
_AIM = 0.05
# Number of projections on the boundary linearized at the nearest point, and the factor by which they pass it.
_PROJECTIONS, _BEYOND = 2, 1.0005


class Nearest:
    """Each example's nearest adversarial point so far, ``x`` [B, ...], and its ``distance`` [B], inf if there is none.

    ``source`` [B] is the index, within an ensemble, of the attack that found the point; ``attack`` is the index of the
    attack that is running.
    """

    def __init__(self, state: AttackState) -> None:
        self.x = state.x.clone()
        self.distance = torch.full_like(state.epsilon, math.inf)
        self.attack = 0
        self.source = torch.zeros_like(state.index)

    def reach(self, state: AttackState) -> Tensor:
        """Return the radius [B] of the ball of random starts: the best distance, but at most the clip range's diameter.

        If values have no limit and no adversarial point is known, the radius is 0, so that the start is x itself.
        """
        diameter = state.norm.diameter(state.x[0].numel(), state.upper - state.lower)
        if state.upper >= LIMIT:
            return self.distance.masked_fill(self.distance.isinf(), 0.0)
        return self.distance.clamp(max=diameter)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors with one row for each example; ``AttackState.retire`` removes the rows of examples that leave."""
        return self.x, self.distance, self.source

    @tensors.setter
    def tensors(self, value: tuple[Tensor, ...]) -> None:
        self.x, self.distance, self.source = value

    def offer(self, state: AttackState, fooled: Tensor, x_adv: Tensor) -> Tensor:
        """Keep the points that fool the model (mask [B]) and are nearer than before; return all distances [B]."""
        x_adv = state.snap(x_adv)
        distance = state.norm.distance(x_adv, state.x)
        self._keep(fooled & (distance < self.distance), distance, x_adv)
        return distance

    def take(self, other: Nearest, rows: Tensor | None = None) -> None:
        """Adopt another search's points where they are nearer; it has the examples ``rows`` [n], by default all."""
        distance, x_adv = other.distance, other.x
        if rows is not None:
            distance = torch.full_like(self.distance, math.inf).index_copy_(0, rows, distance)
            x_adv = self.x.index_copy(0, rows, x_adv)
        self._keep(distance < self.distance, distance, x_adv)

    def tighten(self, state: AttackState) -> None:
        """Try projections of x on the linearized boundary, then ``shorten``; in l0, undo unneeded changes instead."""
        if not bool(self.distance.isfinite().any()):
            return
        if state.norm.name == "l0":
            self._prune(state)
        else:
            self._project(state)
            self.shorten(state)

    def shorten(self, state: AttackState) -> None:
        """Take secant steps between x and the nearest adversarial point; keep the points that are adversarial."""
        loss = targeted_margin if state.targeted else margin
        low, high = state.x, self.x.clone()
        low_value, high_value = (loss(state.logits(point), state.y, state.y).value for point in (low, high))
        for _ in range(_SECANT_STEPS):
            secant = (_AIM * high_value - low_value) / (high_value - low_value)
            share = secant.nan_to_num_(1.0, 1.0, 1.0).clamp_(0, 1)
            point = (high - low).mul_(per_example(share, high)).add_(low).sub_(state.x)
            point = state.moved(point)
            logits = state.logits(point)
            value = loss(logits, state.y, state.y).value
            fooled = (state.verdict(logits) != ROBUST) & self.distance.isfinite()
            self.offer(state, fooled, point)
            crossed = fooled.view(-1, *[1] * (high.dim() - 1))
            high, low = torch.where(crossed, point, high), torch.where(crossed, low, point)
            high_value, low_value = torch.where(fooled, value, high_value), torch.where(fooled, low_value, value)

    def saturate(self, state: AttackState, gradient: Tensor) -> None:
        """Try to fool the model by moving coordinates to an end of the clip range, as few as needed.

        Coordinates move in decreasing order of gradient × distance from that end. The gradient [B, ...] is that of a
        function f that is positive where the model is fooled. The number of coordinates is minimal if f is linear.
        """
        slope = gradient.nan_to_num_(0.0)
        room = torch.where(slope > 0, state.upper - state.x, state.lower - state.x)
        self._fewest(state, room, (slope * room).flatten(1), torch.full_like(self.distance, float(room[0].numel())))

    def _keep(self, nearer: Tensor, distance: Tensor, x_adv: Tensor) -> None:
        self.distance = torch.where(nearer, distance, self.distance)
        self.source = self.source.masked_fill(nearer, self.attack)
        put_rows(nearer, x_adv, self.x)

    def _project(self, state: AttackState) -> None:
        """Try the point nearest to x on the boundary linearized at the nearest adversarial point; repeat this once."""
        loss = targeted_margin if state.targeted else margin
        for _ in range(_PROJECTIONS):
            _, value, gradient, _ = state.gradient(self.x, loss)
            points = state.x.flatten(1), self.x.flatten(1)
            step = step_onto(*points, gradient.flatten(1), value, norm=state.norm, ball=state.ball)
            step = step.mul_(_BEYOND).view(state.x.shape)
            point = state.moved(step)
            fooled = (state.verdict(state.logits(point)) != ROBUST) & self.distance.isfinite()
            self.offer(state, fooled, point)

    def _prune(self, state: AttackState) -> None:
        """Undo changes that are not needed, the change with the smallest product of gradient and change first."""
        loss = targeted_margin if state.targeted else margin
        delta = self.x - state.x
        gradient = state.gradient(self.x, loss).gradient.nan_to_num_(0.0)
        # Add the smallest normal number, so that a coordinate without a gradient comes last but can be kept.
        gain = (gradient * delta).flatten(1).clamp_(min=0).add_((delta != 0).flatten(1) * torch.finfo(delta.dtype).tiny)
        self._fewest(state, delta, gain, self.distance.nan_to_num(posinf=0.0))

    def _fewest(self, state: AttackState, delta: Tensor, gain: Tensor, high: Tensor) -> None:
        """Offer points with few of the changes delta [B, ...], those of largest gain; bisect to see how few suffice."""
        low = torch.zeros_like(high)
        for _ in range(math.ceil(math.log2(1 + delta[0].numel())) + 1):
            middle = ((low + high) / 2).floor_()
            undecided = middle > low
            if not undecided.is_cuda and not bool(undecided.any()):  # on a GPU, the test would have to wait
                break
            kept = keep_largest(delta.flatten(1), gain, middle).view(delta.shape)
            point = state.moved(kept)
            fooled = state.verdict(state.logits(point)) != ROBUST
            self.offer(state, fooled & undecided, point)
            low, high = torch.where(fooled, low, middle), torch.where(fooled, middle, high)


def within(distance: Tensor, epsilon: Tensor) -> Tensor:
    """Whether distances [B], increased by an allowance for the rounding of float64 sums, are at most epsilon [B].

    >>> within(torch.tensor([0.25, 0.5]).double(), torch.tensor([0.5, 0.5]).double())
    tensor([ True, False])
    """
    return distance * (1 + 1e-11) <= epsilon
