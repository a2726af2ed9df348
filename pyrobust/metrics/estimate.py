"""A mean over examples with its interval, and what a mean over fewer of them could have been."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.checks import integer

from .rate import checked_alpha

# Random numbers that are held at once: 32 MiB of them with what they pick.
_BLOCK: Final = 1 << 21
# Examples beyond which the resamples' distribution is written down instead of sampled.
_RESAMPLED: Final = 1 << 15

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean over examples: ``float(estimate)`` is its value.

    The interval is the percentile bootstrap's (Efron, 1979), for examples drawn independently from one distribution; it
    covers the mean of that distribution with probability near 1 - alpha, the nearer the more examples there are. It
    says nothing about the noise of the certification or about other classifiers.

    Attributes:
        value: the mean.
        lower, upper: the ends of the two-sided interval.
        alpha: probability that the interval misses, about.
        n: examples.
        resamples: that were drawn; 0 where their distribution was expanded instead.
    """

    value: float
    lower: float
    upper: float
    alpha: float
    n: int
    resamples: int

    def __float__(self) -> float:
        return self.value

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)


def bootstrap_mean(values: _Floats, alpha: float, *, resamples: int, seed: int) -> Estimate:
    """The mean of values [N] and its percentile bootstrap interval.

    Beyond 32,768 examples the distribution of a resample's mean is taken from its first three moments (Cornish and
    Fisher, 1938), with a relative error of the order 1/N; sampling it would only add noise to that.
    """
    alpha = checked_alpha(alpha)
    resamples, seed = integer("resamples", resamples, 100), integer("seed", seed, 0)
    n, mean = len(values), float(values.mean())
    if n > _RESAMPLED:
        deviations = values - mean
        moments = float((deviations**2).mean()) / n, float((deviations**3).mean()) / n**2
        lower, upper = within(values, mean, interval_from_moments(mean, *moments, alpha))
        return Estimate(mean, lower, upper, alpha, n, 0)
    generator = np.random.Generator(np.random.Philox(seed))
    means = np.empty(resamples)
    for start in range(0, resamples, rows := max(1, _BLOCK // n)):
        part = means[start : start + rows]
        part[:] = values[generator.integers(0, n, (len(part), n), dtype=np.uint32)].mean(axis=1)
    lower, upper = np.quantile(means, [alpha / 2, 1 - alpha / 2], method="inverted_cdf").tolist()
    lower, upper = within(values, mean, (lower, upper))
    return Estimate(mean, lower, upper, alpha, n, resamples)


def within(values: _Floats, mean: float, ends: tuple[float, float]) -> tuple[float, float]:
    """The ends of an interval, kept on their sides of the mean and among the values.

    An expansion can leave them where a few values outweigh all others, and equal values where rounding does.
    """
    lower, upper = ends
    return min(max(lower, float(values.min())), mean), max(min(upper, float(values.max())), mean)


def interval_from_moments(mean: float, variance: float, third: float, alpha: float) -> tuple[float, float]:
    """Quantiles alpha/2 and 1 - alpha/2 of a nearly normal variable with these central moments.

    ``mean + s·(z + g·(z² - 1)/6)``, s the root of the variance and g = third/s³ (Cornish and Fisher, 1938).
    """
    if variance <= 0:
        return mean, mean
    z, deviation = float(special.ndtri(alpha / 2)), math.sqrt(variance)
    shift = third / variance * (z * z - 1) / 6
    return mean + deviation * z + shift, mean - deviation * z + shift
