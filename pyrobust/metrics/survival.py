"""The survival curve of p_A: how confidently a smoothed classifier votes for the correct class.

p_A is the probability that the base classifier, under the smoothing noise, returns the correct class; its estimate is
p̂_A = n_A / n. Sun, Mao, Müller and Vechev ("Average Certified Radius is a Poor Metric for Randomized Smoothing", 2025)
recommend the empirical distribution of p̂_A in place of the average certified radius. Unlike a radius, p̂_A is not
scaled by sigma. Apart from sampling error and abstentions, its distribution does not depend on alpha or n either. A few
easy examples cannot dominate this distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import count, number, summary
from pyrobust.errors import InputError, InputTypeError
from pyrobust.frames import Tabular

from .arguments import aligned, checked_flags, checked_integers
from .estimate import Estimate, bootstrap_mean, quantiles
from .rate import estimate_rate

#: p̂_A below which a correctly classified example counts as hard.
HARD: Final = 0.9

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassSummary:
    """The survival metrics of one class's examples.

    Attributes:
        label: the class.
        n_examples: number of examples with this label.
        area: area under the survival curve of the class's examples.
        median: median p̂_A of these examples.
        share_below_half: share of these examples with p̂_A < 1/2.
        hard_share: share of these examples that are hard, that is, ``1/2 ≤ p̂_A < 0.9``.
    """

    label: int
    n_examples: int
    area: float
    median: float
    share_below_half: float
    hard_share: float


@dataclass(frozen=True, eq=False)
class SurvivalCurve(Tabular):
    """Survival curve of p̂_A: ``share[i]`` of all examples are classified correctly with ``p̂_A ≥ thresholds[i]``.

    Abstentions and wrong predictions count with p̂_A = 0. ``survival_curve`` computes the curve.

    Attributes:
        thresholds: [501], float64, the doubles nearest to 0.500, 0.501, …, 1.000.
        share: [501], float64, non-increasing.
        lower, upper: [501], float64, the share if each example has the fewest, or the most, votes that are consistent
            with a log; equal to ``share`` if votes are exact. ``lower`` and ``upper`` are not a confidence band (see
            `band`).
        p_a, p_a_lower, p_a_upper: [N], float64, p̂_A of each example, 0 for a wrong prediction or an abstention.
    """

    thresholds: _Floats
    share: _Floats
    lower: _Floats
    upper: _Floats
    p_a: _Floats
    p_a_lower: _Floats
    p_a_upper: _Floats

    def __len__(self) -> int:
        return len(self.p_a)

    def __repr__(self) -> str:
        return summary(self, examples=len(self.p_a), area=self.area, share_below_half=self.share_below_half)

    def _columns(self) -> dict[str, Any]:
        """Return the columns of a table with one row for each threshold."""
        return {"threshold": self.thresholds, "share": self.share, "lower": self.lower, "upper": self.upper}

    def _attributes(self) -> dict[str, Any]:
        return {"examples": len(self.p_a), "area": self.area, "share_below_half": self.share_below_half}

    @property
    def area(self) -> float:
        """Area under the curve y(t) from t = 1/2 to 1, as a share of the largest possible area: ``2·∫ y(t) dt``.

        The area is computed in closed form, ``(1/N)·Σ max(0, 2·p̂_A - 1)``, independent of the grid of thresholds.
        """
        return _area(self.p_a)

    @property
    def area_lower(self) -> float:
        """Area under the curve if each example has the fewest possible votes."""
        return _area(self.p_a_lower)

    @property
    def area_upper(self) -> float:
        """Area under the curve if each example has the most possible votes."""
        return _area(self.p_a_upper)

    @property
    def share_below_half(self) -> float:
        """Share of all examples with p̂_A < 1/2, wrong predictions included; no sample size certifies these examples."""
        return float((self.p_a < 0.5).mean())

    def area_estimate(self, alpha: float = 0.05, *, resamples: int = 2000, seed: int = 0) -> Estimate:
        """Estimate the area for the distribution from which the examples are drawn, with a confidence interval.

        Args:
            alpha: error probability of the interval, in (0, 1).
            resamples: number of bootstrap resamples, at least 100.
            seed: random seed of the bootstrap, at least 0.

        Returns:
            Estimate. Its interval does not include the uncertainty of votes read from a log; for that, see
            ``area_lower`` and ``area_upper``.

        Raises:
            InputError: a value out of range.
            InputTypeError: a value that is not a number.

        >>> curve = survival_curve(np.array([100, 75, 50, 50]), 100, np.array([True] * 4))
        >>> estimate = curve.area_estimate()
        >>> float(estimate), estimate.lower, estimate.upper
        (0.375, 0.0, 0.75)
        """
        return bootstrap_mean(_area_contributions(self.p_a), alpha, resamples=resamples, seed=seed)

    def band(self, alpha: float = 0.05) -> tuple[_Floats, _Floats]:
        """Compute an exact binomial confidence interval of the population's share at each threshold.

        The population is the distribution from which the examples are drawn. The lower ends are computed from ``lower``
        and the upper ends from ``upper``, so that the intervals also allow for the uncertainty of votes read from a
        log. The error probability is that of each interval (Clopper and Pearson, 1934) alone, not of all intervals
        together.

        Args:
            alpha: error probability of one interval, in (0, 1).

        Returns:
            Lower and upper ends, each float64 [501].

        Raises:
            InputError, InputTypeError: alpha out of range, or not a number.

        >>> lower, upper = survival_curve(np.array([100, 75, 50, 50]), 100, np.array([True] * 4)).band()
        >>> print([round(float(end), 3) for end in (lower[0], upper[0], upper[500])])
        [0.398, 1.0, 0.806]
        """
        n = len(self)
        bounds = []
        for share, name in ((self.lower, "lower"), (self.upper, "upper")):
            counts = np.rint(share * n).astype(np.int64)
            rates = {count: getattr(estimate_rate(count, n, alpha), name) for count in np.unique(counts).tolist()}
            bounds.append(np.array([rates[count] for count in counts.tolist()]))
        return bounds[0], bounds[1]

    def quantiles(self, q: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95)) -> list[float]:
        """Quantiles of p̂_A over all examples, without interpolation; a wrong prediction counts as 0.

        Args:
            q: shares in [0, 1].

        Returns:
            For each share, the smallest p among the p̂_A such that at least this share of the examples have p̂_A ≤ p.

        Raises:
            InputError: a share out of range.
            InputTypeError: shares that are not numbers.

        >>> survival_curve(np.array([9, 8, 7, 3]), 10, np.array([True, True, False, True])).quantiles([0.25, 0.5, 1])
        [0.0, 0.3, 0.9]
        """
        return quantiles(torch.from_numpy(self.p_a), q)

    def hard_samples(self, below: float = HARD) -> _Ints:
        """Find the hard examples, ``1/2 ≤ p̂_A < below``, hardest first.

        The gains and losses of a better defence are decided on the hard examples, although most of an average radius
        comes from easy examples. Examples with p̂_A < 1/2 do not count as hard; ``share_below_half`` counts them.

        Args:
            below: limit of p̂_A, in (1/2, 1].

        Returns:
            Positions of the hard examples among all examples of the curve, int64, by increasing p̂_A; tied examples keep
            their order.

        Raises:
            InputError: ``below`` is out of range.
            InputTypeError: ``below`` is not a number.

        >>> survival_curve(np.array([99, 80, 55, 30]), 100, np.array([True] * 4)).hard_samples().tolist()
        [2, 1]
        """
        return _hard(self.p_a, below)

    def hard_share(self, below: float = HARD) -> float:
        """Return the share of all examples that are hard; arguments and errors are those of ``hard_samples``.

        >>> survival_curve(np.array([99, 80, 55, 30]), 100, np.array([True] * 4)).hard_share()
        0.5
        """
        return len(_hard(self.p_a, below)) / len(self)

    def per_class(self, labels: Tensor | npt.NDArray[Any]) -> list[ClassSummary]:
        """Summarise each class: area, median p̂_A, share of examples with p̂_A < 1/2 and share of hard examples.

        Args:
            labels: [N], integers of at least 0, of the examples from which the curve was made.

        Returns:
            One summary per label that occurs, by increasing label.

        Raises:
            InputError: labels of another length, or a negative label.
            InputTypeError: labels that are not integers.

        >>> curve = survival_curve(np.array([10, 10, 8, 3]), 10, np.array([True] * 4))
        >>> [(summary.label, round(summary.area, 6)) for summary in curve.per_class(np.array([0, 0, 1, 1]))]
        [(0, 1.0), (1, 0.3)]
        """
        classes = checked_integers("labels", labels, len(self))
        return [_summary(int(label), self.p_a[classes == label]) for label in np.unique(classes)]

    def to_dict(self) -> dict[str, Any]:
        """Convert the curve, its bounds and its summaries to plain numbers and lists, without each example's p̂_A."""
        q = (0.05, 0.25, 0.5, 0.75, 0.95)
        return {
            "n_examples": len(self),
            "thresholds": self.thresholds.tolist(),
            "share": self.share.tolist(),
            "lower": self.lower.tolist(),
            "upper": self.upper.tolist(),
            "area": self.area,
            "area_lower": self.area_lower,
            "area_upper": self.area_upper,
            "quantiles": {str(share): value for share, value in zip(q, self.quantiles(q), strict=True)},
            "share_below_half": self.share_below_half,
            "hard_share": self.hard_share(),
        }


def survival_curve(
    votes: Tensor | npt.NDArray[Any],
    n: int | Tensor | npt.NDArray[Any],
    correct: Tensor | npt.NDArray[Any],
    *,
    least: Tensor | npt.NDArray[Any] | None = None,
    most: Tensor | npt.NDArray[Any] | None = None,
) -> SurvivalCurve:
    """Compute the survival curve of p̂_A: ``y(t) = (1/N)·|{i: correctᵢ and votesᵢ / nᵢ ≥ t}|``.

    votes / n and t = i / 1000 are each rounded to the nearest double, and these doubles are compared. Equal fractions
    always give equal doubles. For n below 10^12, different fractions also give different doubles, so the comparison is
    exact.

    Args:
        votes: [N], integers in [0, n], for the predicted class; 0 for an abstention. If the votes come from a log, pass
            the point estimate of ``votes_for_radius``.
        n: number of samples, an integer in [1, 2**63); or a tensor or array [N] if it differs between examples.
        correct: [N], bool, whether the smoothed prediction is the label; false for an abstention.
        least: [N], integers, the fewest votes that are possible; without ``least`` and ``most``, the votes are exact.
        most: [N], integers, the most votes that are possible.

    Returns:
        SurvivalCurve.

    Raises:
        InputError: mismatched lengths, no examples, or votes outside [0, n] or [least, most].
        InputTypeError: votes that are not integers, or correct that is not bool.

    >>> curve = survival_curve(np.array([100, 90, 70, 0]), 100, np.array([True, True, False, False]))
    >>> curve.share[[0, 400, 401, 500]].tolist(), curve.share_below_half
    ([0.5, 0.5, 0.25, 0.25], 0.5)
    """
    is_correct = checked_flags("correct", correct)
    if isinstance(n, (Tensor, np.ndarray)) and n.ndim:
        samples = aligned("n", checked_integers("n", n), len(is_correct))
        count("n", int(samples.min()))
    else:
        samples = np.full(len(is_correct), count("n", n), dtype=np.int64)
    columns = [
        checked_integers(name, votes if value is None else value, len(is_correct))
        for name, value in (("least", least), ("votes", votes), ("most", most))
    ]
    wrong = (columns[0] > columns[1]) | (columns[1] > columns[2]) | (columns[2] > samples)
    if wrong.any():
        fewest, point, greatest = (int(column[wrong][0]) for column in columns)
        raise InputError(
            "votes",
            "least <= votes <= most <= n",
            f"{fewest}, {point}, {greatest} of {samples[wrong][0]} at position {int(wrong.argmax())}",
        )
    p_lower, p_a, p_upper = (np.where(is_correct, column / samples, 0.0) for column in columns)
    thresholds = np.arange(500, 1001) / 1000
    lower, share, upper = (_share(p, thresholds) for p in (p_lower, p_a, p_upper))
    return SurvivalCurve(thresholds, share, lower, upper, p_a=p_a, p_a_lower=p_lower, p_a_upper=p_upper)


def rank_by_survival(curves: Sequence[SurvivalCurve]) -> list[int]:
    """Rank classifiers by the area under their survival curves, largest first.

    The average certified radius is unsuitable for ranking. With ten balanced classes, a constant classifier is correct
    on one example in ten. On these examples, all votes are always for the correct class, so the radius is
    ``sigma·Φ⁻¹(alpha^(1/n))``. The average certified radius of this classifier therefore grows with sigma without
    bound, while its area is 1/10 (Sun, Mao, Müller and Vechev, 2025).

    Args:
        curves: at least one.

    Returns:
        Positions, best first. If areas are equal, the curve with the smaller share of examples with p̂_A < 1/2 comes
        first. If these shares are equal, too, the earlier curve comes first.

    Raises:
        InputError: no curves.
        InputTypeError: items that are not curves.

    >>> constant = survival_curve(np.array([100] * 10), 100, np.arange(10) == 0)
    >>> honest = survival_curve(np.array([80] * 10), 100, np.arange(10) < 6)
    >>> rank_by_survival([constant, honest])
    [1, 0]
    """
    for curve in curves:
        if not isinstance(curve, SurvivalCurve):
            raise InputTypeError("curves", "a sequence of SurvivalCurve", type(curve).__name__)
    if not len(curves):
        raise InputError("curves", "at least one curve", "none")
    return sorted(range(len(curves)), key=lambda i: (-curves[i].area, curves[i].share_below_half))


def _share(p_a: _Floats, thresholds: _Floats) -> _Floats:
    """Share of the examples at or above each threshold."""
    ordered = np.sort(p_a)
    share: _Floats = (len(ordered) - np.searchsorted(ordered, thresholds, side="left")) / len(ordered)
    return share


def _area(p_a: _Floats) -> float:
    return float(_area_contributions(p_a).mean())


def _area_contributions(p_a: _Floats) -> _Floats:
    contributions: _Floats = np.maximum(0.0, 2 * p_a - 1)
    return contributions


def _hard(p_a: _Floats, below: float) -> _Ints:
    if not 0.5 < number("below", below) <= 1:
        raise InputError("below", "a number in (0.5, 1]", below)
    positions = np.nonzero((p_a >= 0.5) & (p_a < below))[0]
    return positions[np.argsort(p_a[positions], kind="stable")].astype(np.int64)


def _summary(label: int, p_a: _Floats) -> ClassSummary:
    return ClassSummary(
        label,
        len(p_a),
        _area(p_a),
        quantiles(torch.from_numpy(p_a), (0.5,))[0],
        float((p_a < 0.5).mean()),
        len(_hard(p_a, HARD)) / len(p_a),
    )
