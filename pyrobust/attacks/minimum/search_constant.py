"""The search for the constant that weights success against distance, shared by Carlini and Wagner's attack and EAD."""

from __future__ import annotations

import abc
import math

import torch
from torch import Tensor

from pyrobust.checks import count, positive
from pyrobust.ops.logits import ROBUST

from ..engine.settings import setting, state
from ..engine.state import AttackState
from ..losses import margin, targeted_margin
from .engine import MinimumNormAttack
from .nearest import Nearest

# A constant beyond this is not tried: the distance would no longer matter.
_LARGEST = 1e10
# An example stays if its objective fell below this share of its value within a tenth of the steps.
_IMPROVED = 0.9999


class SearchConstant:
    """The constants c [B], float64: raised tenfold until a point is adversarial, then bisected (Carlini and Wagner)."""

    def __init__(self, state: AttackState, first: float) -> None:
        self.value = torch.full_like(state.epsilon, first)
        self._low = torch.zeros_like(self.value)
        self._high = torch.full_like(self.value, math.inf)

    def update(self, fooled: Tensor) -> None:
        """Lower the constants of the examples that were fooled (mask [B], bool), and raise the others."""
        self._high = torch.where(fooled, torch.minimum(self._high, self.value), self._high)
        self._low = torch.where(fooled, self._low, torch.maximum(self._low, self.value))
        middle = (self._low + self._high) / 2
        self.value = torch.where(self._high.isfinite(), middle, self.value * 10).clamp_(max=_LARGEST)


class Descent(abc.ABC):
    """The iterates of one descent, with one constant c for each example; an example that stops improving is removed."""

    @abc.abstractmethod
    def point(self, subset: AttackState) -> Tensor:
        """Return the point [B, ...] that this step evaluates."""

    @abc.abstractmethod
    def objective(self, subset: AttackState, distance: Tensor, penalty: Tensor) -> Tensor:
        """Return the objective at the point, in units of the clip range's width; the penalty [B] is c · margin."""

    @abc.abstractmethod
    def move(self, subset: AttackState, gradient: Tensor, active: Tensor, step: int) -> None:
        """Take a step.

        ``gradient`` [B, ...] is the margin's gradient. The step multiplies it by ``active`` [B], which is c, or 0 if
        the confidence κ is attained.
        """

    @abc.abstractmethod
    def keep(self, staying: Tensor) -> None:
        """Keep these rows [n] of every tensor."""

    def nearer(self, run: Nearest) -> Tensor | None:
        """Return which examples of the batch stay because of a nearer point; None if only the objective decides."""
        return None

    def last(self) -> tuple[Tensor, ...]:
        """Return the points [B, ...] after the last step, which are not yet evaluated; by default there are none."""
        return ()


class ConstantSearch(MinimumNormAttack):
    """An attack that minimizes distance + c·max(z_y − max_{k≠y} z_k, −κ), for constants c that a binary search finds.

    Subclasses define ``_descent``, and declare ``confidence`` (κ) and ``abort_early``.
    """

    steps: int = setting(count, "steps for each constant, at least 1", default=500, option="steps")
    searches: int = setting(count, "number of constants to try, at least 1", default=9)
    constant: float = setting(positive, "first c, positive, for distances in widths of the clip range", default=1e-3)
    learning_rate: float = setting(positive, "first step size, positive", default=0.01)
    confidence: float = state(0.0)
    abort_early: bool = state(True)

    # Number of steps taken, beyond those counted, when examples without improvement leave.
    _ahead = 0

    @abc.abstractmethod
    def _descent(self, state: AttackState, run: Nearest) -> Descent:
        """Return a new descent; each constant gets one of its own."""

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        run = Nearest(state)
        constant = SearchConstant(state, self.constant)
        for _ in range(self.searches):
            constant.update(self._descend(state, run, constant.value))
        run.tighten(state)
        nearest.take(run)

    def _descend(self, state: AttackState, run: Nearest, constant: Tensor) -> Tensor:
        """Take the steps for the constants [B], one for each example; return which examples were fooled, bool [B]."""
        loss = targeted_margin if state.targeted else margin
        fooled_once = torch.zeros_like(run.distance, dtype=torch.bool)
        rows, active = torch.arange(len(state), device=state.x.device), state
        descent = self._descent(state, run)
        checked = torch.full_like(run.distance, math.inf)
        every = max(1, self.steps // 10)
        for step in range(self.steps):
            x_adv = descent.point(active)
            _, value, gradient, verdict = active.gradient(x_adv, loss)
            fooled = verdict != ROBUST
            distance = _offer(active, fooled, x_adv, run, rows)
            fooled_once[rows] |= fooled & (value >= self.confidence)
            taken = step + self._ahead
            if self.abort_early and taken and taken % every == 0:
                penalty = constant[rows] * (-value).clamp_(min=-self.confidence)
                objective = descent.objective(active, distance, penalty)
                improved = objective < _IMPROVED * checked[rows]
                nearer = descent.nearer(run)
                staying = (improved if nearer is None else improved | nearer[rows]).nonzero()[:, 0]
                if not len(staying):
                    return fooled_once
                checked[rows] = objective
                if len(staying) < len(rows):
                    rows, active = rows[staying], active.take(staying)
                    gradient, value = gradient[staying], value[staying]
                    descent.keep(staying)
            descent.move(active, gradient, constant[rows] * (value < self.confidence), step)
        for point in descent.last():
            _offer(active, active.verdict(active.logits(point)) != ROBUST, point, run, rows)
        return fooled_once


def _offer(subset: AttackState, fooled: Tensor, x_adv: Tensor, run: Nearest, rows: Tensor) -> Tensor:
    """Offer the points [B, ...] to a run, in which example i has the row ``rows[i]``; return the distances."""
    nearest = Nearest(subset)
    distance = nearest.offer(subset, fooled, x_adv)
    run.take(nearest, rows)
    return distance
