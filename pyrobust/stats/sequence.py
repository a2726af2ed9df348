"""Krichevsky-Trofimov confidence sequence for a proportion: bounds valid at all sample sizes at once, rounded outward.

A gambler bets on the outcome of each trial. The stakes follow the estimate of the success probability by Krichevsky and
Trofimov (1981), and the pay-out is fair for a coin with success probability p. After A successes and F failures in N
trials, the wealth of this gambler is

    W(p) = Gamma(A + 1/2) Gamma(F + 1/2) / (pi Gamma(N + 1) p^A (1 - p)^F).

If p is the true probability, W is a martingale that starts at 1. The probability that W is ever 1/alpha or more is
therefore at most alpha (Ville, 1939). The set of all p with W(p) < 1/alpha is the confidence sequence. It may be
inspected after any trial, any number of times. Its lower limits may be replaced by their running maximum. Voráček
(2024) uses the sequence for certification.

Let q be A/N, let d be A - N p, and let D(q, p) be the Kullback-Leibler divergence. Then ln W(p) = N D(q, p) - ln(pi N /
2)/2 - h(A) - h(F) - g(N). Here h(x) is the remainder of Stirling's formula for ln Gamma(x + 1/2), and g(N) is its
remainder for ln Gamma(N + 1). Moreover,

    N D = A ln(A / (A - d)) + F ln(F / (F + d)),

and p enters only through d, which Newton's method finds. The rounding error of each term is therefore small relative to
this term. Let S be ln(1/alpha) + ln(pi N / 2)/2 + h(A) + h(F) + g(N). Then W(p) >= 1/alpha means N D >= S. The returned
limit is valid in spite of rounding, because this inequality is tested with a reserve: N D is lowered by _ROUNDING times
the total size of its terms, S is raised by _ROUNDING times the total size of its own terms, and the lowered N D must be
at least the raised S.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from pyrobust.errors import InputError
from pyrobust.stats.arguments import CountArray, FloatArray, as_real, inputs
from pyrobust.stats.decimals import context, log_factorial, pi

# A term is the product of an exact count and a logarithm. The logarithm has relative error at most 8u (u = 2^-53; 4
# units in the last place are numpy's accuracy) plus 1.5u each for rounding a quotient and its numerator; with the
# product and the sum the total is below 16u = 2^-49. The terms of the bound are all positive, with fewer roundings. The
# remaining factor of two allows for a math library that is less accurate than numpy states.
_ROUNDING: Final = 2.0**-48
# Rounding error of a quotient of two-term sums: four roundings, at most 2^-51.
_OUTWARD: Final = 2.0**-50
# Values of N p below this are treated as 0; above it, a quotient by MAX_TRIALS is a normal double.
_SMALLEST: Final = 1e-290
_EXACT_BELOW: Final = 32
# Enveloping series of h and g: truncated after a positive term, each is an upper bound.
_HALF: Final = (1 / 24, -7 / 2880, 31 / 40320, -127 / 215040, 511 / 608256)
_WHOLE: Final = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_MAX_NEWTON: Final = 80
_MAX_PROOFS: Final = 4


@lru_cache(maxsize=1)
def _small_remainders() -> tuple[FloatArray, FloatArray]:
    """Return tables of h(x) and g(x) for x = 0, 1, ..., 31, rounded up; g(0) is not used."""
    half, whole = [], [0.0]
    with localcontext(context()):
        root = (2 * pi()).ln() / 2
        for x in range(_EXACT_BELOW):
            d = Decimal(x)
            power = d * d.ln() - d if x else d
            # Gamma(x + 1/2) = sqrt(pi) (2x)! / (4^x x!)
            gamma = pi().ln() / 2 + log_factorial(2 * x) - log_factorial(x) - x * Decimal(4).ln()
            half.append(math.nextafter(float(power + root - gamma), math.inf))
            if x:
                whole.append(math.nextafter(float(log_factorial(x) - power - root - d.ln() / 2), math.inf))
    return np.array(half), np.array(whole)


def _remainder(x: CountArray, small: FloatArray, series: tuple[float, ...]) -> FloatArray:
    inverse = 1.0 / np.maximum(x, _EXACT_BELOW)
    square, total = inverse * inverse, np.zeros(x.shape)
    for coefficient in reversed(series):
        total = total * square + coefficient
    return np.where(x < _EXACT_BELOW, small[np.minimum(x, _EXACT_BELOW - 1)], total * inverse)


def _bound(successes: CountArray, failures: CountArray, alpha: FloatArray) -> FloatArray:
    """Return an upper bound on the value of N D(q, p) at which W(p) = 1/alpha."""
    trials = successes + failures
    half, whole = _small_remainders()
    remainders = _remainder(successes, half, _HALF) + _remainder(failures, half, _HALF)
    remainders += _remainder(trials, whole, _WHOLE)
    bound: FloatArray = (0.5 * np.log(0.5 * math.pi * trials) + remainders - np.log(alpha)) * (1 + _ROUNDING)
    return bound


def _divergence(successes: FloatArray, failures: FloatArray, a: FloatArray, d: FloatArray) -> tuple[FloatArray, ...]:
    """Return A ln(A / a) and F ln((F + d) / F), where a = N p and d = A - a; their difference is N D."""
    # The smaller of a and d is exact and enters the logarithm.
    small = d <= 0.5 * successes
    gain = np.where(small, -np.log1p(-np.where(small, d, 0.0) / successes), np.log(successes / np.where(small, 1.0, a)))
    return successes * gain, failures * np.log1p(d / np.maximum(failures, 0.5))


def _limit(successes: CountArray, failures: CountArray, alpha: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return N p and A - N p for a lower limit p with a proof of W(p) >= 1/alpha; p = 0 without a proof. A >= 1."""
    bound = _bound(successes, failures, alpha)
    wins, losses = successes.astype(np.float64), failures.astype(np.float64)
    trials = wins + losses
    # As a function of s = ln(A/a), N D is convex, has second derivative A N / F at 0, and is at least
    # A s - F ln(1 + A/F).
    s_max = (bound + losses * np.log1p(wins / np.maximum(losses, 0.5))) / wins
    s = np.minimum(np.sqrt(2 * bound * np.maximum(losses, 0.5) / (wins * trials)), s_max)
    # Converged elements stay as they are, so that a limit does not depend on the other elements of the array.
    moving = np.ones(s.shape, dtype=bool)
    for _ in range(_MAX_NEWTON):
        d = -wins * np.expm1(-s)
        loss = losses * np.log1p(d / np.maximum(losses, 0.5))
        target = bound + 2 * _ROUNDING * (wins * s + loss)
        step = (wins * s - loss - target) * (losses + d) / (trials * d)
        s = np.where(moving, np.minimum(np.maximum(s - step, 0.5 * s), s_max * (1 + 2.0**-40)), s)
        moving &= np.abs(step) > 2.0**-48 * s
        if not moving.any():
            break
    proved = np.zeros(s.shape, dtype=bool)
    for _ in range(_MAX_PROOFS):
        a, d = wins * np.exp(-s), -wins * np.expm1(-s)
        small = d <= 0.5 * wins
        a, d = np.where(small, wins - d, a), np.where(small, d, wins - a)
        usable = a > _SMALLEST
        gain, loss = _divergence(wins, losses, np.where(usable, a, _SMALLEST), d)
        proved = usable & (gain - loss - _ROUNDING * (gain + loss) >= bound)
        if (proved | ~usable).all():
            break
        s = np.where(proved, s, s * (1 + 2.0**-44))
    return np.where(proved, a, 0.0), np.where(proved, d, wins)


_NAMES: Final = ("successes", "trials")


def sequence_lower(successes: npt.ArrayLike, trials: npt.ArrayLike, alpha: npt.ArrayLike) -> FloatArray:
    """Lower limit of the Krichevsky-Trofimov confidence sequence of a proportion.

    The limit is the solution p < A/N of W(p) = 1/alpha, rounded down. For A = 0, it is 0. For any true proportion, the
    probability that the limit exceeds this proportion at any N = 1, 2, 3, ... is at most alpha (Ville, 1939).

    Args:
        successes: A, integers in [0, N]; any shape that broadcasts with trials and alpha.
        trials: N, integers in [1, 10**9].
        alpha: allowed failure probability, in (0, 1).

    Returns:
        Float64 array of the broadcast shape, zero-dimensional for scalars. The result is never above the exact limit p.
        It is below p by at most 2**-35 min(p, 1 - p) + 2**-49 p, except that it is 0 where N p is at most about 1e-290.
        For alpha >= 1e-7, it is below p by at most 2**-40 min(p, 1 - p) + 2**-49 p.

    Raises:
        InputError: a value is NaN or out of range, or the shapes do not broadcast.
        InputTypeError: counts are not integers, or alpha is not a real number.

    >>> f"{sequence_lower(990, 1000, 0.001):.6f}"
    '0.968035'
    >>> sequence_lower([0, 5, 10], 10, 0.05).round(4)
    array([0.    , 0.1176, 0.623 ])
    """
    a, n, level = inputs(successes, trials, alpha, names=_NAMES)
    lower = np.zeros(a.shape)
    nonzero = a > 0
    expected, _ = _limit(a[nonzero], (n - a)[nonzero], level[nonzero])
    lower[nonzero] = expected / n[nonzero] * (1 - _OUTWARD)
    return lower


def sequence_upper(successes: npt.ArrayLike, trials: npt.ArrayLike, alpha: npt.ArrayLike) -> FloatArray:
    """Upper limit of the Krichevsky-Trofimov confidence sequence of a proportion.

    The limit is the solution p > A/N of W(p) = 1/alpha, rounded up. For A = N, it is 1. The limit equals 1 minus the
    lower limit for the failures, but is computed without the cancellation of that subtraction. The lower and the upper
    limit hold together with probability at least 1 - alpha, because both come from the same wealth W.

    Args:
        successes: A, integers in [0, N]; any shape that broadcasts with trials and alpha.
        trials: N, integers in [1, 10**9].
        alpha: allowed failure probability, in (0, 1).

    Returns:
        Float64 array of the broadcast shape, zero-dimensional for scalars. The result is never below the exact limit
        nor above 1. It is as close to the exact upper limit as the result of ``sequence_lower`` is to the exact lower
        limit.

    Raises:
        InputError: a value is NaN or out of range, or the shapes do not broadcast.
        InputTypeError: counts are not integers, or alpha is not a real number.

    >>> f"{sequence_upper(10, 1000, 0.001):.6f}"
    '0.031965'
    >>> sequence_upper([0, 10], 10, 0.05).round(4)
    array([0.377, 1.   ])
    """
    a, n, level = inputs(successes, trials, alpha, names=_NAMES)
    upper = np.ones(a.shape)
    inside = a < n
    successes_inside = a[inside]
    _, excess = _limit((n - a)[inside], successes_inside, level[inside])
    upper[inside] = np.minimum(1.0, (successes_inside + excess) / n[inside] * (1 + _OUTWARD))
    return upper


def _smallest_excluding(trials: CountArray, p: float, alpha: FloatArray) -> CountArray:
    """Find by bisection, approximately, the smallest A > N p with W(p) >= 1/alpha; N + 1 if there is none."""
    below, above = np.floor(trials * p).astype(np.int64), trials + 1
    while (above - below > 1).any():
        a = np.clip((below + above) // 2, 1, trials)
        wins, losses = a.astype(np.float64), (trials - a).astype(np.float64)
        expected = np.minimum(p * trials, wins)
        gain, loss = _divergence(wins, losses, expected, wins - expected)
        reached = gain - loss >= _bound(a, trials - a, alpha)
        unfinished = above - below > 1
        above, below = np.where(unfinished & reached, a, above), np.where(unfinished & ~reached, a, below)
    return above


def _exact_boundary(
    count: CountArray, trials: CountArray, step: int, holds: Callable[[CountArray], npt.NDArray[np.bool_]]
) -> CountArray:
    """Return the smallest count (step 1) or the largest (step -1) that meets ``holds``; N + 1 or -1 if none does.

    ``holds`` must be monotone. The search starts at ``count``, an approximate result.
    """

    def inside(a: CountArray) -> npt.NDArray[np.bool_]:
        return (a >= 0) & (a <= trials) & holds(np.clip(a, 0, trials))

    while (failing := (count >= 0) & (count <= trials) & ~inside(count)).any():
        count = np.where(failing, count + step, count)
    while (passing := inside(count - step)).any():
        count = np.where(passing, count - step, count)
    return count


def sequence_boundary(trials: npt.ArrayLike, p0: float, alpha: float) -> tuple[CountArray, CountArray]:
    """Counts of successes at which the confidence sequence excludes p0.

    Args:
        trials: N, integers in [1, 10**9], any shape.
        p0: threshold, in (0, 1).
        alpha: allowed failure probability of the sequence, in (0, 1).

    Returns:
        Two int64 arrays of N's shape; for a scalar N, zero-dimensional arrays or NumPy scalars. The first holds the
        smallest A for which ``sequence_lower`` is at least p0 (N + 1 if there is none). The second holds the largest A
        for which ``sequence_upper`` is below p0 (-1 if there is none).

    Raises:
        InputError: a value is out of range.
        InputTypeError: N is not an integer, or p0 or alpha is not a number.

    >>> sequence_boundary([10, 100, 1000], 0.5, 0.001)
    (array([ 11,  72, 573]), array([ -1,  28, 427]))
    """
    _, n, level = inputs(0, trials, alpha, names=_NAMES)
    p = as_real("p0", p0)
    if p.ndim or not 0.0 < p < 1.0:
        raise InputError("p0", "one number in (0, 1)", p0)

    above = _smallest_excluding(n, float(p), level)
    above = _exact_boundary(above, n, 1, lambda a: sequence_lower(a, n, level) >= p)
    below = n - _smallest_excluding(n, 1.0 - float(p), level)
    below = _exact_boundary(below, n, -1, lambda a: sequence_upper(a, n, level) < p)
    return above, below
