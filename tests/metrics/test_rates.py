"""Rates: shares by hand, intervals against scipy, and relations between the rates."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyrobust import metrics, reference
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import Rate

# Clean and adversarial: correct and robust, correct and fooled, both wrong, wrong and corrected, correct and NaN, NaN
# and correct.
CLEAN = torch.tensor([0, 1, 2, 0, 3, -1])
ADVERSARIAL = torch.tensor([0, 2, 2, 1, -1, 1])
LABELS = torch.tensor([0, 1, 0, 1, 3, 1])


def test_shares_worked_by_hand():
    assert metrics.clean_accuracy(CLEAN, LABELS).successes == 3
    assert metrics.robust_accuracy(CLEAN, ADVERSARIAL, LABELS).successes == 1
    assert metrics.standard_risk(CLEAN, LABELS).successes == 3
    assert metrics.robust_risk(CLEAN, ADVERSARIAL, LABELS).successes == 5
    success = metrics.attack_success_rate(CLEAN, ADVERSARIAL, LABELS)
    assert (success.successes, success.n) == (5, 6)
    on_correct = metrics.success_rate_on_correct(CLEAN, ADVERSARIAL, LABELS)
    assert (on_correct.successes, on_correct.n) == (2, 3)
    targets = torch.tensor([1, 2, 2, 2, 0, 0])
    assert metrics.targeted_success_rate(ADVERSARIAL, targets).successes == 2
    for rate in (metrics.clean_accuracy(CLEAN, LABELS), metrics.robust_risk(CLEAN, ADVERSARIAL, LABELS)):
        assert rate.n == 6
        assert float(rate) == rate.value == rate.successes / 6


@pytest.mark.parametrize(("successes", "n", "alpha"), [(0, 7, 0.05), (7, 7, 0.05), (3, 200, 0.001), (871, 1000, 0.1)])
def test_interval_matches_scipy(successes, n, alpha):
    rate = metrics.estimate_rate(successes, n, alpha)
    expected = stats.binomtest(successes, n).proportion_ci(1 - alpha, "exact")
    assert rate.lower == pytest.approx(expected.low, rel=1e-9)
    assert rate.upper == pytest.approx(expected.high, rel=1e-9)
    assert rate.lower <= rate.value <= rate.upper
    assert rate.to_dict() == {
        "successes": successes,
        "n": n,
        "value": successes / n,
        "lower": rate.lower,
        "upper": rate.upper,
        "alpha": alpha,
    }
    assert Rate(successes, n, alpha) == rate


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_rates_are_consistent(rows):
    clean, adversarial, labels = (torch.tensor(column) for column in zip(*rows, strict=True))
    accuracy = metrics.clean_accuracy(clean, labels)
    robust = metrics.robust_accuracy(clean, adversarial, labels)
    assert robust.successes <= accuracy.successes
    assert robust.successes + metrics.robust_risk(clean, adversarial, labels).successes == len(rows)
    assert accuracy.successes + metrics.standard_risk(clean, labels).successes == len(rows)
    assert metrics.robust_accuracy(clean, clean, labels) == accuracy
    success = metrics.attack_success_rate(clean, adversarial, labels)
    assert success.n == len(rows)
    assert success.value == pytest.approx(1 - robust.value)
    if accuracy.successes:
        on_correct = metrics.success_rate_on_correct(clean, adversarial, labels)
        assert accuracy.successes - on_correct.successes == robust.successes
        assert on_correct.successes <= success.successes
    attacked = metrics.targeted_success_rate(adversarial, labels)  # correct at x_adv
    assert attacked.successes >= robust.successes
    order = torch.randperm(len(rows))
    assert metrics.robust_accuracy(clean[order], adversarial[order], labels[order]) == robust


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_integers_of_other_widths(dtype):
    small = torch.tensor([0, 1, 3]).to(dtype)
    assert metrics.clean_accuracy(small, torch.tensor([0, 1, 2])).successes == 2


# --- predictions from logits


def test_rule_for_the_predicted_class():
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
    logits = torch.tensor([row for row, _ in rows])
    assert metrics.predicted_classes(logits).tolist() == [winner for _, winner in rows]
    assert metrics.predicted_classes(logits).dtype == torch.int64
    assert metrics.predicted_classes(torch.empty(0, 3)).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_predictions_match_count_votes(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-2, 3, (500, 4), generator=generator).to(dtype)
    logits[torch.rand(500, 4, generator=generator) < 0.05] = math.nan
    logits[torch.rand(500, 4, generator=generator) < 0.1] = -math.inf
    counts = reference.count_votes(logits, torch.arange(500), torch.zeros(500, 5, dtype=torch.int64))
    votes = counts.argmax(1)
    assert torch.equal(metrics.predicted_classes(logits), torch.where(votes == 4, -1, votes))
    assert 10 < int((votes == 4).sum()) < 250


# --- wrong arguments

NONE = torch.zeros(0, dtype=torch.int64)


@pytest.mark.parametrize(
    ("argument", "value", "error", "match"),
    [
        ("clean", ["0", "1"], InputTypeError, r"clean: expected a tensor.*classes\.index"),
        ("clean", torch.zeros(2), InputTypeError, "clean: expected integers, got torch.float32$"),
        ("clean", torch.zeros(2, 3), InputTypeError, r"clean: expected integers.*predicted_classes\(logits\)"),
        ("clean", torch.zeros(2, 1).long(), InputError, r"clean: expected shape \(N,\), got \(2, 1\)"),
        ("clean", NONE, InputError, "clean: expected at least one example"),
        ("clean", torch.tensor([0, -2]), InputError, "clean: expected classes of at least -1, got -2"),
        ("adversarial", torch.tensor([0]), InputError, "adversarial: expected one for each of the 2 examples, got 1"),
        ("labels", torch.tensor([0, -1]), InputError, "labels: expected classes of at least 0, got -1"),
        ("alpha", 0.0, InputError, "alpha: expected a number in"),
        ("alpha", "0.05", InputTypeError, "alpha: expected a number, got"),
    ],
)
@pytest.mark.parametrize("metric", [metrics.robust_accuracy, metrics.robust_risk, metrics.attack_success_rate])
def test_bad_arguments_are_named_in_errors(metric, argument, value, error, match):
    arguments = {"clean": torch.tensor([0, 1]), "adversarial": torch.tensor([0, 1]), "labels": torch.tensor([0, 1])}
    with pytest.raises(error, match=match):
        metric(**(arguments | {argument: value}))


@pytest.mark.parametrize(
    ("function", "arguments", "error", "match"),
    [
        (
            metrics.success_rate_on_correct,
            ([1, -1], [0, 0], [0, 0]),
            InputError,
            "clean: expected at least one .* none of 2",
        ),
        (metrics.targeted_success_rate, ([-1], [-1]), InputError, "targets: expected classes of at least 0, got -1"),
        (metrics.estimate_rate, (-1, 3), InputError, "successes: expected"),
        (metrics.estimate_rate, (4, 3), InputError, "successes: expected"),
        (metrics.estimate_rate, (0, 0), InputError, "n: expected"),
        (metrics.predicted_classes, (torch.zeros(2, 3, dtype=torch.int64),), InputTypeError, "logits: expected"),
        (metrics.predicted_classes, (torch.zeros(3),), InputError, "logits: expected"),
        (metrics.predicted_classes, (torch.zeros(3, 0),), InputError, "logits: expected"),
    ],
)
def test_bad_values(function, arguments, error, match):
    with pytest.raises(error, match=match):
        function(*(torch.tensor(value) if isinstance(value, list) else value for value in arguments))
