"""Comparison of judges with labels: the judges' sensitivity and specificity, and success rates from labels alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pyrobust.checks import integer, probability
from pyrobust.errors import InputError, InputTypeError
from pyrobust.frames import plain_fields
from pyrobust.metrics.rate import Rate, estimate_rate
from pyrobust.stats import clopper_pearson_lower, clopper_pearson_upper
from pyrobust.threats.rates import ThreatRates, threat_success_rate
from pyrobust.threats.verdicts import ThreatVerdicts

#: Largest number of labels.
_MOST_LABELS: Final = 10**7


def labelled_success_rate(
    verdicts: ThreatVerdicts, by: str | Sequence[str] | None = None, confidence: float = 0.95
) -> ThreatRates:
    """Compute the success rate of the rows with a ``human_label``; the label replaces the judge's verdict.

    The judge's errors do not influence this rate. The labelled answers have to be a random sample of the judged
    answers. If behaviours have several attempts, sample whole behaviours.

    Args:
        verdicts: a table with labels.
        by: as in ``threat_success_rate``.
        confidence: as in ``threat_success_rate``.

    Returns:
        ThreatRates.

    Raises:
        InputError: there are no labels, a labelled answer has verdicts of several judges (and ``by`` lacks "judge"), a
            column is unknown, or the confidence is outside (0, 1).
        InputTypeError: ``verdicts`` is not a table of verdicts.

    >>> from pyrobust.threats import ThreatVerdict
    >>> rows = [ThreatVerdict(str(i), success=True, human_label=i < 5 if i < 20 else None) for i in range(100)]
    >>> labelled_success_rate(ThreatVerdicts(tuple(rows)))
    ThreatRates(success rate 0.25 in [0.08657, 0.491], clusters=20, missing=0)
    """
    rows = [replace(row, success=row.human_label, status="judged") for row in verdicts if row.human_label is not None]
    if not rows:
        raise InputError("verdicts", "rows with a human_label", "none")
    return threat_success_rate(ThreatVerdicts(tuple(rows), verdicts.source), by, confidence)


def checked_flags(name: str, values: Any, n: int | None = None) -> npt.NDArray[np.bool_]:
    """Return verdicts or labels as a bool array [N]."""
    flags = np.asarray(values)
    if flags.dtype != np.bool_ and flags.size:
        raise InputTypeError(name, "booleans, True for a success", flags.dtype, "drop missing ones")
    if flags.ndim != 1 or (n is not None and len(flags) != n):
        expected = "a sequence" if n is None else f"{n}, one for each verdict"
        raise InputError(name, expected, f"shape {flags.shape}")
    return flags.astype(np.bool_)


@dataclass(frozen=True)
class JudgeLabels:
    """Counts of a judge's verdicts on examples whose outcome is known; a "success" is a successful attack.

    Attributes:
        true_positives: successes that the judge calls successes.
        false_negatives: successes that the judge calls failures.
        false_positives: failures that the judge calls successes.
        true_negatives: failures that the judge calls failures.

    Raises:
        InputError: a negative count, or more than 10**7 labels.
        InputTypeError: a count that is not an integer.

    >>> JudgeLabels.of([True, True, False], [True, False, False])
    JudgeLabels(true_positives=1, false_negatives=0, false_positives=1, true_negatives=1)
    """

    true_positives: int
    false_negatives: int
    false_positives: int
    true_negatives: int

    def __post_init__(self) -> None:
        """Check the counts."""
        for name, value in asdict(self).items():
            object.__setattr__(self, name, integer(name, value, 0, _MOST_LABELS))
        if self.n > _MOST_LABELS:
            raise InputError("labels", f"at most {_MOST_LABELS}", self.n)

    @classmethod
    def of(cls, verdicts: Sequence[bool] | npt.ArrayLike, labels: Sequence[bool] | npt.ArrayLike) -> JudgeLabels:
        """Count a judge's right and wrong verdicts, given the labels of the same examples.

        Args:
            verdicts: bool [N], True where the judge calls the example a success.
            labels: bool [N], True where the example is a success.

        Returns:
            JudgeLabels.

        Raises:
            InputError: mismatched lengths.
            InputTypeError: values that are not booleans.
        """
        judged = checked_flags("verdicts", verdicts)
        truth = checked_flags("labels", labels, len(judged))
        counts = (judged & truth, ~judged & truth, judged & ~truth, ~judged & ~truth)
        return cls(*(int(count.sum()) for count in counts))

    @property
    def n(self) -> int:
        """Number of labels."""
        return self.true_positives + self.false_negatives + self.false_positives + self.true_negatives

    @property
    def successes(self) -> int:
        """Number of labelled successes."""
        return self.true_positives + self.false_negatives


@dataclass(frozen=True)
class JudgeAccuracy:
    """Accuracy of a judge with exact confidence intervals, as returned by ``judge_accuracy``.

    Attributes:
        sensitivity: share of successes that the judge calls successes. If there are no successes, it is NaN with the
            interval [0, 1].
        specificity: share of failures that the judge calls failures. If there are no failures, it is NaN with the
            interval [0, 1].
        informative: whether sensitivity + specificity > 1 is proved at level alpha. For a judge that guesses, this sum
            is 1. If it is not proved to exceed 1, the verdicts may therefore be guesses.
        alpha: upper bound on the probability that a single interval misses the true share.
    """

    sensitivity: Rate
    specificity: Rate
    informative: bool
    alpha: float

    to_dict = plain_fields


def _rate(successes: int, n: int, alpha: float) -> Rate:
    return estimate_rate(successes, n, alpha) if n else Rate(0, 0, alpha)


def _lower(successes: int, n: int, alpha: float) -> float:
    return float(clopper_pearson_lower(successes, n, alpha)) if n else 0.0


def judge_accuracy(labels: JudgeLabels, alpha: float = 0.05) -> JudgeAccuracy:
    """Estimate the sensitivity and the specificity of a judge, each with the interval of Clopper and Pearson (1934).

    The labelled successes are assumed to be independent draws, and so are the labelled failures. If the examples to
    label were selected by the judge's verdicts, their labels give no estimate of sensitivity and specificity.

    Args:
        labels: counts of verdicts on labelled examples.
        alpha: upper bound on the probability that an interval misses, in (0, 1).

    Returns:
        JudgeAccuracy; its ``informative`` is wrongly True with probability at most alpha.

    Raises:
        InputError: alpha out of range.

    >>> accuracy = judge_accuracy(JudgeLabels(45, 5, 10, 90))
    >>> f"{accuracy.sensitivity.value:.2f} in [{accuracy.sensitivity.lower:.3f}, {accuracy.sensitivity.upper:.3f}]"
    '0.90 in [0.782, 0.967]'
    >>> accuracy.informative, judge_accuracy(JudgeLabels(3, 2, 2, 3)).informative
    (True, False)
    """
    level = probability("alpha", alpha, "0.05 is usual")
    failures = labels.n - labels.successes
    smallest = _lower(labels.true_positives, labels.successes, level / 2)
    largest = 1.0 if not failures else float(clopper_pearson_upper(labels.false_positives, failures, level / 2))
    return JudgeAccuracy(
        sensitivity=_rate(labels.true_positives, labels.successes, level),
        specificity=_rate(labels.true_negatives, failures, level),
        informative=smallest > largest,
        alpha=level,
    )


def labels_by_model(
    verdicts: Sequence[bool] | npt.ArrayLike, labels: Sequence[bool] | npt.ArrayLike, models: Sequence[Hashable]
) -> dict[Hashable, JudgeLabels]:
    """Compare a judge's verdicts with labels separately for each judged model, since judges' errors differ by model.

    Args:
        verdicts: bool [N], as in ``JudgeLabels.of``.
        labels: bool [N], as in ``JudgeLabels.of``.
        models: [N], the model that gave each answer.

    Returns:
        JudgeLabels of each model, in the order in which the models first appear.

    Raises:
        InputError: mismatched lengths.
        InputTypeError: verdicts or labels that are not booleans.

    >>> by_model = labels_by_model([True, False, True], [True, True, True], ["a", "b", "a"])
    >>> [(model, judge_accuracy(counts).sensitivity.value) for model, counts in by_model.items()]
    [('a', 1.0), ('b', 0.0)]
    """
    judged = checked_flags("verdicts", verdicts)
    truth = checked_flags("labels", labels, len(judged))
    if len(models) != len(judged):
        raise InputError("models", f"{len(judged)}, one for each verdict", len(models))
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, model in enumerate(models):
        places[model].append(number)
    return {model: JudgeLabels.of(judged[rows], truth[rows]) for model, rows in places.items()}
