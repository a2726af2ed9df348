"""FAB: minimum-norm adversarial examples by projections on linearized decision boundaries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrobust.checks import NORMS, count, finite, flag, share
from pyrobust.errors import InputError
from pyrobust.ops.logits import ROBUST

from ..engine.norms import widened
from ..engine.settings import optional, setting
from ..engine.state import AttackState
from .boundary import leads, nearest_hyperplane, rivals
from .engine import MinimumNormAttack
from .fab_projection import step_onto
from .nearest import Nearest, within

if TYPE_CHECKING:
    from typing_extensions import Self

# Step of the first class's search after which its points are tightened, for an early result close to the final one.
_EARLY = 28


def _overshoot(name: str, value: Any) -> float:
    number = finite(name, value)
    if number < 1:
        raise InputError(name, "a number of at least 1", number)
    return number


class FAB(MinimumNormAttack):
    """Fast adaptive boundary attack (Croce and Hein, 2020, "Minimally distorted Adversarial Examples …").

    At an iterate xₜ, the decision boundary between y and a class c is approximated by the hyperplane on which ``f(z) =
    z_c − z_y``, linearized at xₜ, is 0. Let d₁ be the smallest step within the clip range from xₜ to this hyperplane,
    and d₂ the smallest such step from x (``pyrobust.ops.hyperplane_step``). The next iterate is

        xₜ₊₁ = (1 − α)·(xₜ + η·d₁) + α·(x + η·d₂),   α = min(‖d₁‖ / (‖d₁‖ + ‖d₂‖), alpha_max).

    If xₜ₊₁ is adversarial, the search continues from x + beta·(xₜ₊₁ − x). With ``nearest``, the boundary is then
    linearized at xₜ₊₁ itself, whose logits are known. At its end, the search takes secant steps on the segment from x
    to the nearest adversarial point. FAB-T repeats the whole search with one class c at a time, for the ``targets``
    classes other than y with the largest logits. With ``targets=None``, c is at every step the class whose hyperplane
    is nearest. In a targeted attack, f is the target's logit minus the largest other logit.

    ``generate`` returns the nearest adversarial example found within epsilon, if there is one; ``minimum`` returns the
    nearest at any distance.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(FAB(model, norm="l2").minimum(x, y).distance), 3))  # 0.2 / sqrt(2) and a margin
    0.142
    """

    norms = NORMS
    _elementwise = NORMS

    steps: int = setting(count, "steps for each start and class, at least 1", default=100, option="steps")
    restarts: int = setting(
        count, "number of starts; the first from x, the others from random points", default=1, option="restarts"
    )
    targets: int | None = setting(
        optional(count),
        "number of classes to try in turn, capped at K - 1; None: all at once, with K - 1 gradients per step",
        default=9,
    )
    alpha_max: float = setting(share, "upper limit of α, in [0, 1]", default=0.1)
    eta: float = setting(_overshoot, "overshoot η, at least 1", default=1.05)
    beta: float = setting(share, "backward step, in [0, 1]", default=0.9)
    nearest: bool = setting(
        flag,
        "whether ``generate`` searches to the end; False stops at the first point within epsilon, which "
        "fools the same examples in fewer forward passes",
        default=True,
    )

    def _copy_for_minimum(self) -> Self:
        search = super()._copy_for_minimum()
        search.nearest = True
        return search

    def _run(self, state: AttackState) -> None:
        if self.nearest:
            return super()._run(state)
        nearest = Nearest(state)
        self._search(state, nearest)
        # The nearest point is outside the ball; its projection may fool the model, too.
        point = nearest.x
        if len(state):
            point = state.place(nearest.x - state.x)
            (point,) = state.retire(state.verdict(state.logits(point)), point)
        return state.finish(point)

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        ranking = rivals(state, None)
        turns = 1 if self.targets is None else min(self.targets, ranking.shape[1])
        for turn in range(turns):
            for restart in range(self.restarts):
                ranking = self._search_once(state, turn, restart, ranking, nearest)
                if not len(state):
                    return

    def _search_once(self, state: AttackState, turn: int, restart: int, ranking: Tensor, nearest: Nearest) -> Tensor:
        """Search from one start for one class; return the class ranking [B, K - 1] for the examples that remain."""
        x_adv = state.x.clone()
        if restart:
            radius = torch.minimum(nearest.reach(state), state.epsilon).div_(2)
            delta = state.norm.start(state.noise, turn * self.restarts + restart, radius)
            x_adv = state.norm.place(delta, state.ball._replace(epsilon=radius))
        run = Nearest(state)
        if self.nearest:
            self._search_nearest(state, turn, ranking, run, x_adv, nearest)
            nearest.take(run)
            return ranking
        for _ in range(self.steps):
            _, value, gradient = self._boundary(state, turn, ranking, x_adv)
            x_adv = self._iterate(state, value, gradient, x_adv, x_adv)
            verdict = state.verdict(state.logits(x_adv))
            distance = run.offer(state, verdict != ROBUST, x_adv)
            following = self._backward(state, verdict != ROBUST, x_adv)
            verdict = verdict.masked_fill(~within(distance, state.epsilon), ROBUST)
            _, x_adv, ranking, *tensors = state.retire(
                verdict, x_adv, following, ranking, *run.tensors, *nearest.tensors
            )
            run.tensors, nearest.tensors = tuple(tensors[:3]), tuple(tensors[3:])
            if not len(state):
                return ranking
        run.tighten(state)
        nearest.take(run)
        inside = within(nearest.distance, state.epsilon)
        point = nearest.x.clone()  # later offers overwrite nearest.x
        _, ranking, *tensors = state.retire(inside, point, ranking, *nearest.tensors)
        nearest.tensors = tuple(tensors)
        return ranking

    def _search_nearest(
        self, state: AttackState, turn: int, ranking: Tensor, run: Nearest, x_adv: Tensor, nearest: Nearest
    ) -> None:
        """Do all steps of a search; a step linearizes the boundary at the point whose logits it has just computed."""
        early = _EARLY if turn == 0 and self.steps >= 2 * _EARLY else 0
        for step in range(self.steps):
            if early and step == early:
                run.tighten(state)
                nearest.take(run)
            logits, value, gradient = self._boundary(state, turn, ranking, x_adv)
            fooled = state.verdict(logits) != ROBUST
            run.offer(state, fooled, x_adv)
            x_adv = self._iterate(state, value, gradient, x_adv, self._backward(state, fooled, x_adv))
        run.offer(state, state.verdict(state.logits(x_adv)) != ROBUST, x_adv)
        run.tighten(state)

    def _backward(self, state: AttackState, fooled: Tensor, x_adv: Tensor) -> Tensor:
        """Return x_adv, with the points that fool the model (mask [B]) moved toward x."""
        backward = state.moved((x_adv - state.x).mul_(self.beta))
        return torch.where(fooled.view(-1, *[1] * (x_adv.dim() - 1)), backward, x_adv)

    def _iterate(self, state: AttackState, value: Tensor, gradient: Tensor, at: Tensor, x_adv: Tensor) -> Tensor:
        """Compute the iterate xₜ₊₁ from xₜ, and from f and its gradient at the point ``at``."""
        moved = (x_adv - state.x).flatten(1)
        points = torch.stack([x_adv.flatten(1), state.x.flatten(1)])
        steps = step_onto(points, at.flatten(1), gradient.flatten(1), value, norm=state.norm, ball=state.ball)
        order = {"linf": math.inf, "l2": 2, "l1": 1}[self.norm]
        lengths = torch.linalg.vector_norm(state.norm.unscaled(steps), order, dim=-1)
        current, clean = widened(lengths).clamp(min=1e-8).unsqueeze(-1)
        alpha = (current / (current + clean)).clamp_(max=self.alpha_max).to(moved.dtype)
        direct, biased = steps.mul_(self.eta)
        delta = moved.add_(direct).mul_(1 - alpha).add_(biased.mul_(alpha))
        return state.moved(delta.view(state.x.shape))

    def _boundary(self, state: AttackState, turn: int, ranking: Tensor, x_adv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [B, K], f(x_adv) [B] and ∇f [B, ...], for the current class or the nearest hyperplane."""
        if not state.targeted and self.targets is not None:
            ranking = ranking[:, turn : turn + 1]
        logits, values, gradients = state.gradients(x_adv, leads(state, ranking))
        return logits, *nearest_hyperplane(values, gradients, state.norm)
