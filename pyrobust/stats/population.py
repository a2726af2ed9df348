"""Confidence sequence for a finite population that is sampled without replacement, rounded outward.

Of N examples, K succeed. After n examples in random order, with A successes and F failures, the probability of their
sequence of outcomes is

    P(K) = K! / (K - A)! * (N - K)! / (N - K - F)! * (N - n)! / N!.

The Krichevsky-Trofimov mixture Q = Gamma(A + 1/2) Gamma(F + 1/2) / (pi Gamma(n + 1)) is the probability of the same
sequence if K is drawn from a beta-binomial prior. For the true K, W(K) = Q / P(K) is a test martingale: it starts at 1,
and the probability that it is ever 1/alpha or more is at most alpha (Ville, 1939). The set of all K with W(K) < 1/alpha
is the confidence sequence (Waudby-Smith and Ramdas, "Confidence sequences for sampling without replacement", 2020). It
may be inspected after any example, any number of times. At n = N, it contains only the true K. P is log-concave in K,
so the confidence sequence is an interval at each n. The ends of this interval are found by bisection, which starts at
the K that maximises P. This K is the integer part of A (N + 1) / n.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from pyrobust.errors import InputError
from pyrobust.stats.arguments import CountArray, FloatArray, as_counts, inputs

# Relative error of a logarithm of the gamma function; scipy's is accurate to a few units in the last place (2^-53).
_ROUNDING: Final = 2.0**-47


def population_sequence(
    successes: npt.ArrayLike, trials: npt.ArrayLike, population: npt.ArrayLike, alpha: npt.ArrayLike
) -> tuple[CountArray, CountArray]:
    """Bounds on the number of successes in a finite population, from members seen in random order, valid at all times.

    For every population, with probability at least 1 - alpha, the bounds after 1, 2, ..., N members all contain the
    number of successes. The order has to be random, with all permutations equally likely. One may inspect the bounds
    and stop at any time.

    Args:
        successes: A, integers in [0, n]; any shape that broadcasts with the other arguments.
        trials: n, the number of members seen, integers in [1, N].
        population: N, the size of the population, integers in [1, 10**9].
        alpha: allowed failure probability, in (0, 1).

    Returns:
        (lower, upper): bounds on the number of successes in the population, both in [A, N - n + A]. They are int64
        arrays of the broadcast shape; for scalars, they are zero-dimensional arrays or NumPy scalars. The bounds are
        never narrower than the exact bounds.

    Raises:
        InputError: a value is NaN or out of range, or the shapes do not broadcast.
        InputTypeError: counts are not integers, or alpha is not a real number.

    >>> lower, upper = population_sequence([8, 80, 800], [10, 100, 1000], 1000, 0.05)
    >>> lower.tolist(), upper.tolist()
    ([345, 656, 800], [990, 904, 800])
    """
    sizes = as_counts("population", population)
    seen, won = as_counts("trials", trials), as_counts("successes", successes)
    try:
        sizes, won, seen = np.broadcast_arrays(sizes, won, seen)
    except ValueError:
        raise InputError(
            "population", problem=f"shape {sizes.shape} does not broadcast with successes and trials"
        ) from None
    if (sizes < seen).any():
        wrong = int((sizes < seen).argmax())
        raise InputError("population", "at least trials", f"{sizes.flat[wrong]} with trials={seen.flat[wrong]}")
    a, n, level = inputs(won, seen, alpha, names=("successes", "trials"))
    total = np.broadcast_to(sizes, a.shape)
    f = n - a
    # a (N + 1) is at most 10^18.
    likeliest = np.minimum(a * (total + 1) // n, total - f)
    return (
        _last_open(likeliest, a - 1, a, f, total, level),
        _last_open(likeliest, total - f + 1, a, f, total, level),
    )


def _last_open(
    inside: CountArray, outside: CountArray, a: CountArray, f: CountArray, total: CountArray, alpha: FloatArray
) -> CountArray:
    """Return the last K from ``inside`` towards ``outside`` that ``_excluded`` does not exclude, found by bisection."""
    while (np.abs(outside - inside) > 1).any():
        middle = (inside + outside) // 2
        excluded = _excluded(np.clip(middle, a, total - f), a, f, total, alpha)
        open_ = np.abs(outside - inside) > 1
        outside, inside = np.where(open_ & excluded, middle, outside), np.where(open_ & ~excluded, middle, inside)
    return inside


def _excluded(
    k: CountArray, a: CountArray, f: CountArray, total: CountArray, alpha: FloatArray
) -> npt.NDArray[np.bool_]:
    """Whether W(k) >= 1/alpha is certain in spite of rounding errors; k must be in [A, N - F]."""
    n, others = a + f, total - k
    terms = np.broadcast_arrays(
        gammaln(a + 0.5),
        gammaln(f + 0.5),
        -np.float64(math.log(math.pi)),
        -gammaln(n + 1.0),
        gammaln(k - a + 1.0),
        -gammaln(k + 1.0),
        gammaln(others - f + 1.0),
        -gammaln(others + 1.0),
        gammaln(total + 1.0),
        -gammaln(total - n + 1.0),
        np.log(alpha),
    )
    error = _ROUNDING * (1 + np.sum(np.abs(terms), axis=0))
    certain: npt.NDArray[np.bool_] = np.sum(terms, axis=0) >= error
    return certain
