"""Clopper-Pearson bounds and the sign test, rounded outward.

Library routines for the incomplete beta function are approximations. For large n or tiny alpha, even their first digit
can be wrong. Here these routines only supply a first guess. Every returned bound is proved to lie on the safe side. The
proof bounds the binomial tail from above, in exact integers and 50-digit decimals. If this proof fails for a guess,
Newton's method gives the next guess. If no guess passes, the trivial bound (0 or 1) is returned.

The tail is summed from its largest term. For X ~ Bin(n, p) with probability mass function b,

    P(X >= k) = b(k) S,   S = 1 + r(k) + r(k) r(k+1) + ...,   r(j) = (n - j) p / ((j + 1) (1 - p)).

p is a double, hence a ratio of integers. S is therefore computed as an integer sum, with every term rounded up. The
ratio r(j) decreases in j. Once r < 1, the remainder after a term t is therefore at most t r / (1 - r). ln b is computed
by Stirling's series. Newton's method uses the slope d ln P / d ln p = k / S. This slope decreases in p. In exact
arithmetic, a Newton step therefore never ends on the unsafe side of the exact bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Final, Literal, TypeAlias, overload

import numpy.typing as npt
from scipy import special

from pyrobust.checks import choice, probability
from pyrobust.stats.arguments import FloatArray, map_counts
from pyrobust.stats.decimals import MARGIN, MAX_NEWTON, context, log_factorial

# Rounding error of _log_tail: ln n!, k ln p and (n-k) ln(1-p) are below 1e12 for n <= 1e9 and any double p, so each of
# its roughly thirty 50-digit operations errs by less than 1e-37, and the three Stirling remainders by less than 3e-38.
_LOG_ERROR: Final = Decimal("1e-30")
# S is a fixed-point sum with 128 fractional bits; it stops at terms below 2^-80 of the sum.
_ONE: Final = 1 << 128
_STOP_BITS: Final = 80


def _log_tail(k: int, n: int, num: int, den: int) -> tuple[Decimal, Decimal]:
    """Return upper bounds on ln P(X >= k) and P(X >= k) / P(X = k) for X ~ Bin(n, num/den).

    Call under context(), with 0 < num < den.
    """
    complement = den - num
    a, b = (n - k) * num, (k + 1) * complement
    term = total = _ONE
    while a and (a >= b or term > total >> _STOP_BITS):
        term = -(-term * a // b)
        total += term
        a -= num
        b += complement
    if a:
        total -= -term * a // (b - a)
    log_mass = log_factorial(n) - log_factorial(k) - log_factorial(n - k)
    if k:
        log_mass += k * (Decimal(num) / den).ln()
    if n > k:
        log_mass += (n - k) * (Decimal(complement) / den).ln()
    s = Decimal(total) / _ONE
    return log_mass + s.ln() + _LOG_ERROR, s


def _proved_bound(k: int, n: int, alpha: float, guess: float, upper: bool) -> float:
    """Return a double near the exact bound, proved to be on its safe side; a better guess only saves time."""
    # Both bounds solve P(Bin(n, v) >= m) <= alpha: for successes with v = x and m = k, or for failures with v = 1 - x
    # and m = n - k. The rounding applies to x itself, so that a small upper bound keeps its digits.
    m = n - k if upper else k
    sign, trivial = (1.0, 1.0) if upper else (-1.0, 0.0)
    # 1 - alpha = P(X <= m-1) is at most exp(-(nv-m+1)^2 / (2nv)) (Chernoff, 1952), and at most (e n (1-v) / f)^f with
    # f = n-m+1 (union bound). Both limit v, so a very wrong guess cannot make the sum long.
    t, f = -2.0 * math.log1p(-alpha), n - m + 1
    cap = (math.sqrt(t) + math.sqrt(t + 4.0 * (m - 1))) ** 2 / (4.0 * n)
    cap = min(cap, 1.0 - f / n * math.exp(-1.0 - t / (2 * f)))
    best, x = trivial, guess
    if not 0.0 < guess < 1.0:
        start = min(cap, m / (n + 1))
        x = 1.0 - start if upper else start
    with localcontext(context()):
        log_alpha = Decimal(alpha).ln()
        for _ in range(MAX_NEWTON):
            x = max(x, 1.0 - cap) if upper else min(x, cap)
            width = MARGIN * min(x, 1.0 - x)
            x = math.nextafter(x + sign * width, trivial)
            if not 0.0 < x < 1.0:
                break
            num, den = x.as_integer_ratio()
            bound, s = _log_tail(m, n, den - num if upper else num, den)
            gap = bound - log_alpha
            v = 1.0 - x if upper else x
            change = v * math.expm1(min(30.0, max(-30.0, float(-gap * s / m))))
            if gap <= 0:
                best = min(best, x) if upper else max(best, x)
                if change <= 3.0 * width + 3.0 * math.ulp(x):
                    break
            x -= sign * change
    return best


@lru_cache(maxsize=1 << 16)
def _lower(k: int, n: int, alpha: float) -> float:
    return 0.0 if k == 0 else _proved_bound(k, n, alpha, float(special.betaincinv(k, n - k + 1, alpha)), upper=False)


@lru_cache(maxsize=1 << 16)
def _upper(k: int, n: int, alpha: float) -> float:
    return 1.0 if k == n else _proved_bound(k, n, alpha, float(special.betainccinv(k + 1, n - k, alpha)), upper=True)


@lru_cache(maxsize=1 << 16)
def _tail_of_half(k: int, n: int, sides: int) -> float:
    """Return ``sides · P(Bin(n, 1/2) >= k)``, rounded up, and at most 1."""
    if k == 0:
        return 1.0
    with localcontext(context()):
        log_p = _log_tail(k, n, 1, 2)[0] + Decimal(sides).ln()
        if log_p >= 0:
            return 1.0
        if log_p < -750:
            return math.ulp(0.0)
        value = log_p.exp() * (1 + _LOG_ERROR)
        p = float(value)
        return p if Decimal(p) >= value else math.nextafter(p, 1.0)


#: Alternative hypotheses about a proportion, each with its p-value.
_TESTS: Final[dict[str, Callable[[int, int], float]]] = {
    "two-sided": lambda k, n: _tail_of_half(max(k, n - k), n, 2),
    "greater": lambda k, n: _tail_of_half(k, n, 1),
    "less": lambda k, n: _tail_of_half(n - k, n, 1),
}
#: Alternative hypotheses of a test.
Alternative: TypeAlias = Literal["two-sided", "greater", "less"]


@overload
def clopper_pearson_lower(k: int, n: int, alpha: float) -> float: ...
@overload
def clopper_pearson_lower(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> float | FloatArray: ...
def clopper_pearson_lower(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> float | FloatArray:
    """One-sided lower confidence bound on a proportion, from k successes in n independent trials.

    The bound is the p with P(Bin(n, p) >= k) = alpha, rounded down (Clopper and Pearson, 1934). For k = 0, it is 0.
    For any true proportion, the probability that the bound exceeds this proportion is at most alpha.

    Args:
        k: successes, integers in [0, n]; any shape that broadcasts with n and alpha.
        n: trials, integers in [1, 10**9].
        alpha: allowed failure probability, in (0, 1).

    Returns:
        Float64 array of the broadcast shape, or a float if all arguments are scalars. The result is never above the
        exact bound p. It is smaller than p by at most ``4 * MARGIN * min(p, 1 - p)``, where MARGIN is 2**-40
        (`pyrobust.stats.MARGIN`), plus 8 units in the last place.

    Raises:
        InputError: a value is NaN or out of range, or the shapes do not broadcast.
        InputTypeError: counts are not integers, or alpha is not a real number.

    >>> f"{clopper_pearson_lower(990, 1000, 0.001):.6f}"
    '0.976036'
    >>> clopper_pearson_lower(0, 10, 0.05)
    0.0
    """
    return map_counts(_lower, k, n, alpha)


@overload
def clopper_pearson_upper(k: int, n: int, alpha: float) -> float: ...
@overload
def clopper_pearson_upper(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> float | FloatArray: ...
def clopper_pearson_upper(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> float | FloatArray:
    """One-sided upper confidence bound on a proportion, from k successes in n independent trials.

    The bound is the p with P(Bin(n, p) <= k) = alpha, rounded up (Clopper and Pearson, 1934). For k = n, it is 1.
    For any true proportion, the probability that the bound is below this proportion is at most alpha.

    Args:
        k: successes, integers in [0, n]; any shape that broadcasts with n and alpha.
        n: trials, integers in [1, 10**9].
        alpha: allowed failure probability, in (0, 1).

    Returns:
        Float64 array of the broadcast shape, or a float if all arguments are scalars. The result is never below the
        exact bound p and never above 1. It is larger than p by at most ``4 * MARGIN * min(p, 1 - p)``, where MARGIN is
        2**-40 (`pyrobust.stats.MARGIN`), plus 8 units in the last place.

    Raises:
        InputError: a value is NaN or out of range, or the shapes do not broadcast.
        InputTypeError: counts are not integers, or alpha is not a real number.

    >>> f"{clopper_pearson_upper(10, 1000, 0.001):.6f}"
    '0.023964'
    >>> clopper_pearson_upper(10, 10, 0.05)
    1.0
    """
    return map_counts(_upper, k, n, alpha)


def fixed_count(n: int, p0: float, alpha: float) -> int:
    """Smallest number of successes in n trials whose Clopper-Pearson lower bound reaches p0.

    Args:
        n: trials, in [1, 10**9].
        p0: required lower bound, in (0, 1).
        alpha: allowed failure probability of the bound, in (0, 1).

    Returns:
        The count, in [1, n + 1]. It is n + 1 if even n successes are not enough.

    Raises:
        InputError: a value is out of range.
        InputTypeError: n is not an integer, or alpha is not a number.

    >>> fixed_count(100_000, 0.84, 0.001), fixed_count(10, 0.84, 0.001)
    (84358, 11)
    """
    p0 = probability("p0", p0)
    below, above = 0, n + 1
    while above - below > 1:
        middle = (below + above) // 2
        if clopper_pearson_lower(middle, n, alpha) >= p0:
            above = middle
        else:
            below = middle
    return above


@overload
def binomial_test(k: int, n: int, alternative: Alternative = "two-sided") -> float: ...
@overload
def binomial_test(k: npt.ArrayLike, n: npt.ArrayLike, alternative: Alternative = "two-sided") -> float | FloatArray: ...
def binomial_test(k: npt.ArrayLike, n: npt.ArrayLike, alternative: Alternative = "two-sided") -> float | FloatArray:
    """P-value of the exact test of p = 1/2, given k successes in n trials (sign test; Arbuthnot, 1710).

    The alternative "greater" is p > 1/2, and its p-value is P(Bin(n, 1/2) >= k). The alternative "less" is p < 1/2, and
    its p-value is P(Bin(n, 1/2) <= k). The p-value of "two-sided" is min(1, 2 P(Bin(n, 1/2) >= max(k, n - k))). The
    p-value is rounded up.

    Args:
        k: successes, integers in [0, n]; any shape that broadcasts with n.
        n: trials, integers in [1, 10**9].
        alternative: "two-sided", "greater" or "less".

    Returns:
        Float64 array of the broadcast shape, or a float if k and n are scalars. The values lie in (0, 1] and are never
        below the exact p-value.

    Raises:
        InputError: a value is out of range, the shapes do not broadcast, or the alternative is unknown.
        InputTypeError: counts are not integers.

    >>> f"{binomial_test(9, 10):.8f}", f"{binomial_test(9, 10, 'greater'):.8f}"
    ('0.02148438', '0.01074219')
    >>> binomial_test(5, 10)
    1.0
    """
    return map_counts(_TESTS[choice("alternative", alternative, tuple(_TESTS))], k, n)
