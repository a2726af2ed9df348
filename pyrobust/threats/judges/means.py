"""Confidence sequence of the mean of bounded values, by betting.

A gambler bets on each value in turn that it lies above the mean m. With bets lambda_t >= 0 that depend on earlier
values alone, capped at c/m, the wealth

    K_n(m) = prod over t <= n of 1 + min(lambda_t, c/m) (x_t - m)

is a nonnegative martingale under the mean m, so that it ever reaches 1/alpha with probability at most alpha (Ville,
1939). The means with K_n(m) < 1/alpha at all n so far are a one-sided confidence sequence (Waudby-Smith and Ramdas,
"Estimating means of bounded random variables by betting", 2024). Every factor falls in m, so that bisection finds the
bound. The bets follow the variance of the values so far: the smaller it is, the narrower the interval.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from pyrobust.checks import array
from pyrobust.errors import InputError

from .region import FloatArray

_CAP: Final = 0.5
# Rounding error of a sum of n logarithms of factors in [1/2, 1 + c/m], relative to the sum of their sizes.
_ROUNDING: Final = 2.0**-40


def checked_shares(name: str, values: Any, n: int | None = None) -> FloatArray:
    """Return numbers in [0, 1] as a float64 array [N], N >= 1."""
    shares = array(name, values)
    if shares.ndim != 1 or not len(shares) or (n is not None and len(shares) != n):
        expected = "a sequence of at least one number" if n is None else f"{n} numbers"
        raise InputError(f"{name}: expected {expected}, got shape {shares.shape}")
    wrong = ~((shares >= 0) & (shares <= 1))
    if wrong.any():
        place = int(wrong.argmax())
        raise InputError(f"{name}: expected numbers in [0, 1], got {shares[place]} at index {place}")
    return shares


def bets(values: FloatArray, alpha: float) -> FloatArray:
    """Predictable bets [..., n] on values [..., n], for all times."""
    t = np.arange(1, values.shape[-1] + 1)
    means = (0.5 + np.cumsum(values, axis=-1)) / (t + 1)
    variances = (0.25 + np.cumsum((values - means) ** 2, axis=-1)) / (t + 1)
    before = np.concatenate([np.full((*values.shape[:-1], 1), 0.25), variances[..., :-1]], axis=-1)
    return np.asarray(np.sqrt(-2 * math.log(alpha) / (before * t * np.log1p(t))))


def log_wealth(values: FloatArray, bet: FloatArray, mean: float) -> FloatArray:
    """Lower bounds on ln K_n(mean) at every n, mean > 0."""
    factors = np.log1p(np.minimum(bet, _CAP / mean) * (values - mean))
    return np.asarray(np.cumsum(factors, axis=-1) - _ROUNDING * np.cumsum(np.abs(factors) + 1e-3, axis=-1))
