"""Confidence interval for the mean of numbers in [0, 1] that come in a fixed number of independent clusters.

For cluster i, let w_i be size_i / max(size). Let s_i be the sum of the cluster's numbers divided by max(size), and let
mu_i be the expectation of the mean of these numbers. The estimand is t = sum(w_i mu_i) / sum(w_i), the mean over all
numbers. To test "t >= u", a gambler starts with a wealth of 1, and for each cluster bets a share g in [0, 1] of the
wealth against "t >= u". The bet on cluster i multiplies the wealth by

    f_i(u) = 1 - g (s_i - w_i u) / (1 - u) = (1 - g) + g (1 - w_i) + g (w_i - s_i) / (1 - u) >= 0.

The clusters are independent. The expectation of the product of all f_i(u) is therefore the product of the expectations
1 - g w_i (mu_i - u) / (1 - u). By the inequality of arithmetic and geometric means, this product is at most

    (1 - g sum(w_i (mu_i - u)) / (n (1 - u)))^n,

where n is the number of clusters. If t >= u, this expression is at most 1, and so is the expected wealth. The clusters
need not have the same distribution, and their order does not matter. The bound of 1 also holds for a mixture of bets
with weights fixed in advance. By Markov's inequality, the wealth of the mixture is therefore at least 1/alpha with
probability at most alpha. With constant bets, this wealth is the hedged capital of Waudby-Smith and Ramdas, "Estimating
means of bounded random variables by betting" (2024). Each f_i increases in u.

By the same argument with g = 1, if t >= u, the probability that all numbers are zero is at most p0(u) = prod (1 - u) /
(1 - u + w_i u). For clusters of equal size, p0(u) is (1 - u)^n, the probability that n independent numbers in {0, 1}
with mean u are all zero. When all numbers are zero, the test rejects "t >= u" if p0(u) <= alpha. Otherwise, the test
rejects "t >= u" if p0(u) < alpha and the wealth is at least 1 / (alpha - p0(u)). The test's total error is at most
alpha. So when all numbers are zero, the test is exact: the bound is the u with p0(u) = alpha. Up to rounding, the code
returns this u for clusters of equal size. For other sizes, it returns this u if it lies in [8.4e-7, 1 - 8.4e-7], and
otherwise a larger bound, at most 1.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from pyrobust.checks import array, probability
from pyrobust.errors import InputError
from pyrobust.stats.binomial import clopper_pearson_upper

_Floats = npt.NDArray[np.float64]

# Relative error of a sum of logarithms, each of a sum of three non-negative terms: numpy's logarithms are accurate to a
# few units in the last place (2^-53), and pairwise summation of up to 2^30 terms adds a few more.
_ROUNDING: Final = 2.0**-45
# Number of logarithms computed at once.
_BLOCK: Final = 1 << 21
# Cells of u, in each of which the bets are constant; the last cell extends to 1.
_EDGES: Final[_Floats] = expit(np.linspace(-14.0, 14.0, 281))
# Bets for variances of 1, 1/2, ..., 1/256 times the largest variance, u (1 - u), and their weights.
_HALVINGS: Final = np.arange(9)
_WEIGHTS: Final[_Floats] = (1 / (_HALVINGS + 1.5)) / np.sum(1 / (_HALVINGS + 1.5))


def bounded_mean_interval(totals: npt.ArrayLike, sizes: npt.ArrayLike, alpha: float) -> tuple[float, float]:
    """Two-sided confidence interval for the mean of numbers in [0, 1] that come in independent clusters.

    Numbers within a cluster may depend on each other in any way, and the clusters may differ in distribution. The sizes
    are fixed, or random and independent of the numbers. For every number of clusters, the interval covers the mean with
    probability at least 1 - alpha. The proof is in the docstring of the module.

    Args:
        totals: sum of the numbers of each cluster, [N], in [0, size]. The sums are taken as exact.
        sizes: how many numbers each cluster has, above 0; [N], or one size for all clusters.
        alpha: upper bound on the probability that the interval misses, in (0, 1).

    Returns:
        (lower, upper). If all numbers are 0 and all sizes are equal, the interval is (0, 1 - (alpha / 2)^(1/N)), as for
        N binary numbers.

    Raises:
        InputError: there are no clusters, a value is out of range or not finite, or the shapes differ.
        InputTypeError: values that are not numbers.

    >>> lower, upper = bounded_mean_interval([0.0] * 100, 1, 0.05)
    >>> lower, round(upper, 5)
    (0.0, 0.03622)
    >>> lower, upper = bounded_mean_interval([2.0, 3.0] * 50, 5, 0.05)
    >>> round(lower, 2), round(upper, 2)
    (0.47, 0.53)
    """
    sums, counts = array("totals", totals), array("sizes", sizes)
    if sums.ndim != 1 or not len(sums):
        raise InputError("totals", "a sequence of at least one number", f"shape {list(sums.shape)}")
    if counts.shape not in ((), sums.shape):
        raise InputError("sizes", f"one, or one for each of the {len(sums)} totals", list(counts.shape))
    counts = np.broadcast_to(counts, sums.shape)
    if not (np.isfinite(counts).all() and (counts > 0).all()):
        raise InputError("sizes", "finite numbers above 0")
    if not ((sums >= 0) & (sums <= counts)).all():
        wrong = int((~((sums >= 0) & (sums <= counts))).argmax())
        raise InputError("totals", "0 <= total <= size", f"{sums[wrong]} of {counts[wrong]} at index {wrong}")
    half = probability("alpha", alpha, "0.05 is usual") / 2
    upper = _upper(sums, counts - sums, counts, half)
    mirrored = _upper(counts - sums, sums, counts, half)
    lower = 0.0 if mirrored == 1 else max(0.0, math.nextafter(1 - mirrored, 0.0))
    return lower, upper


def _upper(ones: _Floats, zeros: _Floats, sizes: _Floats, alpha: float) -> float:
    """Return the least u found such that the test is proved to reject "t >= v" for every v above u."""
    n, largest = len(sizes), float(sizes.max())
    if not zeros.any():
        return 1.0
    if not ones.any() and (sizes == largest).all():
        return clopper_pearson_upper(0, n, alpha)
    rows, times = np.unique(np.stack([zeros, sizes], axis=1), axis=0, return_counts=True)
    terms = rows[:, 0] / largest, (largest - rows[:, 1]) / largest, rows[:, 1] / largest, times.astype(np.float64)
    nothing = not ones.any()
    block = max(1, _BLOCK // (len(rows) * len(_HALVINGS)))
    inside = -1
    for stop in range(len(_EDGES), 0, -block):
        cells = np.arange(max(0, stop - block), stop)
        kept = ~_rejected(_EDGES[cells], _EDGES[cells], terms, n, alpha, nothing)
        if kept.any():
            inside = int(cells[kept][-1])
            break
    if inside == len(_EDGES) - 1:
        return 1.0
    if inside < 0:
        return float(_EDGES[0])
    low, high, bets_of = float(_EDGES[inside]), float(_EDGES[inside + 1]), _EDGES[[inside]]
    for _ in range(60):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if _rejected(np.array([middle]), bets_of, terms, n, alpha, nothing)[0]:
            high = middle
        else:
            low = middle
    return high


def _rejected(
    u: _Floats, edges: _Floats, terms: tuple[_Floats, ...], n: int, alpha: float, nothing: bool
) -> npt.NDArray[np.bool_]:
    """Return, for each of K cells, whether its bets certainly reject "t >= u"; the cells start at ``edges`` [K].

    A cell is an interval of u in which the bets are constant. If "t >= u" is rejected for one u, it is also rejected
    for all larger u in the same cell.
    """
    zeros, slack, weights, times = terms
    odds = u / (1 - u)
    log_p0 = -np.sum(np.log1p(weights * odds[:, None]) * times, axis=1) * (1 - _ROUNDING) + _ROUNDING
    if nothing:
        certain: npt.NDArray[np.bool_] = log_p0 <= math.log(alpha) - _ROUNDING
        return certain
    margin = alpha - np.exp(log_p0) * (1 + _ROUNDING)  # grows with u
    scale = np.sqrt(2 * (math.log(1 / alpha) + 1) * (1 - edges) / (n * edges))
    bets = np.minimum(1.0, scale[:, None] * 2 ** (_HALVINGS / 2))[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = np.log((1 - bets) + bets * slack + bets * (zeros / (1 - u)[:, None])[:, None, :]) * times
        lost = np.isneginf(growth).any(axis=2)
        wealth = np.sum(growth, axis=2) - _ROUNDING * (1 + np.sum(np.abs(growth), axis=2))
        wealth = np.where(lost, -np.inf, wealth) + np.log(_WEIGHTS)
        peak = wealth.max(axis=1)
        total = peak + np.log(np.exp(wealth - peak[:, None]).sum(axis=1)) + np.log(np.maximum(margin, 0.0))
    rejected: npt.NDArray[np.bool_] = (margin > alpha * _ROUNDING) & (total >= 2.0**-40)
    return rejected
