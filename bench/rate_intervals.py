"""Nominal 95 % intervals in common use for a rate of x successes in n attempts, all attempts taken as independent."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from scipy import special

Interval = tuple[float, float]
_Z = 1.959963984540054


def clopper_pearson(x: int, n: int) -> Interval:
    return (
        float(special.betaincinv(x, n - x + 1, 0.025)) if x else 0.0,
        float(special.betaincinv(x + 1, n - x, 0.975)) if x < n else 1.0,
    )


def wald(x: int, n: int) -> Interval:
    q = x / n
    half = _Z * math.sqrt(q * (1 - q) / n)
    return max(0.0, q - half), min(1.0, q + half)


def wilson(x: int, n: int) -> Interval:
    q, z = x / n, _Z * _Z / n
    middle, half = (q + z / 2) / (1 + z), _Z * math.sqrt(q * (1 - q) / n + z / (4 * n)) / (1 + z)
    return (0.0 if x == 0 else middle - half), (1.0 if x == n else middle + half)


def garak_package(x: int, n: int, sensitivity: float, specificity: float) -> Interval:
    """The interval of garak's package, a bootstrap of all attempts with 1,000 resamples (its default is 10,000)."""
    ends = _garak()([1] * x + [0] * (n - x), sensitivity, specificity, num_iterations=1000)
    return float(ends[0]) / 100, float(ends[1]) / 100


@functools.cache
def garak(x: int, n: int) -> Interval:
    """The package's interval of a detector taken as perfect; above n / 2 the mirrored one, which has the same law."""
    if 2 * x > n:
        low, high = garak(n - x, n)
        return 1 - high, 1 - low
    return garak_package(x, n, 1.0, 1.0)


@functools.cache
def _garak() -> Callable[..., Any]:
    from garak import _config
    from garak.analyze.bootstrap_ci import calculate_bootstrap_ci

    _config.load_config()
    _config.run.seed = 0
    return calculate_bootstrap_ci


def garak_corrected(x: int, n: int, sensitivity: float, specificity: float) -> Interval:
    """garak's interval of an imperfect detector, from that of a perfect one.

    garak corrects each resampled rate by an affine map and clips it; percentiles keep the order. ``check_garak``
    compares it with the package's own.
    """
    slope = sensitivity + specificity - 1.0
    ends = garak(x, n)
    if abs(slope) < 0.01:
        return ends
    low, high = sorted((end + specificity - 1.0) / slope for end in ends)
    return min(1.0, max(0.0, low)), min(1.0, max(0.0, high))


def check_garak(n: int) -> float:
    """Largest difference between ``garak_corrected`` and the package's interval, in some cases."""
    cases = [(x, se, sp) for x in (0, n // 10, n // 2) for se, sp in ((0.9, 0.95), (0.6, 0.7), (0.4, 0.3))]
    return max(
        abs(a - b)
        for x, se, sp in cases
        for a, b in zip(garak_corrected(x, n, se, sp), garak_package(x, n, se, sp), strict=True)
    )


#: By name, those that take the verdicts for the truth.
OF_VERDICTS: dict[str, Callable[[int, int], Interval]] = {
    "clopper_pearson": clopper_pearson,
    "wald": wald,
    "wilson": wilson,
    "garak": garak,
}
