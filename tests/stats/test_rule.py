"""The sequential rule: its counts at every look, optimal stopping over every count, and exact outcomes on a lattice."""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from scipy import stats

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import (
    SequentialRule,
    clopper_pearson_lower,
    exact_error,
    lattice_outcome,
    sequence_boundary,
    sequence_lower,
    sequence_upper,
    stopping,
)


@pytest.mark.parametrize(
    ("n_max", "p0", "hybrid"),
    [
        *itertools.product([1, 2, 16, 17, 333], [1e-9, 0.84, 1 - 2.0**-50], [0.5]),
        *itertools.product([1, 16, 333], [0.5, 0.9986], [0.0]),
        (20_000, 0.5, 0.0),
        (20_000, 0.9986, 0.5),
        (10**9, 0.9999, 0.5),
    ],
)
def test_counts_agree_with_the_bounds(n_max, p0, hybrid):
    rule = SequentialRule(n_max, alpha=0.01, hybrid=hybrid)
    certified, given_up = rule.counts(p0)
    assert len(certified) == len(given_up) == len(rule.looks)
    with pytest.raises(ValueError, match="read-only"):
        given_up[0] = 0

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


# --- stopping for futility


@cache
def next_count_pmf(a, n, step):
    return stats.betabinom.pmf(np.arange(step + 1), step, a + 0.5, n - a + 0.5)


def exact_value(looks, certified, price, given_up=None):
    """Expected certificates less the price of samples, from the first look on, and the counts given up.

    Computed for every count with the beta-binomial distribution of the next count under Jeffreys' prior. Counts without
    a positive value are given up, or those of the table ``given_up``.
    """
    values, table = None, []
    for j in reversed(range(len(looks))):
        n = looks[j]
        counts = np.arange(n + 1)
        if values is None:
            value = np.zeros(n + 1)
        else:
            step = looks[j + 1] - n
            value = np.full(n + 1, -price * step)
            for a in counts.tolist():
                value[a] += next_count_pmf(a, n, step) @ values[a : a + step + 1]
        stop = value <= 0 if given_up is None else counts <= given_up[j]
        values = np.where(counts >= certified[j], 1.0, np.where(stop, 0.0, value))
        table.append(int(np.flatnonzero(stop & (counts < certified[j])).max(initial=-1)))
    first = stats.betabinom.pmf(np.arange(looks[0] + 1), looks[0], 0.5, 0.5)
    return float(first @ values), table[::-1]


@pytest.mark.parametrize(("p0", "price"), [(0.5, 0.1), (0.84, 0.5), (0.93, 1.0)])
def test_table_value_is_close_to_the_optimum(p0, price):
    rule = SequentialRule(320, 0.01, 0.1, price)
    certified, given_up = rule.counts(p0)
    assert rule.target(p0) < 1
    best, table = exact_value(rule.looks, certified, rule.sample_price)
    value, _ = exact_value(rule.looks, certified, rule.sample_price, given_up)
    assert 0.0 <= best - value <= 2e-4 * best
    assert best > 0.01
    # The table uses a discretised prior, so a count may be off by one.
    assert np.abs(given_up - table).max() <= 1
    assert (given_up == table).mean() > 0.7
    # A shifted table has a clearly lower value, so the comparison is sensitive enough.
    for shift in (-4, 4):
        shifted, _ = exact_value(rule.looks, certified, rule.sample_price, np.clip(given_up + shift, -1, certified - 1))
        assert best - shifted > max(1e-5, 10 * (best - value))


@pytest.mark.parametrize("p0", [0.5, 0.999])
def test_interpolated_counts_are_close_to_evaluating_every_count(p0, monkeypatch):
    rule = SequentialRule(100_000)
    certified, coarse = rule.counts(p0)
    monkeypatch.setattr(stopping, "_MAX_NODES", 4000)
    fine = stopping.futility_counts(rule.looks, certified, rule.target(p0), rule.sample_price)
    deviation = np.sqrt(np.array(rule.looks) * p0 * (1 - p0))
    assert (np.abs(coarse - fine) <= np.maximum(1, 0.03 * deviation)).all()


def test_at_the_highest_price_all_but_images_without_failures_are_given_up():
    rule = SequentialRule(20_000, 0.001, 0.0, 1e9)
    certified, given_up = rule.counts(0.84)
    assert (given_up == np.minimum(certified, rule.looks) - 1).all()


def test_invalid_parameters_are_rejected():
    for change, error, match in [
        ({"n_max": 0}, InputError, "n_max: expected at least 1"),
        ({"alpha": 0.0}, InputError, r"alpha: expected a number in \(0, 1\)"),
        ({"price": 0.0}, InputError, "price: expected"),
        ({"price": 10**400}, InputError, "price: expected a finite number above 0"),
        ({"hybrid": 1.0}, InputError, r"hybrid: expected a share of alpha in \[0, 1\)"),
        ({"hybrid": -0.1}, InputError, "hybrid: expected"),
        ({"alpha": 5e-324, "hybrid": 0.9}, InputError, "hybrid: expected a share that leaves the sequence some"),
        ({"hybrid": 1e-322}, InputError, "hybrid: expected 0 or a share of alpha 0.001 that does not round to 0"),
    ]:
        with pytest.raises(error, match=match):
            SequentialRule(**({"n_max": 100} | change))


# --- exact outcomes


POINTS = (0.5, 0.69, 0.84, 0.977, 0.999)
N = 131_072


def exact_outcome(p, looks, certified, given_up):
    """Exact outcome probabilities and expected samples in rationals, one sample after the other."""
    distribution, drawn, decided, samples = {0: Fraction(1)}, 0, [Fraction(0)] * 2, Fraction(0)
    p = Fraction(p)
    for n, c, g in zip(looks, certified, given_up, strict=True):
        for _ in range(n - drawn):
            following = {}
            for a, mass in distribution.items():
                following[a] = following.get(a, 0) + mass * (1 - p)
                following[a + 1] = following.get(a + 1, 0) + mass * p
            distribution = following
        drawn = n
        for a in list(distribution):
            if a >= c or a <= g:
                mass = distribution.pop(a)
                decided[a < c] += mass
                samples += n * mass
    undecided = sum(distribution.values(), Fraction(0))
    return (*decided, undecided, samples + drawn * undecided)


@pytest.mark.parametrize("p", [0.0, 1e-6, 0.6, 1 - 2.0**-30, 1.0])
@pytest.mark.parametrize("look_at_every_sample", [True, False])
def test_lattice_outcome_matches_exact_rationals(p, look_at_every_sample):
    rule = SequentialRule(90, alpha=0.1, hybrid=0.3)
    looks = range(1, 61) if look_at_every_sample else rule.looks
    certified, given_up = sequence_boundary(list(looks), 0.6, 0.1) if look_at_every_sample else rule.counts(0.6)
    outcome = lattice_outcome(p, list(looks), certified, given_up)
    exact = exact_outcome(p, looks, certified.tolist(), given_up.tolist())
    computed = (outcome.certified, outcome.given_up, outcome.undecided, outcome.samples)
    for value, truth, unit in zip(computed, exact, (1, 1, 1, 60), strict=True):
        # The dropped mass may be missing; the rest is within the stated rounding error.
        assert abs(Fraction(value) - truth) <= truth * Fraction(outcome.rounding) + Fraction(outcome.dropped) * unit * 2
    assert Fraction(outcome.certified_at_most) >= exact[0]
    assert Fraction(outcome.given_up_at_most) >= exact[1]


@pytest.mark.parametrize(
    ("p0", "samples"), [(0.5, 16_384), (0.999, 32_768), *(pytest.param(p, N, marks=pytest.mark.full) for p in POINTS)]
)
def test_sequence_error_is_at_most_alpha_with_a_look_at_every_sample(p0, samples):
    n = np.arange(1, samples + 1)
    outcome = lattice_outcome(p0, n, *sequence_boundary(n, p0, 0.001))
    # Both sides come from one wealth process, so they share one alpha.
    assert outcome.certified_at_most + outcome.given_up_at_most <= 0.001
    assert outcome.certified > 1e-5
    assert outcome.given_up > 1e-4
    assert outcome.dropped < 1e-20
    assert abs(outcome.certified + outcome.given_up + outcome.undecided - 1) <= outcome.rounding


@pytest.mark.parametrize(("p0", "hybrid"), [(0.977, 0.01), (0.5, 0.9), (0.84, 0.0)])
def test_rule_error_is_at_most_alpha(p0, hybrid):
    rule = SequentialRule(N, hybrid=hybrid)
    certified, given_up = rule.counts(p0)
    outcome = exact_error(rule, p0)
    assert 0 < outcome.certified_at_most <= 0.001
    # Without giving up, no image stops early, so the error is larger; the guarantee covers this case.
    no_stopping = lattice_outcome(p0, rule.looks, certified, np.full(len(certified), -1))
    assert outcome.certified_at_most <= no_stopping.certified_at_most <= 0.001
    # Far above the target almost no image is given up.
    target = certified[-1] / N
    far_above = 1 - (1 - target) * 0.6
    assert lattice_outcome(far_above, rule.looks, certified, given_up).given_up_at_most <= 0.03


def test_single_look_is_a_binomial_tail():
    for p, n, c in [(0.9, 1000, 920), (0.999, 100_000, 99_930), (0.5, 16, 12)]:
        outcome = lattice_outcome(p, [n], [c], [c - 30 if n > 30 else -1])
        assert outcome.certified == pytest.approx(stats.binom.sf(c - 1, n, p), rel=1e-9)
        assert outcome.samples == pytest.approx(n, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((1.5, [1], [1], [0]), InputError, "p: expected one probability"),
        ((0.5, [], [], []), InputTypeError, "looks: expected integers"),
        ((0.5, [1, 2], [1], [0]), InputError, "expected three lists of the same length"),
        ((0.5, [2, 2], [1, 1], [0, 0]), InputError, "looks: expected increasing"),
        ((0.5, [1], [1], [1]), InputError, "given_up: expected counts below"),
    ],
)
def test_invalid_tables_are_rejected(arguments, error, match):
    with pytest.raises(error, match=match):
        lattice_outcome(*arguments)
