"""Certified accuracy, and averages of certified radii.

Everywhere ``radius`` holds the certified radius R of each example, 0 where the classifier abstained, and ``correct``
whether its prediction is the label, false where it abstained. A verification with radius 0 has proved nothing, not even
of the example itself: pass ``correct & (radius > 0)`` there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import integer, non_negatives, probability, share
from pyrobust.stats import clopper_pearson_lower

from .arguments import checked_flags, checked_radii
from .estimate import Estimate, bootstrap_mean
from .rate import Rate, checked_alpha, estimate_rate


def certified_accuracy(
    radius: Tensor | npt.NDArray[Any],
    correct: Tensor | npt.NDArray[Any],
    radii: Sequence[float],
    alpha: float = 0.05,
) -> list[Rate]:
    """Share of the examples that are classified right and certified at each radius, ``(1/N)·Σ 1[correctᵢ, Rᵢ ≥ r]``.

    The comparison includes equality, in double precision. An abstention is never certified, not at radius 0 either.

    Args:
        radius: [N], float, finite, at least 0.
        correct: [N], bool.
        radii: r, finite, at least 0, in any order.
        alpha: of the confidence intervals, each by itself, in (0, 1). They are for other examples of the same kind;
            certificates that are false are the matter of ``certified_accuracy_with_confidence``.

    Returns:
        A Rate for each of the radii.

    Raises:
        InputError: lengths that do not agree, no example, a value out of range.
        InputTypeError: radii that are not float, correct that is not bool.

    >>> radius, correct = np.array([0.5, 0.25, 0.9, 0.0]), np.array([True, True, False, False])
    >>> rates = certified_accuracy(radius, correct, [0, 0.25, 0.5])
    >>> [float(rate) for rate in rates]
    [0.5, 0.5, 0.25]
    """
    certified, right = _columns(radius, correct)
    wanted = non_negatives("radii", radii, infinite=True)
    alpha = checked_alpha(alpha)
    return [estimate_rate(int((right & (certified >= r)).sum()), len(right), alpha) for r in wanted]


def certification_gap(empirical: Rate | float, certified: Rate | float) -> float:
    """What an attack at the same budget left standing and no certificate covers: empirical - certified accuracy.

    The true robust accuracy lies between the two. A negative gap of the same classifier, examples and budget is a
    contradiction: an attack got through a certificate, and one of the two is wrong.

    Args:
        empirical: robust accuracy under attack, in [0, 1].
        certified: certified accuracy at the radius of the attack, in [0, 1].

    Returns:
        The difference of the two values.

    Raises:
        InputError: a value out of [0, 1].
        InputTypeError: not a rate or a number.

    >>> certification_gap(0.75, 0.5)
    0.25
    """
    values = []
    for name, value in (("empirical", empirical), ("certified", certified)):
        values.append(share(name, value))
    return values[0] - values[1]


def average_radius(radius: Tensor | npt.NDArray[Any], correct: Tensor | npt.NDArray[Any]) -> float:
    """Mean certified radius of the examples that are classified right, ``Σ correctᵢ·Rᵢ / Σ correctᵢ``.

    Two classifiers are averaged over different examples: one that is right only where it is easy has a large one.

    Args:
        radius: [N], float, finite, at least 0.
        correct: [N], bool.

    Returns:
        The mean; NaN where no example is right, and only there: over nothing there is no mean.

    Raises:
        InputError: lengths that do not agree, no example, a radius that is NaN, infinite or negative.
        InputTypeError: radii that are not float, correct that is not bool.

    >>> average_radius(np.array([1.0, 2.0, 9.0]), np.array([True, True, False]))
    1.5
    """
    certified, right = _columns(radius, correct)
    return float(certified[right].mean()) if right.any() else math.nan


def average_certified_radius(
    radius: Tensor | npt.NDArray[Any],
    correct: Tensor | npt.NDArray[Any],
    alpha: float = 0.05,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Average certified radius (ACR), ``(1/N)·Σ correctᵢ·Rᵢ`` over all N examples (Zhai et al., 2020).

    Warning: a poor measure of robustness (Sun, Mao, Müller and Vechev, "Average Certified Radius is a Poor Metric for
    Randomized Smoothing", 2025). R grows without limit as p_A goes to 1, so that easy examples outweigh all others; a
    constant classifier reaches any ACR if only sigma is large enough; and ACR moves with the certification's n and
    alpha, which are no properties of the classifier. ``survival_curve`` is what to look at first.

    Args:
        radius: [N], float, finite, at least 0.
        correct: [N], bool.
        alpha: of the interval, in (0, 1).
        resamples: of the bootstrap, at least 100.
        seed: of the bootstrap, at least 0.

    Returns:
        Estimate, with the percentile bootstrap's interval (``Estimate`` says for what).

    Raises:
        InputError: lengths that do not agree, no example, a value out of range.
        InputTypeError: radii that are not float, correct that is not bool.

    >>> acr = average_certified_radius(np.array([0.5, 1.0, 0.7, 0.0]), np.array([True, True, False, False]))
    >>> float(acr), acr.lower, acr.upper
    (0.375, 0.0, 0.75)
    """
    certified, right = _columns(radius, correct)
    return bootstrap_mean(np.where(right, certified, 0.0), alpha, resamples=resamples, seed=seed)


@dataclass(frozen=True)
class CertifiedAccuracyBound:
    """A certified accuracy less the certificates that may be false: ``float(bound)`` is the lower bound.

    Attributes:
        value: count / n_images, as counted.
        lower: (count - false) / n_images, at least 0.
        count: images that count as certified.
        false: more than this many certificates are false with probability at most delta.
        n_images: all images.
        alpha: probability that a certificate is false, at most.
        delta: probability that lower is too large, at most.
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

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)


def certified_accuracy_with_confidence(
    count: int, n_images: int, alpha: float, delta: float = 0.001
) -> CertifiedAccuracyBound:
    """Certified accuracy of exactly these images, true with probability at least 1 - delta.

    Each certificate is false with probability at most alpha, over noise that is independent from image to image. The
    false ones among all images are then at most as many as ``Bin(n_images, alpha)``, so that with
    ``q = min {q : P(Bin(n_images, alpha) > q) ≤ delta}`` all but q of the counted images are certified truly, with
    probability at least 1 - delta. Cohen, Rosenfeld and Kolter (2019) bound the same by Bernstein's inequality.

    q is of all images, not of the count: that a certificate is large enough to count is no independent event. If every
    image was just short of the radius, those that counted would be the false ones, all of them.

    q is proved: ``P(Bin(N, alpha) ≥ k) ≤ delta`` says that the Clopper-Pearson lower bound of k successes in N trials
    is at least alpha, and that bound is rounded down.

    Args:
        count: images that are right and certified at a radius that was chosen beforehand, in [0, n_images].
        n_images: all images that were certified or tried, at least 1. Noise has to be independent: a seed for each
            image, or one seed with the images' own indices.
        alpha: of the certificates, in (0, 1).
        delta: in (0, 1).

    Returns:
        CertifiedAccuracyBound. For several radii at once, divide delta by their number.

    Raises:
        InputError: a value out of range.
        InputTypeError: counts that are not integers, probabilities that are not numbers.

    >>> bound = certified_accuracy_with_confidence(4225, 10_000, alpha=0.001)
    >>> bound.false, f"{bound.lower:.4f}"
    (21, '0.4204')
    """
    n_images = integer("n_images", n_images, 1)
    count = integer("count", count, 0, n_images)
    alpha = checked_alpha(alpha)
    delta = probability("delta", delta, "0.001 is usual")
    false = _most_false(n_images, alpha, delta)
    lower = max(0, count - false) / n_images
    return CertifiedAccuracyBound(count / n_images, lower, count, false, n_images, alpha, delta)


def _most_false(n: int, alpha: float, delta: float) -> int:
    """The smallest q for which P(Bin(n, alpha) ≥ q + 1) ≤ delta is proved; n, which needs no proof, at most."""
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        if clopper_pearson_lower(middle + 1, n, delta) >= alpha:
            high = middle
        else:
            low = middle
    return high


def _columns(radius: Any, correct: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    certified = checked_radii(radius)
    return certified, checked_flags("correct", correct, len(certified))
