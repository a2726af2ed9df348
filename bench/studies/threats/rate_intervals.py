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


@functools.cache
def garak(x: int, n: int) -> Interval:
    """The interval of garak's package, a bootstrap of all attempts with 1,000 resamples (its default is 10,000).

    Above n / 2 the mirrored one, which has the same law.
    """
    if 2 * x > n:
        low, high = garak(n - x, n)
        return 1 - high, 1 - low
    ends = _garak()([1] * x + [0] * (n - x), 1.0, 1.0, num_iterations=1000)
    return float(ends[0]) / 100, float(ends[1]) / 100


@functools.cache
def _garak() -> Callable[..., Any]:
    from garak import _config
    from garak.analyze.bootstrap_ci import calculate_bootstrap_ci

    _config.load_config()
    _config.run.seed = 0
    return calculate_bootstrap_ci


#: By name, those that take the verdicts for the truth.
OF_VERDICTS: dict[str, Callable[[int, int], Interval]] = {
    "clopper_pearson": clopper_pearson,
    "wald": wald,
    "wilson": wilson,
    "garak": garak,
}
