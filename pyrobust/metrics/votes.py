"""Recover votes from the radii printed in a log.

A certificate with Gaussian noise has the radius ``R(k) = sigma·Φ⁻¹(CP(k, n, alpha))``, where k of n noisy copies voted
for the class, CP is the lower bound of Clopper and Pearson (1934) and Φ is the normal distribution function (Cohen,
Rosenfeld and Kolter, 2019). R increases with k, so an exact radius determines the votes; a printed radius, which is
rounded, determines a range of votes.

The radii of this module have a relative accuracy of about 1e-8, or less below 1e-7·sigma, and are meant for reading
logs. They are not rounded down; for certificates, use ``pyrobust.smoothing.certified_radius``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import special
from torch import Tensor

from pyrobust.checks import integer, number, positive
from pyrobust.errors import InputError

from .arguments import aligned, checked_integers, checked_radii

_LARGEST_N: Final = 10**9
# scipy's inverse incomplete beta function fails for smaller alpha.
_SMALLEST_ALPHA: Final = 1e-30
# Largest n for which all radii are tabulated, once; and the ratio of the number of radii to n above which a table is
# cheaper than inverting each radius.
_LARGEST_TABLE: Final = 10**6
_WORTH_A_TABLE: Final = 1 / 30
# Relative difference between programs' values of R(k), due to sigma in float32 and to different routines and sums.
_TOLERANCE: Final = 2.0**-23
_MOST_DECIMALS: Final = 17
# Assumed error of the continuous inverse, in votes; a larger error is corrected vote by vote.
_SURE_VOTES: Final = 1e-3

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


def attainable_radii(n: int, alpha: float, sigma: float) -> _Floats:
    """Radius R(k) of every number of votes k = 0, …, n; 0 where nothing is certified.

    Args:
        n: number of samples, in [1, 10**6].
        alpha: error probability of the lower bound, in [1e-30, 1/2].
        sigma: standard deviation of the noise, positive.

    Returns:
        [n + 1], float64, non-decreasing.

    Raises:
        InputError: a value out of range.
        InputTypeError: arguments that are not numbers.

    >>> attainable_radii(10, 0.001, 0.5).round(3).tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.001]
    """
    n, alpha, sigma = _checked(n, alpha, sigma)
    if n > _LARGEST_TABLE:
        raise InputError("n", f"at most {_LARGEST_TABLE} for a table", n, "votes_for_radius accepts larger n")
    return np.concatenate([np.zeros(n // 2 + 1), _scaled(sigma, _table(n, alpha))])


def maximum_radius(n: int, alpha: float, sigma: float) -> float:
    """Compute the largest radius that n unanimous votes can certify, ``R(n) = sigma·Φ⁻¹(alpha^(1/n))``.

    Args:
        n: number of samples, in [1, 10**9].
        alpha: error probability of the lower bound, in [1e-30, 1/2].
        sigma: standard deviation of the noise, positive.

    Returns:
        The radius, 0.0 if even unanimous votes certify nothing.

    Raises:
        InputError: a value out of range.
        InputTypeError: arguments that are not numbers.

    >>> round(maximum_radius(100_000, 0.001, 0.25), 6)
    0.952864
    """
    n, alpha, sigma = _checked(n, alpha, sigma)
    return max(0.0, -sigma * float(special.ndtri(-math.expm1(math.log(alpha) / n))))


def significant_decimals(radius: Tensor | npt.NDArray[Any], digits: int) -> _Ints:
    """Number of decimals of numbers printed with ``digits`` significant digits, for example by ``f"{radius:.3}"``.

    The reference script of Cohen, Rosenfeld and Kolter (2019) prints three significant digits. For example, the radii
    0.0456, 0.48 (short for 0.480) and 1.02 have four, three and two decimals.

    Args:
        radius: [N], float, at least 0, as printed. It should be below 10**digits: from there on, the last printed digit
            stands before the point, and the result, 0, is too many decimals.
        digits: significant digits, in [1, 17].

    Returns:
        [N], int64, for ``votes_for_radius``; equal to ``digits`` where the radius is 0.

    Raises:
        InputError: a value out of range.
        InputTypeError: a radius that is not float, or digits that are not an integer.

    >>> significant_decimals(np.array([0.0456, 0.48, 1.02, 0.0]), 3).tolist()
    [4, 3, 2, 3]
    """
    printed = checked_radii(radius)
    digits = integer("digits", digits, 1, _MOST_DECIMALS)
    exponent = np.full(len(printed), -1, dtype=np.int64)
    # Read the exponent from a printed number: a logarithm can round to the next power of ten.
    values, where = np.unique(printed[printed > 0], return_inverse=True)
    exponents = [int(f"{value:.16e}".partition("e")[2]) for value in values.tolist()]
    exponent[printed > 0] = np.array(exponents, dtype=np.int64)[where]
    return np.clip(digits - 1 - exponent, 0, _MOST_DECIMALS)


def votes_for_radius(
    radius: Tensor | npt.NDArray[Any], n: int, alpha: float, sigma: float, *, decimals: int | Tensor | npt.NDArray[Any]
) -> tuple[_Ints, _Ints, _Ints]:
    """Recover a point estimate and the possible range of the votes n_A from printed radii, by inverting R.

    With u = 10^-decimals, the radius R(k) that was printed as ρ is in [ρ - u/2, ρ + u], whether the program that
    printed it rounds down or to the nearest number. This range is widened by ρ·2^-23 on both sides, because other
    programs may hold sigma in float32 and make rounding errors.

    - least, most: the smallest and the largest k with R(k) in this range. If no k has such a radius, ρ was computed
      with another n, alpha or sigma (see ``is_attainable``). In this case, least is the last k with R(k) < ρ, and most
      is the first k with R(k) ≥ ρ, or n if there is none.
    - point: the smallest k in [least, most] with R(k) ≥ ρ·(1 - 2^-23); ``most`` if there is none, such as if ρ was
      rounded up above R(most).

    Args:
        radius: [N], float, at least 0, as printed.
        n: number of samples of the estimate, in [1, 10**9].
        alpha: error probability of the lower bound, in [1e-30, 1/2].
        sigma: standard deviation of the Gaussian noise, positive.
        decimals: number of decimals of the printed radii, trailing zeros included, in [0, 17]; or [N] if this number
            differs between radii (see ``significant_decimals``).

    Returns:
        (point, least, most), each [N], int64, with ``least <= point <= most``; all 0 where the printed radius is 0,
        such as for an abstention.

    Raises:
        InputError: a value out of range, or mismatched lengths.
        InputTypeError: radii that are not float, or decimals that are not integers.

    >>> [votes.tolist() for votes in votes_for_radius(np.array([0.0, 0.377]), 100_000, 0.001, 0.25, decimals=3)]
    [[0, 93664], [0, 93639], [0, 93713]]
    """
    n, alpha, sigma = _checked(n, alpha, sigma)
    printed, low, high, inverse = _distinct(checked_radii(radius), decimals)
    first = _first_reaching(n, alpha, sigma, len(printed))
    least, beyond = first(low), first(high)
    fits = least < beyond
    most = np.where(fits, beyond - 1, np.minimum(beyond, n))
    least = np.where(fits, least, beyond - 1)
    point = np.minimum(first(printed * (1 - _TOLERANCE)), most)
    zero = printed == 0
    point, least, most = (np.where(zero, 0, votes)[inverse] for votes in (point, least, most))
    return point, least, most


def is_attainable(
    radius: Tensor | npt.NDArray[Any], n: int, alpha: float, sigma: float, *, decimals: int | Tensor | npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Whether each radius is that of some number of votes; if not, it was computed with another n, alpha or sigma.

    Takes the same arguments and raises the same errors as ``votes_for_radius``.

    Returns:
        [N], bool; true where the radius is 0.

    >>> is_attainable(np.array([0.0, 0.377, 0.954]), 100_000, 0.001, 0.25, decimals=3).tolist()
    [True, True, False]
    """
    n, alpha, sigma = _checked(n, alpha, sigma)
    printed, low, high, inverse = _distinct(checked_radii(radius), decimals)
    first = _first_reaching(n, alpha, sigma, len(printed))
    attainable: npt.NDArray[np.bool_] = ((printed == 0) | (first(low) < first(high)))[inverse]
    return attainable


def _checked(n: Any, alpha: Any, sigma: Any) -> tuple[int, float, float]:
    n = integer("n", n, 1, _LARGEST_N)
    level = number("alpha", alpha)
    if not _SMALLEST_ALPHA <= level <= 0.5:
        raise InputError("alpha", f"a number in [{_SMALLEST_ALPHA:g}, 0.5]", alpha, "0.001 is usual")
    return n, level, positive("sigma", sigma)


def _distinct(radius: _Floats, decimals: Any) -> tuple[_Floats, _Floats, _Floats, npt.NDArray[np.intp]]:
    """Return the distinct printed radii, the interval that each stands for, and the index of each row's radius."""
    if isinstance(decimals, (Tensor, np.ndarray)) and decimals.ndim:
        digits = aligned("decimals", checked_integers("decimals", decimals), len(radius))
        integer("decimals", int(digits.max()), 0, _MOST_DECIMALS)
    else:
        digits = np.full(len(radius), integer("decimals", decimals, 0, _MOST_DECIMALS), dtype=np.int64)
    # The radius is the real part, by which complex numbers are sorted first.
    pairs, inverse = np.unique(radius + 1j * digits, return_inverse=True)
    printed, unit = pairs.real, 10.0**-pairs.imag
    tolerance = printed * _TOLERANCE
    low = np.maximum(printed - unit / 2 - tolerance, np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):  # an end may overflow to inf
        return printed, low, printed + unit + tolerance, inverse


def _first_reaching(n: int, alpha: float, sigma: float, radii: int) -> Callable[[_Floats], _Ints]:
    """Return a function that maps numbers x > 0 to the smallest k with R(k) ≥ x, or to n + 1 if there is no such k."""
    if worth_a_table(n, radii):
        table = _scaled(sigma, _table(n, alpha))
        return lambda x: n // 2 + 1 + np.searchsorted(table, x).astype(np.int64)
    return partial(_invert, n, alpha, sigma)


def _invert(n: int, alpha: float, sigma: float, x: _Floats) -> _Ints:
    """Return, for each x > 0, the smallest k with R(k) ≥ x, or n + 1 if there is no such k."""
    least = n // 2 + 1

    def reaches(k: _Ints) -> npt.NDArray[np.bool_]:
        reached: npt.NDArray[np.bool_] = _scaled(sigma, _quantiles(np.clip(k, 1, n), n, alpha)) >= x
        return reached

    with np.errstate(over="ignore"):
        votes = continuous_votes(x / sigma, n, alpha)
    first = np.where(x > 0, np.clip(np.ceil(votes - _SURE_VOTES), least, n + 1), least).astype(np.int64)
    while True:
        step = ((first <= n) & ~reaches(first)).astype(np.int64) - ((first > least) & reaches(first - 1))
        if not step.any():
            return first
        first += step


def worth_a_table(n: int, radii: int) -> bool:
    """Whether a table of the radii of all numbers of votes is cheaper than inverting ``radii`` radii one by one."""
    return n <= _LARGEST_TABLE and radii > _WORTH_A_TABLE * n


def continuous_votes(quantile: _Floats, n: int | _Floats, alpha: float | _Floats) -> _Floats:
    """Find, for each positive quantile [N], the real k at which ``Φ⁻¹(CP(k, n, alpha))`` equals the quantile.

    If even k = n gives a smaller value than the quantile, the result is above n. For a quantile z, the condition
    Φ⁻¹(CP(k, n, alpha)) ≥ z means P(Bin(n, Φ(z)) ≥ k) ≤ alpha. So k is a quantile of a binomial distribution, which the
    incomplete beta function extends to real numbers. The result is accurate to about 1e-10·n votes. If n and alpha are
    single numbers and a table of all radii is cheaper, k is interpolated linearly in this table instead, and is then
    accurate only to a vote.
    """
    if isinstance(n, int) and isinstance(alpha, float) and worth_a_table(n, len(quantile)):
        votes = np.interp(quantile, _table(n, alpha), np.arange(n // 2 + 1, n + 1))
    else:
        tail = special.ndtr(-quantile)
        votes = np.asarray(n - special.bdtrik(alpha, n, np.clip(tail, 1e-300, 1.0)), dtype=np.float64)
    unanimous = np.exp(n * special.log_ndtr(quantile))  # P(Bin = n)
    beyond = n + (unanimous - alpha) / (1 - alpha)
    return np.where((unanimous > alpha) | np.isnan(votes), np.maximum(beyond, n), votes)


@lru_cache(maxsize=4)
def _table(n: int, alpha: float) -> _Floats:
    """Return max(0, Φ⁻¹(CP(k, n, alpha))) for k = n // 2 + 1, …, n; as alpha ≤ 1/2, fewer votes certify nothing."""
    table = np.maximum.accumulate(_quantiles(np.arange(n // 2 + 1, n + 1), n, alpha))
    table.setflags(write=False)
    return table


def _scaled(sigma: float, quantiles: _Floats) -> _Floats:
    with np.errstate(over="ignore"):  # a radius may overflow to inf
        return sigma * quantiles


def _quantiles(k: _Ints, n: int, alpha: float) -> _Floats:
    # Computed from the small 1 - CP, which keeps its digits.
    quantiles: _Floats = np.maximum(0.0, -special.ndtri(special.betainccinv(n - k + 1, k, alpha)))
    return quantiles
