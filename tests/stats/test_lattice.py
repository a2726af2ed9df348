"""Lattice outcomes against exact rationals, and the exact error of the confidence sequence up to 131,072 samples."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import SequentialRule, exact_error, lattice_outcome, sequence_boundary

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
    ("p0", "most"), [(0.5, 16_384), (0.999, 32_768), *(pytest.param(p, N, marks=pytest.mark.full) for p in POINTS)]
)
def test_sequence_error_is_at_most_alpha_with_a_look_at_every_sample(p0, most):
    n = np.arange(1, most + 1)
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
    ("given", "error", "match"),
    [
        ((1.5, [1], [1], [0]), InputError, "p: expected one probability"),
        (("x", [1], [1], [0]), InputTypeError, "p: expected float64"),
        ((0.5, [], [], []), InputTypeError, "looks: expected integers"),
        ((0.5, [1, 2], [1], [0]), InputError, "expected three lists of the same length"),
        ((0.5, [2, 2], [1, 1], [0, 0]), InputError, "looks: expected increasing"),
        ((0.5, [1], [1], [1]), InputError, "given_up: expected counts below"),
    ],
)
def test_invalid_tables_are_rejected(given, error, match):
    with pytest.raises(error, match=match):
        lattice_outcome(*given)
