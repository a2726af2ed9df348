"""The decoupled direction and norm attack."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import torch

from pyrobust.checks import count, positive, probability
from pyrobust.ops.logits import ROBUST

from ..engine.norms import per_example, unit
from ..engine.settings import setting
from ..engine.state import AttackState
from ..losses import named_loss
from .engine import MinimumNormAttack
from .nearest import Nearest


class DDN(MinimumNormAttack):
    """The decoupled direction and norm attack (Rony, Hafemann, Oliveira, Ben Ayed, Sabourin and Granger, 2019), l2.

    Each step ascends the cross entropy: δₜ + αₜ·∇L / ‖∇L‖₂ is rescaled to length εₜ, and x plus this perturbation is
    clipped. εₜ shrinks by the share ``gamma`` at an adversarial point, and grows by the share ``gamma`` at any other
    point. αₜ falls along a cosine from ``step_size`` to 1 % of it. Finally, secant steps between x and the nearest
    adversarial point shorten the perturbation.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(DDN(model).minimum(x, y).distance), 3))  # 0.2 / sqrt(2) and a margin
    0.142
    """

    norms = ("l2",)
    _elementwise = ("l2",)
    _defaults: ClassVar[dict[str, Any]] = {"norm": "l2"}

    steps: int = setting(count, "number of steps, at least 1", default=100, option="steps")
    step_size: float = setting(positive, "α₀, positive, in widths of the clip range", default=1.0)
    gamma: float = setting(probability, "share by which the length changes, in (0, 1)", default=0.05)
    start_length: float = setting(positive, "ε₀, positive, in widths of the clip range", default=1.0)

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        loss = functools.partial(named_loss, name="ce", targeted=state.targeted)
        width = state.width
        diameter = state.norm.diameter(state.x[0].numel(), state.upper - state.lower)
        epsilon = torch.full_like(state.epsilon, self.start_length * width)
        run, x_adv = Nearest(state), state.x
        for step in range(self.steps):
            alpha = self.step_size * width * (0.01 + 0.99 * (1 + math.cos(math.pi * step / self.steps)) / 2)
            _, _, gradient, verdict = state.gradient(x_adv, loss)
            fooled = verdict != ROBUST
            run.offer(state, fooled, x_adv)
            epsilon = torch.where(fooled, epsilon * (1 - self.gamma), epsilon * (1 + self.gamma)).clamp_(max=diameter)
            delta = state.norm.direction(gradient).mul_(alpha).add_(x_adv).sub_(state.x)
            length = torch.linalg.vector_norm(delta.flatten(1), dim=1, dtype=torch.float64)
            delta = unit(delta, length).mul_(per_example(epsilon, delta))
            x_adv = state.moved(delta)
        run.offer(state, state.verdict(state.logits(x_adv)) != ROBUST, x_adv)
        run.tighten(state)
        nearest.take(run)
