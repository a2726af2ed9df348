"""FAB: minimum-norm adversarial examples, by projections on linearized decision boundaries."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import NormLike, class_labels, count, finite, flag, share, summary
from pyrobust.errors import InputError
from pyrobust.frames import Tabular
from pyrobust.ops.examples import put_rows
from pyrobust.ops.logits import FOOLED, ROBUST
from pyrobust.ops.perturbation import add_perturbation
from pyrobust.runner import Classifier, Progress

from ..engine import BatchAttack, Callback
from ..losses import lead_of_target, margin, targeted_margin
from ..norms import per_example
from ..queries import Queries
from ..state import AttackState
from .fab_projection import step_to_hyperplane

# Steps of the final search on the segment from x to the nearest adversarial point, as in Croce and Hein.
_FINAL_STEPS = 3
# Secant steps aim at this share of the adversarial side's margin: a point on the boundary itself is not adversarial.
_AIM = 0.05
# Multiples of the nearest perturbation to try where rounding may undo the success of a point on the boundary.
_OVERSHOOTS = (1.0, 1.0003, 1.001, 1.003, 1.01, 1.03, 1.1)
_DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}


@dataclass(frozen=True)
class MinimalPerturbation(Tabular):
    """The nearest adversarial examples found.

    Attributes:
        x_adv: [N, ...]; x itself where none was found.
        distance: [N], float64, ‖x_adv − x‖ in the attack's norm; 0 where x itself is misclassified, inf where no
            adversarial example was found.
    """

    x_adv: Tensor
    distance: Tensor

    def __repr__(self) -> str:
        finite = self.distance[self.distance.isfinite()]
        return summary(
            self,
            examples=len(self.distance),
            found=len(finite),
            median_distance=float(self.distance.median()) if len(finite) else None,
        )

    def _columns(self) -> dict[str, Any]:
        """One row for each example."""
        return {"distance": self.distance.numpy()}

    def to_dict(self) -> dict[str, list[float]]:
        """Convert to plain Python: the distances."""
        return {"distance": self.distance.tolist()}


class FAB(BatchAttack):
    """Fast adaptive boundary attack (Croce and Hein, 2020, "Minimally distorted Adversarial Examples …").

    At an iterate xₜ the decision boundary between y and a class c is approximated by the hyperplane on which
    ``f(z) = z_c − z_y``, linearized at xₜ, is 0. With d₁ and d₂ the smallest steps to it from xₜ and from x within the
    clip range (``fab_projection.step_to_hyperplane``), the next iterate is

        xₜ₊₁ = (1 − α)·(xₜ + η·d₁) + α·(x + η·d₂),   α = min(‖d₁‖ / (‖d₁‖ + ‖d₂‖), alpha_max).

    If xₜ₊₁ is adversarial, the search continues from x + beta·(xₜ₊₁ − x). The final search takes secant steps on the
    segment from x to the nearest adversarial point. c is each of the ``targets`` classes of the largest logits in turn
    (FAB-T), or at every step the class whose hyperplane is nearest. In a targeted attack, f is the target's logit minus
    the largest other one.

    ``generate`` returns the nearest adversarial example found within epsilon, ``minimal_perturbation`` at any distance.
    Where it can, it lies so far beyond the boundary that rounding, which depends on the batch, cannot undo it.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``.
        steps: steps for each start and class, at least 1.
        restarts: number of starts; the first from x, the others from random points.
        targets: number of classes to try in turn, capped at K - 1; None: all at once, with K - 1 gradients per step.
        alpha_max: upper limit of α, in [0, 1].
        eta: overshoot η, at least 1.
        beta: backward step, in [0, 1].
        nearest: whether ``generate`` searches to the end; False stops at the first point within epsilon, which fools
            the same examples in fewer forward passes.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(FAB(model, norm="l2").minimal_perturbation(x, y).distance), 3))  # 0.2 / sqrt(2) and a margin
    0.142
    """

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: NormLike = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        steps: int = 100,
        restarts: int = 1,
        targets: int | None = 9,
        alpha_max: float = 0.1,
        eta: float = 1.05,
        beta: float = 0.9,
        nearest: bool = True,
        clip: tuple[float, float] | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        progress: bool | Progress = False,
        callback: Callback | None = None,
    ) -> None:
        super().__init__(
            model,
            epsilon,
            norm,
            clip_min,
            clip_max,
            device,
            clip=clip,
            seed=seed,
            batch_size=batch_size,
            dtype=dtype,
            memory_format=memory_format,
            progress=progress,
            callback=callback,
        )
        self.steps = count("steps", steps)
        self.restarts = count("restarts", restarts)
        self.targets = None if targets is None else count("targets", targets)
        self.alpha_max, self.eta, self.beta = share("alpha_max", alpha_max), finite("eta", eta), share("beta", beta)
        if self.eta < 1:
            raise InputError(f"eta: expected a number of at least 1, got {self.eta}")
        self.nearest = flag("nearest", nearest)
        self._margin = True  # see minimal_perturbation

    def minimal_perturbation(
        self,
        x: Tensor,
        y: Tensor,
        targeted: bool = False,
        target_labels: Tensor | None = None,
        *,
        indices: Sequence[int] | Tensor | None = None,
        margin: bool = True,
    ) -> MinimalPerturbation:
        """Find the nearest adversarial examples, regardless of epsilon.

        Args:
            x: [N, ...], float, finite, in [clip_min, clip_max].
            y: [N], integers, the labels.
            targeted: an adversarial example is one that the model assigns to the target label, rather than to any class
                but y.
            target_labels: [N], integers, required with targeted=True.
            indices: [N], see ``generate``.
            margin: move each point beyond the boundary, by at most 10 % of its distance, until no rounding can undo its
                success: by the rule of ``pyrobust.correctness``, until the logits differ by more than √ε of the model's
                dtype times the largest |logit|. A point with which that fails, and every point with False, is
                adversarial in a batch of one, but may not be in another batch.

        Returns:
            The points and their distances.

        Raises:
            InputError, InputTypeError, ModelError: see ``generate``.
        """
        search = copy.copy(self)
        search.nearest, search._margin = True, flag("margin", margin)
        coordinates = x[0].numel() if isinstance(x, Tensor) and x.dim() and len(x) else 1
        diameter = self._norm.diameter(coordinates, self.clip_max - self.clip_min)
        x_adv = search.generate(x, y, targeted, target_labels, epsilon=diameter, indices=indices)
        self.forwards = search.forwards
        goal = class_labels("y", target_labels if targeted and target_labels is not None else y, len(x))
        robust = self._right(Queries(self.runner), x_adv, goal, targeted=targeted).to(x.device)
        distance = self._norm.distance(x_adv, x.detach()) if len(x) else x.new_zeros(0, dtype=torch.float64)
        return MinimalPerturbation(x_adv, distance.masked_fill(robust, math.inf))

    def _run(self, state: AttackState) -> None:
        nearest = Nearest(state)
        logits = state.logits(state.x)
        ranking = logits.scatter(1, state.y.unsqueeze(1), -math.inf).argsort(1, descending=True)[:, :-1]
        turns = 1 if state.targeted or self.targets is None else min(self.targets, ranking.shape[1])
        for turn in range(turns):
            for restart in range(self.restarts):
                ranking = self._search(state, turn, restart, ranking, nearest)
                if not len(state):
                    return state.finish(nearest.x)
        if self.nearest:
            self._retire_nearest(state, nearest)
            if not len(state):
                return state.finish(nearest.x)
        # The nearest point is outside the ball; its projection may fool the model, too.
        point = state.place(nearest.x - state.x)
        point, _ = state.retire(state.verdict(state.logits(point)), point, nearest.x)
        return state.finish(point)

    def _retire_nearest(self, state: AttackState, nearest: Nearest) -> None:
        """Retire the examples fooled by their nearest point, moved outward within epsilon as far as rounding asks."""
        for certain in (True, False) if self._margin else (False,):
            for factor in _OVERSHOOTS:
                point, distance = nearest.x.clone(), nearest.distance
                if factor > 1:
                    point = add_perturbation(state.x, point.sub_(state.x).mul_(factor), state.lower, state.upper)
                    distance = state.norm.distance(point, state.x)
                verdict = nearest.distance.isfinite() & within(distance, state.epsilon)
                if certain:
                    fooled = state.verdict(state.logits(point)) == FOOLED
                    verdict = (verdict & fooled).to(torch.uint8).mul_(FOOLED)
                _, nearest.x, nearest.distance = state.retire(verdict, point, nearest.x, nearest.distance)
                if not len(state):
                    return

    def _search(self, state: AttackState, turn: int, restart: int, ranking: Tensor, nearest: Nearest) -> Tensor:
        """Search from one start, with one class; return the ranking [B, K - 1] of the examples that stay."""
        x_adv = state.x.clone()
        if restart:
            radius = torch.minimum(nearest.distance, state.epsilon).div_(2)
            delta = state.norm.start(state.noise, turn * self.restarts + restart, radius)
            x_adv = state.norm.place(delta, state.ball._replace(epsilon=radius))
        run = Nearest(state)
        for _ in range(self.steps):
            x_adv = self._iterate(state, turn, ranking, x_adv)
            verdict = state.verdict(state.logits(x_adv))
            distance = run.offer(state, verdict != ROBUST, x_adv)
            backward = add_perturbation(state.x, (x_adv - state.x).mul_(self.beta), state.lower, state.upper)
            following = torch.where((verdict != ROBUST).view(-1, *[1] * (x_adv.dim() - 1)), backward, x_adv)
            if self.nearest:
                x_adv = following
                continue
            verdict = verdict.masked_fill(~within(distance, state.epsilon), ROBUST)
            _, x_adv, ranking, run.x, run.distance, nearest.x, nearest.distance = state.retire(
                verdict, x_adv, following, ranking, run.x, run.distance, nearest.x, nearest.distance
            )
            if not len(state):
                return ranking
        self._final_search(state, run)
        nearest.take(run)
        if self.nearest:
            return ranking
        inside = within(nearest.distance, state.epsilon)
        point = nearest.x.clone()  # later offers overwrite nearest.x
        _, ranking, nearest.x, nearest.distance = state.retire(inside, point, ranking, nearest.x, nearest.distance)
        return ranking

    def _iterate(self, state: AttackState, turn: int, ranking: Tensor, x_adv: Tensor) -> Tensor:
        """Compute xₜ₊₁ from xₜ."""
        value, gradient = self._boundary(state, turn, ranking, x_adv)
        moved = (x_adv - state.x).flatten(1)
        w = gradient.nan_to_num_(0.0, 0.0, 0.0).flatten(1)
        # The hyperplane f(xₜ) + w·(z − xₜ) = 0, seen from xₜ and from x.
        gap = -value.to(w.dtype)
        gaps = torch.stack([gap, gap + (w * moved).sum(1)]).nan_to_num_(0.0)
        points = torch.stack([x_adv.flatten(1), state.x.flatten(1)])
        steps = step_to_hyperplane(points, w, gaps, self.norm, state.lower, state.upper)
        lengths = torch.linalg.vector_norm(steps, {"linf": math.inf, "l2": 2, "l1": 1}[self.norm], dim=-1)
        current, clean = lengths.clamp_(min=1e-8).unsqueeze(-1)
        alpha = (current / (current + clean)).clamp_(max=self.alpha_max)
        direct, biased = steps.mul_(self.eta)
        delta = moved.add_(direct).mul_(1 - alpha).add_(biased.mul_(alpha))
        return add_perturbation(state.x, delta.view(state.x.shape), state.lower, state.upper)

    def _boundary(self, state: AttackState, turn: int, ranking: Tensor, x_adv: Tensor) -> tuple[Tensor, Tensor]:
        """f(x_adv) [B] and its gradient [B, ...], for the current class or the one whose hyperplane is nearest."""
        if state.targeted:
            _, value, gradient, _ = state.gradient(x_adv, targeted_margin)
            return value, gradient
        if self.targets is not None:
            _, value, gradient, _ = state.gradient(x_adv, lead_of_target, ranking[:, turn])
            return value, gradient
        best = torch.full_like(state.epsilon, math.inf)
        nearest_value, nearest_gradient = state.epsilon, x_adv
        for rank in range(ranking.shape[1]):
            _, value, gradient, _ = state.gradient(x_adv, lead_of_target, ranking[:, rank])
            slope = torch.linalg.vector_norm(gradient.flatten(1), _DUAL[self.norm], dim=1)
            distance = (value.abs() / (slope + 1e-12)).double()
            nearer = (distance < best) if rank else torch.ones_like(distance, dtype=torch.bool)
            best = torch.where(nearer, distance, best)
            nearest_value = torch.where(nearer, value, nearest_value.to(value.dtype))
            nearest_gradient = torch.where(nearer.view(-1, *[1] * (x_adv.dim() - 1)), gradient, nearest_gradient)
        return nearest_value, nearest_gradient

    def _final_search(self, state: AttackState, run: Nearest) -> None:
        """Take secant steps between x and the nearest adversarial point, keeping the adversarial ones."""
        loss = targeted_margin if state.targeted else margin
        low, high = state.x, run.x
        low_value, high_value = (loss(state.logits(end), state.y, state.y).value for end in (low, high))
        for _ in range(_FINAL_STEPS):
            secant = (_AIM * high_value - low_value) / (high_value - low_value)
            share = secant.nan_to_num_(1.0, 1.0, 1.0).clamp_(0, 1)
            point = (high - low).mul_(per_example(share, high)).add_(low).sub_(state.x)
            point = add_perturbation(state.x, point, state.lower, state.upper)
            logits = state.logits(point)
            value = loss(logits, state.y, state.y).value
            fooled = (state.verdict(logits) != ROBUST) & run.distance.isfinite()
            run.offer(state, fooled, point)
            crossed = fooled.view(-1, *[1] * (high.dim() - 1))
            high, low = torch.where(crossed, point, high), torch.where(crossed, low, point)
            high_value, low_value = torch.where(fooled, value, high_value), torch.where(fooled, low_value, value)


class Nearest:
    """The nearest adversarial point of each example so far: x [B, ...] and distance [B], inf where none was found."""

    def __init__(self, state: AttackState) -> None:
        self.x = state.x.clone()
        self.distance = torch.full_like(state.epsilon, math.inf)

    def offer(self, state: AttackState, fooled: Tensor, x_adv: Tensor) -> Tensor:
        """Keep the points that fool [B] and are nearer; return the distances [B] of all points."""
        distance = state.norm.distance(x_adv, state.x)
        self._keep(fooled & (distance < self.distance), distance, x_adv)
        return distance

    def take(self, other: Nearest) -> None:
        """Keep another search's points where they are nearer."""
        self._keep(other.distance < self.distance, other.distance, other.x)

    def _keep(self, nearer: Tensor, distance: Tensor, x_adv: Tensor) -> None:
        self.distance = torch.where(nearer, distance, self.distance)
        put_rows(nearer, x_adv, self.x)


def within(distance: Tensor, epsilon: Tensor) -> Tensor:
    """Whether distances [B] are at most epsilon [B] as real numbers, allowing for rounding of the float64 sums.

    >>> within(torch.tensor([0.25, 0.5]).double(), torch.tensor([0.5, 0.5]).double())
    tensor([ True, False])
    """
    return distance * (1 + 1e-11) <= epsilon
