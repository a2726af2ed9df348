"""The confidence sequence of a finite population: exact integers, and coverage over all times by simulation."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import population_sequence, sequence_lower, sequence_upper


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


def test_the_wealth_is_a_martingale():
    """Its mean over the next member is its value, for the true K."""
    total, k = 9, 4
    for a in range(4):
        for f in range(5):
            left = total - a - f
            chance = Fraction(k - a, left)
            following = chance * wealth(k, a + 1, f, total) if chance else 0
            following += (1 - chance) * wealth(k, a, f + 1, total) if chance < 1 else 0
            assert following == wealth(k, a, f, total)


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


@pytest.mark.parametrize(("total", "share"), [(200, 0.5), (200, 0.05), pytest.param(1000, 0.8, marks=pytest.mark.full)])
def test_simulated_coverage_at_every_moment(total, share):
    """Over 1,000 runs, the bounds miss the final count at any moment in no more than alpha of them."""
    rng = np.random.default_rng(total)
    alpha, runs, k = 0.1, 1000, round(share * total)
    members = np.arange(total) < k
    counts = np.cumsum(rng.permuted(np.tile(members, (runs, 1)), axis=1), axis=1)
    n = np.arange(1, total + 1)
    lower, upper = population_sequence(counts, n, total, alpha)
    missed = ((lower > k) | (upper < k)).any(axis=1)
    assert stats.binomtest(int(missed.sum()), runs, alpha, alternative="greater").pvalue > 0.01
    assert missed.any()  # not vacuous
    assert ((lower[:, -1] == k) & (upper[:, -1] == k)).all()
    # Pointwise intervals looked at every moment miss far more often: what the sequence is for.
    naive = np.abs(counts / n - share) > 1.6449 * np.sqrt(share * (1 - share) / n)
    assert naive[:, 20:].any(axis=1).mean() > 2 * alpha


def test_at_most_as_wide_as_sampling_with_replacement():
    a, n, total = np.array([5, 50, 300]), np.array([10, 100, 600]), 10**6
    lower, upper = population_sequence(a, n, total, 0.05)
    np.testing.assert_allclose(lower / total, sequence_lower(a, n, 0.05), atol=2e-3)
    np.testing.assert_allclose(upper / total, sequence_upper(a, n, 0.05), atol=2e-3)
    lower, upper = population_sequence(300, 600, 800, 0.05)
    assert upper - lower < 0.6 * 800 * float(sequence_upper(300, 600, 0.05) - sequence_lower(300, 600, 0.05))


def test_large_populations():
    lower, upper = population_sequence(10**9 - 1, 10**9, 10**9, 1e-12)
    assert (int(lower), int(upper)) == (10**9 - 1, 10**9 - 1)
    lower, upper = population_sequence(5 * 10**5, 10**6, 10**9, 0.05)
    assert 4.9e8 < lower < 5e8 < upper < 5.1e8


def test_bad_input():
    with pytest.raises(InputError, match=r"^population: expected at least trials, got 9 with trials=10"):
        population_sequence(5, 10, 9, 0.05)
    with pytest.raises(InputError, match=r"^successes: expected 0 <= successes <= trials, got successes=11"):
        population_sequence(11, 10, 20, 0.05)
    with pytest.raises(InputError, match=r"^trials: expected at least 1, got 0"):
        population_sequence(0, 0, 20, 0.05)
    with pytest.raises(InputError, match=r"^alpha: expected a number in \(0, 1\), got nan"):
        population_sequence(1, 2, 20, math.nan)
    with pytest.raises(InputTypeError, match=r"^population: expected integers"):
        population_sequence(1, 2, 20.0, 0.05)
    with pytest.raises(InputError, match=r"^population: shape \(2,\) does not broadcast"):
        population_sequence([1, 1, 1], 2, [20, 20], 0.05)
