"""Agreement of judges beyond chance: Cohen's kappa, Gwet's AC1 and Fleiss' kappa, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pyrobust.checks import choice, probability
from pyrobust.errors import InputError
from pyrobust.stats import bounded_mean_interval, clopper_pearson_lower, clopper_pearson_upper, normal_quantile_lower

from .region import FloatArray

#: How an interval is made: by exact bounds, or by the normal approximation.
IntervalMethod: TypeAlias = Literal["proved", "asymptotic"]


@dataclass(frozen=True)
class Agreement:
    """Agreement of judges beyond chance, (observed - expected) / (1 - expected), with a confidence interval.

    Attributes:
        value: the coefficient; NaN where every rating is of one category and chance alone explains all agreement
            (expected = 1), which never happens to AC1.
        lower, upper: ends of the interval; [-1, 1] where nothing is known.
        observed: probability that two judges agree on an example.
        expected: the same by chance, as the coefficient defines it.
        n: number of examples.
        alpha: upper bound on the probability that the interval misses; approximate if it is asymptotic.
        coefficient: "Cohen's kappa", "Gwet's AC1" or "Fleiss' kappa".
        method: "proved" or "asymptotic".
    """

    value: float
    lower: float
    upper: float
    observed: float
    expected: float
    n: int
    alpha: float
    coefficient: Literal["Cohen's kappa", "Gwet's AC1", "Fleiss' kappa"]
    method: IntervalMethod

    def __float__(self) -> float:
        return self.value

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary of all fields."""
        return asdict(self)


def cohen_kappa(
    first: Sequence[Hashable],
    second: Sequence[Hashable],
    alpha: float = 0.05,
    *,
    categories: Sequence[Hashable] | None = None,
    method: IntervalMethod = "proved",
) -> Agreement:
    """Agreement of two judges beyond chance (Cohen, 1960).

    Chance agreement is sum over k of p_k r_k, with each judge's own shares of category k. Examples are independent.
    The proved interval divides alpha between Clopper-Pearson intervals of the observed agreement (half) and of the
    shares; it needs no large sample and is wider. The asymptotic one has the standard error of Fleiss, Cohen and
    Everitt (1969); where that is 0, as for judges that always agree, the proved interval takes its place.

    Args:
        first: [N >= 1], the first judge's category of each example: booleans, strings or integers.
        second: [N], the second's.
        alpha: upper bound on the probability that the interval misses, in (0, 1).
        categories: all that a judge may give; by default those that occur.
        method: "proved" or "asymptotic".

    Returns:
        Agreement.

    Raises:
        InputError: mismatched lengths, no examples, an unlisted category, alpha out of range.

    >>> first, second = [True] * 45 + [False] * 55, [True] * 40 + [False] * 60
    >>> kappa = cohen_kappa(first, second, method="asymptotic")
    >>> f"{kappa.value:.3f} in [{kappa.lower:.3f}, {kappa.upper:.3f}]"
    '0.898 in [0.811, 0.985]'
    """
    return _agreement([first, second], alpha, categories, method, "Cohen's kappa")


def gwet_ac1(
    first: Sequence[Hashable],
    second: Sequence[Hashable],
    alpha: float = 0.05,
    *,
    categories: Sequence[Hashable] | None = None,
    method: IntervalMethod = "proved",
) -> Agreement:
    """Agreement of two judges beyond chance, steady where one category is rare (Gwet, 2008).

    Chance agreement is sum over k of pi_k (1 - pi_k) / (K - 1), with pi_k the mean share of category k. Kappa falls to
    0 where almost all examples are of one category, however well the judges agree; AC1 does not. Intervals as for
    ``cohen_kappa``; the asymptotic standard error is that of Gwet (2008) for these two judges.

    Args:
        first: [N >= 1], the first judge's category of each example: booleans, strings or integers.
        second: [N], the second's.
        alpha: upper bound on the probability that the interval misses, in (0, 1).
        categories: all that a judge may give, at least two; by default those that occur, or two if only one does.
        method: "proved" or "asymptotic".

    Returns:
        Agreement.

    Raises:
        InputError: mismatched lengths, no examples, an unlisted category, alpha out of range.

    >>> first, second = [False] * 98 + [True, False], [False] * 98 + [False, True]
    >>> round(gwet_ac1(first, second).value, 3), round(cohen_kappa(first, second).value, 3)
    (0.98, -0.01)
    """
    return _agreement([first, second], alpha, categories, method, "Gwet's AC1")


def fleiss_kappa(
    ratings: Sequence[Sequence[Hashable]],
    alpha: float = 0.05,
    *,
    categories: Sequence[Hashable] | None = None,
    method: IntervalMethod = "proved",
) -> Agreement:
    """Agreement of two or more judges beyond chance (Fleiss, 1971).

    The observed agreement is the mean over examples of the share of pairs of judges that agree; chance agreement is sum
    over k of pi_k^2, with pi_k the mean share of category k. The proved interval divides alpha between bounds on the
    means of these shares (Waudby-Smith and Ramdas, 2024), half for the agreement; the asymptotic one has the standard
    error of the delta method over examples.

    Args:
        ratings: [judges >= 2][N >= 1], each judge's category of each example.
        alpha: upper bound on the probability that the interval misses, in (0, 1).
        categories: all that a judge may give; by default those that occur.
        method: "proved" or "asymptotic".

    Returns:
        Agreement.

    Raises:
        InputError: fewer than two judges, mismatched lengths, no examples, an unlisted category, alpha out of range.

    >>> judges = [[True] * 30 + [False] * 70, [True] * 28 + [False] * 72, [True] * 32 + [False] * 68]
    >>> kappa = fleiss_kappa(judges, method="asymptotic")
    >>> f"{kappa.value:.3f} in [{kappa.lower:.3f}, {kappa.upper:.3f}]"
    '0.937 in [0.876, 0.997]'
    """
    return _agreement(ratings, alpha, categories, method, "Fleiss' kappa")


def _indices(ratings: Sequence[Sequence[Hashable]], categories: Sequence[Hashable] | None) -> tuple[Any, int]:
    """Categories as integers [judges, N], and their number."""
    rows = [list(row) for row in ratings]
    if len(rows) < 2:
        raise InputError(f"ratings: expected at least two judges, got {len(rows)}")
    if not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise InputError(f"ratings: expected one category of each example, got {[len(row) for row in rows]} by judge")
    if categories is None:
        for row in rows:
            for place, value in enumerate(row):
                if value is None or value != value:
                    raise InputError(
                        f"ratings: expected a category of each example, got {value} at index {place}; leave out "
                        "examples that a judge has not rated, or list the value in categories"
                    )
    known = list(dict.fromkeys(categories if categories is not None else (value for row in rows for value in row)))
    places = {value: place for place, value in enumerate(known)}
    for row in rows:
        for place, value in enumerate(row):
            if value not in places:
                raise InputError(f"ratings: expected one of the categories {known}, got {value!r} at index {place}")
    return np.array([[places[value] for value in row] for row in rows]), max(2, len(known))


def _chance(coefficient: str, shares: list[FloatArray]) -> tuple[float, list[FloatArray]]:
    """Chance agreement from the judges' mean shares [K], and its gradient."""
    if coefficient == "Cohen's kappa":
        return float(shares[0] @ shares[1]), [shares[1], shares[0]]
    (pi,) = shares
    if coefficient == "Gwet's AC1":
        return float(pi @ (1 - pi)) / (len(pi) - 1), [(1 - 2 * pi) / (len(pi) - 1)]
    return float(pi @ pi), [2 * pi]


def _agreement(
    ratings: Sequence[Sequence[Hashable]],
    alpha: float,
    categories: Sequence[Hashable] | None,
    method: IntervalMethod,
    coefficient: Literal["Cohen's kappa", "Gwet's AC1", "Fleiss' kappa"],
) -> Agreement:
    level = probability("alpha", alpha, "0.05 is usual")
    choice("method", method, ("proved", "asymptotic"))
    given, k = _indices(ratings, categories)
    judges, n = given.shape
    one_hot = np.eye(k)[given]  # [judges, N, K]
    counts = one_hot.sum(axis=0)
    agree = (counts * (counts - 1)).sum(axis=1) / (judges * (judges - 1))  # [N]
    rows = [one_hot[0], one_hot[1]] if coefficient == "Cohen's kappa" else [counts / judges]
    shares = [row.mean(axis=0) for row in rows]
    observed = float(agree.mean())
    expected, gradient = _chance(coefficient, shares)
    value = math.nan if expected >= 1.0 - 1e-12 else (observed - expected) / (1 - expected)
    if method == "asymptotic" and not math.isnan(value):
        chance = sum((row - share) @ slope for row, share, slope in zip(rows, shares, gradient, strict=True))
        influence = (agree - observed) / (1 - expected) - (1 - observed) / (1 - expected) ** 2 * chance
        error = float(np.sqrt((influence**2).sum())) / n
        if error > 1e-9:
            half = -float(normal_quantile_lower(level / 2)) * error
            ends = max(-1.0, value - half), min(1.0, value + half)
            return Agreement(value, *ends, observed, expected, n, level, coefficient, "asymptotic")
    lower, upper = _proved(agree, rows, level, judges, coefficient)
    return Agreement(value, lower, upper, observed, expected, n, level, coefficient, "proved")


def _proved(
    agree: FloatArray, rows: list[FloatArray], alpha: float, judges: int, coefficient: str
) -> tuple[float, float]:
    """Bounds from those of the agreement, with half of alpha, and of all shares, with the other half."""
    two = judges == 2

    def bounds(values: FloatArray, level: float, binary: bool) -> tuple[float, float]:
        if not binary:
            return bounded_mean_interval(values, 1, level)
        total, n = int(values.sum()), len(values)
        return float(clopper_pearson_lower(total, n, level / 2)), float(clopper_pearson_upper(total, n, level / 2))

    low, high = bounds(agree, alpha / 2, two)
    k = rows[0].shape[1]
    # Of two categories, the shares of one determine the others'.
    free = 1 if k == 2 else k
    level = alpha / 2 / (free * len(rows))
    ends = [
        np.array([bounds(row[:, c], level, len(rows) == 2) for c in range(free)], dtype=np.float64) for row in rows
    ]  # [K or 1, 2] for each judge, or for all
    chance = _chance_bounds(coefficient, ends, k)
    # (o - e) / (1 - e) rises with o and falls with e.
    least, most = ((o - e) / (1 - e) if e < 1 else -1.0 for o, e in ((low, chance[1]), (high, chance[0])))
    return max(-1.0, float(least) - 1e-12), min(1.0, float(most) + 1e-12) if chance[0] < 1 else 1.0


def _chance_bounds(coefficient: str, ends: list[npt.NDArray[np.float64]], k: int) -> tuple[float, float]:
    """Least and greatest chance agreement of shares inside intervals."""
    if coefficient == "Cohen's kappa":
        if k == 2:  # bilinear: extreme at corners
            corners = [p * r + (1 - p) * (1 - r) for p in ends[0][0] for r in ends[1][0]]
            return min(corners), max(corners)
        products = ends[0] * ends[1]
        return float(products[:, 0].sum()), min(1.0, float(products[:, 1].sum()))
    (pi,) = ends
    low, high = pi[:, 0], pi[:, 1]
    nearest = np.clip(0.5, low, high)
    spread = nearest * (1 - nearest), np.minimum(low * (1 - low), high * (1 - high))  # greatest and least pi (1 - pi)
    if k == 2:
        if coefficient == "Gwet's AC1":
            return 2 * float(spread[1][0]), 2 * float(spread[0][0])
        return 1 - 2 * float(spread[0][0]), 1 - 2 * float(spread[1][0])
    if coefficient == "Gwet's AC1":
        # sum of pi (1 - pi) is 1 - sum of pi^2, so at most 1 - 1/k; divided by k - 1 at most 1/k.
        most = min(float(spread[0].sum()), 1 - float((low**2).sum()), 1 - 1 / k)
        return max(float(spread[1].sum()), 0.0) / (k - 1), most / (k - 1)
    return max(float((low**2).sum()), 1 / k), min(1.0, float((high**2).sum()), 1 - float(spread[1].sum()))
