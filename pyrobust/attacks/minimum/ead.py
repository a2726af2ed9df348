"""The elastic-net attack."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrobust.checks import AttackNormName, count, flag, non_negative, positive
from pyrobust.ops.logits import ROBUST
from pyrobust.ops.perturbation import add_perturbation

from ..losses import margin, targeted_margin
from ..norms import per_example
from ..settings import setting
from ..state import AttackState
from .engine import MinimumNormAttack
from .nearest import Nearest
from .search_constant import Constant


class EAD(MinimumNormAttack):
    """The elastic-net attack (Chen, Sharma, Zhang, Yi and Hsieh, 2018), decided by l1.

    FISTA (Beck and Teboulle, 2009) minimizes c·max(z_y − max_{k≠y} z_k, −κ) + ‖z − x‖₂² + β·‖z − x‖₁ in the clip
    range: gradient steps of the first two terms, each followed by shrinking z − x by β per coordinate, with momentum.
    The step size falls with the root of the share of steps left. A binary search finds the constant c of each example,
    as in ``CarliniWagner``, and examples leave it as there, unless a nearer point was found meanwhile. Secant steps
    between x and the nearest point come last.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(EAD(model).minimum(x, y).distance), 3))  # 0.2 and a margin
    0.2
    """

    norms: ClassVar[tuple[AttackNormName, ...]] = ("l1",)
    _defaults: ClassVar[dict[str, Any]] = {"norm": "l1"}

    steps: int = setting(count, "steps for each constant, at least 1", default=500, option="steps")
    searches: int = setting(count, "number of constants to try, at least 1", default=9)
    constant: float = setting(positive, "first c, positive, for distances in widths of the clip range", default=1e-3)
    learning_rate: float = setting(positive, "first step size, positive", default=0.01)
    beta: float = setting(non_negative, "β, at least 0, in widths of the clip range", default=0.01)
    confidence: float = setting(non_negative, "κ, at least 0, the margin of logits to reach", default=0.0)
    abort_early: bool = setting(
        flag, "whether examples that no longer improve leave the steps for a constant", default=True
    )

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        run = Nearest(state)
        constant = Constant(state, self.constant)
        for _ in range(self.searches):
            constant.update(self._descend(state, run, constant.value))
        run.tighten(state)
        nearest.take(run)

    def _descend(self, state: AttackState, run: Nearest, constant: Tensor) -> Tensor:
        """Run FISTA for one constant [B]; return which examples were fooled, bool [B]."""
        loss = targeted_margin if state.targeted else margin
        width = state.upper - state.lower
        fooled_once = torch.zeros_like(run.distance, dtype=torch.bool)
        rows, part = torch.arange(len(state), device=state.x.device), state
        x_adv, ahead = state.x, state.x
        before = run.distance
        checked = torch.full_like(run.distance, math.inf)
        every = max(1, self.steps // 10)
        for step in range(self.steps):
            rate = self.learning_rate * math.sqrt(1 - step / self.steps)
            _, value, gradient, verdict = part.gradient(ahead, loss)
            fooled = verdict != ROBUST
            found = Nearest(part)
            found.offer(part, fooled, ahead)
            run.take(found, rows)
            fooled_once[rows] |= fooled & (value >= self.confidence)
            delta = ahead - part.x
            if self.abort_early and step and step % every == 0:
                sizes = delta.flatten(1) / width
                objective = constant[rows] * (-value).clamp_(min=-self.confidence)
                objective = objective + sizes.square().sum(1) + self.beta * sizes.abs().sum(1)
                # FISTA's momentum raises the objective for a while.
                improved = (objective < 0.9999 * checked[rows]) | (run.distance < before)[rows]
                before = run.distance
                staying = improved.nonzero()[:, 0]
                if not len(staying):
                    return fooled_once
                checked[rows] = objective
                if len(staying) < len(rows):
                    rows, part = rows[staying], part.take(staying)
                    x_adv, delta = x_adv[staying], delta[staying]
                    gradient, value = gradient[staying], value[staying]
            active = constant[rows] * (value < self.confidence)
            # In widths of the clip range: c·∇f gains one width, and so does its step.
            gradient = gradient.mul_(per_example(active * width**2, gradient)).nan_to_num_(0.0).sub_(delta, alpha=2)
            delta = delta.add_(gradient, alpha=rate)
            delta = delta.sign() * (delta.abs() - self.beta * width).clamp_(min=0)
            following = add_perturbation(part.x, delta, state.lower, state.upper)
            momentum = (following - x_adv).mul_(step / (step + 3)).add_(following).sub_(part.x)
            x_adv, ahead = following, add_perturbation(part.x, momentum, state.lower, state.upper)
        for point in (x_adv, ahead):
            found = Nearest(part)
            found.offer(part, part.verdict(part.logits(point)) != ROBUST, point)
            run.take(found, rows)
        return fooled_once
