"""The range of results that random subsets of the same examples could give.

Certification is slow, so papers report 500 images of 10,000. A result on all examples and a result on a subset agree if
the result on the subset is in the interval computed here for the subset's size. The subset is assumed to be drawn at
random without replacement; every twentieth image of a shuffled test set counts as such a subset.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import count, integer

from .arguments import checked_flags, checked_radii
from .estimate import interval_from_moments, within
from .rate import checked_alpha

# Exceeds the rounding error of the sums; if it affects the decision, the interval is wider by one example.
_ROUNDING = 1e-9


def subset_accuracy(successes: int, n: int, size: int, alpha: float = 0.05) -> tuple[float, float]:
    """Compute an interval for a random subset's accuracy from quantiles of the hypergeometric distribution.

    The number of successes in a subset has ``P(X = k) = C(K, k)·C(n - K, m - k) / C(n, m)``, where K is the number of
    successes among all n examples and m is the size of the subset. The probability beyond each end is at most
    alpha / 2.

    Args:
        successes: number of successes among all examples, in [0, n].
        n: number of all examples, at least 1.
        size: number of examples in the subset, in [1, n].
        alpha: upper bound on the probability that a subset's accuracy is outside the interval, in (0, 1).

    Returns:
        (lower, upper), as shares of successes in the subset. If the subset contains all examples, both equal the share
        of successes among all examples.

    Raises:
        InputError: a value out of range.
        InputTypeError: counts that are not integers, or an alpha that is not a number.

    >>> subset_accuracy(4225, 10_000, 500)
    (0.38, 0.464)
    """
    n = count("n", n)
    successes, size = integer("successes", successes, 0, n), integer("size", size, 1, n)
    half = checked_alpha(alpha) / 2
    low, high = max(0, size + successes - n), min(size, successes)
    k = np.arange(low, high, dtype=np.float64)
    # ln P(X = k + 1) - ln P(X = k), summed from the smallest k.
    steps = np.log((successes - k) * (size - k)) - np.log((k + 1) * (n - successes - size + k + 1))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    mass = np.exp(logs - logs.max())
    mass /= mass.sum()
    # Sum each tail from its small end. An end moves inward as long as the probability outside is certainly small
    # enough.
    below = np.cumsum(mass) * (1 + _ROUNDING)
    above = np.cumsum(mass[::-1]) * (1 + _ROUNDING)
    fewest = low + int(np.searchsorted(below, half, side="right"))
    largest = high - int(np.searchsorted(above, half, side="right"))
    return fewest / size, largest / size


def subset_average_certified_radius(
    radius: Tensor | npt.NDArray[Any], correct: Tensor | npt.NDArray[Any], size: int, alpha: float = 0.05
) -> tuple[float, float]:
    """Interval for a random subset's average certified radius, from the moments of this average.

    Let v = correct·radius, let σ² and μ₃ be the variance and the third central moment of v, and let m of N examples be
    drawn. The mean of v over the drawn examples has variance ``σ²/m·(N - m)/(N - 1)`` and third central moment
    ``μ₃/m²·(N - m)(N - 2m) / ((N - 1)(N - 2))`` (Cochran, 1977). The quantiles follow by the Cornish-Fisher expansion
    (1938), which is accurate from a few dozen examples on.

    Args:
        radius: [N], float, finite, at least 0.
        correct: [N], bool.
        size: number of examples in the subset, in [1, N].
        alpha: approximate probability that a subset's average is outside the interval, in (0, 1).

    Returns:
        (lower, upper).

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: radii that are not float, or correct that is not bool.

    >>> radius = np.arange(1000) / 1000
    >>> [round(end, 3) for end in subset_average_certified_radius(radius, radius > 0.2, 100)]
    [0.42, 0.538]
    """
    certified = checked_radii(radius)
    values = np.where(checked_flags("correct", correct, len(certified)), certified, 0.0)
    n = len(values)
    size, alpha = integer("size", size, 1, n), checked_alpha(alpha)
    mean = float(values.mean())
    if size == n:
        return mean, mean
    deviations = values - mean
    variance = float((deviations**2).mean()) / size * (n - size) / (n - 1)
    third = float((deviations**3).mean()) / size**2 * (n - size) * (n - 2 * size) / ((n - 1) * max(n - 2, 1))
    return within(values, mean, interval_from_moments(mean, variance, third, alpha))
