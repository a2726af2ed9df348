"""The nearest adversarial point of each example so far, and how it is moved nearer still."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrobust.ops.examples import put_rows
from pyrobust.ops.logits import ROBUST
from pyrobust.ops.perturbation import add_perturbation

from ..losses import margin, targeted_margin
from ..norms import keep_largest, per_example
from ..state import AttackState

# Secant steps between x and the nearest adversarial point, as in Croce and Hein's FAB.
_SECANT_STEPS = 3
# Secant steps aim at this share of the adversarial side's margin: a point on the boundary itself is not adversarial.
_AIM = 0.05


class Nearest:
    """The nearest adversarial point of each example so far: x [B, ...] and distance [B], inf where none was found.

    ``source`` [B] numbers the attack that found it; attacks of an ensemble set ``attack`` to their number.
    """

    def __init__(self, state: AttackState) -> None:
        self.x = state.x.clone()
        self.distance = torch.full_like(state.epsilon, math.inf)
        self.attack = 0
        self.source = torch.zeros_like(state.index)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that go through ``AttackState.retire``."""
        return self.x, self.distance, self.source

    @tensors.setter
    def tensors(self, value: tuple[Tensor, ...]) -> None:
        self.x, self.distance, self.source = value

    def offer(self, state: AttackState, fooled: Tensor, x_adv: Tensor) -> Tensor:
        """Keep the points that fool [B] and are nearer; return the distances [B] of all points."""
        x_adv = state.snap(x_adv)
        distance = state.norm.distance(x_adv, state.x)
        self._keep(fooled & (distance < self.distance), distance, x_adv)
        return distance

    def take(self, other: Nearest, rows: Tensor | None = None) -> None:
        """Keep another search's points, of these rows [n] or of all, where they are nearer."""
        distance, x_adv = other.distance, other.x
        if rows is not None:
            distance = torch.full_like(self.distance, math.inf).index_copy_(0, rows, distance)
            x_adv = self.x.index_copy(0, rows, x_adv)
        self._keep(distance < self.distance, distance, x_adv)

    def tighten(self, state: AttackState) -> None:
        """Move the points nearer along the segment to x; in l0, undo the coordinates that are not needed."""
        if not bool(self.distance.isfinite().any()):
            return
        if state.norm.name == "l0":
            self._prune(state)
        else:
            self._secant(state)

    def _keep(self, nearer: Tensor, distance: Tensor, x_adv: Tensor) -> None:
        self.distance = torch.where(nearer, distance, self.distance)
        self.source = self.source.masked_fill(nearer, self.attack)
        put_rows(nearer, x_adv, self.x)

    def _secant(self, state: AttackState) -> None:
        """Take secant steps between x and the nearest adversarial point, keeping the adversarial ones."""
        loss = targeted_margin if state.targeted else margin
        low, high = state.x, self.x.clone()
        low_value, high_value = (loss(state.logits(end), state.y, state.y).value for end in (low, high))
        for _ in range(_SECANT_STEPS):
            secant = (_AIM * high_value - low_value) / (high_value - low_value)
            share = secant.nan_to_num_(1.0, 1.0, 1.0).clamp_(0, 1)
            point = (high - low).mul_(per_example(share, high)).add_(low).sub_(state.x)
            point = add_perturbation(state.x, point, state.lower, state.upper)
            logits = state.logits(point)
            value = loss(logits, state.y, state.y).value
            fooled = (state.verdict(logits) != ROBUST) & self.distance.isfinite()
            self.offer(state, fooled, point)
            crossed = fooled.view(-1, *[1] * (high.dim() - 1))
            high, low = torch.where(crossed, point, high), torch.where(crossed, low, point)
            high_value, low_value = torch.where(fooled, value, high_value), torch.where(fooled, low_value, value)

    def _prune(self, state: AttackState) -> None:
        """Bisect over how many of the changed coordinates are needed, ordered by gradient times change."""
        loss = targeted_margin if state.targeted else margin
        delta = self.x - state.x
        gradient = state.gradient(self.x, loss).gradient.nan_to_num_(0.0)
        # The smallest normal number, so that a coordinate without a gradient goes last but can be kept.
        gain = (gradient * delta).flatten(1).clamp_(min=0).add_((delta != 0).flatten(1) * torch.finfo(delta.dtype).tiny)
        low, high = torch.zeros_like(self.distance), self.distance.nan_to_num(posinf=0.0)
        for _ in range(math.ceil(math.log2(1 + delta[0].numel()))):
            middle = ((low + high) / 2).floor_()
            if bool((middle <= low).all()):
                break
            kept = keep_largest(delta.flatten(1), gain, middle).view(delta.shape)
            point = add_perturbation(state.x, kept, state.lower, state.upper)
            fooled = (state.verdict(state.logits(point)) != ROBUST) & self.distance.isfinite()
            self.offer(state, fooled, point)
            low, high = torch.where(fooled, low, middle), torch.where(fooled, middle, high)


def within(distance: Tensor, epsilon: Tensor) -> Tensor:
    """Whether distances [B] are at most epsilon [B] as real numbers, allowing for rounding of the float64 sums.

    >>> within(torch.tensor([0.25, 0.5]).double(), torch.tensor([0.5, 0.5]).double())
    tensor([ True, False])
    """
    return distance * (1 + 1e-11) <= epsilon
