"""Intervals of random subsets against all subsets of small sets, rationals, and draws from a large set."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust import metrics
from pyrobust.metrics.estimate import interval_from_moments


@given(st.data(), st.integers(1, 40), st.sampled_from([0.5, 0.05, 0.001, 1e-9]))
def test_hypergeometric_ends_in_rationals(data, n, alpha):
    successes, size = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    low, high = max(0, size + successes - n), min(size, successes)
    mass = {
        k: Fraction(comb(successes, k) * comb(n - successes, size - k), comb(n, size)) for k in range(low, high + 1)
    }
    lower, upper = (round(end * size) for end in metrics.subset_accuracy(successes, n, size, alpha))
    half = Fraction(alpha) / 2
    slack = 1 - Fraction(1, 10**8)
    assert low <= lower <= upper <= high
    assert sum(p for k, p in mass.items() if k < lower) <= half
    assert sum(p for k, p in mass.items() if k <= lower) > half * slack
    assert sum(p for k, p in mass.items() if k > upper) <= half
    assert sum(p for k, p in mass.items() if k >= upper) > half * slack


def test_subset_accuracy_of_large_sets():
    assert metrics.subset_accuracy(0, 10_000, 500) == (0.0, 0.0)
    assert metrics.subset_accuracy(10_000, 10_000, 500) == (1.0, 1.0)
    assert metrics.subset_accuracy(4225, 10_000, 10_000) == (0.4225, 0.4225)
    n, successes, size = 10_000, 2_200, 500
    lower, upper = (round(end * size) for end in metrics.subset_accuracy(successes, n, size))
    total = comb(n, size)

    def tail(counts):
        return Fraction(sum(comb(successes, k) * comb(n - successes, size - k) for k in counts), total)

    half = Fraction(0.05) / 2
    assert tail(range(lower)) <= half < tail(range(lower + 1))
    assert tail(range(upper + 1, size + 1)) <= half < tail(range(upper, size + 1))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_moments_match_all_subsets(size):
    radius = np.array([0.0, 0.1, 0.7, 0.2, 3.0, 0.4, 1.0])
    correct = np.array([True, True, True, False, True, True, True])
    means = np.array([np.mean(subset) for subset in combinations(np.where(correct, radius, 0), size)])
    middle = means.mean()
    moments = [((means - middle) ** power).mean() for power in (2, 3)]
    expected = interval_from_moments(middle, *moments, 0.5)
    interval = metrics.subset_average_certified_radius(radius, correct, size, 0.5)
    assert interval == pytest.approx((max(expected[0], 0.0), min(expected[1], 3.0)), rel=1e-10)


def test_interval_stays_within_the_values():
    radius, correct = np.array([0.0, 0.0, 0.0, 9.0]), np.ones(4, dtype=bool)
    lower, upper = metrics.subset_average_certified_radius(radius, correct, 1, 0.001)
    assert lower == 0
    assert upper == 9
    assert metrics.subset_average_certified_radius(radius, correct, 4) == (2.25, 2.25)
    assert metrics.subset_average_certified_radius(np.array([0.5]), correct[:1], 1) == (0.5, 0.5)
    assert metrics.subset_average_certified_radius(np.full(9, 0.5), np.ones(9, dtype=bool), 3) == (0.5, 0.5)
    assert metrics.subset_average_certified_radius(np.array([0.5, 1.5]), correct[:2], 1, 0.5)[0] >= 0.5
