"""Decision counts of the sequential rule agree with its bounds at every look."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import SequentialRule, clopper_pearson_lower, sequence_lower, sequence_upper


@pytest.mark.parametrize("hybrid", [0.0, 0.5])
@pytest.mark.parametrize("p0", [0.5, 0.84, 0.9986])
@pytest.mark.parametrize("n_max", [1, 16, 333, 20_000])
def test_counts_agree_with_the_bounds(n_max, p0, hybrid):
    rule = SequentialRule(n_max, alpha=0.01, hybrid=hybrid)
    certified, given_up = rule.counts(p0)
    assert len(certified) == len(given_up) == len(rule.looks)

    def reaches(a, n):
        by_sequence = sequence_lower(a, n, rule.alpha_sequence) >= p0
        return by_sequence or (hybrid > 0 and n == n_max and clopper_pearson_lower(a, n, rule.alpha_fixed) >= p0)

    target = certified[-1] / n_max
    for n, a, b in zip(rule.looks, certified.tolist(), given_up.tolist(), strict=True):
        assert a == n + 1 or reaches(a, n)
        assert a == 0 or not reaches(a - 1, n)
        if target <= 1:
            assert -1 <= b < a
            # The price of samples decides how early an image is given up; an image not given up can still certify.
            assert b + 1 == a or sequence_upper(b + 1, n, 1e-12) >= target
            assert n < n_max or b + 1 == a
        else:
            assert (a, b) == (n + 1, n)  # no count certifies at n_max, so every image is given up


def test_shares_of_alpha_sum_to_at_most_alpha():
    for alpha in (0.5, 0.001, 1e-9, 0.1):
        for hybrid in (0.0, 1e-9, 0.3, 0.5, 0.9, 1 - 1e-9):
            rule = SequentialRule(100, alpha=alpha, hybrid=hybrid)
            assert 0.0 < rule.alpha_sequence <= alpha
            assert Fraction(rule.alpha_sequence) + Fraction(rule.alpha_fixed) <= Fraction(alpha)
    assert SequentialRule(100, hybrid=0.0).alpha_sequence == 0.001


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"n_max": 0}, InputError, "n_max: expected at least 1"),
        ({"n_max": 10.5}, InputTypeError, "n_max: expected an integer"),
        ({"alpha": 0.0}, InputError, r"alpha: expected a number in \(0, 1\)"),
        ({"price": math.nan}, InputError, "price: expected a finite number above 0"),
        ({"price": 0.0}, InputError, "price: expected"),
        ({"price": 10**400}, InputError, "price: expected a finite number above 0"),
        ({"hybrid": 1.0}, InputError, r"hybrid: expected a share of alpha in \[0, 1\)"),
        ({"hybrid": -0.1}, InputError, "hybrid: expected"),
        ({"hybrid": None}, InputTypeError, "hybrid: expected a number, got None"),
        ({"alpha": 5e-324, "hybrid": 0.9}, InputError, "hybrid: expected a share that leaves the sequence some"),
        ({"hybrid": 1e-322}, InputError, "hybrid: expected 0 or a share of alpha 0.001 that does not round to 0"),
    ],
)
def test_invalid_parameters_are_rejected(given, error, match):
    with pytest.raises(error, match=match):
        SequentialRule(**({"n_max": 100} | given))
