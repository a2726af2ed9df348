"""A confidence sequence for a proportion: bounds that hold at all sample sizes at once, rounded outward.

A gambler who bets on each trial with the odds of Krichevsky and Trofimov (1981) against a coin of probability p owns,
after A successes and F failures of N trials, the fortune

    W(p) = Gamma(A + 1/2) Gamma(F + 1/2) / (pi Gamma(N + 1) p^A (1 - p)^F).

If p is the truth, W is a martingale that starts at 1, so that it ever reaches 1/alpha with probability at most alpha
(Ville 1939). All p with W(p) < 1/alpha form the confidence sequence; it may be looked at after any trial, as often as
one likes, and its lower limits may be replaced by their running maximum (Voráček 2024 certifies by it).

With q = A/N and D(q, p) the Kullback-Leibler divergence, ln W(p) = N D(q, p) - ln(pi N / 2)/2 - h(A) - h(F) - g(N),
where h and g are what Stirling's formula leaves of ln Gamma(x + 1/2) and ln Gamma(N + 1). At A = N p + d

    N D = A ln(A / (A - d)) + F ln(F / (F + d)),

and every rounding is small against its own term, because p enters by d alone. Newton's method finds d; what is returned
has been proved: N D, lowered by _ROUNDING times the size of its terms, is at least the bound, raised likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats.arguments import MAX_TRIALS, CountArray, FloatArray, as_real, inputs
from pyrobust.stats.decimals import context, log_factorial, pi

# A term is a product of a count, exact, and a logarithm, of relative error at most 8u (u = 2^-53, 4 units in the last
# place, numpy's promise) plus 1.5u each for the roundings of a quotient and of its numerator; with the product and the
# sum that is below 16u = 2^-49. The terms of the bound are all positive, with fewer roundings. The other factor of two
# is for a library that keeps its promise less well.
_ROUNDING: Final = 2.0**-48
# A quotient of sums of two: four roundings are 2^-51.
_OUTWARD: Final = 2.0**-50
# Below it p is as good as 0, and above it a quotient by MAX_TRIALS keeps all its digits.
_SMALLEST: Final = 1e-290
_EXACT_BELOW: Final = 32
# Both series envelop their function: cut off after a positive term they are above it.
_HALF: Final = (1 / 24, -7 / 2880, 31 / 40320, -127 / 215040, 511 / 608256)
_WHOLE: Final = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_MAX_NEWTON: Final = 80
_MAX_PROOFS: Final = 4


@lru_cache(maxsize=1)
def _small_remainders() -> tuple[FloatArray, FloatArray]:
    """h(x) and g(x) of x = 0, 1, ..., 31, rounded up; g(0) is not used."""
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
    """Upper bound of what N D(q, p) has to reach for W(p) to reach 1/alpha."""
    trials = successes + failures
    half, whole = _small_remainders()
    remainders = _remainder(successes, half, _HALF) + _remainder(failures, half, _HALF)
    remainders += _remainder(trials, whole, _WHOLE)
    bound: FloatArray = (0.5 * np.log(0.5 * math.pi * trials) + remainders - np.log(alpha)) * (1 + _ROUNDING)
    return bound


def _divergence(successes: FloatArray, failures: FloatArray, a: FloatArray, d: FloatArray) -> tuple[FloatArray, ...]:
    """The two terms of N D at N p = a = A - d: the gain, and the loss to be subtracted from it."""
    # From the smaller of a and d, the one that is exact.
    small = d <= 0.5 * successes
    gain = np.where(small, -np.log1p(-np.where(small, d, 0.0) / successes), np.log(successes / np.where(small, 1.0, a)))
    return successes * gain, failures * np.log1p(d / np.maximum(failures, 0.5))


def _limit(successes: CountArray, failures: CountArray, alpha: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For A >= 1: a = N p and d = A - a, where p is below A/N and W(p) >= 1/alpha is proved; a = 0 where none is."""
    bound = _bound(successes, failures, alpha)
    wins, losses = successes.astype(np.float64), failures.astype(np.float64)
    trials = wins + losses
    # In s = ln(A/a) N D is convex, D'' = A N / F at 0, and at least A s - F ln(1 + A/F).
    most = (bound + losses * np.log1p(wins / np.maximum(losses, 0.5))) / wins
    s = np.minimum(np.sqrt(2 * bound * np.maximum(losses, 0.5) / (wins * trials)), most)
    # One that has arrived stays, so that no limit depends on what else is computed with it.
    moving = np.ones(s.shape, dtype=bool)
    for _ in range(_MAX_NEWTON):
        d = -wins * np.expm1(-s)
        loss = losses * np.log1p(d / np.maximum(losses, 0.5))
        target = bound + 2 * _ROUNDING * (wins * s + loss)
        step = (wins * s - loss - target) * (losses + d) / (trials * d)
        s = np.where(moving, np.minimum(np.maximum(s - step, 0.5 * s), most * (1 + 2.0**-40)), s)
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

    The p < A/N with W(p) = 1/alpha, rounded down; 0 for A = 0. Whatever the true proportion, the probability that the
    limit at any N = 1, 2, 3, ... exceeds it is at most alpha, for all N together (Ville 1939).

    Args:
        successes: A, integers in [0, N], any shape that broadcasts with the others.
        trials: N, integers in [1, 10**9].
        alpha: allowed failure probability, in (0, 1).

    Returns:
        Float64 array of the broadcast shape, of no dimension for scalars: never above the exact limit p, and within
        2**-35 min(p, 1 - p) + 2**-49 p of it; for alpha >= 1e-7 within 2**-40 min(p, 1 - p) + 2**-49 p.

    Raises:
        InputError: A value out of range, NaN, or shapes that do not broadcast.
        InputTypeError: Counts that are not integers, or an alpha that is not a real number.

    >>> f"{sequence_lower(990, 1000, 0.001):.6f}"
    '0.968035'
    >>> sequence_lower([0, 5, 10], 10, 0.05).round(4)
    array([0.    , 0.1176, 0.623 ])
    """
    a, n, level = inputs(successes, trials, alpha, names=_NAMES)
    lower = np.zeros(a.shape)
    some = a > 0
    expected, _ = _limit(a[some], (n - a)[some], level[some])
    lower[some] = expected / n[some] * (1 - _OUTWARD)
    return lower


def sequence_upper(successes: npt.ArrayLike, trials: npt.ArrayLike, alpha: npt.ArrayLike) -> FloatArray:
    """Upper limit of the Krichevsky-Trofimov confidence sequence of a proportion.

    The p > A/N with W(p) = 1/alpha, rounded up; 1 for A = N. That is 1 minus the lower limit of the failures, without
    the digits that the subtraction would cost. Either limit alone holds with probability at least 1 - alpha; both at
    once do so too, because W is one fortune for both sides.

    Args:
        successes: A, shape and range as for sequence_lower.
        trials: N, likewise.
        alpha: allowed failure probability, likewise.

    Returns:
        As sequence_lower, but never below the exact limit, nor above 1.

    Raises:
        InputError: A value out of range, NaN, or shapes that do not broadcast.
        InputTypeError: Counts that are not integers, or an alpha that is not a real number.

    >>> f"{sequence_upper(10, 1000, 0.001):.6f}"
    '0.031965'
    >>> sequence_upper([0, 10], 10, 0.05).round(4)
    array([0.377, 1.   ])
    """
    a, n, level = inputs(successes, trials, alpha, names=_NAMES)
    upper = np.ones(a.shape)
    some = a < n
    wins = a[some]
    _, more = _limit((n - a)[some], wins, level[some])
    upper[some] = np.minimum(1.0, (wins + more) / n[some] * (1 + _OUTWARD))
    return upper


def _least_excluding(trials: CountArray, p: float, alpha: FloatArray) -> CountArray:
    """About the least A > N p with W(p) >= 1/alpha, N + 1 where there is none, by bisection."""
    below, above = np.floor(trials * p).astype(np.int64), trials + 1
    while (above - below > 1).any():
        a = np.clip((below + above) // 2, 1, trials)
        wins, losses = a.astype(np.float64), (trials - a).astype(np.float64)
        expected = np.minimum(p * trials, wins)
        gain, loss = _divergence(wins, losses, expected, wins - expected)
        reached = gain - loss >= _bound(a, trials - a, alpha)
        open_ = above - below > 1
        above, below = np.where(open_ & reached, a, above), np.where(open_ & ~reached, a, below)
    return above


def _settle(
    count: CountArray, trials: CountArray, step: int, holds: Callable[[CountArray], npt.NDArray[np.bool_]]
) -> CountArray:
    """The last count in [0, N], going by -step from where it holds, at which it holds; just outside where none does."""

    def inside(a: CountArray) -> npt.NDArray[np.bool_]:
        return (a >= 0) & (a <= trials) & holds(np.clip(a, 0, trials))

    while (wrong := (count >= 0) & (count <= trials) & ~inside(count)).any():
        count = np.where(wrong, count + step, count)
    while (more := inside(count - step)).any():
        count = np.where(more, count - step, count)
    return count


def sequence_boundary(trials: npt.ArrayLike, p0: float, alpha: float) -> tuple[CountArray, CountArray]:
    """Counts at which the confidence sequence leaves p0: what a lattice of counts is cut by.

    Args:
        trials: N, integers in [1, 10**9], any shape.
        p0: probability to be decided on, in (0, 1).
        alpha: of the sequence, in (0, 1).

    Returns:
        Two int64 arrays of N's shape: the least A whose sequence_lower is at least p0, N + 1 where there is none; and
        the greatest A whose sequence_upper is below p0, -1 where there is none.

    Raises:
        InputError: A value out of range.
        InputTypeError: N is not an integer, or p0 or alpha is not a number.

    >>> sequence_boundary([10, 100, 1000], 0.5, 0.001)
    (array([ 11,  72, 573]), array([ -1,  28, 427]))
    """
    _, n, level = inputs(0, trials, alpha, names=_NAMES)
    p = as_real("p0", p0)
    if p.ndim or not 0.0 < p < 1.0:
        raise InputError(f"p0: expected one number strictly between 0 and 1, got {p0}")

    least = _least_excluding(n, float(p), level)
    least = _settle(least, n, 1, lambda a: sequence_lower(a, n, level) >= p)
    greatest = n - _least_excluding(n, 1.0 - float(p), level)
    greatest = _settle(greatest, n, -1, lambda a: sequence_upper(a, n, level) < p)
    return least, greatest


def looks(n_max: int) -> tuple[int, ...]:
    """Sample sizes at which an image is judged: a fixed sequence, so that no decision depends on a batch size.

    Each is about 1/16 further than the one before, and at least 16 further; the last is n_max. A sequence may be looked
    at as often as one likes, so this costs nothing in alpha, and in samples at most what a decision waits for its look.

    Args:
        n_max: last sample size, in [1, 10**9].

    Returns:
        Increasing integers, the last one n_max.

    Raises:
        InputError: n_max out of range.
        InputTypeError: n_max is not an integer.

    >>> looks(100)
    (16, 32, 48, 64, 80, 96, 100)
    >>> len(looks(100_000))
    115
    """
    if isinstance(n_max, bool) or not isinstance(n_max, int | np.integer):
        raise InputTypeError(f"n_max: expected an integer, got {n_max!r}")
    if not 1 <= n_max <= MAX_TRIALS:
        raise InputError(f"n_max: expected 1 to {MAX_TRIALS}, got {n_max}")
    found, n = [], 16
    while n < n_max:
        found.append(n)
        n += max(16, n // 16)
    return (*found, int(n_max))
