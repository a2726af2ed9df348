"""How often answers change under paraphrase: counts worked by hand, intervals, the comparison of answers, bad input."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pyrobust.errors import InputError, InputTypeError
from pyrobust.stats import bounded_mean_interval, clopper_pearson_lower, clopper_pearson_upper
from pyrobust.threats import answer_change_rate, factual_consistency, normalized_answer

# Shares of changed answers: 1/3, 1, 0, 1/2.
GROUPS = [
    ["Paris", "paris.", "Lyon", "The Paris"],
    ["1969", "1968"],
    ["yes", "Yes!", " YES "],
    ["the Nile", "nile", "the Amazon"],
]


def test_rates_worked_by_hand():
    pair, question = answer_change_rate(GROUPS), answer_change_rate(GROUPS, per="question")
    assert pair.value == pytest.approx((1 / 3 + 1 + 0 + 1 / 2) / 4, abs=1e-15)
    assert (pair.questions, pair.paraphrases, pair.changed, pair.method) == (4, 8, 3, "betting")
    assert (question.value, question.per, question.method) == (3 / 4, "question", "clopper-pearson")
    assert (question.paraphrases, question.changed) == (8, 3)


def test_consistency_is_one_minus_the_change():
    for per in ("pair", "question"):
        change, same = answer_change_rate(GROUPS, per), factual_consistency(GROUPS, per)
        assert same.value == pytest.approx(1 - change.value, abs=1e-15)
        assert same.lower == pytest.approx(1 - change.upper, abs=1e-12)
        assert same.upper == pytest.approx(1 - change.lower, abs=1e-12)
        assert same.changed == change.changed
    assert float(factual_consistency([["wrong", "Wrong"]])) == 1


def test_intervals():
    shares = [1 / 3, 1, 0, 1 / 2]
    pair = answer_change_rate(GROUPS, confidence=0.9)
    assert (pair.lower, pair.upper) == bounded_mean_interval(shares, 1, 0.1)
    question = answer_change_rate(GROUPS, "question", confidence=0.9)
    assert (question.lower, question.upper) == (clopper_pearson_lower(3, 4, 0.05), clopper_pearson_upper(3, 4, 0.05))
    # One paraphrase of each: binary values, whose interval is exact.
    single = answer_change_rate([["a", "b"], ["a", "a"], ["a", "A"]])
    assert (single.lower, single.upper) == (clopper_pearson_lower(1, 3, 0.025), clopper_pearson_upper(1, 3, 0.025))
    # More paraphrases of the same questions are no larger sample.
    many = [[group[0], *group[1:] * 50] for group in GROUPS]
    assert answer_change_rate(many).lower == pytest.approx(answer_change_rate(GROUPS).lower, abs=1e-12)


def test_a_judge_gets_the_original_first_and_any_answers():
    calls = []

    def judge(answer, other):
        calls.append((answer, other))
        return np.bool_(abs(answer - other) < 2)

    groups = {"age": (30, 31, 35), "height": [1, 1]}
    assert float(answer_change_rate(groups, judge=judge)) == 1 / 4
    assert calls == [(30, 31), (30, 35), (1, 1)]
    assert float(factual_consistency(iter(groups.values()), "question", judge=judge)) == 1 / 2


def test_normalized_answers():
    for text, plain in [
        *(("  The\tEiffel  Tower. ", "eiffel tower"), ("U.S.A.", "u.s.a"), ("\u201cAn apple\u201d", "apple")),
        *(("\u22125", "-5"), ("stra\u00dfe", "strasse"), ("\u300c\u6771\u4eac\u3002\u300d", "\u6771\u4eac")),
        *(("The", "the"), ("A", "a"), ("theory", "theory"), ("", "")),
        *((same, same) for same in ("$1,000", "3.50", "1914-1918", "well-known", "...")),
    ]:
        assert normalized_answer(text) == plain


def test_answers_that_marks_tell_apart():
    for one, other in [
        *(("1e5", "1e-5"), (".5", "5"), ("-.5", "-5"), ("\u00bd", "12"), ("1/2", "12"), ("10:30", "1030")),
        *(("x\u00b2", "x2"), ("\u20135", "5"), ("- 5", "5"), ("\u221e", "-\u221e"), ("x < 0", "x > 0")),
        *(("a = b", "a \u2260 b"), ("yes \U0001f44d", "yes \U0001f44e"), ("C++", "C"), ("!!!", "???")),
    ]:
        assert normalized_answer(one) != normalized_answer(other)


@pytest.mark.parametrize(
    ("groups", "options", "error", "match"),
    [
        ([], {}, InputError, "groups: expected at least one group"),
        ([["a"]], {}, InputError, "groups[0]: expected the original answer and at least one other, got 1"),
        ({"q": []}, {}, InputError, "groups['q']: expected the original answer and at least one other, got 0"),
        (["ab"], {}, InputTypeError, "groups[0]: expected a sequence of answers, got 'ab'"),
        ("ab", {}, InputTypeError, "groups: expected a sequence of groups"),
        ([["a", None]], {}, InputTypeError, "groups[0]: expected texts, or a judge of other answers, got None"),
        (GROUPS, {"per": "row"}, InputError, "per: expected"),
        (
            GROUPS,
            {"judge": lambda answer, other: None},
            InputTypeError,
            "judge: expected the function to return True or False",
        ),
        (GROUPS, {"judge": "exact"}, InputTypeError, "judge: expected a function"),
        (GROUPS, {"confidence": 0}, InputError, "confidence: expected"),
    ],
)
def test_invalid_arguments_are_refused(groups, options, error, match):
    for function in (answer_change_rate, factual_consistency):
        with pytest.raises(error, match=re.escape(match)):
            function(groups, **options)
