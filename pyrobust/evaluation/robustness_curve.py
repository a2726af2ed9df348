"""Robust accuracy over epsilon, for little more than the cost of one point."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import class_labels, items, non_negatives, summary
from pyrobust.errors import InputError, InputTypeError, MissingExtraError
from pyrobust.evaluation.robustness_search import search_broken_epsilons
from pyrobust.metrics import estimate_rate
from pyrobust.runner import Classifier, Progress

if TYPE_CHECKING:
    import pandas as pd

Epsilon = TypeVar("Epsilon", bound=Hashable)


@dataclass(frozen=True, eq=False)
class RobustnessCurve:
    """Robust accuracy of one classifier under one attack at P epsilons, on N examples.

    An upper bound at every point: a stronger attack can only lower it. It falls with epsilon by construction.

    Attributes:
        attack: the name of the attack class.
        norm: of the perturbation.
        epsilons: [P], float64, as passed: in any order, with duplicates.
        counts: [P], int64, examples that are still right at each.
        n: N, all examples.
        lower, upper: [P], float64, the confidence interval of each point by itself (Clopper and Pearson, 1934).
        alpha: probability that one of these intervals misses, at most.
        broken_epsilon: [N], float64, the smallest of the epsilons at which each example is fooled; 0 where it is wrong
            without an attack, +inf where it is fooled at none.
        forwards: examples pushed through the model, the clean ones included; None where the attack does not count.
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
        """[P]: counts / n."""
        accuracy: npt.NDArray[np.float64] = self.counts / self.n
        return accuracy

    def area(self) -> float:
        """Area under the curve by the trapezoid rule, over the range of epsilon: its mean height, in [0, 1].

        Raises:
            InputError: fewer than two different epsilons.
        """
        epsilons, first = np.unique(self.epsilons, return_index=True)
        if len(epsilons) < 2:
            raise InputError(f"area: expected at least two different epsilons, got {len(epsilons)}")
        heights = self.robust_accuracy[first]
        widths = np.diff(epsilons)
        return float((widths * (heights[1:] + heights[:-1]) / 2).sum() / (epsilons[-1] - epsilons[0]))

    def to_dict(self) -> dict[str, Any]:
        """All fields and ``robust_accuracy`` by name, arrays as lists."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["robust_accuracy"] = self.robust_accuracy
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}

    def to_pandas(self) -> pd.DataFrame:
        """A row a point, in the order passed; what belongs to the whole curve in ``.attrs``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("to_pandas: pandas is not installed: pip install pandas") from error

        values = self.to_dict()
        points = ["epsilons", "robust_accuracy", "counts", "lower", "upper"]
        frame = pd.DataFrame({name: values[name] for name in points}).rename(columns={"epsilons": "epsilon"})
        frame.attrs.update({name: value for name, value in values.items() if name not in points})
        return frame


def compute_robustness_curve(
    attack_class: Callable[..., Any],
    model: Classifier,
    x: Tensor,
    y: Tensor,
    epsilons: Sequence[Epsilon],
    **attack_kwargs: Any,
) -> dict[Epsilon, float]:
    """Robust accuracy at each epsilon, ``(1/N)·Σ 1[f(xᵢ) = yᵢ, no x_adv found within epsilon]``.

    ``robustness_curve`` as a dictionary.

    Args:
        attack_class: a subclass of ``AdversarialAttack``, or any class like it.
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        x: [N, ...], float, finite; N ≥ 1.
        y: [N], integers, the right classes.
        epsilons: numbers of at least 0, in any order.
        attack_kwargs: further arguments of the attack class, such as ``norm`` or ``steps``.

    Returns:
        Robust accuracy over all N examples, by epsilon as passed and in that order.

    Raises:
        InputError, InputTypeError: as ``robustness_curve``.

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
    given, values = _epsilons(epsilons)
    labels = _checked_batch(x, y)
    found = search_broken_epsilons(attack_class, model, x, y, labels, values, attack_kwargs)
    still_right = found.broken[:, None] > np.asarray(values)
    return dict(zip(given, still_right.mean(axis=0).tolist(), strict=True))


def robustness_curve(
    attack_class: Callable[..., Any],
    model: Classifier,
    x: Tensor,
    y: Tensor,
    epsilons: Sequence[float],
    *,
    alpha: float = 0.05,
    progress: bool | Progress = False,
    **attack_kwargs: Any,
) -> RobustnessCurve:
    """Robust accuracy over epsilon, with confidence intervals and the epsilon that breaks each example.

    An example fooled at epsilon is fooled at every larger one, for the larger ball holds its perturbation. So each
    example bisects over the sorted epsilons, and examples that are at different ones share a batch: P points take
    ⌈log₂(P + 1)⌉ runs of the attack at most, each on the examples that are not settled. An x_adv that lies within a
    smaller epsilon of the list settles that one too. Examples that are wrong without an attack count as fooled
    everywhere; at epsilon 0 stands the clean accuracy.

    An attack whose ``generate`` takes no ``epsilon`` runs once for each point, the smallest first, on the examples that
    are still right.

    An example counts as fooled where the model classifies x_adv wrong. Every x_adv is checked in float64: one outside
    the ball or the clip range by more than the rounding of float32 is an error, since a broken attack would lower
    robust accuracy.

    Args:
        attack_class: called as ``attack_class(model, epsilon=..., **attack_kwargs)``, with the largest epsilon where
            its ``generate(x, y, *, epsilon, indices)`` takes one for each example (float64 [n], and int64 [n], the
            examples' places in x), else with each point in turn and ``generate(x, y)``. The norm, clip_min and clip_max
            that x_adv is held to are the attack's attributes; without them, "linf" (the weakest demand) and no range.
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        x: [N, ...], float, finite; N ≥ 1.
        y: [N], integers, the right classes.
        epsilons: numbers of at least 0, in any order; duplicates cost nothing.
        alpha: of the confidence intervals, in (0, 1).
        progress: True for a bar on the terminal, or a function of (examples settled, examples).
        attack_kwargs: further arguments of the attack class, such as ``norm`` or ``steps``.

    Returns:
        RobustnessCurve.

    Raises:
        InputError: no epsilon, a negative, NaN or infinite one; no example, lengths that do not agree, a label out of
            range; an attack that leaves the ball or the clip range, or returns another shape, NaN or inf.
        InputTypeError: x that is not float, y that is not integer, an attack class that is none.
        ModelError: a model that does not return logits.

    >>> class Shift:
    ...     def __init__(self, model, epsilon):
    ...         self.epsilon = epsilon
    ...     def generate(self, x, y):
    ...         return x - self.epsilon * x.sign()
    >>> model = lambda x: torch.cat([-x, x], dim=1)  # class 1 where x > 0
    >>> curve = robustness_curve(Shift, model, torch.tensor([[0.3], [0.1]]), torch.tensor([1, 1]), [0.0, 0.2, 0.4])
    >>> curve.counts.tolist(), curve.broken_epsilon.tolist(), curve.area()
    ([2, 1, 0], [0.4, 0.2], 0.5)
    """
    _, values = _epsilons(epsilons)
    labels = _checked_batch(x, y)
    estimate_rate(0, len(labels), alpha)  # says what is wrong with alpha before anything runs
    found = search_broken_epsilons(attack_class, model, x, y, labels, values, attack_kwargs, progress)
    points = np.asarray(values, dtype=np.float64)
    counts = (found.broken[:, None] > points).sum(axis=0)
    rates = [estimate_rate(int(count), len(labels), alpha) for count in counts]
    return RobustnessCurve(
        attack=found.attack,
        norm=found.norm,
        epsilons=points,
        counts=counts.astype(np.int64),
        n=len(labels),
        lower=np.array([rate.lower for rate in rates]),
        upper=np.array([rate.upper for rate in rates]),
        alpha=float(alpha),
        broken_epsilon=found.broken,
        forwards=found.forwards,
    )


def _epsilons(epsilons: Sequence[Epsilon]) -> tuple[list[Epsilon], list[float]]:
    """The epsilons as they came, and as numbers."""
    given = items("epsilons", epsilons)
    if not given:
        raise InputError("epsilons: expected at least one, got none")
    return given, non_negatives("epsilons", given)


def _checked_batch(x: Tensor, y: Tensor) -> Tensor:
    """The labels, int64 on the CPU."""
    for name, value in (("x", x), ("y", y)):
        if not isinstance(value, Tensor):
            raise InputTypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    if not x.dtype.is_floating_point:
        raise InputTypeError(f"x: expected a float tensor, got {x.dtype}; for 8-bit images: x.float() / 255")
    if x.dim() < 2 or x.numel() == 0:
        raise InputError(f"x: expected at least one example, as a batch [N, ...], got {tuple(x.shape)}")
    labels = class_labels("y", y, len(x))
    if not bool(torch.isfinite(x).all()):
        raise InputError("x: expected finite values, got NaN or inf")
    return labels
