"""Certified accuracy and average certified radii.

Throughout, ``radius`` holds the certified radius R of each example, and ``correct`` tells whether the example's
prediction is the label. For an abstention, the radius is 0 and ``correct`` is false. A verification with radius 0 has
proved nothing, not even the prediction at the example itself. Therefore pass ``correct & (radius > 0)`` as ``correct``
for results of verification.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import integer, non_negatives, probability, share
from pyrobust.frames import plain_fields
from pyrobust.stats import fixed_count

from .arguments import checked_flags, checked_radii
from .estimate import Estimate, bootstrap_mean
from .rate import Rate, checked_alpha, estimate_rate


def certified_accuracy(
    radius: Tensor | npt.NDArray[Any],
    correct: Tensor | npt.NDArray[Any],
    radii: Sequence[float],
    alpha: float = 0.05,
) -> list[Rate]:
    """Share of examples classified correctly and certified at each radius, ``(1/N)·Σ 1[correctᵢ, Rᵢ ≥ r]``.

    Radii are compared in double precision, and equality counts as certified. An abstention is never certified, not even
    at radius 0.

    Args:
        radius: [N], float, finite, at least 0.
        correct: [N], bool.
        radii: r, at least 0, in any order; +inf is allowed, and its share is 0.
        alpha: error probability of each confidence interval, in (0, 1). The intervals are for the certified accuracy on
            the distribution from which the examples are drawn. They do not account for false certificates;
            ``certified_accuracy_with_confidence`` does.

    Returns:
        One Rate per radius.

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: radii that are not float, or correct that is not bool.

    >>> radius, correct = np.array([0.5, 0.25, 0.9, 0.0]), np.array([True, True, False, False])
    >>> rates = certified_accuracy(radius, correct, [0, 0.25, 0.5])
    >>> [float(rate) for rate in rates]
    [0.5, 0.5, 0.25]
    """
    certified, counted = _columns(radius, correct)
    thresholds = non_negatives("radii", radii, infinite=True)
    alpha = checked_alpha(alpha)
    return [estimate_rate(int((counted & (certified >= r)).sum()), len(counted), alpha) for r in thresholds]


def certification_gap(empirical: Rate | float, certified: Rate | float) -> float:
    """Gap between empirical and certified robust accuracy, ``empirical - certified``, at the same budget.

    The gap is the share of examples that are neither broken nor certified; the true robust accuracy lies between the
    two accuracies. A negative gap for the same classifier, examples and budget is a contradiction: an attack broke a
    certified example, and either the attack or the certificate is wrong.

    Args:
        empirical: robust accuracy under attack, in [0, 1].
        certified: certified accuracy at the radius of the attack, in [0, 1]; a ``CertifiedAccuracyBound`` stands for
            its lower bound.

    Returns:
        The difference of the two values.

    Raises:
        InputError: a value outside [0, 1].
        InputTypeError: arguments that are neither numbers nor objects that convert to one, such as rates.

    >>> certification_gap(0.75, 0.5)
    0.25
    """
    values = []
    for name, value in (("empirical", empirical), ("certified", certified)):
        values.append(share(name, value))
    return values[0] - values[1]


def average_radius(radius: Tensor | npt.NDArray[Any], correct: Tensor | npt.NDArray[Any]) -> float:
    """Mean certified radius of the correctly classified examples, ``Σ correctᵢ·Rᵢ / Σ correctᵢ``.

    The averages of different classifiers are over different examples: a classifier that is correct only on easy
    examples has a large average.

    Args:
        radius: [N], float, finite, at least 0.
        correct: [N], bool.

    Returns:
        The mean; NaN if and only if no example is correct.

    Raises:
        InputError: mismatched lengths, no examples, or a NaN, infinite or negative radius.
        InputTypeError: radii that are not float, or correct that is not bool.

    >>> average_radius(np.array([1.0, 2.0, 9.0]), np.array([True, True, False]))
    1.5
    """
    certified, counted = _columns(radius, correct)
    return float(certified[counted].mean()) if counted.any() else math.nan


def average_certified_radius(
    radius: Tensor | npt.NDArray[Any],
    correct: Tensor | npt.NDArray[Any],
    alpha: float = 0.05,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Average certified radius (ACR), ``(1/N)·Σ correctᵢ·Rᵢ`` over all N examples (Zhai et al., 2020).

    Warning: this is a poor measure of robustness (Sun, Mao, Müller and Vechev, "Average Certified Radius is a Poor
    Metric for Randomized Smoothing", 2025). There are three reasons. R grows without limit as p_A approaches 1, so easy
    examples outweigh all others. The ACR of a constant classifier grows without limit with sigma. And the ACR depends
    on the certification's n and alpha, which are not properties of the classifier. Consider ``survival_curve`` first.

    Args:
        radius: [N], float, finite, at least 0.
        correct: [N], bool.
        alpha: error probability of the interval, in (0, 1).
        resamples: number of bootstrap resamples, at least 100.
        seed: random seed of the bootstrap, at least 0.

    Returns:
        Estimate, with the percentile bootstrap interval; see ``Estimate`` for what this interval covers.

    Raises:
        InputError: mismatched lengths, no examples, or a value out of range.
        InputTypeError: radii that are not float, or correct that is not bool.

    >>> acr = average_certified_radius(np.array([0.5, 1.0, 0.7, 0.0]), np.array([True, True, False, False]))
    >>> float(acr), acr.lower, acr.upper
    (0.375, 0.0, 0.75)
    """
    certified, counted = _columns(radius, correct)
    return bootstrap_mean(np.where(counted, certified, 0.0), alpha, resamples=resamples, seed=seed)


@dataclass(frozen=True)
class CertifiedAccuracyBound:
    """Certified accuracy, reduced by the certificates that may be false; ``float(bound)`` is the lower bound.

    Attributes:
        value: count / n_images.
        lower: (count - false) / n_images, at least 0.
        count: number of images that count as certified.
        false: with probability at least 1 - delta, at most this many certificates are false.
        n_images: number of all images.
        alpha: upper bound on the probability that a certificate is false.
        delta: upper bound on the probability that ``lower`` exceeds the share of images that are counted and whose
            certificate is true.
    """

    value: float
    lower: float
    count: int
    false: int
    n_images: int
    alpha: float
    delta: float

    def __float__(self) -> float:
        return self.lower

    to_dict = plain_fields


def certified_accuracy_with_confidence(
    count: int, n_images: int, alpha: float, delta: float = 0.001
) -> CertifiedAccuracyBound:
    """Lower bound of the certified accuracy of exactly these images, valid with probability at least 1 - delta.

    Each certificate is false with probability at most alpha over the noise, which is independent between images. The
    number of false certificates among all images is then stochastically dominated by ``Bin(n_images, alpha)``. Let q be
    ``min {k : P(Bin(n_images, alpha) > k) ≤ delta}``. With probability at least 1 - delta, at most q of the counted
    certificates are false. Cohen, Rosenfeld and Kolter (2019) bound q by Bernstein's inequality instead.

    q is computed for all images, not only for the counted images, because counting selects images by their radius. A
    false certificate may reach the chosen radius more often than a true one. In the extreme case that the true radius
    of every image is just below the chosen radius, all counted certificates are false.

    The computed q is rigorous, that is, never too small. ``P(Bin(N, alpha) ≥ k) ≤ delta`` holds if and only if the
    Clopper-Pearson lower bound of k successes in N trials, with error probability delta, is at least alpha. The
    computed lower bound is rounded down, so rounding can only make q larger.

    Args:
        count: number of images that are correct and certified at a radius chosen beforehand, in [0, n_images].
        n_images: number of all images for which certification was attempted, in [1, 10**9]. The noise must be
            independent between images: use a different seed for each image, or one seed and each image's own index.
        alpha: error probability of each certificate, in (0, 1).
        delta: error probability of the result, in (0, 1).

    Returns:
        CertifiedAccuracyBound. For several radii at once, divide delta by the number of radii.

    Raises:
        InputError: a value out of range.
        InputTypeError: counts that are not integers, or probabilities that are not numbers.

    >>> bound = certified_accuracy_with_confidence(4225, 10_000, alpha=0.001)
    >>> bound.false, f"{bound.lower:.4f}"
    (21, '0.4204')
    """
    n_images = integer("n_images", n_images, 1)
    count = integer("count", count, 0, n_images)
    alpha = checked_alpha(alpha)
    delta = probability("delta", delta, "0.001 is usual")
    false = fixed_count(n_images, alpha, delta) - 1
    lower = max(0, count - false) / n_images
    return CertifiedAccuracyBound(count / n_images, lower, count, false, n_images=n_images, alpha=alpha, delta=delta)


def _columns(radius: Any, correct: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    certified = checked_radii(radius)
    return certified, checked_flags("correct", correct, len(certified))
