"""The fast minimum-norm attack."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.checks import ATTACK_NORMS, NORMS, count, positive, probability
from pyrobust.ops.logits import ROBUST

from ..engine.norms import unit
from ..engine.settings import optional, setting
from ..engine.state import AttackState
from ..losses import margin, targeted_margin
from .boundary import DUAL
from .engine import MinimumNormAttack
from .nearest import Nearest


class FMN(MinimumNormAttack):
    """The fast minimum-norm attack (Pintor, Roli, Brendel and Biggio, 2021), for l∞, l2, l1 and l0.

    This is gradient ascent on the margin f(z) = max_{c≠y} z_c − z_y in a ball whose radius εₜ follows the decision
    boundary:

        δₜ₊₁ = Π_εₜ(δₜ + αₜ·∇f / ‖∇f‖₂),

    where Π_ε is the projection on the ball of radius ε and the clip range. While no adversarial point is known, εₜ is
    the larger of (1 + γₜ)·εₜ₋₁ and ‖δₜ‖ + (1 + γₜ)·|f| / ‖∇f‖_q (q dual to the norm). The second number is slightly
    more than the estimated distance of the boundary. After that, at an adversarial δₜ, εₜ becomes the smaller of (1 −
    γₜ)·εₜ₋₁ and the best distance so far; at every other δₜ, it becomes (1 + γₜ)·εₜ₋₁. In l0, where distance estimates
    are meaningless, εₜ shrinks at every adversarial δₜ and grows at every other δₜ, by at least one coordinate each
    time. αₜ falls along a cosine to 1 % of its first value, and γₜ to 2 %. Finally, secant steps between x and the
    nearest point shorten the perturbation; in l0, unneeded changes are removed instead.

    Args:
        model, epsilon, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.
        norm: "linf", "l2", "l1" or "l0".

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(FMN(model, norm="l2").minimum(x, y).distance), 3))  # 0.2 / sqrt(2) and a margin
    0.142
    """

    norms = ATTACK_NORMS
    _elementwise = NORMS

    steps: int = setting(count, "number of steps for each start, at least 1", default=100, option="steps")
    step_size: float | None = setting(
        optional(positive), "α₀, positive, in widths of the clip range; default 1, and 10 for linf", default=None
    )
    gamma: float = setting(probability, "γ₀, in (0, 1)", default=0.05)
    restarts: int = setting(
        count,
        "number of starts; the first from x, the others from random points within the best distance so far",
        default=1,
        option="restarts",
    )

    def _stages(self) -> tuple[Callable[[AttackState, Nearest], None], ...]:
        # Random starts lie within the best distance so far, which other attacks reduce first.
        return self._search_from_x, self._search_from_random_points

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        for search in self._stages():
            search(state, nearest)

    def _search_from_x(self, state: AttackState, nearest: Nearest) -> None:
        self._search_from(state, nearest, state.x)

    def _search_from_random_points(self, state: AttackState, nearest: Nearest) -> None:
        for draw in range(self.restarts - 1):
            radius = nearest.reach(state)
            radius = radius.ceil() if self.norm == "l0" else radius
            delta = state.norm.start(state.noise, draw, radius)
            self._search_from(state, nearest, state.norm.place(delta, state.ball._replace(epsilon=radius)))

    def _search_from(self, state: AttackState, nearest: Nearest, x_adv: Tensor) -> None:
        run = Nearest(state)
        self._descend(state, run, x_adv)
        run.tighten(state)
        nearest.take(run)

    def _descend(self, state: AttackState, run: Nearest, x_adv: Tensor) -> None:
        loss = targeted_margin if state.targeted else margin
        width = state.width
        l0 = self.norm == "l0"
        largest = (10.0 if self.norm == "linf" else 1.0) * width if self.step_size is None else self.step_size * width
        epsilon = torch.ones_like(state.epsilon) if l0 else torch.full_like(state.epsilon, math.inf)
        diameter = state.norm.diameter(state.x[0].numel(), state.upper - state.lower)
        for step in range(self.steps):
            cosine = (1 + math.cos(math.pi * step / self.steps)) / 2
            alpha, gamma = largest * (0.01 + 0.99 * cosine), self.gamma * (0.02 + 0.98 * cosine)
            _, value, gradient, verdict = state.gradient(x_adv, loss)
            steepest = state.norm.scaled(gradient)  # with respect to a change in units of the radii
            fooled = verdict != ROBUST
            distance = run.offer(state, fooled, x_adv)
            shorter, longer = epsilon * (1 - gamma), epsilon * (1 + gamma)
            if l0:
                shorter, longer = (
                    torch.minimum(epsilon - 1, shorter.floor_()),
                    torch.maximum(epsilon + 1, longer.floor_()),
                )
            else:
                slope = torch.linalg.vector_norm(steepest.flatten(1), DUAL[self.norm], dim=1, dtype=torch.float64)
                # Slightly beyond: on a linear function the estimate itself is never crossed.
                ahead = value.abs() / slope.clamp_(min=torch.finfo(slope.dtype).tiny) * (1 + gamma)
                estimate = distance + ahead.nan_to_num_(nan=math.inf)
                # If clipping shortens every step, the estimates alone would approach the boundary without reaching it.
                grown = torch.where(epsilon.isfinite(), longer, 0.0)
                longer = torch.where(run.distance.isfinite(), longer, torch.maximum(estimate, grown))
            epsilon = torch.where(fooled, torch.minimum(shorter, run.distance), longer).clamp_(0, diameter)
            length = torch.linalg.vector_norm(steepest.flatten(1), dim=1, dtype=torch.float64)
            delta = state.norm.scaled(unit(steepest, length).mul_(alpha)).add_(x_adv).sub_(state.x)
            x_adv = state.norm.place(delta, state.ball._replace(epsilon=epsilon))
        run.offer(state, state.verdict(state.logits(x_adv)) != ROBUST, x_adv)
