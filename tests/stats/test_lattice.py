"""The lattice against exact rationals, and the exact error of the confidence sequence up to 131,072 samples."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import SequentialRule, clopper_pearson_lower, exact_error, lattice_outcome, sequence_boundary

POINTS = (0.5, 0.69, 0.84, 0.977, 0.999)
N = 131_072


def enumerated(p, looks, certified, given_up):
    """The same in rationals, one sample after the other."""
    law, at, ends, samples = {0: Fraction(1)}, 0, [Fraction(0)] * 2, Fraction(0)
    p = Fraction(p)
    for n, c, g in zip(looks, certified, given_up, strict=True):
        for _ in range(n - at):
            longer = {}
            for a, mass in law.items():
                longer[a] = longer.get(a, 0) + mass * (1 - p)
                longer[a + 1] = longer.get(a + 1, 0) + mass * p
            law = longer
        at = n
        for a in list(law):
            if a >= c or a <= g:
                mass = law.pop(a)
                ends[a < c] += mass
                samples += n * mass
    rest = sum(law.values(), Fraction(0))
    return (*ends, rest, samples + at * rest)


@pytest.mark.parametrize("p", [0.0, 1e-6, 0.3, 0.84, 1 - 2.0**-30, 1.0])
@pytest.mark.parametrize("every", [True, False])
def test_the_lattice_against_exact_rationals(p, every):
    rule = SequentialRule(90, alpha=0.1, hybrid=0.3)
    looks = range(1, 61) if every else rule.looks
    certified, given_up = sequence_boundary(list(looks), 0.6, 0.1) if every else rule.counts(0.6)
    outcome = lattice_outcome(p, list(looks), certified, given_up)
    exact = enumerated(p, looks, certified.tolist(), given_up.tolist())
    found = (outcome.certified, outcome.given_up, outcome.undecided, outcome.samples)
    for value, truth, unit in zip(found, exact, (1, 1, 1, 60), strict=True):
        # What was dropped may be missing, and the rest is off by no more than is stated.
        assert abs(Fraction(value) - truth) <= truth * Fraction(outcome.rounding) + Fraction(outcome.dropped) * unit * 2
    assert Fraction(outcome.certified_at_most) >= exact[0]
    assert Fraction(outcome.given_up_at_most) >= exact[1]


@pytest.mark.parametrize("p0", POINTS)
def test_the_sequence_errs_with_less_than_alpha_though_it_is_looked_at_after_every_sample(p0):
    n = np.arange(1, N + 1)
    outcome = lattice_outcome(p0, n, *sequence_boundary(n, p0, 0.001))
    # One fortune for both sides: together they have one alpha.
    assert outcome.certified_at_most + outcome.given_up_at_most <= 0.001
    assert outcome.certified > 1e-5
    assert outcome.given_up > 1e-4
    assert outcome.dropped < 1e-20
    assert abs(outcome.certified + outcome.given_up + outcome.undecided - 1) <= outcome.rounding


@pytest.mark.parametrize("hybrid", [0.0, 0.01, 0.5, 0.9])
@pytest.mark.parametrize("p0", POINTS)
def test_the_rule_errs_with_less_than_alpha(p0, hybrid):
    rule = SequentialRule(N, hybrid=hybrid)
    certified, given_up = rule.counts(p0)
    outcome = exact_error(rule, p0)
    assert 0 < outcome.certified_at_most <= 0.001
    # Without giving up no image stops early, so that this is the larger error: what the guarantee is about.
    never = lattice_outcome(p0, rule.looks, certified, np.full(len(certified), -1))
    assert outcome.certified_at_most <= never.certified_at_most <= 0.001
    # Far above what is asked for hardly any are given up: three standard deviations of all samples beyond the target.
    target = certified[-1] / N
    well = 1 - (1 - target) * 0.6
    assert lattice_outcome(well, rule.looks, certified, given_up).given_up_at_most <= 0.03


def test_an_ordinary_bound_looked_at_again_and_again_is_seen_to_err_more():
    looks = np.array(SequentialRule(5000).looks)
    certified = np.array(
        [next((a for a in range(n // 2, n + 1) if clopper_pearson_lower(a, int(n), 0.01) >= 0.5), n + 1) for n in looks]
    )
    outcome = lattice_outcome(0.5, looks, certified, np.full(len(looks), -1))
    assert outcome.certified > 0.04
    assert exact_error(SequentialRule(5000, alpha=0.01), 0.5).certified_at_most <= 0.01


def test_one_look_is_a_binomial_tail():
    for p, n, c in [(0.9, 1000, 920), (0.999, 100_000, 99_930), (0.5, 16, 12)]:
        outcome = lattice_outcome(p, [n], [c], [c - 30 if n > 30 else -1])
        assert outcome.certified == pytest.approx(stats.binom.sf(c - 1, n, p), rel=1e-9)
        assert outcome.samples == pytest.approx(n, rel=1e-12)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ((1.5, [1], [1], [0]), InputError, "p: expected one probability"),
        (("x", [1], [1], [0]), InputTypeError, "p: expected float64"),
        ((0.5, [], [], []), InputTypeError, "looks: expected integers"),
        ((0.5, [1, 2], [1], [0]), InputError, "expected three lists of one length"),
        ((0.5, [2, 2], [1, 1], [0, 0]), InputError, "looks: expected increasing"),
        ((0.5, [1], [1], [1]), InputError, "given_up: expected counts below"),
        ((0.5, [1.0], [1], [0]), InputTypeError, "looks: expected integers"),
    ],
)
def test_tables_that_cannot_be(given, error, match):
    with pytest.raises(error, match=match):
        lattice_outcome(*given)


@pytest.mark.parametrize("hybrid", [0.0, 0.5])
def test_twenty_thousand_classifiers_are_falsely_certified_no_more_than_alpha_allows(hybrid):
    # Each has a p of its own, just below the radius asked for: each certificate is false.
    rng, alpha, classifiers = np.random.default_rng(7), 0.001, 20_000
    rule = SequentialRule(20_000, alpha=alpha, hybrid=hybrid)
    false = 0
    for p in np.concatenate([[0.5], rng.uniform(0.5, 1.0, 39)]).tolist():
        steps = rng.binomial(np.diff(rule.looks, prepend=0), p, size=(classifiers // 40, len(rule.looks)))
        certified, _ = rule.counts(p)
        false += int((steps.cumsum(axis=1) >= certified).any(axis=1).sum())
    assert stats.binomtest(false, classifiers, alpha, alternative="greater").pvalue > 0.001
