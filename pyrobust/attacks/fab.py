"""The FAB attack: the nearest adversarial example, by projections on linearised decision boundaries."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import summary
from pyrobust.errors import InputError
from pyrobust.ops.logits import STANDING
from pyrobust.ops.perturbation import add_perturbation
from pyrobust.runner import Classifier

from .arguments import at_least, finite, labels
from .engine import BatchAttack
from .fab_nearest import Nearest, within
from .fab_projection import step_to_hyperplane
from .job import Job
from .losses import lead_of_target, margin, targeted_margin
from .norms import per_example
from .queries import Queries

# Of the segment from x to the nearest adversarial point; Croce and Hein's final search takes three steps.
_FINAL_STEPS = 3
# Secant steps aim at this share of the margin on the adversarial side.
_AIM = 0.05
# Where rounding of another batch undoes the success of a point on the boundary, points beyond it are tried.
_BEYOND = (1.0, 1.001, 1.01, 1.1)
_DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}


@dataclass(frozen=True)
class MinimalPerturbation:
    """The nearest adversarial examples that were found.

    Attributes:
        x_adv: [N, ...]; x itself where none was found.
        distance: [N], float64, ‖x_adv − x‖ in the attack's norm; 0 where the model is wrong about x, inf where no
            adversarial example was found.
    """

    x_adv: Tensor
    distance: Tensor

    def __repr__(self) -> str:
        found = self.distance[self.distance.isfinite()]
        return summary(
            self,
            examples=len(self.distance),
            found=len(found),
            median_distance=float(self.distance.median()) if len(found) else None,
        )

    def to_dict(self) -> dict[str, list[float]]:
        """The distances, as plain numbers."""
        return {"distance": self.distance.tolist()}


class FAB(BatchAttack):
    """Fast adaptive boundary attack (Croce and Hein, 2020, "Minimally distorted Adversarial Examples …").

    At an iterate xₜ the boundary between y and a class c is taken for the hyperplane where
    ``f(z) = z_c − z_y`` linearised at xₜ is 0. With d₁ and d₂ the smallest steps within the clip range from xₜ and from
    x to it (``fab_projection.step_to_hyperplane``) the next iterate is

        xₜ₊₁ = (1 − α)·(xₜ + η·d₁) + α·(x + η·d₂),   α = min(‖d₁‖ / (‖d₁‖ + ‖d₂‖), alpha_max).

    Where it is adversarial, the search goes on from x + beta·(xₜ₊₁ − x). In the end the segment from x to the nearest
    adversarial point is searched by secant steps. c is each of the targets classes of the largest logits in
    turn (FAB-T), or in every step the class whose hyperplane is nearest. Where targeted, f is the target's logit minus
    the largest other.

    ``generate`` stops with an example once a point within its epsilon is found; ``minimal_perturbation`` looks for the
    nearest point, however far.

    Args:
        model: as of ``BatchAttack``.
        epsilon: radius of the ball.
        norm: "linf", "l2" or "l1".
        clip_min: the least value of a valid input.
        clip_max: the largest.
        device: where to run.
        steps: steps of each start and class, at least 1.
        restarts: starts; the first from x, the others from random points.
        targets: how many classes in turn (at most K - 1 are used); None: all at once, with K - 1 gradients a
            step.
        alpha_max: in [0, 1].
        eta: η, at least 1.
        beta: in [0, 1].
        options: as of ``BatchAttack``: seed, batch_size, dtype, memory_format, progress, callback.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of another type.

    >>> model = torch.nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.7, 0.5]]), torch.tensor([0])
    >>> print(round(float(FAB(model, norm="l2").minimal_perturbation(x, y).distance), 3))  # 0.2 / sqrt(2)
    0.141
    """

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: str = "linf",
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
        **options: Any,
    ) -> None:
        super().__init__(model, epsilon, norm, clip_min, clip_max, device, **options)
        self.steps = at_least("steps", steps, 1)
        self.restarts = at_least("restarts", restarts, 1)
        self.targets = None if targets is None else at_least("targets", targets, 1)
        self.alpha_max, self.eta, self.beta = finite("alpha_max", alpha_max), finite("eta", eta), finite("beta", beta)
        for name, value in (("alpha_max", self.alpha_max), ("beta", self.beta)):
            if not 0 <= value <= 1:
                raise InputError(f"{name}: expected a number in [0, 1], got {value}")
        if self.eta < 1:
            raise InputError(f"eta: expected at least 1, got {self.eta}")
        self._to_the_end = False  # whether to look for nearer points once one is within epsilon

    def minimal_perturbation(
        self,
        x: Tensor,
        y: Tensor,
        targeted: bool = False,
        target_labels: Tensor | None = None,
        *,
        indices: Sequence[int] | Tensor | None = None,
    ) -> MinimalPerturbation:
        """The nearest adversarial examples, whatever epsilon.

        Args:
            x: [N, ...], float, finite, in [clip_min, clip_max].
            y: [N], integers, the labels.
            targeted: adversarial is what the model takes for the target label, rather than for anything but y.
            target_labels: [N], integers, needed where targeted.
            indices: [N], as of ``generate``.

        Returns:
            x_adv, and the distance of each.

        Raises:
            InputError: as of ``generate``.
            InputTypeError: as of ``generate``.
            ModelError: as of ``generate``.
        """
        search = copy.copy(self)
        search._to_the_end = True
        coordinates = x[0].numel() if isinstance(x, Tensor) and x.dim() and len(x) else 1
        side = self.clip_max - self.clip_min
        diameter = side * {"linf": 1.0, "l2": math.sqrt(coordinates), "l1": float(coordinates)}[self.norm]
        x_adv = search.generate(x, y, targeted, target_labels, epsilon=diameter, indices=indices)
        self.forwards = search.forwards
        goal = labels("y", target_labels if targeted and target_labels is not None else y, len(x))
        standing = self._right(Queries(self.runner), x_adv, goal, targeted=targeted).to(x.device)
        distance = self._norm.distance(x_adv, x.detach()) if len(x) else x.new_zeros(0, dtype=torch.float64)
        return MinimalPerturbation(x_adv, distance.masked_fill(standing, math.inf))

    def _run(self, job: Job) -> None:
        nearest = Nearest(job)
        logits = job.logits(job.x)
        ranking = logits.scatter(1, job.y.unsqueeze(1), -math.inf).argsort(1, descending=True)[:, :-1]
        in_turn = 1 if job.targeted or self.targets is None else min(self.targets, ranking.shape[1])
        for turn in range(in_turn):
            for restart in range(self.restarts):
                ranking = self._search(job, turn, restart, ranking, nearest)
                if not len(job):
                    return job.finish(nearest.x)
        for further in _BEYOND if self._to_the_end else ():
            point = nearest.x.clone()
            if further > 1:
                point = add_perturbation(job.x, point.sub_(job.x).mul_(further), job.lower, job.upper)
            _, nearest.x, nearest.distance = job.retire(nearest.distance.isfinite(), point, nearest.x, nearest.distance)
            if not len(job):
                return job.finish(nearest.x)
        # The nearest point is outside the ball. Its projection is an iterate like any other.
        point = job.place(nearest.x - job.x)
        point, _ = job.retire(job.verdict(job.logits(point)), point, nearest.x)
        return job.finish(point)

    def _search(self, job: Job, turn: int, restart: int, ranking: Tensor, nearest: Nearest) -> Tensor:
        """One start with one class; returns the ranking [B, K - 1] of the examples that stay."""
        x_adv = job.x.clone()
        if restart:
            # As many draws as there can be restarts are kept apart for each class.
            radius = torch.minimum(nearest.distance, job.epsilon).div_(2)
            x_adv = job.norm.place(
                job.x, job.norm.start(job.noise, turn * self.restarts + restart, radius), radius, job.lower, job.upper
            )
        run = Nearest(job)
        for _ in range(self.steps):
            x_adv = self._iterate(job, turn, ranking, x_adv)
            verdict = job.verdict(job.logits(x_adv))
            distance = run.offer(job, verdict != STANDING, x_adv)
            back = add_perturbation(job.x, (x_adv - job.x).mul_(self.beta), job.lower, job.upper)
            onward = torch.where((verdict != STANDING).view(-1, *[1] * (x_adv.dim() - 1)), back, x_adv)
            if self._to_the_end:
                x_adv = onward
                continue
            verdict = verdict.masked_fill(~within(distance, job.epsilon), STANDING)
            _, x_adv, ranking, run.x, run.distance, nearest.x, nearest.distance = job.retire(
                verdict, x_adv, onward, ranking, run.x, run.distance, nearest.x, nearest.distance
            )
            if not len(job):
                return ranking
        self._final_search(job, run)
        nearest.take(run)
        if self._to_the_end:
            return ranking
        found = within(nearest.distance, job.epsilon)
        point = nearest.x.clone()  # for nearer ones are written to nearest.x
        _, ranking, nearest.x, nearest.distance = job.retire(found, point, ranking, nearest.x, nearest.distance)
        return ranking

    def _iterate(self, job: Job, turn: int, ranking: Tensor, x_adv: Tensor) -> Tensor:
        """xₜ₊₁ from xₜ."""
        lead, gradient = self._boundary(job, turn, ranking, x_adv)
        moved = (x_adv - job.x).flatten(1)
        w = gradient.nan_to_num_(0.0, 0.0, 0.0).flatten(1)
        # f(xₜ) + w·(z − xₜ) = 0, seen from xₜ and from x
        gap = -lead.to(w.dtype)
        gaps = torch.stack([gap, gap + (w * moved).sum(1)]).nan_to_num_(0.0)
        points = torch.stack([x_adv.flatten(1), job.x.flatten(1)])
        steps = step_to_hyperplane(points, w, gaps, self.norm, job.lower, job.upper)
        lengths = torch.linalg.vector_norm(steps, {"linf": math.inf, "l2": 2, "l1": 1}[self.norm], dim=-1)
        own, original = lengths.clamp_(min=1e-8).unsqueeze(-1)
        alpha = (own / (own + original)).clamp_(max=self.alpha_max)
        direct, biased = steps.mul_(self.eta)
        delta = moved.add_(direct).mul_(1 - alpha).add_(biased.mul_(alpha))
        return add_perturbation(job.x, delta.view(job.x.shape), job.lower, job.upper)

    def _boundary(self, job: Job, turn: int, ranking: Tensor, x_adv: Tensor) -> tuple[Tensor, Tensor]:
        """f(x_adv) [B] and its gradient [B, ...], for the class whose turn it is or whose hyperplane is nearest."""
        if job.targeted:
            _, lead, gradient, _ = job.gradient(x_adv, targeted_margin)
            return lead, gradient
        if self.targets is not None:
            _, lead, gradient, _ = job.gradient(x_adv, lead_of_target, ranking[:, turn])
            return lead, gradient
        best = torch.full_like(job.epsilon, math.inf)
        nearest_lead, nearest_gradient = job.epsilon, x_adv
        for rank in range(ranking.shape[1]):
            _, lead, gradient, _ = job.gradient(x_adv, lead_of_target, ranking[:, rank])
            slope = torch.linalg.vector_norm(gradient.flatten(1), _DUAL[self.norm], dim=1)
            distance = (lead.abs() / (slope + 1e-12)).double()
            nearer = (distance < best) if rank else torch.ones_like(distance, dtype=torch.bool)
            best = torch.where(nearer, distance, best)
            nearest_lead = torch.where(nearer, lead, nearest_lead.to(lead.dtype))
            nearest_gradient = torch.where(nearer.view(-1, *[1] * (x_adv.dim() - 1)), gradient, nearest_gradient)
        return nearest_lead, nearest_gradient

    def _final_search(self, job: Job, run: Nearest) -> None:
        """Secant steps between x and the nearest point, as long as they end on the adversarial side."""
        loss = targeted_margin if job.targeted else margin
        low, high = job.x, run.x
        low_value, high_value = (loss(job.logits(end), job.y, job.y).value for end in (low, high))
        for _ in range(_FINAL_STEPS):
            # Aimed a little beyond the boundary: on it the point is not adversarial, and the next would be the same.
            rise = (_AIM * high_value - low_value) / (high_value - low_value)
            share = rise.nan_to_num_(1.0, 1.0, 1.0).clamp_(0, 1)
            point = (high - low).mul_(per_example(share, high)).add_(low).sub_(job.x)
            point = add_perturbation(job.x, point, job.lower, job.upper)
            logits = job.logits(point)
            value = loss(logits, job.y, job.y).value
            fooled = (job.verdict(logits) != STANDING) & run.distance.isfinite()
            run.offer(job, fooled, point)
            crossed = fooled.view(-1, *[1] * (high.dim() - 1))
            high, low = torch.where(crossed, point, high), torch.where(crossed, low, point)
            high_value, low_value = torch.where(fooled, value, high_value), torch.where(fooled, low_value, value)
