"""The number of crossings that chance explains: exact tails and union bounds."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError
from pyrobust.metrics import crossing_rule, union_bound


def tail(most, n, p):
    """P(Bin(n, p) > most), exactly."""
    p = Fraction(p)
    return 1 - sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(most + 1))


def test_seven_crossings_in_a_thousand_fail():
    rule = crossing_rule(1000, 0.001, 0.001)
    assert [rule.fails(crossings) for crossings in (0, 6, 7, 1000)] == [False, False, True, True]
    chance = Fraction(0.001) + Fraction(0.001)
    assert tail(6, 1000, chance) <= Fraction(0.01) < tail(5, 1000, chance)
    exact = tail(6, 1000, 0.01)
    assert float(exact) == pytest.approx(0.87, abs=0.005)
    assert rule.power(0.01) == pytest.approx(float(exact), rel=1e-12)
    assert rule.power(0) == 0
    assert rule.power(1) == 1
    never = crossing_rule(1, 0.4, 0.4)
    assert (never.most, never.power(1.0), never.fails(1)) == (1, 0.0, False)
    assert rule.to_dict() == {"n": 1000, "alpha": 0.001, "alpha_attack": 0.001, "false_alarm": 0.01, "most": 6}


@given(st.integers(1, 80), st.floats(1e-4, 0.4), st.floats(1e-4, 0.4), st.sampled_from([0.001, 0.01, 0.2]))
def test_quantile_against_exact_tails(n, alpha, alpha_attack, false_alarm):
    most = crossing_rule(n, alpha, alpha_attack, false_alarm).most
    chance = Fraction(alpha) + Fraction(alpha_attack)
    assert tail(most, n, chance) <= Fraction(false_alarm)
    # Smallest, up to the margin of the proof.
    assert most == 0 or tail(most - 1, n, chance) > Fraction(false_alarm) * (1 - Fraction(1, 10**6))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_union_bound_is_never_below_the_exact_sum(alphas):
    exact, bound = sum(map(Fraction, alphas)), union_bound(alphas)
    assert min(exact, Fraction(1)) <= Fraction(bound) <= 1
    assert bound == 1 or Fraction(math.nextafter(bound, 0)) < exact or bound == exact == 0
    assert union_bound(alphas[:1]) == alphas[0]


def test_bad_input():
    rule = crossing_rule(10, 0.001, 0.001)
    for call, match in [
        (lambda: crossing_rule(0, 0.001, 0.001), "n: expected at least 1, got 0"),
        (lambda: crossing_rule(10, 0, 0.001), r"alpha: expected a number in \(0, 1\), got 0.0"),
        (lambda: crossing_rule(10, 0.001, math.nan), r"alpha_attack: expected a number in \(0, 1\), got nan"),
        (lambda: crossing_rule(10, 0.5, 0.5), r"alpha, alpha_attack: expected a sum below 1, got 0.5 \+ 0.5"),
        (lambda: crossing_rule(10, 0.1, 0.1, 1), r"false_alarm: expected a number in \(0, 1\)"),
        (lambda: rule.fails(11), "crossings: expected 0 to 10, got 11"),
        (lambda: rule.power(1.5), r"rate: expected a number in \[0, 1\]"),
        (lambda: union_bound([]), "alphas: expected at least one error probability, got none"),
        (lambda: union_bound([0.1, math.nan]), r"alphas: expected numbers in \[0, 1\], got nan at index 1"),
    ]:
        with pytest.raises(InputError, match=f"^{match}"):
            call()
