"""Verdicts of word substitution attacks."""

from __future__ import annotations

import math

import pytest

from pyrobust.errors import InputTypeError
from pyrobust.text import WordSubstitution
from pyrobust.threats import (
    read_verdicts,
    threat_success_rate,
    word_attack_verdicts,
    write_verdicts,
)

TEXTS = ["good film", "good", "a film", "good film", "nan"]


def outcome(**arguments):
    def model(texts):
        return [[0.0, math.nan if "nan" in text else text.count("good") - 0.5] for text in texts]

    return WordSubstitution(model, {"good": ["fine"]}).attack(TEXTS, [1, 0, 0, 1, 0], **arguments)


def test_verdicts_of_an_attack(tmp_path):
    result = outcome()
    verdicts = word_attack_verdicts(result, model="m", group="g")
    assert verdicts.column("success") == [True, None, False, True, None]
    assert verdicts.column("status") == ["judged", "unsubmitted", "judged", "judged", "unsubmitted"]
    assert verdicts.column("queries") == [2, 1, 1, 2, 1]
    assert verdicts.column("attempt") == [0, 0, 0, 1, 0], "equal texts are attempts at one prompt"
    assert verdicts.column("category") == ["1", "0", "0", "1", "0"]
    assert verdicts.column("score") == [-0.5, -0.5, 0.5, -0.5, None]
    assert set(verdicts.column("threat")) == {"misclassification"}
    (rate,) = threat_success_rate(verdicts)
    assert (rate.value, rate.missing, rate.prompts) == (0.5, 2, 4)
    write_verdicts(verdicts, tmp_path / "verdicts.jsonl")
    assert read_verdicts(tmp_path / "verdicts.jsonl").rows == verdicts.rows


def test_targeted():
    verdicts = word_attack_verdicts(outcome(targeted=True, target_labels=[0, 0, 0, 0, 1]))
    assert verdicts.column("success") == [True, True, None, True, False]
    assert set(verdicts.column("threat")) == {"targeted"}


@pytest.mark.parametrize("arguments", [{"result": ["text"]}, {"result": outcome(), "model": 1}])
def test_wrong_arguments(arguments):
    with pytest.raises(InputTypeError, match="expected a"):
        word_attack_verdicts(**arguments)
