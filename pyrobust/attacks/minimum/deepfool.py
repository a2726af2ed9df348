"""DeepFool: repeated steps to the nearest linearized decision boundary."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrobust.checks import AttackNormName, count, non_negative
from pyrobust.ops.logits import ROBUST

from ..engine.settings import setting
from ..engine.state import AttackState
from .boundary import leads, nearest_hyperplane, rivals
from .engine import MinimumNormAttack
from .fab_projection import step_onto
from .nearest import Nearest


class DeepFool(MinimumNormAttack):
    """DeepFool (Moosavi-Dezfooli, Fawzi and Frossard, 2016): steps to the nearest linearized boundary.

    The attack considers the classes c with the ``candidates`` largest clean logits. For each c, let f_c(z) = z_c − z_y.
    Linearized at xₜ, this function is zero on a hyperplane, whose distance from xₜ is |f_c(xₜ)| / ‖∇f_c(xₜ)‖_q, with q
    dual to the norm. The step from xₜ to xₜ₊₁ leads beyond the nearest of these hyperplanes. It is the shortest step,
    within the clip range, that takes the linearized function from f_c(xₜ) to −overshoot·f_c(xₜ). (The original ignores
    the clip range.) An example leaves the batch as soon as it is fooled. Finally, secant steps between x and the point
    found shorten the perturbation. In a targeted attack, f is the target's logit minus the largest other logit.

    DeepFool is fast and simple, but the first boundary that it reaches need not be the nearest.

    Args:
        model, epsilon, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.
        norm: "linf" or "l2".

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(DeepFool(model, norm="l2").minimum(x, y).distance), 3))  # 0.2 / sqrt(2) and a margin
    0.142
    """

    norms: ClassVar[tuple[AttackNormName, ...]] = ("linf", "l2")
    _elementwise = ("linf", "l2")
    _defaults: ClassVar[dict[str, Any]] = {"norm": "l2"}

    steps: int = setting(count, "most steps for an example, at least 1", default=50, option="steps")
    candidates: int = setting(
        count, "number of classes to consider, capped at K - 1; each costs a backward pass per step", default=10
    )
    overshoot: float = setting(non_negative, "share by which a step passes the hyperplane, at least 0", default=0.02)

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        closest = Nearest(state)
        self._cross(state, state.x, closest)
        closest.shorten(state)
        nearest.take(closest)

    def _cross(self, state: AttackState, x_adv: Tensor, nearest: Nearest) -> None:
        """Step from x_adv [B, ...] to the nearest linearized boundary until the model is fooled; record the points."""
        ranking = rivals(state, self.candidates)
        rows, active = torch.arange(len(state), device=state.x.device), state
        for _ in range(self.steps):
            _, values, gradients = active.gradients(x_adv, leads(active, ranking[rows]))
            value, gradient = nearest_hyperplane(values, gradients, active.norm)
            w, flat = gradient.flatten(1), x_adv.flatten(1)
            step = step_onto(flat, flat, w, value.mul(1 + self.overshoot), norm=active.norm, ball=active.ball)
            x_adv = active.moved(step.view(x_adv.shape).add_(x_adv).sub_(active.x))
            fooled = active.verdict(active.logits(x_adv)) != ROBUST
            if bool(fooled.any()):
                reached = Nearest(active)
                reached.offer(active, fooled, x_adv)
                nearest.take(reached, rows)
                staying = (~fooled).nonzero()[:, 0]
                if not len(staying):
                    break
                rows, active, x_adv = rows[staying], active.take(staying), x_adv[staying]
