"""True success rates from a judge's verdicts and labels: the judge's errors corrected, their uncertainty included."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pyrobust.checks import choice, integer, probability
from pyrobust.errors import InputError
from pyrobust.metrics.rate import Rate, estimate_rate
from pyrobust.stats.bounded_mean import bounded_mean_interval

from .accuracy import JudgeLabels
from .means import checked_shares
from .region import MAX_TRIALS, high_box, low_box, upper_external, upper_from_run
from .region import box as proportion_box

#: Ways to draw labels from the run itself.
Drawn: TypeAlias = Literal["at random", "by verdict"]

_FROM_RUN: Final = "labels are drawn from the run itself, independently of everything but the verdict"
_TRANSPORTED: Final = "the judge has the same sensitivity and specificity on the run as on the labelled examples"


@dataclass(frozen=True)
class Prevalence:
    """True success rate of a run, corrected for the judge's errors.

    Attributes:
        value: point estimate, in [0, 1]; NaN where the labels do not determine one.
        lower, upper: ends of the confidence interval.
        alpha: upper bound on the probability that the interval misses.
        apparent: the rate of positive verdicts, with an interval that ignores the judge's errors; None for clusters.
        method: "two-phase", "Rogan-Gladen" or "difference".
        assumption: the assumption that the interval rests on, apart from independence.
        informative: whether sensitivity + specificity > 1 is established. Rogan-Gladen's interval is [0, 1] if not; the
            others do not need it and have None.
        consistent: False where no success rate agrees with the verdicts and the labels at this alpha: the assumption is
            doubtful, and the interval is [0, 1].
    """

    value: float
    lower: float
    upper: float
    alpha: float
    apparent: Rate | None
    method: Literal["two-phase", "Rogan-Gladen", "difference"]
    assumption: str
    informative: bool | None = None
    consistent: bool = True

    def __float__(self) -> float:
        return self.value

    @property
    def width(self) -> float:
        """Width of the interval."""
        return self.upper - self.lower

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary of all fields."""
        return asdict(self)


def prevalence_from_run(
    positives: int,
    n: int,
    labels: JudgeLabels,
    alpha: float = 0.05,
    *,
    drawn: Drawn = "at random",
    planned: tuple[int, int] | None = None,
) -> Prevalence:
    """Estimate the true success rate from verdicts on a run and labels of some of its examples (two-phase sampling).

    With q the rate of positive verdicts, PPV the share of successes among positive verdicts and NPV that of failures
    among negative ones,

        p = PPV q + (1 - NPV) (1 - q),

    whatever the judge's sensitivity and specificity are. The interval inverts exact tests of the three counts
    (``region``'s description) and covers at every sample size. The examples are independent; for several attempts at
    one behaviour use ``prevalence_of_clusters``.

    Args:
        positives: number of examples with a positive verdict, labelled or not.
        n: number of examples with a verdict, at most 10**7.
        labels: counts of the labelled examples of the run.
        alpha: upper bound on the probability that the interval misses, in (0, 1).
        drawn: "at random" from all examples, or "by verdict": a number of positive and a number of negative verdicts.
        planned: those two numbers, if more were planned than the run has; by default the numbers of labels. They may
            depend on n, not on the verdicts.

    Returns:
        Prevalence with the method "two-phase"; the value is NaN where a verdict that occurs has no label.

    Raises:
        InputError: counts or alpha out of range, more labels than verdicts of a kind, or no labels.
        InputTypeError: counts that are not integers.

    >>> estimate = prevalence_from_run(300, 1000, JudgeLabels(54, 4, 6, 136))
    >>> f"{estimate.value:.3f} in [{estimate.lower:.3f}, {estimate.upper:.3f}]"
    '0.290 in [0.231, 0.358]'
    """
    apparent, level = _apparent(positives, n, alpha)
    choice("drawn", drawn, ("at random", "by verdict"))
    positive, negative = labels.positives, labels.n - labels.positives
    if positive > positives or negative > n - positives:
        raise InputError(
            f"labels: expected at most {positives} of positive and {n - positives} of negative verdicts, got "
            f"{positive} and {negative}; labels of other examples are for prevalence_external"
        )
    if not labels.n:
        raise InputError("labels: expected at least one, got none")
    first, second = (positive, negative) if planned is None else (integer("planned", x, 0) for x in planned)
    if first < positive or second < negative:
        raise InputError(f"planned: expected at least the numbers of labels {positive} and {negative}, got {planned}")

    def expected(q: float) -> tuple[float, float]:
        if drawn == "at random":
            return labels.n * q, labels.n * (1 - q)
        return min(first, n * q), min(second, n * (1 - q))

    missed, total = labels.false_negatives, labels.n if drawn == "at random" else first + second
    upper = upper_from_run(
        (positives, n), (labels.true_positives, positive), (missed, negative), level, expected, total
    )
    rest = upper_from_run(
        (positives, n),
        (labels.false_positives, positive),
        (negative - missed, negative),
        level,
        expected,
        total,
        usual=False,
    )
    q = positives / n
    value = (q * labels.true_positives / positive if positive else math.nan if positives else 0.0) + (
        (1 - q) * missed / negative if negative else math.nan if positives < n else 0.0
    )
    lower, upper, consistent = _ends(rest, upper, value)
    return Prevalence(value, lower, upper, level, apparent, "two-phase", _FROM_RUN, None, consistent)


def prevalence_external(positives: int, n: int, labels: JudgeLabels, alpha: float = 0.05) -> Prevalence:
    """Estimate the true success rate from verdicts on a run and labels of other examples (Rogan and Gladen, 1978).

    With q the rate of positive verdicts, se the sensitivity and sp the specificity,

        p = (q + sp - 1) / (se + sp - 1),

    provided that the judge errs on the run as it does on the labelled examples. Errors of judges differ between models,
    attacks and data sets, so that labels of the run itself (``prevalence_from_run``) are better. The interval inverts
    exact tests of the three counts and covers at every sample size, where the intervals of Rogan and Gladen and of Lang
    and Reiczigel (2014) hold asymptotically.

    Args:
        positives: number of examples of the run with a positive verdict.
        n: number of examples with a verdict, at most 10**7.
        labels: counts of labelled examples, independent of the run; successes and failures are random draws of each.
        alpha: upper bound on the probability that the interval misses, in (0, 1).

    Returns:
        Prevalence with the method "Rogan-Gladen": [0, 1] with the value NaN where se + sp > 1 is not established.

    Raises:
        InputError: counts or alpha out of range.
        InputTypeError: counts that are not integers.

    >>> estimate = prevalence_external(300, 1000, JudgeLabels(90, 10, 5, 95))
    >>> f"{estimate.value:.3f} in [{estimate.lower:.3f}, {estimate.upper:.3f}]"
    '0.294 in [0.215, 0.378]'
    >>> prevalence_external(300, 1000, JudgeLabels(3, 2, 2, 3)).upper
    1.0
    """
    apparent, level = _apparent(positives, n, alpha)
    failures = labels.n - labels.successes
    if not _established(labels, level):
        return Prevalence(math.nan, 0.0, 1.0, level, apparent, "Rogan-Gladen", _TRANSPORTED, informative=False)
    hits, false = (labels.true_positives, labels.successes), (labels.false_positives, failures)
    upper = upper_external((positives, n), hits, false, level)
    # Failures instead of successes: the prevalence 1 - p, with specificity and sensitivity exchanged.
    rest = upper_external(
        (n - positives, n),
        (labels.true_negatives, failures),
        (labels.false_negatives, labels.successes),
        level,
    )
    sensitivity, false_rate = hits[0] / hits[1], false[0] / false[1]
    value = min(1.0, max(0.0, (positives / n - false_rate) / (sensitivity - false_rate)))
    lower, upper, consistent = _ends(rest, upper, value)
    return Prevalence(value, lower, upper, level, apparent, "Rogan-Gladen", _TRANSPORTED, True, consistent)


def prevalence_external_of_clusters(
    verdict_means: npt.ArrayLike, labels: JudgeLabels, alpha: float = 0.05
) -> Prevalence:
    """Estimate the true success rate as ``prevalence_external`` does, where attempts form clusters.

    Clusters, such as behaviours with several attempts each, are independent; attempts of one cluster are not. The
    success rate is the mean over clusters of each cluster's share of successes. Half of alpha goes to the mean verdict,
    bounded by betting (Waudby-Smith and Ramdas, 2024), a quarter each to sensitivity and specificity.

    Args:
        verdict_means: [clusters], share of positive verdicts in each cluster.
        labels: counts of labelled examples, one from each of their clusters.
        alpha: upper bound on the probability that the interval misses, in (0, 1).

    Returns:
        Prevalence with the method "Rogan-Gladen".

    Raises:
        InputError: shares or alpha out of range.
        InputTypeError: shares that are not numbers.

    >>> estimate = prevalence_external_of_clusters([0.3] * 400, JudgeLabels(90, 10, 5, 95))
    >>> f"{estimate.value:.3f} in [{estimate.lower:.3f}, {estimate.upper:.3f}]"
    '0.294 in [0.197, 0.377]'
    """
    means, level = checked_shares("verdict_means", verdict_means), _level(alpha)
    failures = labels.n - labels.successes
    s_low, s_high = proportion_box((labels.true_positives, labels.successes), level / 8, level / 8)
    f_low, f_high = proportion_box((labels.false_positives, failures), level / 8, level / 8)
    if s_low <= f_high:
        return Prevalence(math.nan, 0.0, 1.0, level, None, "Rogan-Gladen", _TRANSPORTED, informative=False)
    q_low, q_high = bounded_mean_interval(means, 1, level / 2)
    rate = labels.false_positives / failures
    value = (float(means.mean()) - rate) / (labels.true_positives / labels.successes - rate)
    value = min(1.0, max(0.0, value))
    # p = (q - f) / (s - f) falls in s and in f while q <= s.
    agrees = q_high >= f_low and q_low <= s_high
    upper = _clipped((q_high - f_low) / (s_low - f_low)) if agrees else -1.0
    rest = _clipped(1 - (q_low - f_high) / (s_high - f_high)) if agrees else -1.0
    lower, upper, consistent = _ends(rest, upper, value)
    return Prevalence(value, lower, upper, level, None, "Rogan-Gladen", _TRANSPORTED, True, consistent)


def prevalence_of_clusters(
    verdict_means: npt.ArrayLike,
    labelled_verdict_means: npt.ArrayLike,
    labelled_means: npt.ArrayLike,
    alpha: float = 0.05,
) -> Prevalence:
    """Estimate the true success rate of attempts in clusters, some of which are labelled completely.

    The difference estimator of survey sampling ("prediction-powered", Angelopoulos et al., 2023): the mean verdict of
    the other clusters, plus the mean of label minus verdict in the labelled ones. Each mean is bounded by betting, with
    a quarter of alpha; the difference lies in [-1, 1] and so needs enough labelled clusters. The labels alone bound the
    rate, too, with the other half of alpha; the interval is where all bounds hold.
    The success rate is the mean over clusters of the share of successes.

    Args:
        verdict_means: [N >= 1], share of positive verdicts in each cluster without labels.
        labelled_verdict_means: [L >= 1], the same for the labelled clusters, a random part of all.
        labelled_means: [L], share of true successes in each of them.
        alpha: upper bound on the probability that the interval misses, in (0, 1).

    Returns:
        Prevalence with the method "difference".

    Raises:
        InputError: shares or alpha out of range, or mismatched lengths.
        InputTypeError: shares that are not numbers.

    >>> estimate = prevalence_of_clusters([0.4] * 2000, [0.4] * 200, [0.3] * 200)
    >>> f"{estimate.value:.2f} in [{estimate.lower:.2f}, {estimate.upper:.2f}]"
    '0.30 in [0.29, 0.32]'
    """
    level = _level(alpha)
    others = checked_shares("verdict_means", verdict_means)
    labelled = checked_shares("labelled_means", labelled_means)
    judged = checked_shares("labelled_verdict_means", labelled_verdict_means, len(labelled))
    plain = bounded_mean_interval(labelled, 1, level / 2)
    mean = bounded_mean_interval(others, 1, level / 4)
    shift = bounded_mean_interval(np.clip((1.0 + labelled - judged) / 2, 0.0, 1.0), 1, level / 4)
    lower = max(plain[0], mean[0] + 2 * shift[0] - 1)
    upper = min(plain[1], mean[1] + 2 * shift[1] - 1)
    value = min(1.0, max(0.0, float(others.mean()) + float((labelled - judged).mean())))
    low, high, consistent = _ends(_clipped(1 - lower), _clipped(upper), value)
    return Prevalence(value, low, high, level, None, "difference", _FROM_RUN, None, consistent)


def _level(alpha: float) -> float:
    return probability("alpha", alpha, "0.05 is usual")


def _apparent(positives: int, n: int, alpha: float) -> tuple[Rate, float]:
    level = _level(alpha)
    trials = integer("n", n, 1, MAX_TRIALS)
    return estimate_rate(integer("positives", positives, 0, trials), trials, level), level


def _established(labels: JudgeLabels, alpha: float) -> bool:
    """Whether sensitivity + specificity > 1 in the whole box of the test."""
    successes, failures = labels.successes, labels.n - labels.successes
    return all(
        high_box((hits, of), alpha)[0] > low_box((false, rest), alpha)[1]
        for hits, of, false, rest in (
            (labels.true_positives, successes, labels.false_positives, failures),
            (labels.true_negatives, failures, labels.false_negatives, successes),
        )
    )


def _clipped(value: float) -> float:
    """A bound raised by its rounding error, in [0, 1]."""
    return min(1.0, max(0.0, value + 1e-12))


def _ends(rest: float, upper: float, value: float) -> tuple[float, float, bool]:
    """Ends of the interval from the bounds on p and on 1 - p, and whether any p agrees with both; [0, 1] if none."""
    lower = max(0.0, math.nextafter(1.0 - rest, 0.0))
    if rest < 0.0 or upper < 0.0 or lower > upper:
        return 0.0, 1.0, False
    return (lower, upper, True) if math.isnan(value) else (min(lower, value), max(upper, value), True)
