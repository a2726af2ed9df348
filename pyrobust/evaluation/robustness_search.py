"""Search for the smallest epsilon of a grid that breaks each example, for robustness curves."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.attacks import AdversarialAttack
from pyrobust.attacks.autoattack import AutoAttackResult
from pyrobust.attacks.engine.queries import Queries
from pyrobust.checks import ATTACK_NORMS, AttackNormName, kind
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.attack_chunk import check_adversarial
from pyrobust.grid import find_grid
from pyrobust.metrics import distances
from pyrobust.runner import Classifier, Progress, Runner, evaluation_mode, reporting

logger = logging.getLogger(__name__)

# Relative tolerance for the rounding error of x_adv: attacks compute in float32.
_ROUNDING = float(torch.finfo(torch.float32).eps)


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The result of a search over the sorted positive epsilons of a curve, for each of N examples.

    Attributes:
        broken_epsilon: [N], smallest epsilon at which each example is fooled; 0 if misclassified without an attack,
            +inf if never fooled.
        outside: epsilon → number of points outside the ball or the clip range; only epsilons that have such points.
        proved_epsilon: [N], see ``RobustnessCurve``.
    """

    broken_epsilon: npt.NDArray[np.float64]
    outside: dict[float, int]
    attack: str
    norm: str
    forwards: int | None
    proved_epsilon: npt.NDArray[np.float64] | None


class AttackMaker:
    """Makes the attacks of a curve.

    Args:
        attack_class: called as ``attack_class(model, epsilon=..., **settings)``.
        model: the attacked model.
        settings: further arguments.

    Raises:
        InputTypeError: an attack class that is not callable, or makes objects without ``generate``.
    """

    def __init__(self, attack_class: Callable[..., Any], model: Classifier, settings: dict[str, Any]) -> None:
        if not callable(attack_class):
            got = type(attack_class).__name__
            raise InputTypeError("attack_class", "a class with generate(x, y)", got)
        self.attack_class, self.model, self.settings = attack_class, model, settings

    def __call__(self, epsilon: float) -> Any:
        """Make the attack with one epsilon."""
        attack = self.attack_class(self.model, epsilon=epsilon, **self.settings)
        if not callable(getattr(attack, "generate", None)):
            got = type(attack).__name__
            raise InputTypeError("attack_class", "a class with generate(x, y)", got)
        return attack


def search_broken_epsilons(
    make: AttackMaker,
    x: Tensor,
    y: Tensor,
    labels: Tensor,
    epsilons: list[float],
    progress: bool | Progress = False,
    attack: Any = None,
) -> SearchResult:
    """Find the smallest epsilon at which an attack fools each example.

    Args:
        make: makes the attack.
        x: [N, ...].
        y: [N], as attacks receive it.
        labels: [N], y as int64 on the CPU.
        epsilons: epsilons of the curve, in any order.
        progress: see ``robustness_curve``.
        attack: the attack at the largest epsilon, if it has been made.
    """
    with evaluation_mode(make.model):
        search = _Search(make, x, y, labels, sorted({e for e in epsilons if e > 0}), attack)
        with reporting(progress, len(x)) as report:
            if search.per_example:
                search.bisect(report)
            else:
                search.point_by_point(report)
        return search.result()


class _Search:
    """State of a bisection: each example is fooled from grid[high] on, and not known to be fooled below grid[low]."""

    def __init__(
        self, make: AttackMaker, x: Tensor, y: Tensor, labels: Tensor, grid: list[float], attack: Any = None
    ) -> None:
        self.make = make
        self.x, self.y, self.labels = x.detach(), y, labels
        self.grid = torch.tensor(grid, dtype=torch.float64)
        # Made even if every epsilon is 0, so that invalid arguments of the attack always raise.
        self.attack = make(grid[-1] if grid else 0.0) if attack is None else attack
        self.name = type(self.attack).__name__
        if isinstance(self.attack, AdversarialAttack):
            self._snap(self.attack)
        parameters = inspect.signature(self.attack.generate).parameters
        self.per_example = "epsilon" in parameters
        self.takes_indices = "indices" in parameters
        runner = getattr(self.attack, "runner", None)
        self.queries = Queries(runner if isinstance(runner, Runner) else Runner(make.model))
        self.judge = self.queries.judge
        self.norm: AttackNormName = getattr(self.attack, "norm", "linf")
        self.attack_rows: int | None = 0
        self.proved: Tensor | None = None
        self.points, self.outside = 0, torch.zeros(len(grid), dtype=torch.int64)
        self.correct = self.judge.correct(self.x, labels)
        self.low = torch.zeros(len(x), dtype=torch.int64)
        self.high = torch.where(self.correct, len(grid), 0)

    def _snap(self, attack: AdversarialAttack) -> None:
        """Convert examples to the model's dtype and the attack's grid; the grid "auto" is inferred from all of them."""
        self.x = attack.snap(self.x)
        if attack.grid == "auto":
            attack.grid = find_grid(self.x)
            self.make = AttackMaker(self.make.attack_class, self.make.model, self.make.settings | {"grid": attack.grid})

    def bisect(self, report: Callable[[int], None]) -> None:
        while True:
            active = (self.low < self.high).nonzero()[:, 0]
            report(len(self.x) - len(active))
            if not len(active):
                return
            self._attack(self.attack, active, (self.low[active] + self.high[active]) // 2)

    def point_by_point(self, report: Callable[[int], None]) -> None:
        for point in range(len(self.grid)):
            active = (self.high == len(self.grid)).nonzero()[:, 0]
            report(len(self.x) - len(active))
            if not len(active):
                return
            attack = self.attack if point == len(self.grid) - 1 else self.make(float(self.grid[point]))
            self._attack(attack, active, torch.full((len(active),), point))
        report(len(self.x))

    def result(self) -> SearchResult:
        thresholds = torch.cat([self.grid, torch.tensor([math.inf], dtype=torch.float64)])
        broken_epsilon = torch.where(self.correct, thresholds[self.high], 0.0).numpy()
        forwards = None if self.attack_rows is None else self.queries.forwards + self.attack_rows
        proved = None if self.proved is None else self.proved.numpy()
        outside = {float(self.grid[i]): int(self.outside[i]) for i in self.outside.nonzero()[:, 0].tolist()}
        warn_outside(self.name, sum(outside.values()), self.points, "count as unsuccessful")
        return SearchResult(broken_epsilon, outside, self.name, self.norm, forwards, proved)

    def _attack(self, attack: Any, active: Tensor, point: Tensor) -> None:
        """Attack each active example at epsilon grid[point], and narrow its interval from grid[low] to grid[high]."""
        where = active.to(self.x.device)
        keywords: dict[str, Tensor] = {}
        if self.per_example:
            keywords["epsilon"] = self.grid[point].to(self.x.device)
            if self.takes_indices:
                keywords["indices"] = where
        x = self.x[where]
        limits = _clip_limits(attack)
        with self.judge.runner.session(gradients=True), torch.enable_grad():
            # A copy: an attack that writes into x would otherwise hide its perturbation.
            x_adv = attack.generate(x.clone(), self.y[active.to(self.y.device)], **keywords)
        x_adv = check_adversarial("attack_class", f"{self.name}.generate", x_adv, x, finite=False)
        # The count of the last generate; an ensemble states it in its result.
        result = getattr(attack, "result", None)
        rows = getattr(attack, "forwards", getattr(result, "forwards", None))
        if isinstance(result, AutoAttackResult) and result.certified_first is not None:
            self.proved = torch.zeros_like(self.grid[:1]).repeat(len(self.x)) if self.proved is None else self.proved
            radius = self.grid[point] * torch.tensor(result.certified_first.proved)
            self.proved[active] = torch.maximum(self.proved[active], radius)
        self.attack_rows = self.attack_rows + rows if self.attack_rows is not None and isinstance(rows, int) else None
        distance, inside = _measured(limits, self.norm, x_adv, x, self.grid[point])
        if not bool(inside.all()):
            self.outside.index_add_(0, point, (~inside).long())
            rows = inside.to(x.device).view(-1, *[1] * (x.dim() - 1))
            x_adv = torch.where(rows, x_adv, x)  # x where the model is correct
        self.points += len(x)
        fooled = ~self.judge.correct(x_adv, self.labels[active]) & inside
        # A perturbation inside a smaller ball of the grid fools the model there as well.
        reached = torch.minimum(point, torch.searchsorted(self.grid, distance))
        self.high[active] = torch.where(fooled, reached, self.high[active])
        self.low[active] = torch.where(fooled, self.low[active], point + 1)


def evaluated_points(
    make: AttackMaker, x: Tensor, y: Tensor, epsilons: Sequence[float]
) -> tuple[list[float], list[int]]:
    """Return, per epsilon, ``attack.evaluate``'s robust accuracy and the number of points outside ball or clip range.

    Args:
        make: makes the attack.
        x: [N, ...].
        y: [N].
        epsilons: all examples are attacked at each of these epsilons, in this order.
    """
    accuracy, outside, name = [], [], ""
    with evaluation_mode(make.model), torch.inference_mode(False), torch.enable_grad():
        for epsilon in epsilons:
            attack = make(epsilon)
            name = type(attack).__name__
            clean = attack.snap(x) if isinstance(attack, AdversarialAttack) else x.detach()
            limits = _clip_limits(attack)
            x_adv = attack.generate(x.clone(), y)
            points = check_adversarial("attack_class", f"{name}.generate", x_adv, clean, finite=False)
            norm = getattr(attack, "norm", "linf")
            # A norm that the subclass defines itself is known to its evaluate only.
            radius = torch.full((len(x),), epsilon if norm in ATTACK_NORMS else math.inf, dtype=torch.float64)
            _, inside = _measured(limits, norm if norm in ATTACK_NORMS else "linf", points, clean, radius)
            metrics = attack.evaluate(x, y, x_adv)
            if not isinstance(metrics, Mapping) or "robust_accuracy" not in metrics:
                raise InputError(
                    "attack_class", f'{name}.evaluate to return a dictionary with "robust_accuracy"', kind(metrics)
                )
            accuracy.append(float(metrics["robust_accuracy"]))
            outside.append(int((~inside).sum()))
    warn_outside(name, sum(outside), len(x) * len(outside), f"count as {name}.evaluate counts them")
    return accuracy, outside


def evaluates_itself(attack: Any) -> bool:
    """Whether an attack has an ``evaluate`` of its own, other than that of the base class."""
    evaluate = getattr(attack, "evaluate", None)
    return callable(evaluate) and getattr(evaluate, "__func__", evaluate) is not AdversarialAttack.evaluate


def warn_outside(name: str, outside: int, points: int, consequence: str) -> None:
    """Log how many points of an attack lie outside the ball or the clip range, if any do."""
    if outside:
        logger.warning(
            "attack_class: %d of %d points of %s lie outside the ball or the clip range and %s; return "
            "x + self.project(delta, x)",
            outside,
            points,
            name,
            consequence,
        )


def _clip_limits(attack: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return copies of an attack's clip_min and clip_max in float64; None for an end that the attack does not state."""
    limits = getattr(attack, "clip_min", None), getattr(attack, "clip_max", None)
    low, high = (None if limit is None else torch.as_tensor(limit, dtype=torch.float64).clone() for limit in limits)
    return low, high


def _measured(
    limits: tuple[Tensor | None, Tensor | None], norm: AttackNormName, x_adv: Tensor, x: Tensor, epsilon: Tensor
) -> tuple[Tensor, Tensor]:
    """Return x_adv's distances, float64 [n], and whether x_adv is in the ball and the clip range up to rounding."""
    finite = x_adv.isfinite().flatten(1).all(1)
    if not bool(finite.all()):
        x_adv = torch.where(finite.view(-1, *[1] * (x.dim() - 1)), x_adv, x)
    inside = finite.cpu()
    for bound, sign in zip(limits, (-1, 1), strict=True):
        if bound is not None:
            limit = bound.to(x_adv.device)
            inside &= (sign * (x_adv.double() - limit) <= _ROUNDING * limit.abs()).flatten(1).all(1).cpu()
    distance = distances(x_adv, x, norm).cpu()
    if bool((distance > epsilon).any()):
        zero = torch.zeros_like(x)
        scale = (distances(x, zero, norm) + distances(x_adv, zero, norm)).cpu()
        inside &= distance <= epsilon + min(_ROUNDING, torch.finfo(x.dtype).eps) * (epsilon + scale)
    return distance, inside
