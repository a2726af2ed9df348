"""Corrected success rates: coverage by enumeration of all tables, exact tails, degenerate tables, errors."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from pyrobust.errors import InputError, InputTypeError
from pyrobust.threats.judges import (
    JudgeLabels,
    judge_accuracy,
    labels_by_model,
    plan_labels,
    prevalence_external,
    prevalence_external_of_clusters,
    prevalence_from_run,
    prevalence_of_clusters,
)
from pyrobust.threats.judges.region import z_upper


def test_counts():
    verdicts, labels = [True, True, False, False, True], [True, False, True, False, True]
    table = JudgeLabels.of(verdicts, labels)
    assert table == JudgeLabels(2, 1, 1, 1)
    assert (table.n, table.successes, table.positives) == (5, 3, 3)
    assert table.flipped() == JudgeLabels.of(np.logical_not(verdicts), np.logical_not(labels))
    assert labels_by_model(verdicts, labels, "aabba") == {"a": JudgeLabels(2, 0, 1, 0), "b": JudgeLabels(0, 1, 0, 1)}


def test_accuracy_is_exact_and_defined_without_labels():
    accuracy = judge_accuracy(JudgeLabels(45, 5, 10, 90))
    assert accuracy.sensitivity.lower == pytest.approx(special.betaincinv(45, 6, 0.025))
    assert accuracy.specificity.upper == pytest.approx(special.betaincinv(91, 10, 0.975))
    assert accuracy.informative
    empty = judge_accuracy(JudgeLabels(0, 0, 3, 4))
    assert math.isnan(empty.sensitivity.value)
    assert (empty.sensitivity.lower, empty.sensitivity.upper, empty.informative) == (0.0, 1.0, False)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.data())
def test_z_values_bound_exact_tails(n, data):
    """Phi(z_upper) is at least the tail in exact rationals, and near it."""
    k, p = data.draw(st.integers(0, n)), data.draw(st.floats(0.001, 0.999))
    exact_p = Fraction(p)
    tail = sum(math.comb(n, j) * exact_p**j * (1 - exact_p) ** (n - j) for j in range(k, n + 1))
    z = float(z_upper((k, n), np.array([p]), greater=True)[0])
    lowest = special.log_ndtr(z)
    exact = math.log(tail.numerator) - math.log(tail.denominator)
    assert lowest >= exact - 1e-9 * (1 + abs(exact))
    if -600 < exact < -1e-3:  # beyond, z stays at the least value that a double gives
        assert lowest <= exact + 1e-4 * (1 + abs(exact))
    mirrored = float(z_upper((n - k, n), np.array([1.0 - p]), greater=False)[0])
    assert mirrored == pytest.approx(z, abs=1e-6) or z == mirrored


@pytest.mark.parametrize("n", [10**4, 10**6, 10**7])
def test_z_values_bound_proved_tails_of_large_counts(n):
    from decimal import localcontext

    from pyrobust.stats.binomial import _log_tail
    from pyrobust.stats.decimals import context

    for share in (0.001, 0.3, 0.9):
        for deviations in (-3.0, 0.0, 2.0, 8.0):
            k = min(n, max(1, round(n * share + deviations * math.sqrt(n * share * (1 - share)))))
            with localcontext(context()):
                num, den = share.as_integer_ratio()
                exact = float(_log_tail(k, n, num, den)[0])
            z = float(z_upper((k, n), np.array([share]), greater=True)[0])
            assert exact - 1e-10 * (1 + abs(exact)) <= special.log_ndtr(z) <= exact + 1e-4 * (1 + abs(exact))


def test_far_tails_do_not_underflow():
    z = z_upper((900, 1000), np.array([0.1, 0.01]), greater=True)
    assert (np.diff(z) < 0).all()
    assert (z < -37).all()
    assert np.isfinite(z).all()


def binomial(n, p):
    return stats.binom.pmf(np.arange(n + 1), n, p)


def external_coverage(n, successes, failures, p, se, sp, cache):
    """Exact probability that the interval contains p."""
    q = p * se + (1 - p) * (1 - sp)
    runs, hits, false = binomial(n, q), binomial(successes, se), binomial(failures, 1 - sp)
    covered = 0.0
    for x, a, b in itertools.product(range(n + 1), range(successes + 1), range(failures + 1)):
        chance = runs[x] * hits[a] * false[b]
        if chance > 1e-9:
            if (x, a, b) not in cache:
                cache[x, a, b] = prevalence_external(x, n, JudgeLabels(a, successes - a, b, failures - b))
            covered += chance * (cache[x, a, b].lower <= p <= cache[x, a, b].upper)
    return covered


def run_coverage(n, wanted, p, se, sp, cache):
    """Exact probability that the interval contains p, with as many labels of each verdict as wanted and possible."""
    q = p * se + (1 - p) * (1 - sp)
    ppv = p * se / q if q else 0.0
    missed = p * (1 - se) / (1 - q) if q < 1 else 0.0
    covered = 0.0
    for x, chance_x in enumerate(binomial(n, q)):
        positive, negative = min(wanted, x), min(wanted, n - x)
        for (t, chance_t), (m, chance_m) in itertools.product(
            enumerate(binomial(positive, ppv)), enumerate(binomial(negative, missed))
        ):
            chance = chance_x * chance_t * chance_m
            if chance > 1e-9:
                if (x, t, m) not in cache:
                    labels = JudgeLabels(t, m, positive - t, negative - m)
                    cache[x, t, m] = prevalence_from_run(x, n, labels, drawn="by verdict", planned=(wanted, wanted))
                covered += chance * (cache[x, t, m].lower <= p <= cache[x, t, m].upper)
    return covered


RATES = (0.0, 0.01, 0.1, 0.5, 0.99, 1.0)


def test_enumerated_coverage_of_small_tables():
    external, run = {}, {}
    for p in (0.0, 0.5, 0.99):
        assert external_coverage(6, 6, 5, p, 1.0, 0.95, external) >= 0.95 - 1e-6
        assert run_coverage(6, 3, p, 0.9, 0.8, run) >= 0.95 - 1e-6


@pytest.mark.full
@pytest.mark.parametrize(("se", "sp"), [(1.0, 1.0), (0.6, 0.6), (0.9, 0.8), (0.99, 0.7)])
def test_enumerated_coverage(se, sp):
    external, run = {}, {}
    for p in RATES:
        assert external_coverage(10, 10, 9, p, se, sp, external) >= 0.95 - 1e-6
        assert run_coverage(10, 5, p, se, sp, run) >= 0.95 - 1e-6


@pytest.mark.full
@pytest.mark.parametrize(("p", "se", "sp"), [(0.1, 0.9, 0.8), (0.99, 1.0, 0.9)])
def test_simulated_coverage(p, se, sp):
    """A hundred tables of a usual size; the full enumeration of larger cells is bench/judge_coverage.py."""
    rng = np.random.default_rng(1)
    missed = {"external": 0, "run": 0}
    replicates = 100
    for _ in range(replicates):
        truth = rng.random(300) < p
        verdict = np.where(truth, rng.random(300) < se, rng.random(300) < 1 - sp)
        labels = JudgeLabels.of(verdict[:100], truth[:100])
        estimate = prevalence_from_run(int(verdict.sum()), 300, labels)
        missed["run"] += not estimate.lower <= p <= estimate.upper
        hits, false = rng.binomial(60, se), rng.binomial(60, 1 - sp)
        estimate = prevalence_external(int(verdict.sum()), 300, JudgeLabels(hits, 60 - hits, false, 60 - false))
        missed["external"] += not estimate.lower <= p <= estimate.upper
    for count in missed.values():
        assert stats.binomtest(count, replicates, 0.05, alternative="greater").pvalue > 0.001


def test_point_estimates():
    assert prevalence_from_run(40, 100, JudgeLabels(15, 1, 5, 29)).value == pytest.approx(0.4 * 0.75 + 0.6 / 30)
    assert prevalence_external(40, 100, JudgeLabels(80, 20, 10, 90)).value == pytest.approx(0.3 / 0.7)


def test_symmetry_of_success_and_failure():
    labels = JudgeLabels(15, 2, 5, 28)
    for estimate, mirrored in (
        (prevalence_from_run(40, 100, labels), prevalence_from_run(60, 100, labels.flipped())),
        (prevalence_external(40, 100, labels), prevalence_external(60, 100, labels.flipped())),
    ):
        assert estimate.value == pytest.approx(1 - mirrored.value)
        assert estimate.lower == pytest.approx(1 - mirrored.upper, abs=0.03)
        assert estimate.upper == pytest.approx(1 - mirrored.lower, abs=0.03)


def test_narrower_than_bonferroni_and_wider_than_wald():
    estimate = prevalence_external(300, 1000, JudgeLabels(450, 50, 50, 450))
    q, s, f, p = 0.3, 0.9, 0.1, 0.25
    errors = [math.sqrt(q * (1 - q) / 1000), p * math.sqrt(s * (1 - s) / 500), (1 - p) * math.sqrt(f * (1 - f) / 500)]
    wald = 2 * 1.96 * math.hypot(*errors) / (s - f)
    assert wald < estimate.width < 1.25 * wald
    assert estimate.width < 2 * stats.norm.isf(0.05 / 6) * sum(errors) / (s - f)


def test_degenerate_tables_have_intervals():
    none = prevalence_from_run(0, 200, JudgeLabels(0, 0, 0, 50))
    assert (none.value, none.lower) == (0.0, 0.0)
    assert 0.05 < none.upper < 0.1  # 1 - 0.025^(1/50) is 0.071
    unlabelled = prevalence_from_run(30, 200, JudgeLabels(0, 0, 0, 50), drawn="by verdict")
    assert math.isnan(unlabelled.value)
    assert unlabelled.upper > 0.15
    perfect = prevalence_external(0, 200, JudgeLabels(50, 0, 0, 50))
    assert (perfect.value, perfect.lower) == (0.0, 0.0)
    assert 0.015 < perfect.upper < 0.06
    assert prevalence_external(200, 200, JudgeLabels(50, 0, 0, 50)).upper == 1.0


def test_a_judge_that_may_guess_says_nothing():
    guess = prevalence_external(30, 100, JudgeLabels(12, 8, 9, 11))
    assert (guess.lower, guess.upper, guess.informative) == (0.0, 1.0, False)
    assert math.isnan(guess.value)
    assert (prevalence_external(30, 100, JudgeLabels(0, 0, 2, 40))).informative is False
    clusters = prevalence_external_of_clusters([0.2, 0.4], JudgeLabels(12, 8, 9, 11))
    assert (clusters.lower, clusters.upper, clusters.informative) == (0.0, 1.0, False)
    # Labels of the run itself need no informative judge.
    assert prevalence_from_run(50, 100, JudgeLabels(10, 10, 10, 10)).width < 0.6


def test_contradictions_are_reported():
    """One positive verdict in a thousand, of a judge that calls one failure in three a success."""
    doubtful = prevalence_external(1, 1000, JudgeLabels(95, 5, 33, 67))
    assert not doubtful.consistent
    assert (doubtful.lower, doubtful.upper) == (0.0, 1.0)
    assert "same sensitivity" in doubtful.assumption
    clusters = prevalence_external_of_clusters([0.0] * 1000, JudgeLabels(95, 5, 33, 67))
    assert not clusters.consistent


@pytest.mark.parametrize("icc", [0.0, 0.3, 1.0])
def test_clusters(icc):
    """Coverage with behaviours of eight attempts; an interval for independent attempts fails where they are not."""
    rng = np.random.default_rng(3)
    replicates, clusters, attempts, p = 15, 120, 8, 0.3
    missed = np.zeros(2, dtype=int)
    for _ in range(replicates):
        if icc == 1.0:
            rate = (rng.random(clusters) < p).astype(float)
        else:
            strength = 1 / icc - 1 if icc else np.inf
            rate = rng.beta(p * strength, (1 - p) * strength, clusters) if icc else np.full(clusters, p)
        truth = rng.random((clusters, attempts)) < rate[:, None]
        verdict = np.where(truth, rng.random(truth.shape) < 0.9, rng.random(truth.shape) < 0.1)
        labelled, means = truth[:40].mean(axis=1), verdict.mean(axis=1)
        estimate = prevalence_of_clusters(means[40:], means[:40], labelled)
        missed[0] += not estimate.lower <= p <= estimate.upper
        hits, false = rng.binomial(100, 0.9), rng.binomial(100, 0.1)
        estimate = prevalence_external_of_clusters(means, JudgeLabels(hits, 100 - hits, false, 100 - false))
        missed[1] += not estimate.lower <= p <= estimate.upper
    for count in missed.tolist():
        assert stats.binomtest(count, replicates, 0.05, alternative="greater").pvalue > 0.001


def test_plan():
    runs = {"a": (100, 1000, JudgeLabels(38, 2, 12, 48)), "b": (100, 120, JudgeLabels(38, 2, 12, 18))}
    plan = plan_labels(runs, 40)
    assert next(o.stratum for o in plan.options if o.model == "a") == "negative verdicts"
    # The run b has no negative verdict left without a label.
    assert ("b", "negative verdicts") not in [(o.model, o.stratum) for o in plan.options]
    narrowing = [o.narrowing_per_label for o in plan.options]
    assert narrowing == sorted(narrowing, reverse=True)
    first = next(o for o in plan.options if o.model == "a")
    assert first.width == prevalence_from_run(*runs["a"], drawn="by verdict").width
    # What is expected comes about when the labels do.
    after = prevalence_from_run(100, 1000, JudgeLabels(38, 4, 12, 86), drawn="by verdict")
    assert after.width == pytest.approx(first.expected_width, rel=0.15)
    external = plan_labels({"a": (100, 1000, JudgeLabels(38, 2, 2, 28))}, 50, source="external")
    assert external.options[0].stratum == "failures"
    assert len(external.to_dict()["stratum"]) == 2


def test_bad_input():
    labels = JudgeLabels(5, 1, 1, 5)
    with pytest.raises(InputError, match=r"^true_positives: expected 0 to"):
        JudgeLabels(-1, 0, 0, 0)
    with pytest.raises(InputTypeError, match=r"^verdicts: expected booleans"):
        JudgeLabels.of([1, 0], [True, False])
    with pytest.raises(InputError, match=r"^labels: expected 2, one for each verdict"):
        JudgeLabels.of([True, False], [True])
    with pytest.raises(InputError, match=r"^models: expected 1"):
        labels_by_model([True], [True], [])
    with pytest.raises(InputError, match=r"^positives: expected 0 to 10"):
        prevalence_external(11, 10, labels)
    with pytest.raises(InputError, match=r"^alpha: expected"):
        prevalence_external(1, 10, labels, 0.0)
    with pytest.raises(InputError, match=r"^labels: expected at most 2 of positive and 8 of negative verdicts, got 6"):
        prevalence_from_run(2, 10, labels)
    with pytest.raises(InputError, match=r"^labels: expected at least one, got none"):
        prevalence_from_run(2, 10, JudgeLabels(0, 0, 0, 0))
    with pytest.raises(InputError, match=r"^planned: expected at least"):
        prevalence_from_run(8, 20, labels, drawn="by verdict", planned=(1, 1))
    with pytest.raises(InputError, match=r"^drawn: expected"):
        prevalence_from_run(8, 20, labels, drawn="somehow")
    with pytest.raises(InputError, match=r"^verdict_means: expected numbers in \[0, 1\], got 2.0 at index 1"):
        prevalence_of_clusters([0.5, 2.0], [0.5], [0.5])
    with pytest.raises(InputError, match=r"^labelled_verdict_means: expected 1 numbers"):
        prevalence_of_clusters([0.5], [0.5, 0.5], [0.5])
    with pytest.raises(InputError, match=r"^runs: expected at least one model"):
        plan_labels({})
    assert [option.width for option in plan_labels({"a": (30, 100, JudgeLabels(0, 0, 0, 0))}, 5).options] == [1, 1]
