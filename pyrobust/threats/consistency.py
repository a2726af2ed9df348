"""Consistency of a model's answers: how often an answer changes when the question is paraphrased."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from pyrobust.checks import choice, shown
from pyrobust.errors import InputError, InputTypeError
from pyrobust.frames import plain_fields
from pyrobust.threats.rates import error_rate, interval

Per: TypeAlias = Literal["pair", "question"]
_PER: Final = ("pair", "question")
#: Whether two answers say the same.
SameAnswer: TypeAlias = Callable[[Any, Any], bool]

_ARTICLES: Final = frozenset(("a", "an", "the"))
# Punctuation before and after words that does not change an answer.
_OPENING: Final = "\"'([{«“”‘’„¿¡（「『"
_CLOSING: Final = "\"')]}»“”‘’.,;:!?…。、！？；：）」』"
_MINUS: Final = {ord(dash): "-" for dash in "\u2212\u2013\u2010\u2011"}


@dataclass(frozen=True)
class AnswerRate:
    """A rate over questions with its confidence interval; ``float(rate)`` is the rate.

    The interval assumes that the questions are drawn independently from one distribution. The answers to one question
    may depend on each other in any way.

    Attributes:
        value: mean over the questions.
        lower, upper: ends of the two-sided interval.
        confidence: least probability that the interval covers the mean.
        questions: number of questions, the sample size of the interval.
        paraphrases: number of their paraphrases.
        changed: number of paraphrases whose answer differs from the answer to the original question.
        per: "pair" or "question", as in ``answer_change_rate``.
        method: "clopper-pearson" where each question has a single binary value, else "betting"
            (``pyrobust.stats.bounded_mean_interval``).
    """

    value: float
    lower: float
    upper: float
    confidence: float
    questions: int
    paraphrases: int
    changed: int
    per: Per
    method: Literal["clopper-pearson", "betting"]

    def __float__(self) -> float:
        return self.value

    to_dict = plain_fields


def answer_change_rate(
    groups: Iterable[Sequence[Any]] | Mapping[Any, Sequence[Any]],
    per: Per = "pair",
    *,
    judge: SameAnswer | None = None,
    confidence: float = 0.95,
) -> AnswerRate:
    """How often a model's answer changes when its question is paraphrased.

    Let aᵢ₀ be the answer to question i, and let aᵢ₁, …, aᵢₘ be the answers to its mᵢ paraphrases. The rate per pair is
    ``(1/N)·Σᵢ (1/mᵢ)·Σⱼ 1[aᵢⱼ ≠ aᵢ₀]``. The rate per question is ``(1/N)·Σᵢ 1[aᵢⱼ ≠ aᵢ₀ for some j]``. The rate per
    question grows with the number of paraphrases.

    Args:
        groups: a sequence of groups of answers, or a mapping from names to such groups, with one group for each
            question. A group has at least two answers: the answer to the question, followed by the answers to its
            paraphrases.
        per: "pair": the mean over questions of the share of paraphrases whose answer differs from the answer to the
            question. "question": the share of questions with at least one such paraphrase.
        judge: a function of two answers; ``judge(original, other)`` returns whether both say the same. By default,
            answers have to be texts. They are compared without case, extra white space, articles and punctuation around
            words (``normalized_answer``).
        confidence: confidence level of the interval, in (0, 1).

    Returns:
        AnswerRate, with an interval that holds for every number of questions.

    Raises:
        InputError: there are no groups, a group has fewer than two answers, ``per`` is unknown, or the confidence is
            out of range.
        InputTypeError: a group is not a sequence, there is no judge and an answer is not a text, or the judge does not
            return a bool.

    >>> groups = [["Paris.", "paris", "It is Paris"], ["1969", "In 1969", "1968"], ["The Nile", "Nile", "nile"]]
    >>> rate = answer_change_rate(groups)
    >>> rate.value, rate.changed, rate.paraphrases
    (0.5, 3, 6)
    >>> within = lambda first, other: normalized_answer(first) in normalized_answer(other)
    >>> answer_change_rate(groups, judge=within).changed
    1
    """
    return _rate(groups, per, judge, confidence, consistent=False)


def factual_consistency(
    groups: Iterable[Sequence[Any]] | Mapping[Any, Sequence[Any]],
    per: Per = "pair",
    *,
    judge: SameAnswer | None = None,
    confidence: float = 0.95,
) -> AnswerRate:
    """How often a model's answer stays the same when its question is paraphrased: 1 − ``answer_change_rate``.

    The measure ignores correctness: a model that always gives the same wrong answer has a consistency of 1.
    ``contradiction_rate`` compares answers with facts.

    Args:
        groups: as for ``answer_change_rate``.
        per: "pair": the mean over questions of the share of paraphrases whose answer is the same as the answer to the
            question. "question": the share of questions whose answers are all the same.
        judge: as for ``answer_change_rate``.
        confidence: confidence level of the interval, in (0, 1).

    Returns:
        AnswerRate.

    Raises:
        InputError: as ``answer_change_rate``.
        InputTypeError: as ``answer_change_rate``.

    >>> float(factual_consistency({"capital": ["Paris", "paris."], "moon": ["1969", "1968"]}, per="question"))
    0.5
    """
    return _rate(groups, per, judge, confidence, consistent=True)


def normalized_answer(text: str) -> str:
    """Return a text for comparison: in lower case, without articles, surplus white space and punctuation around words.

    SQuAD's comparison of answers (Rajpurkar et al., 2016) removes all punctuation. This function keeps punctuation that
    may change an answer: signs, symbols and marks inside a word or number. It also keeps the articles and punctuation
    of an answer that consists of nothing else. In case of doubt, the function keeps answers apart: it may treat equal
    answers as different, which is preferred to treating different answers as equal.

    >>> normalized_answer("The  U.S. dollar!"), normalized_answer("-3.5 %"), normalized_answer("A")
    ('u.s dollar', '-3.5 %', 'a')
    """
    text = unicodedata.normalize("NFC", text).casefold().translate(_MINUS)
    tokens = text.split()
    words = [word for word in (token.lstrip(_OPENING).rstrip(_CLOSING) for token in tokens) if word]
    return " ".join([word for word in words if word not in _ARTICLES] or words or tokens)


def _rate(groups: Any, per: Per, judge: SameAnswer | None, confidence: float, *, consistent: bool) -> AnswerRate:
    choice("per", per, _PER)
    alpha = error_rate(confidence)
    if judge is not None and not callable(judge):
        raise InputTypeError("judge", "a function of two answers, or None", shown(judge))
    same = [_same(name, answers, judge) for name, answers in _items(groups)]
    if not same:
        raise InputError("groups", "at least one group of answers", "none")
    pairs, changed = sum(map(len, same)), sum(flags.count(False) for flags in same)
    if per == "question":
        same = [[all(flags)] for flags in same]
    values = [sum(flag == consistent for flag in flags) / len(flags) for flags in same]
    binary = all(len(flags) == 1 for flags in same)
    lower, upper = interval([str(i) for i in range(len(values))], values, alpha, binary)
    return AnswerRate(
        math.fsum(values) / len(values),
        lower,
        upper,
        float(confidence),
        questions=len(values),
        paraphrases=pairs,
        changed=changed,
        per=per,
        method="clopper-pearson" if binary else "betting",
    )


def _items(groups: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield, for each group, the name that error messages give to it, and its answers as a list."""
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise InputTypeError("groups", "a sequence of groups of answers", shown(groups))
    named = groups.items() if isinstance(groups, Mapping) else enumerate(groups)
    for key, answers in named:
        name = f"groups[{key!r}]"
        if isinstance(answers, str | Mapping) or not isinstance(answers, Iterable):
            raise InputTypeError(name, "a sequence of answers", shown(answers))
        answers = list(answers)
        if len(answers) < 2:
            raise InputError(name, "the original answer and at least one other", len(answers))
        yield name, answers


def _same(name: str, answers: list[Any], judge: SameAnswer | None) -> list[bool]:
    """Return, for each paraphrase, whether its answer is the same as the answer to the original question."""
    if judge is None:
        for answer in answers:
            if not isinstance(answer, str):
                raise InputTypeError(name, "texts, or a judge of other answers", shown(answer))
        first, *others = map(normalized_answer, answers)
        return [other == first for other in others]
    opinions = [judge(answers[0], other) for other in answers[1:]]
    for opinion in opinions:
        if not isinstance(opinion, bool | np.bool_):
            raise InputTypeError("judge", "the function to return True or False", shown(opinion))
    return list(map(bool, opinions))
