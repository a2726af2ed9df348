"""Rates against their definitions, their intervals against scipy; crossings that chance explains, in exact numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyrobust import metrics
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import Rate, crossing_rule, union_bound


@pytest.mark.parametrize(("successes", "n", "alpha"), [(0, 7, 0.05), (7, 7, 0.05), (3, 200, 0.001), (871, 1000, 0.1)])
def test_interval_matches_scipy(successes, n, alpha):
    rate = metrics.estimate_rate(successes, n, alpha)
    expected = stats.binomtest(successes, n).proportion_ci(1 - alpha, "exact")
    assert rate.lower == pytest.approx(expected.low, rel=1e-9)
    assert rate.upper == pytest.approx(expected.high, rel=1e-9)
    assert rate.lower <= rate.value <= rate.upper
    assert float(rate) == rate.value == successes / n
    assert rate.to_dict() == {
        name: getattr(rate, name) for name in ("successes", "n", "value", "lower", "upper", "alpha")
    }
    assert Rate(successes, n, alpha) == rate


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


@given(
    st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3), st.integers(0, 3)), min_size=1, max_size=30),
    st.sampled_from(INTEGERS),
    st.sampled_from([0.05, 0.2]),
)
def test_rates_are_those_of_their_definitions(rows, dtype, alpha):
    clean, adversarial, labels = (torch.tensor(column, dtype=dtype) for column in zip(*rows, strict=True))
    n, correct = len(rows), sum(f == y for f, _, y in rows)
    robust = sum(f == y == attacked for f, attacked, y in rows)
    for function, columns, successes, examples in (
        (metrics.clean_accuracy, (clean, labels), correct, n),
        (metrics.standard_risk, (clean, labels), n - correct, n),
        (metrics.robust_accuracy, (clean, adversarial, labels), robust, n),
        (metrics.robust_risk, (clean, adversarial, labels), n - robust, n),
        (metrics.attack_success_rate, (clean, adversarial, labels), n - robust, n),
        (metrics.success_rate_on_correct, (clean, adversarial, labels), correct - robust, correct),
        (metrics.targeted_success_rate, (adversarial, labels.byte()), sum(a == y for _, a, y in rows), n),
    ):
        if examples:
            assert function(*columns, alpha) == metrics.estimate_rate(successes, examples, alpha)


# --- predictions from logits


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rule_for_the_predicted_class(dtype):
    nan, inf = math.nan, math.inf
    rows = [
        ([1.0, 3.0, 2.0], 1),
        ([2.0, 2.0, 2.0], 0),
        ([0.0, 5.0, 5.0], 1),
        ([-inf, -inf, -5.0], 2),
        ([-inf, -inf, -inf], -1),
        ([9.0, 0.0, nan], -1),
        ([9.0, inf, 0.0], -1),
    ]
    classes = metrics.predicted_classes(torch.tensor([row for row, _ in rows], dtype=dtype))
    assert classes.tolist() == [winner for _, winner in rows]
    assert classes.dtype == torch.int64
    assert metrics.predicted_classes(torch.empty(0, 3, dtype=dtype)).shape == (0,)


# --- wrong arguments


def test_bad_arguments_are_named_in_errors():
    two = torch.tensor([0, 1])
    for argument, value, error, match in [
        ("clean", ["0", "1"], InputTypeError, r"clean: expected a tensor.*classes\.index"),
        ("clean", torch.zeros(2, 3), InputTypeError, r"clean: expected integers.*predicted_classes\(logits\)"),
        ("clean", torch.zeros(2, 1).long(), InputError, r"clean: expected shape \(N,\), got \(2, 1\)"),
        ("clean", two[:0], InputError, "clean: expected at least one example"),
        ("clean", torch.tensor([0, -2]), InputError, "clean: expected classes of at least -1, got -2"),
        ("adversarial", two[:1], InputError, "adversarial: expected one for each of the 2 examples, got 1"),
        ("labels", torch.tensor([0, -1]), InputError, "labels: expected classes of at least 0, got -1"),
        ("alpha", 0.0, InputError, "alpha: expected a number in"),
    ]:
        for metric in (metrics.robust_accuracy, metrics.robust_risk, metrics.attack_success_rate):
            with pytest.raises(error, match=match):
                metric(**({"clean": two, "adversarial": two, "labels": two} | {argument: value}))
    for call, error, match in [
        (lambda: metrics.success_rate_on_correct(two - 1, two, two), InputError, "clean: .* none of 2"),
        (lambda: metrics.targeted_success_rate(two, two - 1), InputError, "targets: expected classes of at least 0"),
        (lambda: metrics.estimate_rate(-1, 3), InputError, "successes: expected"),
        (lambda: metrics.estimate_rate(4, 3), InputError, "successes: expected"),
        (lambda: metrics.estimate_rate(0, 0), InputError, "n: expected"),
        (lambda: metrics.predicted_classes(two[None]), InputTypeError, "logits: expected"),
        (lambda: metrics.predicted_classes(torch.zeros(3)), InputError, "logits: expected"),
        (lambda: metrics.predicted_classes(torch.zeros(3, 0)), InputError, "logits: expected"),
    ]:
        with pytest.raises(error, match=match):
            call()


# --- crossings that chance explains


def tail(limit, n, p):
    """P(Bin(n, p) > limit), exactly."""
    p = Fraction(p)
    return 1 - sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(limit + 1))


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
    limit = crossing_rule(n, alpha, alpha_attack, false_alarm).most
    chance = Fraction(alpha) + Fraction(alpha_attack)
    assert tail(limit, n, chance) <= Fraction(false_alarm)
    # Smallest, up to the margin of the proof.
    assert limit == 0 or tail(limit - 1, n, chance) > Fraction(false_alarm) * (1 - Fraction(1, 10**6))


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


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned_classes(dtype: str) -> None:
    classes = np.array([1, 2, 3], dtype=dtype)
    assert metrics.clean_accuracy(classes, classes).value == 1.0
    if dtype == "uint64":
        with pytest.raises(InputError, match="classes of at least 0"):
            metrics.clean_accuracy(np.array([2**64 - 1], dtype=dtype), np.array([1]))
