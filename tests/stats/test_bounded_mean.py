"""Intervals for means of numbers in [0, 1] in clusters, and for finite populations: in exact numbers, and coverage."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import (
    bounded_mean,
    bounded_mean_interval,
    clopper_pearson_lower,
    clopper_pearson_upper,
    population_sequence,
)


def exact_wealth(ones, sizes, u, cell):
    """The mixture's wealth against means of at least u, in rationals from the bets of a cell."""
    low = float(bounded_mean._EDGES[cell])
    scale = math.sqrt(2 * (math.log(1 / 0.025) + 1) * (1 - low) / (len(sizes) * low))
    total, largest = Fraction(0), Fraction(max(sizes))
    for halvings, weight in zip(bounded_mean._HALVINGS, bounded_mean._WEIGHTS, strict=True):
        bet = Fraction(min(1.0, scale * 2 ** (halvings / 2)))
        product = Fraction(float(weight))
        for s, m in zip(ones, sizes, strict=True):
            product *= 1 - bet * (Fraction(s) / largest - Fraction(m) / largest * u) / (1 - u)
        total += product
    return total


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 1, 2)])
def test_false_rejections_by_enumeration(sizes):
    """Over all outcomes of clusters that are all or nothing, with means that differ, the error is at most alpha."""
    alpha, interval = 0.3, cache(bounded_mean_interval)
    for means in itertools.product([0.0, 0.2, 0.5, 0.9, 1.0], repeat=len(sizes)):
        truth = sum(m * p for m, p in zip(sizes, means, strict=True)) / sum(sizes)
        missed = 0.0
        for outcome in itertools.product([0, 1], repeat=len(sizes)):
            chance = math.prod(p if o else 1 - p for o, p in zip(outcome, means, strict=True))
            lower, upper = interval(tuple(o * m for o, m in zip(outcome, sizes, strict=True)), sizes, alpha)
            missed += chance * (not lower <= truth <= upper)
        assert missed <= alpha + 1e-12


def test_the_bets_have_a_mean_of_at_most_one():
    """In exact numbers, for clusters with unequal sizes and means: the step of the proof that rounding cannot mend."""
    sizes, means = (2, 1, 3), (Fraction(1, 10), Fraction(2, 3), Fraction(1, 2))
    truth = sum(m * p for m, p in zip(sizes, means, strict=True)) / sum(sizes)
    for cell in (60, 140, 200):
        expected = Fraction(0)
        for outcome in itertools.product([0, 1], repeat=3):
            chance = math.prod(p if o else 1 - p for o, p in zip(outcome, means, strict=True))
            expected += chance * exact_wealth([o * m for o, m in zip(outcome, sizes, strict=True)], sizes, truth, cell)
        assert expected <= Fraction(float(bounded_mean._WEIGHTS.sum()))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_ends_are_rejected_in_exact_numbers(pairs):
    """The wealth at the upper end, in rationals, exceeds what rejects; a step inside it, it does not."""
    sizes, ones = [m for m, _ in pairs], [min(m, k) for m, k in pairs]
    lower, upper = bounded_mean_interval(ones, sizes, 0.05)
    assert 0 <= lower <= sum(ones) / sum(sizes) <= upper <= 1
    if upper == 1 or not any(ones):
        return
    for u, rejected in ((Fraction(upper), True), (Fraction(upper - 1e-9), False)):
        cell = int(np.searchsorted(bounded_mean._EDGES, upper - 1e-10, side="right")) - 1
        p0 = math.prod((1 - u) / (1 - u + Fraction(m, max(sizes)) * u) for m in sizes)
        assert (exact_wealth(ones, sizes, u, cell) * (Fraction(0.025) - p0) >= 1) == rejected


def test_exact_at_the_ends():
    for n in (1, 7, 100):
        assert bounded_mean_interval([0.0] * n, 5, 0.05) == (0.0, clopper_pearson_upper(0, n, 0.025))
        lower, upper = bounded_mean_interval([5.0] * n, 5, 0.05)
        assert upper == 1
        assert clopper_pearson_lower(n, n, 0.025) == pytest.approx(lower, abs=1e-12)
    # Clusters of unequal sizes can hide more: the largest one carries most of the mean.
    assert bounded_mean_interval([0, 0, 0], [1, 1, 4], 0.05)[1] > clopper_pearson_upper(0, 3, 0.025)


def test_symmetry_order_and_spread():
    rng = np.random.default_rng(0)
    totals = rng.binomial(6, 0.3, 80)
    lower, upper = bounded_mean_interval(totals, 6, 0.05)
    assert bounded_mean_interval(rng.permutation(totals), 6, 0.05) == (lower, upper)
    mirrored = bounded_mean_interval(6 - totals, 6, 0.05)
    assert mirrored == pytest.approx((1 - upper, 1 - lower), abs=1e-12)
    # Independent attempts within clusters are worth more than copies of one.
    copies = 6 * rng.binomial(1, 0.3, 80)
    wide = bounded_mean_interval(copies, 6, 0.05)
    assert wide[1] - wide[0] > 1.8 * (upper - lower)
    constant = bounded_mean_interval([0.5] * 1000, 1, 0.05)
    assert constant[1] - constant[0] < 0.006


def missed_in(rate, size, icc, n, replicates, rng):
    """How often the interval misses, for clusters of beta-binomial attempts with this intraclass correlation."""
    if rate in (0, 1) or icc == 0:
        means = np.full((replicates, n), rate)
    elif icc == 1:
        means = rng.binomial(1, rate, (replicates, n)).astype(float)
    else:
        concentration = 1 / icc - 1
        means = rng.beta(rate * concentration, (1 - rate) * concentration, (replicates, n))
    totals = np.sort(rng.binomial(size, means), axis=1)
    distinct, times = np.unique(totals, axis=0, return_counts=True)
    missed = 0
    for row, count in zip(distinct, times, strict=True):
        lower, upper = bounded_mean_interval(row, size, 0.05)
        missed += int(count) * (not lower <= rate <= upper)
    return missed


@pytest.mark.parametrize(
    ("cells", "replicates"),
    [
        ([(0.01, 1, 1.0), (0.1, 5, 0.3), (0.5, 20, 0.0), (0.99, 5, 0.3)], 40),
        pytest.param(
            list(itertools.product((0.0, 0.01, 0.1, 0.5, 0.99, 1.0), (1, 5, 20), (0.0, 0.3, 1.0))),
            1000,
            marks=pytest.mark.full,
        ),
    ],
    ids=["some cells", "cells"],
)
def test_coverage(cells, replicates):
    rng = np.random.default_rng(5)
    for rate, size, icc in cells:
        missed = missed_in(rate, size, icc, 30, replicates, rng)
        p = stats.binomtest(missed, replicates, 0.05, alternative="greater").pvalue
        assert p > 0.05 / len(cells), (rate, size, icc, missed)


@pytest.mark.parametrize(
    ("totals", "sizes", "alpha", "error", "message"),
    [
        ([], 1, 0.05, InputError, "totals: expected a sequence of at least one number"),
        ([2.0], 1, 0.05, InputError, r"totals: expected 0 <= total <= size, got 2.0 of 1.0 at index 0"),
        ([math.nan], 1, 0.05, InputError, "totals: expected 0 <= total <= size, got nan"),
        ([0.0], [1, 2], 0.05, InputError, r"sizes: expected one, or one for each of the 1 totals, got \[2\]"),
        ([0.0], 0, 0.05, InputError, "sizes: expected finite numbers above 0"),
        ([0.5], 1, 1.5, InputError, r"alpha: expected a number in \(0, 1\)"),
        (["a"], 1, 0.05, InputTypeError, "totals: expected a number or an array of numbers"),
    ],
)
def test_bad_input(totals, sizes, alpha, error, message):
    with pytest.raises(error, match=f"^{message}"):
        bounded_mean_interval(totals, sizes, alpha)


# --- the confidence sequence of a finite population


def double_factorial(n):
    return math.prod(range(n, 0, -2))


def wealth(k, a, f, total):
    """W(K) exactly; None for infinity. Gamma(x + 1/2) = sqrt(pi) (2x - 1)!! / 2^x."""
    n = a + f
    if not a <= k <= total - f:
        return None
    mixture = Fraction(double_factorial(2 * a - 1) * double_factorial(2 * f - 1), 2**n * math.factorial(n))
    return mixture / Fraction(math.perm(k, a) * math.perm(total - k, f), math.perm(total, n))


def exact(a, f, total, alpha):
    """All K that are not excluded."""
    kept = []
    for k in range(total + 1):
        value = wealth(k, a, f, total)
        if value is not None and value * Fraction(alpha) < 1:
            kept.append(k)
    return kept


@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_against_exact_integers(alpha):
    for total in (1, 2, 7, 30):
        for n in range(1, total + 1):
            for a in range(n + 1):
                kept = exact(a, n - a, total, alpha)
                assert kept == list(range(kept[0], kept[-1] + 1))
                assert tuple(map(int, population_sequence(a, n, total, alpha))) == (kept[0], kept[-1])


@given(st.integers(1, 3000), st.data())
def test_bounds_contain_the_exact_ones_and_are_close(total, data):
    n = data.draw(st.integers(1, total))
    a = data.draw(st.integers(0, n))
    alpha = data.draw(st.sampled_from([1e-6, 0.05, 0.5]))
    lower, upper = map(int, population_sequence(a, n, total, alpha))
    assert a <= lower <= upper <= total - n + a
    for outside, inside in ((lower - 1, lower + 1), (upper + 1, upper - 1)):
        value = wealth(outside, a, n - a, total)
        assert value is None or value * Fraction(alpha) >= 1
        # One inside may be excluded at most where W is 1/alpha up to rounding.
        if lower < upper and lower <= inside <= upper:
            assert wealth(inside, a, n - a, total) * Fraction(alpha) < 1 + Fraction(1, 10**6)


def test_coverage_over_all_orders():
    """Of all 7! orders of seven members, the bounds ever miss in at most the share alpha."""
    alpha = 0.4
    for k in range(8):
        members = np.arange(7) < k
        bounds = {
            (a, n): tuple(map(int, population_sequence(a, n, 7, alpha))) for n in range(1, 8) for a in range(n + 1)
        }
        outcomes, missed = set(permutations(members.tolist())), 0
        for order in outcomes:
            counts = np.cumsum(order)
            missed += any(not low <= k <= high for low, high in (bounds[int(a), n] for n, a in enumerate(counts, 1)))
        assert missed <= alpha * len(outcomes)


def test_large_populations():
    lower, upper = population_sequence(10**9 - 1, 10**9, 10**9, 1e-12)
    assert (int(lower), int(upper)) == (10**9 - 1, 10**9 - 1)
    lower, upper = population_sequence(5 * 10**5, 10**6, 10**9, 0.05)
    assert 4.9e8 < lower < 5e8 < upper < 5.1e8


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((5, 10, 9, 0.05), InputError, "population: expected at least trials, got 9 with trials=10"),
        ((11, 10, 20, 0.05), InputError, "successes: expected 0 <= successes <= trials, got successes=11"),
        ((0, 0, 20, 0.05), InputError, "trials: expected at least 1, got 0"),
        ((1, 2, 20, math.nan), InputError, r"alpha: expected a number in \(0, 1\), got nan"),
        ((1, 2, 20.0, 0.05), InputTypeError, "population: expected integers"),
        (([1, 1, 1], 2, [20, 20], 0.05), InputError, r"population: shape \(2,\) does not broadcast"),
    ],
)
def test_bad_populations(arguments, error, match):
    with pytest.raises(error, match=f"^{match}"):
        population_sequence(*arguments)
