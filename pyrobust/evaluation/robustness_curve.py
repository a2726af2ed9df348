"""Robust accuracy as a function of epsilon, by bisection over the epsilons for each example."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import (
    Numbers,
    class_labels,
    finite_values,
    float_tensor,
    items,
    non_negatives,
    positive,
    shape_text,
    summary,
)
from pyrobust.errors import InputError
from pyrobust.evaluation.robustness_search import (
    AttackMaker,
    evaluated_points,
    evaluates_itself,
    search_broken_epsilons,
)
from pyrobust.frames import Tabular, plain_fields
from pyrobust.metrics import Rate, estimate_rate, perturbation_quantiles
from pyrobust.runner import Classifier, Progress, evaluation_mode

Epsilon = TypeVar("Epsilon", bound=Hashable)


@dataclass(frozen=True)
class Confirmation:
    """A second attack, at one epsilon, on the examples that a minimum-norm attack did not break within this epsilon.

    Attributes:
        attack: name of the attack.
        epsilon: its perturbation radius.
        examples: number of examples left unbroken at epsilon, attacked or proved.
        broken: number of these examples that the attack broke.
        proved: number of these examples not attacked, because they are proved robust at epsilon (``certify_first``).
    """

    attack: str
    epsilon: float
    examples: int
    broken: int
    proved: int = 0


@dataclass(frozen=True, eq=False)
class RobustnessCurve(Tabular):
    """Robust accuracy of a classifier under an attack at P epsilons, on N examples.

    Each point is an upper bound: a stronger attack can only lower it. By construction, the curve never rises with
    epsilon. The pointwise intervals are for the accuracy under this attack: their lower ends are not lower bounds of
    the true robust accuracy.

    Attributes:
        attack: name of the attack class.
        norm: norm of the perturbation.
        epsilons: [P], float64, as passed, in any order and with duplicates; for a step function, 0 and the distances at
            which an example is broken, in increasing order.
        counts: [P], int64, number of examples still classified correctly at each epsilon.
        n: N, the number of examples.
        lower, upper: [P], float64, pointwise confidence interval (Clopper and Pearson, 1934).
        alpha: largest probability that the interval of one point misses the true value.
        broken_epsilon: [N], float64, smallest epsilon at which each example is fooled; 0 if it is misclassified without
            an attack, +inf if it is fooled at none of the epsilons.
        forwards: number of examples run through the model, including clean ones; None if the attack does not count
            them, or if the curve is of a run.
        stepwise: whether the curve is a step function, known at every epsilon, such as that of ``minimum_norm_curve``.
            For a step function, ``counts[i]`` holds from ``epsilons[i]`` up to the next epsilon, and ``broken_epsilon``
            is the distance of the nearest adversarial example found. Otherwise the curve is known only at its points.
        confirmations: the attacks that ``confirm_curve`` has added, each at a single epsilon.
        proved_epsilon: [N], float64; for each example, the largest of the epsilons at which it was proved robust and
            not attacked (``certify_first``), or 0 if there is none. It is None if the attack proves nothing.
        outside: [P], int64; for each epsilon, the number of the attack's points outside the ball or the clip range,
            which count as unsuccessful. It is None for a step function, since a minimum-norm attack has no ball.
    """

    attack: str
    norm: str
    epsilons: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    n: int
    lower: npt.NDArray[np.float64]
    upper: npt.NDArray[np.float64]
    alpha: float
    broken_epsilon: npt.NDArray[np.float64]
    forwards: int | None
    stepwise: bool = False
    confirmations: tuple[Confirmation, ...] = ()
    proved_epsilon: npt.NDArray[np.float64] | None = None
    outside: npt.NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        return summary(
            self,
            attack=self.attack,
            norm=self.norm,
            examples=self.n,
            points=len(self.epsilons),
            epsilons=(float(self.epsilons.min()), float(self.epsilons.max())),
            robust_accuracy=(float(self.robust_accuracy.max()), float(self.robust_accuracy.min())),
            alpha=self.alpha,
        )

    @property
    def robust_accuracy(self) -> npt.NDArray[np.float64]:
        """Robust accuracy ``counts / n`` at each epsilon, [P]."""
        accuracy: npt.NDArray[np.float64] = self.counts / self.n
        return accuracy

    def rate(self, epsilon: float) -> Rate:
        """Robust accuracy at one epsilon, with its confidence interval.

        Args:
            epsilon: any number >= 0 if the curve is a step function, otherwise one of its epsilons.

        Raises:
            InputError: an epsilon at which the curve is not known.
        """
        (radius,) = non_negatives("epsilon", [epsilon])
        if not self.stepwise and radius not in self.epsilons:
            raise InputError("epsilon", f"one of the curve's {len(self.epsilons)} points", repr(radius))
        return estimate_rate(int((self.broken_epsilon > radius).sum()), self.n, self.alpha)

    def quantiles(self, q: Sequence[float] = (0.25, 0.5, 0.75)) -> list[float]:
        """Quantiles of ``broken_epsilon``, by default its quartiles; see ``metrics.perturbation_quantiles``.

        Args:
            q: shares in [0, 1].

        Raises:
            InputError, InputTypeError: see ``metrics.perturbation_quantiles``.
        """
        return perturbation_quantiles(torch.from_numpy(self.broken_epsilon), q)

    def area(self, epsilon: float | None = None) -> float:
        """Area under the curve, in the unit of epsilon.

        For a step function, the area from 0 to epsilon is exact: ``(1/N)·Σ min(dᵢ, ε)`` with d = ``broken_epsilon``.
        For other curves, the trapezoid rule is used from the smallest epsilon of the curve to the largest.

        Args:
            epsilon: for a step function, the upper end of the range, > 0. Default: the largest finite distance.

        Raises:
            InputError: fewer than two distinct epsilons; an epsilon that is out of range, or given for a curve that is
                not a step function.
        """
        _, stop = self._range(epsilon)
        if self.stepwise:
            return stop * math.fsum((np.minimum(self.broken_epsilon, stop) / stop).tolist()) / self.n
        epsilons, first = np.unique(self.epsilons, return_index=True)
        heights = self.robust_accuracy[first]
        return float((np.diff(epsilons) * (heights[1:] + heights[:-1]) / 2).sum())

    def mean_robust_accuracy(self, epsilon: float | None = None) -> float:
        """Mean robust accuracy over the range of epsilon, in [0, 1]: ``area`` divided by the length of the range.

        Args:
            epsilon: see ``area``.

        Raises:
            InputError: see ``area``.
        """
        start, stop = self._range(epsilon)
        return self.area(epsilon) / (stop - start)

    def _range(self, epsilon: float | None) -> tuple[float, float]:
        """Return the range of epsilon that ``area`` covers."""
        if epsilon is not None:
            if not self.stepwise:
                raise InputError("epsilon", "None for a curve of points", repr(epsilon))
            return 0.0, positive("epsilon", epsilon)
        distinct = np.unique(self.epsilons)
        if len(distinct) < 2:
            raise InputError("area", "at least two distinct epsilons", len(distinct))
        return 0.0 if self.stepwise else float(distinct[0]), float(distinct[-1])

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of all fields and ``robust_accuracy``, with arrays as lists."""
        values = plain_fields(self) | {"robust_accuracy": self.robust_accuracy.tolist()}
        return values | {"confirmations": list(values["confirmations"])}

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of a table with one row for each point, in the order of ``epsilons``."""
        columns = {"robust_accuracy": self.robust_accuracy, "counts": self.counts}
        return {"epsilon": self.epsilons, **columns, "lower": self.lower, "upper": self.upper}

    def _attributes(self) -> dict[str, Any]:
        points = ("epsilons", "robust_accuracy", "counts", "lower", "upper")
        return {name: value for name, value in self.to_dict().items() if name not in points}


class RobustAccuracies(dict[Epsilon, float]):
    """A dictionary from epsilon to robust accuracy.

    Attributes:
        outside: epsilon → number of the attack's points at this epsilon that lay outside the ball or the clip range.
    """

    outside: dict[Epsilon, int]


def compute_robustness_curve(
    attack_class: Callable[..., Any],
    model: Classifier,
    x: Numbers,
    y: Numbers,
    epsilons: Sequence[Epsilon],
    **attack_kwargs: Any,
) -> RobustAccuracies[Epsilon]:
    """Compute robust accuracy at each epsilon, ``(1/N)·Σ 1[f(xᵢ) = yᵢ, no x_adv found within epsilon]``.

    The result is the curve of ``robustness_curve``, as a dictionary. If the attack class has its own ``evaluate``, all
    examples are attacked at each epsilon instead. The robust accuracy is then the number "robust_accuracy" that
    ``evaluate(x, y, x_adv)`` returns. The dictionary's attribute ``outside`` counts the points outside the ball or the
    clip range.

    Args:
        attack_class: a subclass of ``AdversarialAttack``, or any class with its interface.
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        x: [N, ...], float, finite; N ≥ 1.
        y: [N], integers, the true classes.
        epsilons: numbers >= 0, in any order.
        attack_kwargs: further arguments of the attack class, such as ``norm`` or ``steps``.

    Returns:
        Robust accuracy over all N examples for each epsilon. The keys are the epsilons as passed, in the same order.

    Raises:
        InputError, InputTypeError: as for ``robustness_curve``, and for an ``evaluate`` that returns no
        "robust_accuracy".

    >>> import torch
    >>> class Shift:
    ...     def __init__(self, model, epsilon):
    ...         self.epsilon = epsilon
    ...     def generate(self, x, y):
    ...         return x - self.epsilon * x.sign()
    >>> model = lambda x: torch.cat([-x, x], dim=1)  # class 1 where x > 0
    >>> x = torch.tensor([[0.3], [0.1], [-0.2]])
    >>> compute_robustness_curve(Shift, model, x, torch.tensor([1, 1, 1]), [0, 0.25, 0.5])
    {0: 0.6666666666666666, 0.25: 0.3333333333333333, 0.5: 0.0}
    """
    requested, values = _epsilons(epsilons)
    x, y, labels = _checked_batch(x, y)
    make = AttackMaker(attack_class, model, attack_kwargs)
    with evaluation_mode(model):
        attack = make(max(values))
        if evaluates_itself(attack):
            accuracy, outside = evaluated_points(make, x, y, values)
        else:
            result = search_broken_epsilons(make, x, y, labels, values, attack=attack)
            accuracy = (result.broken_epsilon[:, None] > np.asarray(values)).mean(axis=0).tolist()
            outside = [result.outside.get(value, 0) for value in values]
    accuracies = RobustAccuracies(zip(requested, accuracy, strict=True))
    accuracies.outside = dict(zip(requested, outside, strict=True))
    return accuracies


def robustness_curve(
    attack_class: Callable[..., Any],
    model: Classifier,
    x: Numbers,
    y: Numbers,
    epsilons: Sequence[float],
    *,
    alpha: float = 0.05,
    progress: bool | Progress = False,
    **attack_kwargs: Any,
) -> RobustnessCurve:
    """Compute robust accuracy by epsilon, with confidence intervals and the smallest epsilon that breaks each example.

    An example fooled at epsilon is fooled at every larger epsilon, since the larger ball contains its perturbation. So
    the smallest epsilon that breaks an example is found by bisection of the sorted epsilons. A batch may hold examples
    at different epsilons, so P epsilons take at most ⌈log₂(P + 1)⌉ runs of the attack, each on the undecided examples.
    A successful x_adv that also lies within a smaller epsilon counts as a success at that epsilon, too. Examples
    misclassified without an attack count as fooled at every epsilon. At epsilon 0 the curve is the clean accuracy.

    If the attack's ``generate`` takes no ``epsilon``, the attack runs once for each epsilon, the smallest first, on the
    examples that are not fooled yet.

    An example counts as fooled if the model misclassifies x_adv. Every x_adv is checked in float64. It does not count
    as a success if it is not finite, or if it lies outside the ball or the clip range by more than float32 rounding.
    Without this check, a faulty attack would lower robust accuracy. ``outside`` counts the rejected points, and a
    warning is logged. The attack class's own ``evaluate`` is not used, because it gives no result for each example.

    Args:
        attack_class: called as ``attack_class(model, epsilon=..., **attack_kwargs)``. If the attack class has a
            ``generate(x, y, *, epsilon, indices)``, which takes an epsilon for each example, one attack object is made,
            with the largest epsilon. ``generate`` then gets the epsilons, float64 [n], and the indices, int64 [n],
            which are positions in x. Otherwise, one attack object is made for each epsilon, and its ``generate(x, y)``
            is called. The attack's attributes norm, clip_min and clip_max give the ball and the clip range. Without
            these attributes, the clip range is unlimited, and the norm is "linf". This is the weakest requirement,
            since the linf ball contains the l1 and l2 balls of the same radius.
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        x: [N, ...], float, finite; N ≥ 1.
        y: [N], integers, the true classes.
        epsilons: numbers >= 0, in any order; duplicates cost nothing.
        alpha: probability that a confidence interval misses the true value, in (0, 1).
        progress: True for a bar on the terminal, or a function that receives (examples decided, examples).
        attack_kwargs: further arguments of the attack class, such as ``norm`` or ``steps``.

    Returns:
        RobustnessCurve.

    Raises:
        InputError: no epsilon, or a negative, NaN or infinite epsilon; no example, lengths that do not agree, a label
            out of range; an attack that returns the wrong shape.
        InputTypeError: x that is not float, y that is not integer, or an attack class without ``generate``.
        ModelError: a model that does not return logits.

    >>> import torch
    >>> class Shift:
    ...     def __init__(self, model, epsilon):
    ...         self.epsilon = epsilon
    ...     def generate(self, x, y):
    ...         return x - self.epsilon * x.sign()
    >>> model = lambda x: torch.cat([-x, x], dim=1)  # class 1 where x > 0
    >>> curve = robustness_curve(Shift, model, torch.tensor([[0.3], [0.1]]), torch.tensor([1, 1]), [0.0, 0.2, 0.4])
    >>> curve.counts.tolist(), curve.broken_epsilon.tolist(), curve.area()
    ([2, 1, 0], [0.4, 0.2], 0.2)
    """
    _, values = _epsilons(epsilons)
    x, y, labels = _checked_batch(x, y)
    estimate_rate(0, len(labels), alpha)  # raises for an invalid alpha before anything runs
    result = search_broken_epsilons(AttackMaker(attack_class, model, attack_kwargs), x, y, labels, values, progress)
    points = np.asarray(values, dtype=np.float64)
    counts = (result.broken_epsilon[:, None] > points).sum(axis=0)
    rates = [estimate_rate(int(count), len(labels), alpha) for count in counts]
    return RobustnessCurve(
        attack=result.attack,
        norm=result.norm,
        epsilons=points,
        counts=counts.astype(np.int64),
        n=len(labels),
        lower=np.array([rate.lower for rate in rates]),
        upper=np.array([rate.upper for rate in rates]),
        alpha=float(alpha),
        broken_epsilon=result.broken_epsilon,
        forwards=result.forwards,
        proved_epsilon=result.proved_epsilon,
        outside=np.array([result.outside.get(value, 0) for value in values], dtype=np.int64),
    )


def _epsilons(epsilons: Sequence[Epsilon]) -> tuple[list[Epsilon], list[float]]:
    """Return the epsilons both as passed and as floats."""
    requested = items("epsilons", epsilons)
    if not requested:
        raise InputError("epsilons", "at least one", "none")
    return requested, non_negatives("epsilons", requested)


def _checked_batch(x: Any, y: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the examples and the labels as tensors, and also the labels as int64 on the CPU."""
    x = float_tensor("x", x, "attack_dataset")
    if x.dim() < 2 or x.numel() == 0:
        raise InputError("x", "at least one example, as a batch [N, ...]", shape_text(x.shape))
    labels = class_labels("y", y, len(x))
    finite_values("x", x.detach())
    return x, y if isinstance(y, Tensor) else labels, labels
