"""Carlini and Wagner's l2 attack."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrobust.checks import count, flag, non_negative, positive
from pyrobust.ops.logits import ROBUST
from pyrobust.ops.perturbation import add_perturbation

from ..losses import margin, targeted_margin
from ..norms import per_example
from ..settings import setting
from ..state import AttackState
from .engine import MinimumNormAttack
from .nearest import Nearest
from .search_constant import Constant


class CarliniWagner(MinimumNormAttack):
    """The l2 attack of Carlini and Wagner (2017).

    With z = lower + (upper − lower)·(tanh(w) + 1) / 2, which keeps the clip range, Adam (Kingma and Ba, 2015) minimizes

        ‖z − x‖₂² + c·max(z_y − max_{k≠y} z_k, −κ)   over w.

    A binary search finds the constant c of each example: it grows tenfold until a point is adversarial, then is
    bisected. An example leaves a step of the search when its objective has not fallen by 0.01 % over a tenth of the
    steps. Secant steps between x and the nearest point come last.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(CarliniWagner(model, steps=200).minimum(x, y).distance), 3))  # 0.2 / sqrt(2) and a margin
    0.142
    """

    norms = ("l2",)
    _defaults: ClassVar[dict[str, Any]] = {"norm": "l2"}

    steps: int = setting(count, "Adam steps for each constant, at least 1", default=1000, option="steps")
    searches: int = setting(count, "number of constants to try, at least 1", default=9)
    constant: float = setting(positive, "first c, positive, for distances in widths of the clip range", default=1e-3)
    learning_rate: float = setting(positive, "of Adam, positive", default=0.01)
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
        """Run Adam for one constant [B]; return which examples were fooled, bool [B]."""
        loss = targeted_margin if state.targeted else margin
        width = state.upper - state.lower
        fooled_once = torch.zeros_like(run.distance, dtype=torch.bool)
        rows, part = torch.arange(len(state), device=state.x.device), state
        # Slightly inside, where the derivative of tanh is not zero.
        w = ((state.x - state.lower) * (2 / width)).sub_(1).mul_(1 - 1e-6).atanh_()
        mean, square = torch.zeros_like(w), torch.zeros_like(w)
        checked = torch.full_like(run.distance, math.inf)
        every = max(1, self.steps // 10)
        for step in range(1, self.steps + 1):
            t = w.tanh()
            delta = (t + 1).mul_(width / 2).add_(state.lower).sub_(part.x)
            x_adv = add_perturbation(part.x, delta, state.lower, state.upper)
            _, value, gradient, verdict = part.gradient(x_adv, loss)
            fooled = verdict != ROBUST
            found = Nearest(part)
            distance = found.offer(part, fooled, x_adv)
            run.take(found, rows)
            fooled_once[rows] |= fooled & (value >= self.confidence)
            scaled = distance / width
            objective = scaled.square_().add_(constant[rows] * (-value).clamp_(min=-self.confidence))
            active = constant[rows] * (value < self.confidence)
            # The gradient by w, for distances in widths of the clip range.
            gradient = gradient.mul_(per_example(-active * width, gradient)).nan_to_num_(0.0)
            gradient.add_(delta, alpha=2 / width).mul_(1 - t * t).mul_(0.5)
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            scale = (square / (1 - 0.999**step)).sqrt_().add_(1e-8)
            w = w.addcdiv(mean, scale, value=-self.learning_rate / (1 - 0.9**step))
            if self.abort_early and step % every == 0:
                staying = (objective < 0.9999 * checked[rows]).nonzero()[:, 0]
                if not len(staying):
                    break
                checked[rows] = objective
                if len(staying) < len(rows):
                    rows, part = rows[staying], part.take(staying)
                    w, mean, square = w[staying], mean[staying], square[staying]
        return fooled_once
