"""The confidence sequence of a finite population: exact integers, and coverage over all orders."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import population_sequence


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
def test_bad_input(arguments, error, match):
    with pytest.raises(error, match=f"^{match}"):
        population_sequence(*arguments)
