"""From a radius in a log back to the votes behind it.

A certificate with Gaussian noise has the radius ``R(k) = sigma·Φ⁻¹(CP(k, n, alpha))`` where k of n noisy copies voted
for the class, CP the lower bound of Clopper and Pearson (1934) and Φ the normal distribution function (Cohen, Rosenfeld
and Kolter, 2019). R rises with k, so that a printed radius tells the votes, up to the digits that were not printed.

These radii are for reading what others wrote, to a relative 1e-8. They are not rounded down: for certificates there is
``pyrobust.smoothing.certified_radius``.
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
# Below this scipy's inverse incomplete beta function fails.
_SMALLEST_ALPHA: Final = 1e-30
# Up to here all radii are computed, once; beyond it those that are asked for.
_TABLE: Final = 10**6
# Of what programs make of R(k): sigma rounded to float32 or not, their own routines and sums.
_SLACK: Final = 2.0**-23
_MOST_DECIMALS: Final = 17

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


def attainable_radii(n: int, alpha: float, sigma: float) -> _Floats:
    """The radius R(k) of every number of votes k = 0, …, n; 0 where nothing is certified.

    Args:
        n: samples, in [1, 10**6].
        alpha: of the lower bound, in [1e-30, 1/2].
        sigma: standard deviation of the noise, positive.

    Returns:
        [n + 1], float64, never falling.

    Raises:
        InputError: a value out of range.
        InputTypeError: not numbers.

    >>> attainable_radii(10, 0.001, 0.5).round(3).tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.001]
    """
    n, alpha, sigma = _checked(n, alpha, sigma)
    if n > _TABLE:
        raise InputError(f"n: expected at most {_TABLE} for a table, got {n}; votes_for_radius takes more")
    return np.concatenate([np.zeros(n // 2 + 1), _scaled(sigma, _table(n, alpha))])


def maximum_radius(n: int, alpha: float, sigma: float) -> float:
    """The largest radius that n samples can prove, ``R(n) = sigma·Φ⁻¹(alpha^(1/n))``, with all votes for one class.

    Args:
        n: samples, in [1, 10**9].
        alpha: of the lower bound, in [1e-30, 1/2].
        sigma: standard deviation of the noise, positive.

    Returns:
        The radius, 0.0 where even all votes certify nothing.

    Raises:
        InputError: a value out of range.
        InputTypeError: not numbers.

    >>> round(maximum_radius(100_000, 0.001, 0.25), 6)
    0.952864
    """
    n, alpha, sigma = _checked(n, alpha, sigma)
    return max(0.0, -sigma * float(special.ndtri(-math.expm1(math.log(alpha) / n))))


def significant_decimals(radius: Tensor | npt.NDArray[Any], digits: int) -> _Ints:
    """Decimals of numbers that were printed with so many significant digits, as by ``f"{radius:.3}"``.

    The reference script of Cohen, Rosenfeld and Kolter (2019) prints three: 0.0456, 0.48 (which is 0.480) and 1.02.

    Args:
        radius: [N], float, at least 0, as printed.
        digits: significant digits, in [1, 17].

    Returns:
        [N], int64, for ``votes_for_radius``; digits where the radius is 0.

    Raises:
        InputError: a value out of range.
        InputTypeError: a radius that is no float, digits that are no integer.

    >>> significant_decimals(np.array([0.0456, 0.48, 1.02, 0.0]), 3).tolist()
    [4, 3, 2, 3]
    """
    printed = checked_radii(radius)
    digits = integer("digits", digits, 1, _MOST_DECIMALS)
    exponent = np.full(len(printed), -1, dtype=np.int64)
    # Printed again, for a logarithm can round to the next power of ten.
    values, where = np.unique(printed[printed > 0], return_inverse=True)
    found = [int(f"{value:.16e}".partition("e")[2]) for value in values.tolist()]
    exponent[printed > 0] = np.array(found, dtype=np.int64)[where]
    return np.clip(digits - 1 - exponent, 0, _MOST_DECIMALS)


def votes_for_radius(
    radius: Tensor | npt.NDArray[Any], n: int, alpha: float, sigma: float, *, decimals: int | Tensor | npt.NDArray[Any]
) -> tuple[_Ints, _Ints, _Ints]:
    """The votes n_A behind printed radii: R turned round, as a number to work with and as the range that is possible.

    With u = 10^-decimals, a radius ρ is printed of every R(k) in [ρ - u/2, ρ + u]: rounded down or to the nearest, by
    whom is not known. A relative 2^-23 of ρ is added on both sides for sigma in float32 and for the rounding of others'
    programs.

    - least, most: the smallest and the largest such k. Where there is none, which other n, alpha or sigma would
      explain (``is_attainable``), the neighbours of ρ: the last k below it and the first that reaches it.
    - point: the smallest of them with R(k) ≥ ρ; where a radius was rounded up so that none of them reaches it, most.

    Args:
        radius: [N], float, at least 0, as printed.
        n: samples of the estimate, in [1, 10**9].
        alpha: of the lower bound, in [1e-30, 1/2].
        sigma: standard deviation of the Gaussian noise, positive.
        decimals: digits behind the point of the printed radii, trailing zeros too, in [0, 17]; one number, or [N] where
            digits were counted otherwise (``significant_decimals``).

    Returns:
        (point, least, most), each [N], int64, with ``least <= point <= most``; all 0 where the printed radius is 0, as
        an abstention's is.

    Raises:
        InputError: a value out of range, lengths that do not agree.
        InputTypeError: radii that are not float, decimals that are not integers.

    >>> [votes.tolist() for votes in votes_for_radius(np.array([0.0, 0.377]), 100_000, 0.001, 0.25, decimals=3)]
    [[0, 93664], [0, 93639], [0, 93713]]
    """
    n, alpha, sigma = _checked(n, alpha, sigma)
    printed, low, high, back = _distinct(checked_radii(radius), decimals)
    first = _first_reaching(n, alpha, sigma)
    least, beyond = first(low), first(high)
    fits = least < beyond
    most = np.where(fits, beyond - 1, np.minimum(beyond, n))
    least = np.where(fits, least, beyond - 1)
    point = np.minimum(first(printed * (1 - _SLACK)), most)
    zero = printed == 0
    point, least, most = (np.where(zero, 0, votes)[back] for votes in (point, least, most))
    return point, least, most


def is_attainable(
    radius: Tensor | npt.NDArray[Any], n: int, alpha: float, sigma: float, *, decimals: int | Tensor | npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Whether some number of votes has a radius that is printed so; if not, n, alpha or sigma were others.

    Args:
        radius: [N], as of ``votes_for_radius``.
        n: samples.
        alpha: of the lower bound.
        sigma: standard deviation of the noise.
        decimals: as of ``votes_for_radius``.

    Returns:
        [N], bool; true where the radius is 0.

    Raises:
        InputError, InputTypeError: as of ``votes_for_radius``.

    >>> is_attainable(np.array([0.0, 0.377, 0.954]), 100_000, 0.001, 0.25, decimals=3).tolist()
    [True, True, False]
    """
    n, alpha, sigma = _checked(n, alpha, sigma)
    printed, low, high, back = _distinct(checked_radii(radius), decimals)
    first = _first_reaching(n, alpha, sigma)
    attainable: npt.NDArray[np.bool_] = ((printed == 0) | (first(low) < first(high)))[back]
    return attainable


def _checked(n: Any, alpha: Any, sigma: Any) -> tuple[int, float, float]:
    n = integer("n", n, 1, _LARGEST_N)
    level = number("alpha", alpha)
    if not _SMALLEST_ALPHA <= level <= 0.5:
        raise InputError(f"alpha: expected a number in [{_SMALLEST_ALPHA:g}, 0.5], got {alpha}; 0.001 is usual")
    return n, level, positive("sigma", sigma)


def _distinct(radius: _Floats, decimals: Any) -> tuple[_Floats, _Floats, _Floats, npt.NDArray[np.intp]]:
    """Distinct printed radii, the ends of what each stands for, and where each row finds its own."""
    if isinstance(decimals, (Tensor, np.ndarray)) and decimals.ndim:
        digits = aligned("decimals", checked_integers("decimals", decimals), len(radius))
        integer("decimals", int(digits.max()), 0, _MOST_DECIMALS)
    else:
        digits = np.full(len(radius), integer("decimals", decimals, 0, _MOST_DECIMALS), dtype=np.int64)
    # The radius is the real part: complex numbers are sorted by it first.
    pairs, back = np.unique(radius + 1j * digits, return_inverse=True)
    printed, unit = pairs.real, 10.0**-pairs.imag
    slack = printed * _SLACK
    low = np.maximum(printed - unit / 2 - slack, np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):  # an end beyond every float is inf
        return printed, low, printed + unit + slack, back


def _first_reaching(n: int, alpha: float, sigma: float) -> Callable[[_Floats], _Ints]:
    """The function that gives the smallest k with R(k) ≥ x, n + 1 where there is none, for positive x."""
    if n <= _TABLE:
        radii = _scaled(sigma, _table(n, alpha))
        return lambda x: n // 2 + 1 + np.searchsorted(radii, x).astype(np.int64)
    return partial(_bisect, n, alpha, sigma)


def _bisect(n: int, alpha: float, sigma: float, x: _Floats) -> _Ints:
    below, reaching = np.full(len(x), n // 2, dtype=np.int64), np.full(len(x), n + 1, dtype=np.int64)
    while (reaching - below > 1).any():
        middle = (below + reaching) // 2
        # Where the search has ended the middle is `below` again, which may be n // 2, or n.
        reaches = (_scaled(sigma, _quantiles(np.maximum(middle, 1), n, alpha)) >= x) & (middle > below)
        below, reaching = np.where(reaches, below, middle), np.where(reaches, middle, reaching)
    return reaching


@lru_cache(maxsize=4)
def _table(n: int, alpha: float) -> _Floats:
    """Φ⁻¹(CP(k, n, alpha)), at least 0, of k = n // 2 + 1, …, n: fewer votes certify nothing where alpha ≤ 1/2."""
    table = np.maximum.accumulate(_quantiles(np.arange(n // 2 + 1, n + 1), n, alpha))
    table.setflags(write=False)
    return table


def _scaled(sigma: float, quantiles: _Floats) -> _Floats:
    with np.errstate(over="ignore"):  # a radius beyond every float is inf
        return sigma * quantiles


def _quantiles(k: _Ints, n: int, alpha: float) -> _Floats:
    # From the small end, 1 - CP, where there are digits to spare.
    quantiles: _Floats = np.maximum(0.0, -special.ndtri(special.betainccinv(n - k + 1, k, alpha)))
    return quantiles
