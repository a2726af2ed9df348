"""Binomial and normal bounds, rounded outward: what a probabilistic certificate rests on.

Library routines for the incomplete beta function are approximations; at large n or tiny alpha they can be wrong in the
first digit. Here they only make a first guess. What is returned has been proved: its binomial tail, or normal
probability, is bounded on the safe side in exact integers and 50-digit decimals, and a guess that fails is corrected by
Newton's method until one passes. Where none does, the trivial bound (0, 1 or -inf) is returned.

The tail is summed from its largest end. For X ~ Bin(n, p), with b the probability mass function,

    P(X >= k) = b(k) S,   S = 1 + r(k) + r(k) r(k+1) + ...,   r(j) = (n - j) p / ((j + 1) (1 - p)).

p is a double, hence a ratio of integers, so S is an integer sum with every term rounded up; r(j) falls with j, so what
is left after a term t is at most t r / (1 - r) once r < 1. ln b comes from Stirling's series. Newton's step needs the
slope, d ln P / d ln p = k / S; it falls with p, so in exact arithmetic a step never ends above the solution.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.errors import InputError, InputTypeError

__all__ = [
    "MARGIN",
    "MAX_TRIALS",
    "binomial_test",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "normal_quantile_lower",
]

MARGIN: Final = 2.0**-40
"""How far a guess is moved to the safe side before it is proved, relative to min(p, 1 - p), or to |z| for the normal.

9e-13: above the usual error of the guess, so that one proof is enough, and far below anything visible in a radius.
Soundness does not rest on it, tightness does: what is returned lies within 4 margins and 8 units in the last place of
the exact bound.
"""

MAX_TRIALS: Final = 10**9
"""Largest n. The error budget behind _LOG_SLACK is worked out up to here."""

# ln n!, k ln p and (n-k) ln(1-p) are below 1e12 for n <= 1e9 and any double p, so each of the roughly thirty 50-digit
# operations in _log_tail errs by less than 1e-37, and the three Stirling remainders by less than 3e-38 each.
_LOG_SLACK: Final = Decimal("1e-30")
_STIRLING_FROM: Final = 256
# B(2j) / (2j (2j-1)), j = 1..7; the remainder is smaller than the next term, 3617 / (122400 x^15) < 3e-38 for x >= 256.
_STIRLING: Final = ((1, 12), (-1, 360), (1, 1260), (-1, 1680), (1, 1188), (-691, 360360), (1, 156))
_SUM_ONE: Final = 1 << 128
_SUM_STOP: Final = 80
_MAX_NEWTON: Final = 100

_FloatArray = npt.NDArray[np.float64]


def _context(digits: int = 50) -> decimal.Context:
    """Decimal arithmetic that does not depend on the caller's context; ln and exp are correctly rounded in it."""
    return decimal.Context(
        prec=digits,
        rounding=decimal.ROUND_HALF_EVEN,
        Emin=decimal.MIN_EMIN,
        Emax=decimal.MAX_EMAX,
        clamp=0,
        traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
    )


@lru_cache(maxsize=1)
def _pi() -> Decimal:
    """Pi to 420 digits (Machin 1706: pi = 16 atan(1/5) - 4 atan(1/239))."""
    one = 10**440

    def arctan_inverse(x: int) -> int:
        total, power, j = 0, one // x, 1
        while power:
            total += power // j if j % 4 == 1 else -(power // j)
            power //= x * x
            j += 2
        return total

    with localcontext(_context(420)):
        return Decimal(16 * arctan_inverse(5) - 4 * arctan_inverse(239)) / one


@lru_cache(maxsize=4096)
def _log_factorial(x: int) -> Decimal:
    """Natural logarithm of x!, within 1e-37. Call under _context()."""
    if x < _STIRLING_FROM:
        return Decimal(math.factorial(x)).ln()
    d = Decimal(x)
    total = d * d.ln() - d + (2 * _pi() * d).ln() / 2
    for j, (a, b) in enumerate(_STIRLING):
        total += Decimal(a) / (b * d ** (2 * j + 1))
    return total


def _log_tail(k: int, n: int, num: int, den: int) -> tuple[Decimal, Decimal]:
    """Upper bounds of ln P(Bin(n, num/den) >= k), 0 < num < den, and S. Call under _context()."""
    rest = den - num
    a, b = (n - k) * num, (k + 1) * rest
    term = total = _SUM_ONE
    while a and (a >= b or term > total >> _SUM_STOP):
        term = -(-term * a // b)
        total += term
        a -= num
        b += rest
    if a:
        total -= -term * a // (b - a)
    log_mass = _log_factorial(n) - _log_factorial(k) - _log_factorial(n - k)
    if k:
        log_mass += k * (Decimal(num) / den).ln()
    if n > k:
        log_mass += (n - k) * (Decimal(rest) / den).ln()
    s = Decimal(total) / _SUM_ONE
    return log_mass + s.ln() + _LOG_SLACK, s


def _prove(k: int, n: int, alpha: float, guess: float, upper: bool) -> float:
    """A double on the safe side of the exact bound, proved, and close to it; the guess only saves time."""
    # Both bounds are a tail P(Bin(n, v) >= m) <= alpha: of the successes, v = x and m = k, or of the failures,
    # v = 1 - x and m = n - k. x itself is what is rounded, so that a small upper bound keeps its digits.
    m = n - k if upper else k
    sign, trivial = (1.0, 1.0) if upper else (-1.0, 0.0)
    # 1 - alpha = P(X <= m-1) is at most exp(-(nv-m+1)^2 / (2nv)) (Chernoff 1952), and at most (e n (1-v) / f)^f with
    # f = n-m+1 (union bound). Both cap v: a wild guess cannot make the sum long.
    t, f = -2.0 * math.log1p(-alpha), n - m + 1
    cap = (math.sqrt(t) + math.sqrt(t + 4.0 * (m - 1))) ** 2 / (4.0 * n)
    cap = min(cap, 1.0 - f / n * math.exp(-1.0 - t / (2 * f)))
    best, x = trivial, guess
    if not 0.0 < guess < 1.0:
        start = min(cap, m / (n + 1))
        x = 1.0 - start if upper else start
    with localcontext(_context()):
        log_alpha = Decimal(alpha).ln()
        for _ in range(_MAX_NEWTON):
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
    return 0.0 if k == 0 else _prove(k, n, alpha, float(special.betaincinv(k, n - k + 1, alpha)), upper=False)


@lru_cache(maxsize=1 << 16)
def _upper(k: int, n: int, alpha: float) -> float:
    return 1.0 if k == n else _prove(k, n, alpha, float(special.betainccinv(k + 1, n - k, alpha)), upper=True)


@lru_cache(maxsize=1 << 16)
def _two_sided(k: int, n: int) -> float:
    with localcontext(_context()):
        log_p = _log_tail(max(k, n - k), n, 1, 2)[0] + Decimal(2).ln()
        if log_p >= 0:
            return 1.0
        if log_p < -750:
            return math.ulp(0.0)
        value = log_p.exp() * (1 + _LOG_SLACK)
        p = float(value)
        return p if Decimal(p) >= value else math.nextafter(p, 1.0)


@lru_cache(maxsize=1 << 16)
def _quantile(p: float) -> float:
    if not p > 0.0:
        return -math.inf
    z = float(special.ndtri(p))
    for _ in range(_MAX_NEWTON):
        z = min(9.0, max(-39.0, z))  # every double p has its quantile in here; NaN becomes -39
        width = MARGIN * abs(z)
        z = math.nextafter(z - width, -math.inf) if p != 0.5 else 0.0
        # Far out, Phi(z) - 1/2 and p - 1/2 agree to z^2 / (2 ln 10) digits before they differ.
        digits = 50 + int(z * z / 4.6)
        with localcontext(_context(digits)):
            d = Decimal(z)
            square = d * d
            # Phi(z) - 1/2 = phi(z) (z + z^3/3 + z^5/(3 5) + ...), all terms of one sign. A few thousand roundings cost
            # far less than 1e10 units in the last digit; the sum ends at a term below that digit, the next under half.
            total, term, j = d, d, 1
            while abs(term) > abs(total).scaleb(-digits) or 2 * square > j:
                j += 2
                term = term * square / j
                total += term
            density = (-square / 2).exp() / (2 * _pi()).sqrt()
            excess = density * total
            gap = excess + abs(excess).scaleb(10 - digits) - (Decimal(p) - Decimal("0.5"))
            change = -float(gap / density)
        if gap <= 0 and change <= 3.0 * width + 3.0 * math.ulp(z):
            return z
        z += change
    return -math.inf


def _as_counts(name: str, value: Any) -> npt.NDArray[np.int64]:
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise InputTypeError(
            f"{name}: expected integers, got {type(value).__name__} of dtype {array.dtype}; convert counts with int()"
        )
    if array.size and int(array.max()) > MAX_TRIALS:
        raise InputError(f"{name}: expected at most {MAX_TRIALS}, got {int(array.max())}; draw fewer samples")
    return array.astype(np.int64)


def _as_real(name: str, value: Any) -> _FloatArray:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise InputTypeError(
            f"{name}: expected float64, got {type(value).__name__} of dtype {array.dtype}; convert it with float()"
        )
    return array.astype(np.float64)


def _inputs(k: Any, n: Any, *alpha: Any) -> tuple[npt.NDArray[Any], ...]:
    given = [_as_counts("k", k), _as_counts("n", n), *(_as_real("alpha", a) for a in alpha)]
    try:
        arrays = np.broadcast_arrays(*given)
    except ValueError as error:
        shapes = ", ".join(str(array.shape) for array in given)
        raise InputError(f"shapes {shapes} do not broadcast; give one n and one alpha, or one for each k") from error
    k, n = arrays[:2]
    if (n < 1).any():
        raise InputError(f"n: expected at least 1, got {n.min()}; pass the number of samples drawn")
    wrong = (k < 0) | (k > n)
    if wrong.any():
        raise InputError(f"k: expected 0 <= k <= n, got k={k[wrong][0]} with n={n[wrong][0]}; pass counts")
    for a in arrays[2:]:
        wrong = ~((a > 0.0) & (a < 1.0))
        if wrong.any():
            raise InputError(f"alpha: expected a number strictly between 0 and 1, got {a[wrong][0]}; 0.001 is usual")
    return tuple(arrays)


def _map(function: Callable[..., float], *arrays: npt.NDArray[Any]) -> float | _FloatArray:
    """Apply a scalar function to arrays of one shape; a float if they are scalars."""
    values = [function(*items) for items in zip(*(array.ravel().tolist() for array in arrays), strict=True)]
    return np.array(values, dtype=np.float64).reshape(arrays[0].shape) if arrays[0].shape else values[0]


@overload
def clopper_pearson_lower(k: int, n: int, alpha: float) -> float: ...
@overload
def clopper_pearson_lower(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> float | _FloatArray: ...
def clopper_pearson_lower(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> float | _FloatArray:
    """One-sided lower confidence bound on a proportion, from k successes in n independent trials.

    The p with P(Bin(n, p) >= k) = alpha, rounded down; 0 for k = 0 (Clopper and Pearson 1934). Whatever the true
    proportion, the bound exceeds it with probability at most alpha.

    Args:
        k: Successes, integers in [0, n], any shape that broadcasts with the others.
        n: Trials, integers in [1, 10**9].
        alpha: Allowed failure probability, in (0, 1).

    Returns:
        Float64 array of the broadcast shape, or a float if all arguments are scalars: never above the exact bound, and
        within 4 MARGIN * min(p, 1 - p) and 8 units in the last place of it.

    Raises:
        InputError: A value out of range, NaN, or shapes that do not broadcast.
        InputTypeError: Counts that are not integers, or an alpha that is not a real number.

    >>> f"{clopper_pearson_lower(990, 1000, 0.001):.6f}"
    '0.976036'
    >>> clopper_pearson_lower(0, 10, 0.05)
    0.0
    """
    return _map(_lower, *_inputs(k, n, alpha))


@overload
def clopper_pearson_upper(k: int, n: int, alpha: float) -> float: ...
@overload
def clopper_pearson_upper(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> float | _FloatArray: ...
def clopper_pearson_upper(k: npt.ArrayLike, n: npt.ArrayLike, alpha: npt.ArrayLike) -> float | _FloatArray:
    """One-sided upper confidence bound on a proportion, from k successes in n independent trials.

    The p with P(Bin(n, p) <= k) = alpha, rounded up; 1 for k = n (Clopper and Pearson 1934). Whatever the true
    proportion, the bound is below it with probability at most alpha.

    Args:
        k: Successes, shape and range as for clopper_pearson_lower.
        n: Trials, likewise.
        alpha: Allowed failure probability, likewise.

    Returns:
        As clopper_pearson_lower, but never below the exact bound, nor above 1.

    Raises:
        InputError: A value out of range, NaN, or shapes that do not broadcast.
        InputTypeError: Counts that are not integers, or an alpha that is not a real number.

    >>> f"{clopper_pearson_upper(10, 1000, 0.001):.6f}"
    '0.023964'
    >>> clopper_pearson_upper(10, 10, 0.05)
    1.0
    """
    return _map(_upper, *_inputs(k, n, alpha))


@overload
def binomial_test(k: int, n: int) -> float: ...
@overload
def binomial_test(k: npt.ArrayLike, n: npt.ArrayLike) -> float | _FloatArray: ...
def binomial_test(k: npt.ArrayLike, n: npt.ArrayLike) -> float | _FloatArray:
    """P-value of the exact two-sided test that k successes in n trials came from a fair coin.

    min(1, 2 P(Bin(n, 1/2) >= max(k, n - k))), rounded up (the sign test, Arbuthnot 1710).

    Args:
        k: Successes, integers in [0, n], any shape that broadcasts with n.
        n: Trials, integers in [1, 10**9].

    Returns:
        Float64 array of the broadcast shape, or a float if both are scalars: in (0, 1], never below the exact p-value.

    Raises:
        InputError: A value out of range, or shapes that do not broadcast.
        InputTypeError: Counts that are not integers.

    >>> f"{binomial_test(9, 10):.8f}"
    '0.02148438'
    >>> binomial_test(5, 10)
    1.0
    """
    return _map(_two_sided, *_inputs(k, n))


@overload
def normal_quantile_lower(p: float) -> float: ...
@overload
def normal_quantile_lower(p: npt.ArrayLike) -> float | _FloatArray: ...
def normal_quantile_lower(p: npt.ArrayLike) -> float | _FloatArray:
    """Quantile of the standard normal distribution, rounded down.

    Args:
        p: Probabilities below 1, any shape. NaN and p <= 0 give -inf: no certificate can come of them.

    Returns:
        Float64 array of the same shape, or a float for a scalar: never above the exact quantile, and within
        4 MARGIN * |z| and 8 units in the last place of it; exactly 0.0 for p = 1/2.

    Raises:
        InputError: Some p >= 1, whose quantile would be infinite.
        InputTypeError: p is not a real number.

    >>> f"{normal_quantile_lower(0.975):.6f}"
    '1.959964'
    >>> normal_quantile_lower(0.0)
    -inf
    """
    array = _as_real("p", p)
    if (array >= 1.0).any():
        raise InputError(f"p: expected probabilities below 1, got {array.max()}; lower the bound before you invert it")
    return _map(_quantile, array)
