"""Confidence bounds on a prevalence that depends on three binomial proportions, by test inversion.

A prevalence p and the proportions behind three independent counts satisfy one of

    p = q v + (1 - q) m        q: share of positive verdicts; v, m: share of successes among positive and negative ones
    q = p s + (1 - p) f        s: sensitivity, f = 1 - specificity, from labels of other examples.

At a parameter (q, a, b), each count has the exact p-value P_i of the test that rejects where the count speaks for a
smaller p. Under that parameter the z_i = Phi^-1(P_i) are independent, or independent given the verdicts, and none is
stochastically smaller than a normal variable, so that the weighted test (Stouffer et al., 1949; Liptak, 1958)

    c_1 z_1 + c_2 z_2 + c_3 z_3 < Phi^-1(level) sqrt(c_1^2 + c_2^2 + c_3^2)

rejects the true parameter with probability at most the level, for all weights c_i >= 0 that depend on the parameter and
on planned sample sizes alone. The bound is the largest p of any parameter that is not rejected: it covers at every
sample size. With the standard errors that the counts contribute to p as weights, the left side is, for large samples,
the same at all parameters with one p: the maximum over the nuisance parameters then costs nothing, and the bound tends
to Wald's. For small samples it is wider: three counts are discrete, and the worst nuisance parameters count.

Only parameters in a box of three Clopper-Pearson intervals are examined; alpha pays for the box (Berger and Boos,
1994). Its a and b are divided into cells and q into blocks, with weights constant in each. A cell's z_2 and z_3 are
taken at the end that rejects least, its p at the end where it is largest, so that the maximum over the cell is a proved
one; this costs about 2 % of the width. The q of a block that are not rejected follow from a table of z_1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.stats import clopper_pearson_lower, clopper_pearson_upper

FloatArray: TypeAlias = npt.NDArray[np.float64]

#: Successes and trials of one count.
Count: TypeAlias = tuple[int, int]

#: Largest number of trials; the tests compare binomial tails with exact arithmetic up to it.
MAX_TRIALS: Final = 10**7

# Shares of alpha for the box: for q, and for each of a and b at the end towards 1/2 and at the other end.
_BOX_VERDICTS: Final = 0.004
_BOX_INNER: Final = 0.05
_BOX_OUTER: Final = 0.004
#: Share of alpha that is left for the test of each side.
TEST_SHARE: Final = (1 - _BOX_VERDICTS - 2 * (_BOX_INNER + _BOX_OUTER)) / 2

# Relative margin above scipy's incomplete beta function, far above its error, and the margin of sums of z values.
_TAIL_MARGIN: Final = 1e-6
_SUM_MARGIN: Final = 1e-9
# Widths in units of the standard error of arcsin(sqrt(p)), 1 / (2 sqrt(n)): of cells, and of blocks of q.
_CELL: Final = 0.04
_BLOCK: Final = 0.5
# Entries of the table of z_1 in one block.
_TABLE: Final = 48
# A stratum with fewer expected labels has no weight.
_FEWEST_LABELS: Final = 4.0
# Nor has a count with fewer expected successes or failures: it may well be 0, which rejects nothing at any weight.
_FEWEST_EVENTS: Final = 2.0


def _partition(trials: float, step: float) -> FloatArray:
    """Ends of the cells that divide [0, 1] evenly in arcsin(sqrt(p)), about step / (2 sqrt(trials)) apart."""
    cells = max(8, math.ceil(math.pi * math.sqrt(trials) / step))
    ends: FloatArray = np.sin(np.arange(cells + 1) * (math.pi / (2 * cells))) ** 2
    ends[-1] = 1.0
    return ends


def deviation(p: FloatArray, trials: float) -> FloatArray:
    """Standard error of a share of trials, and 0 where few events are expected."""
    return np.asarray(np.where(trials * np.minimum(p, 1 - p) >= _FEWEST_EVENTS, np.sqrt(p * (1 - p) / trials), 0.0))


def z_upper(count: Count, p: FloatArray, greater: bool) -> FloatArray:
    """Upper bounds on Phi^-1 of P(Bin(n, p) >= k) if ``greater``, else of P(Bin(n, p) <= k)."""
    k, n = count
    if (k == 0) if greater else (k == n):
        return np.full(p.shape, np.inf)
    if not greater:
        k, p = n - k, 1.0 - p
    tail = np.minimum(special.betainc(k, n - k + 1, p) * (1 + _TAIL_MARGIN), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Where the tail underflows, its bound exp(-n D(k/n, p)) (Chernoff, 1952) does not.
        divergence = special.rel_entr(k / n, p) + special.rel_entr(1 - k / n, 1 - p)
        far = (p < k / n) & (tail < 1e-280)
        z = special.ndtri_exp(np.where(far, -n * divergence * (1 - _TAIL_MARGIN), np.log(tail)))
    return np.asarray(np.where(np.isfinite(z), z + _SUM_MARGIN * (1 + np.abs(z)), z))


def box(count: Count, below: float, above: float) -> tuple[float, float]:
    """Clopper-Pearson bounds that miss with probability at most ``below`` and ``above``; [0, 1] without trials."""
    k, n = count
    if n == 0:
        return 0.0, 1.0
    return float(clopper_pearson_lower(k, n, below)), float(clopper_pearson_upper(k, n, above))


def high_box(count: Count, alpha: float) -> tuple[float, float]:
    """Interval of the box for a proportion that is usually above 1/2."""
    return box(count, alpha * _BOX_INNER, alpha * _BOX_OUTER)


def low_box(count: Count, alpha: float) -> tuple[float, float]:
    """Interval of the box for a proportion that is usually below 1/2."""
    return box(count, alpha * _BOX_OUTER, alpha * _BOX_INNER)


class _Axis:
    """Cells of one nuisance parameter inside the box: ends, middles and largest z values."""

    def __init__(self, count: Count, inside: tuple[float, float], planned: float, greater: bool) -> None:
        if count[1] == 0:  # one cell, rejected nowhere that its stratum has weight
            self.lower, self.upper, self.middle = np.zeros(1), np.ones(1), np.full(1, 0.5)
        else:
            ends = _partition(planned, _CELL)
            first = max(int(np.searchsorted(ends, inside[0], side="right")) - 1, 0)
            last = min(int(np.searchsorted(ends, inside[1], side="left")), len(ends) - 1)
            # Weights belong to whole cells, whatever the box cuts off them.
            left, right = ends[first:last], ends[first + 1 : last + 1]
            self.middle = 0.5 * (left + right)
            self.lower, self.upper = np.maximum(left, inside[0]), np.minimum(right, inside[1])
        # Finite values beyond every threshold, so that a product with weight 0 is 0.
        self.z = np.clip(z_upper(count, self.upper if greater else self.lower, greater), -1e9, 1e9)


#: At a block's middle: slope dp/dq (up to a factor common to all three) and weights of a and b, each [J, K], and where
#: p rises with q.
_Weights: TypeAlias = Callable[[float], tuple[FloatArray, FloatArray, FloatArray, npt.NDArray[np.bool_]]]
#: Largest p in each cell for q between two arrays [J, K]; -1 where the cell has none.
_Largest: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]


def _maximum(verdicts: Count, a: _Axis, b: _Axis, weights: _Weights, largest: _Largest, alpha: float) -> float:
    """Largest p of the parameters that are not rejected, or -1 if all are."""
    critical = -float(special.ndtri(alpha * TEST_SHARE)) * (1 + _SUM_MARGIN)
    level = alpha * _BOX_VERDICTS / 2
    lower, upper = box(verdicts, level, level)
    ends = _partition(verdicts[1], _BLOCK)
    best = -1.0
    for left, right in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        low, high = max(left, lower), min(right, upper)
        if low > high:
            continue
        middle = 0.5 * (left + right)
        slope, c2, c3, rising = weights(middle)
        c1 = slope * (0.0 if left == 0.0 or right == 1.0 else math.sqrt(middle * (1 - middle) / verdicts[1]))
        others, size = c2 * a.z[:, None] + c3 * b.z, c2 * np.abs(a.z)[:, None] + c3 * np.abs(b.z)
        # Not rejected: c1 z_1 >= threshold.
        threshold = -critical * np.sqrt(c1 * c1 + c2 * c2 + c3 * c3) - others - _SUM_MARGIN * size - 1e-300
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.where(c1 > 0, threshold / c1, np.where(threshold <= 0, -np.inf, np.inf))
        points = np.linspace(low, high, _TABLE + 1)
        points[-1] = high
        # Entry i holds for q in [points[i], points[i+1]]: its largest z_1. Where p rises with q, z_1 falls with q and
        # entries 0 to up - 1 are kept; elsewhere it rises, and entries from down on are kept.
        falling = z_upper(verdicts, points[:-1], greater=False)
        climbing = z_upper(verdicts, points[1:], greater=True)
        impossible = needed == np.inf
        up = np.where(impossible, 0, np.searchsorted(-falling, -needed, side="right"))
        down = np.where(impossible, _TABLE, np.searchsorted(climbing, needed, side="left"))
        kept = np.where(rising, up > 0, down < _TABLE)
        if kept.any():
            p = largest(np.where(rising, low, points[down]), np.where(rising, points[up], high))
            best = max(best, float(np.where(kept, p, -1.0).max()))
    return best


def upper_from_run(
    verdicts: Count,
    positive: Count,
    negative: Count,
    alpha: float,
    planned: Callable[[float], tuple[float, float]],
    total: int,
    usual: bool = True,
) -> float:
    """Upper bound on p = q v + (1 - q) m; misses with probability at most alpha/2, box included by its share.

    ``planned`` has the expected numbers of labels at q, ``total`` their planned sum; weights may not depend on the
    numbers drawn, which depend on the verdicts. ``usual``: v is usually above 1/2 and m below it.
    """
    first, second = (high_box, low_box) if usual else (low_box, high_box)
    v = _Axis(positive, first(positive, alpha), total, greater=False)
    m = _Axis(negative, second(negative, alpha), total, greater=False)
    difference = v.middle[:, None] - m.middle

    def weights(q: float) -> tuple[FloatArray, FloatArray, FloatArray, npt.NDArray[np.bool_]]:
        of_v, of_m = planned(q)
        ones = np.ones(difference.shape)
        c2 = ones * (q * deviation(v.middle, of_v)[:, None] if of_v >= _FEWEST_LABELS else 0.0)
        c3 = ones * ((1 - q) * deviation(m.middle, of_m) if of_m >= _FEWEST_LABELS else 0.0)
        if of_v < _FEWEST_LABELS or of_m < _FEWEST_LABELS:
            # The stratum may have no label at all: nothing depends on where its proportion lies.
            return ones, c2, c3, np.full(difference.shape, of_v < of_m)
        return np.abs(difference), c2, c3, difference >= 0

    def largest(low: FloatArray, high: FloatArray) -> FloatArray:
        above, below = v.upper[:, None], m.upper
        ends = np.maximum(low * above + (1 - low) * below, high * above + (1 - high) * below)
        return np.asarray(np.minimum(ends * (1 + 1e-12), 1.0))

    return _maximum(verdicts, v, m, weights, largest, alpha)


def upper_external(verdicts: Count, successes: Count, failures: Count, alpha: float) -> float:
    """Upper bound on p = (q - f) / (s - f), for s > f in the whole box; -1 if no p in [0, 1] agrees with the counts.

    ``successes`` counts positive verdicts on labelled successes, ``failures`` those on labelled failures.
    """
    s = _Axis(successes, high_box(successes, alpha), successes[1], greater=True)
    f = _Axis(failures, low_box(failures, alpha), failures[1], greater=True)
    distance = s.middle[:, None] - f.middle
    error_s, error_f = deviation(s.middle, successes[1])[:, None], deviation(f.middle, failures[1])

    def weights(q: float) -> tuple[FloatArray, FloatArray, FloatArray, npt.NDArray[np.bool_]]:
        p = np.clip((q - f.middle) / np.maximum(distance, 1e-9), 0.0, 1.0)
        c2, c3 = p * error_s, (1 - p) * error_f
        return np.ones(p.shape), c2, c3, np.ones(p.shape, dtype=bool)

    def largest(low: FloatArray, high: FloatArray) -> FloatArray:
        # p falls in s and in f as long as q <= s; no prevalence gives a q above s or below f.
        p = (high - f.lower) / (s.lower[:, None] - f.lower) * (1 + 1e-12)
        return np.where((high >= f.lower) & (low <= s.upper[:, None]), np.clip(p, 0.0, 1.0), -1.0)

    return _maximum(verdicts, s, f, weights, largest, alpha)
