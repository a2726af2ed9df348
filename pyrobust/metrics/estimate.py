"""A mean over examples with its bootstrap interval, and quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import special
from torch import Tensor

from pyrobust.checks import integer, numbers
from pyrobust.errors import InputError
from pyrobust.frames import plain_fields

from .rate import checked_alpha

# How many random numbers are held at once: 32 MiB including the values that they select.
_BLOCK: Final = 1 << 21
# Number of examples above which the resamples' distribution is computed by an expansion instead of sampling.
_LARGEST_SAMPLED: Final = 1 << 15

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean over examples with its confidence interval; ``float(estimate)`` is the mean.

    The interval is a percentile bootstrap interval (Efron, 1979), for examples drawn independently from one
    distribution. The interval covers the mean of that distribution with a probability that approaches 1 - alpha as the
    number of examples grows. The interval says nothing about the noise of the certification or about other classifiers.

    Attributes:
        value: the mean.
        lower, upper: ends of the two-sided interval.
        alpha: approximate probability that the interval misses.
        n: number of examples.
        resamples: number of resamples drawn; 0 if the interval comes from a Cornish-Fisher expansion instead.
    """

    value: float
    lower: float
    upper: float
    alpha: float
    n: int
    resamples: int

    def __float__(self) -> float:
        return self.value

    to_dict = plain_fields


def bootstrap_mean(values: _Floats, alpha: float, *, resamples: int, seed: int) -> Estimate:
    """Return the mean of values [N] with its percentile bootstrap interval.

    Above 32,768 examples, no resamples are drawn, since sampling would only add noise. Instead, the distribution of the
    mean of a resample is computed by an expansion in the first three moments of this distribution (Cornish and Fisher,
    1938), with a relative error of order 1/N.
    """
    alpha = checked_alpha(alpha)
    resamples, seed = integer("resamples", resamples, 100), integer("seed", seed, 0)
    n, mean = len(values), float(values.mean())
    if n > _LARGEST_SAMPLED:
        deviations = values - mean
        moments = float((deviations**2).mean()) / n, float((deviations**3).mean()) / n**2
        lower, upper = within(values, mean, interval_from_moments(mean, *moments, alpha))
        return Estimate(mean, lower, upper, alpha, n, 0)
    generator = np.random.Generator(np.random.Philox(seed))
    means = np.empty(resamples)
    for start in range(0, resamples, rows := max(1, _BLOCK // n)):
        block = means[start : start + rows]
        block[:] = values[generator.integers(0, n, (len(block), n), dtype=np.uint32)].mean(axis=1)
    lower, upper = np.quantile(means, [alpha / 2, 1 - alpha / 2], method="inverted_cdf").tolist()
    lower, upper = within(values, mean, (lower, upper))
    return Estimate(mean, lower, upper, alpha, n, resamples)


def within(values: _Floats, mean: float, interval: tuple[float, float]) -> tuple[float, float]:
    """Clip an interval to the range of the values; then, if it does not contain the mean, widen it until it does.

    An end of the interval can lie outside the range in two cases. Either the end comes from an expansion and a few
    values outweigh all others, or all values are equal and the end is rounded.
    """
    lower, upper = interval
    return min(max(lower, float(values.min())), mean), max(min(upper, float(values.max())), mean)


def interval_from_moments(mean: float, variance: float, third: float, alpha: float) -> tuple[float, float]:
    """Return the quantiles alpha/2 and 1 - alpha/2 of a nearly normal variable with these central moments.

    Each quantile is ``mean + s·(z + g·(z² - 1)/6)``, where z is the normal quantile, s is the root of the variance and
    g = third/s³ (Cornish and Fisher, 1938).
    """
    if variance <= 0:
        return mean, mean
    z, deviation = float(special.ndtri(alpha / 2)), math.sqrt(variance)
    shift = third / variance * (z * z - 1) / 6
    return mean + deviation * z + shift, mean - deviation * z + shift


def quantiles(values: Tensor, q: Sequence[float]) -> list[float]:
    """Return, for each share in ``q``, the smallest of the values [N] such that at least this share of them is ≤ it."""
    shares = numbers("q", q)
    for share in shares:
        if not 0 <= share <= 1:
            raise InputError("q", "shares in [0, 1]", share)
    rising = values.detach().cpu().double().sort().values.tolist()
    # In floating point 0.07 · 100 is above 7 and would select the eighth value.
    return [rising[max(math.ceil(Fraction(repr(share)) * len(rising)) - 1, 0)] for share in shares]
