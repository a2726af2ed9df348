"""Judges against labels: counts, exact intervals, rates of the labels alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy import special

from pyrobust.errors import InputError, InputTypeError
from pyrobust.threats import ThreatVerdict, ThreatVerdicts, threat_success_rate
from pyrobust.threats.judges import JudgeLabels, judge_accuracy, labelled_success_rate, labels_by_model


def test_counts():
    verdicts, labels = [True, True, False, False, True], [True, False, True, False, True]
    table = JudgeLabels.of(verdicts, labels)
    assert table == JudgeLabels(2, 1, 1, 1)
    assert (table.n, table.successes) == (5, 3)
    assert labels_by_model(verdicts, labels, "aabba") == {"a": JudgeLabels(2, 0, 1, 0), "b": JudgeLabels(0, 1, 0, 1)}


def test_accuracy_is_exact_and_defined_without_labels():
    accuracy = judge_accuracy(JudgeLabels(45, 5, 10, 90))
    assert accuracy.sensitivity.lower == pytest.approx(special.betaincinv(45, 6, 0.025))
    assert accuracy.specificity.upper == pytest.approx(special.betaincinv(91, 10, 0.975))
    assert accuracy.informative
    empty = judge_accuracy(JudgeLabels(0, 0, 3, 4))
    assert math.isnan(empty.sensitivity.value)
    assert (empty.sensitivity.lower, empty.sensitivity.upper, empty.informative) == (0.0, 1.0, False)


def test_the_rate_of_the_labels_is_that_of_labels_as_verdicts():
    rows = [
        ThreatVerdict(
            f"{b}/{a}", behaviour=str(b), attempt=a, success=a == 0, human_label=b % 2 == 0, model="ab"[b % 2]
        )
        for b in range(20)
        for a in range(2)
    ]
    rows[0] = replace(rows[0], success=None, status="unparsable")  # its label counts all the same
    others = [ThreatVerdict(f"other {i}", behaviour=f"other {i}", success=True) for i in range(30)]
    rate = labelled_success_rate(ThreatVerdicts((*rows, *others)))[0]
    labels = ThreatVerdicts(tuple(replace(row, success=row.human_label, status="judged") for row in rows))
    assert rate == threat_success_rate(labels)[0]
    assert (rate.value, rate.clusters, rate.missing, rate.method) == (0.5, 20, 0, "betting")
    single = labelled_success_rate(ThreatVerdicts(tuple(rows[::2])))[0]
    assert single.upper == pytest.approx(special.betaincinv(11, 10, 0.975))
    assert [each.value for each in labelled_success_rate(ThreatVerdicts(tuple(rows)), "model")] == [1.0, 0.0]
    with pytest.raises(InputError, match="verdicts: expected rows with a human_label, got none"):
        labelled_success_rate(ThreatVerdicts(tuple(others)))
    both = (*rows, *(replace(row, judge="second") for row in rows))
    with pytest.raises(InputError, match="judge: expected one of"):
        labelled_success_rate(ThreatVerdicts(both))


def test_bad_input():
    for function, arguments, error, match in [
        (JudgeLabels, (-1, 0, 0, 0), InputError, "true_positives: expected"),
        (JudgeLabels, (10**7, 1, 0, 0), InputError, "expected"),
        (JudgeLabels, (1.5, 0, 0, 0), InputTypeError, "true_positives: expected an integer"),
        (JudgeLabels.of, ([1, 0], [True, False]), InputTypeError, "verdicts: expected booleans"),
        (JudgeLabels.of, ([True, False], [True]), InputError, "labels: expected 2"),
        (labels_by_model, ([True], [True], "ab"), InputError, "models: expected 1"),
        (judge_accuracy, (JudgeLabels(1, 0, 0, 1), 1.0), InputError, "alpha"),
    ]:
        with pytest.raises(error, match=match):
            function(*arguments)
