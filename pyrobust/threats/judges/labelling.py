"""Which labels to buy next: the expected narrowing of a corrected success rate per label of each stratum."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from pyrobust.checks import choice, count
from pyrobust.errors import InputError
from pyrobust.frames import Tabular

from .accuracy import JudgeLabels
from .prevalence import prevalence_external, prevalence_from_run

#: Where labels come from: the run itself, drawn by verdict, or other examples whose outcome is known.
Source: TypeAlias = Literal["run", "external"]

# Equally likely outcomes of a batch of labels that stand for their predictive distribution.
_OUTCOMES = 5


@dataclass(frozen=True)
class LabelOption:
    """Expected effect of buying labels in one stratum of one model's run.

    Attributes:
        model: as given.
        stratum: "positive verdicts" or "negative verdicts" of the run, or "successes" or "failures" from elsewhere.
        labels: number of labels in the batch.
        width: width of the present interval.
        expected_width: its expected width after the batch.
        narrowing_per_label: (width - expected_width) / labels; may be slightly negative, counts being discrete.
    """

    model: Hashable
    stratum: Literal["positive verdicts", "negative verdicts", "successes", "failures"]
    labels: int
    width: float
    expected_width: float
    narrowing_per_label: float


@dataclass(frozen=True)
class LabelPlan(Tabular):
    """Strata in the order in which to buy labels; make one with ``plan_labels``.

    Attributes:
        options: one for each model and stratum, the greatest narrowing per label first.
        source: "run" or "external".
        alpha: of the intervals.
    """

    options: tuple[LabelOption, ...]
    source: Source
    alpha: float

    def __repr__(self) -> str:
        best = f", first={self.options[0]!r}" if self.options else ""
        return f"LabelPlan(options={len(self.options)}, source={self.source!r}{best})"

    def _columns(self) -> dict[str, Any]:
        names = LabelOption.__dataclass_fields__
        return {name: [getattr(option, name) for option in self.options] for name in names}

    def _attributes(self) -> dict[str, Any]:
        return {"source": self.source, "alpha": self.alpha}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers and lists, a list for each column."""
        return self._columns() | self._attributes()


def plan_labels(
    runs: Mapping[Hashable, tuple[int, int, JudgeLabels]],
    batch: int = 50,
    alpha: float = 0.05,
    *,
    source: Source = "run",
) -> LabelPlan:
    """Plan the next batch of labels: for each model and stratum, how much narrower its interval is expected to be.

    The outcome of a batch is predicted by the beta-binomial distribution that follows from the present labels of the
    stratum with Jeffreys' prior; the interval is computed at five equally likely outcomes. The intervals after the
    batch cover as stated as long as the plan depends on earlier labels through their numbers alone; a plan made from
    their outcomes is adaptive, and then only new labels, or a bound for all times, keep alpha exactly.

    Args:
        runs: for each model, the positive verdicts, all verdicts, and the labels so far.
        batch: labels to buy in one stratum, at least 1; fewer where the run has no more.
        alpha: of the intervals, in (0, 1).
        source: "run" for labels drawn by verdict from the run (``prevalence_from_run``), "external" for examples whose
            outcome is known (``prevalence_external``).

    Returns:
        LabelPlan.

    Raises:
        InputError: no runs, or counts or alpha out of range.
        InputTypeError: counts that are not integers.

    >>> plan = plan_labels({"a": (100, 1000, JudgeLabels(30, 2, 10, 58))})
    >>> [(option.stratum, option.labels) for option in plan.options]
    [('negative verdicts', 50), ('positive verdicts', 50)]
    """
    from scipy import stats  # takes a second, and every table of verdicts would pay for it

    size = count("batch", batch, 10**6)
    choice("source", source, ("run", "external"))
    if not runs:
        raise InputError("runs: expected at least one model, got none")
    options: list[LabelOption] = []
    for model, (positives, n, labels) in runs.items():
        now = _width(positives, n, labels, alpha, source)
        for stratum, hit, miss in _STRATA[source]:
            hits, misses = getattr(labels, hit), getattr(labels, miss)
            bought = size
            if source == "run":
                left = (positives if stratum == "positive verdicts" else n - positives) - hits - misses
                bought = min(size, left)
            if not bought:
                continue
            shares = (np.arange(_OUTCOMES) + 0.5) / _OUTCOMES
            outcomes = stats.betabinom(bought, hits + 0.5, misses + 0.5).ppf(shares).astype(int).tolist()
            width = float(
                np.mean(
                    [
                        _width(
                            positives,
                            n,
                            replace(labels, **{hit: hits + k, miss: misses + bought - k}),
                            alpha,
                            source,
                        )
                        for k in outcomes
                    ]
                )
            )
            options.append(LabelOption(model, stratum, bought, now, width, (now - width) / bought))
    return LabelPlan(tuple(sorted(options, key=lambda o: -o.narrowing_per_label)), source, alpha)


#: Strata of each source, with the two counts that their labels go to.
_STRATA: dict[str, tuple[tuple[Any, str, str], ...]] = {
    "run": (
        ("positive verdicts", "true_positives", "false_positives"),
        ("negative verdicts", "false_negatives", "true_negatives"),
    ),
    "external": (
        ("successes", "true_positives", "false_negatives"),
        ("failures", "false_positives", "true_negatives"),
    ),
}


def _width(positives: int, n: int, labels: JudgeLabels, alpha: float, source: Source) -> float:
    """Width of the interval; 1 without any label."""
    if source == "external":
        return prevalence_external(positives, n, labels, alpha).width
    return prevalence_from_run(positives, n, labels, alpha, drawn="by verdict").width if labels.n else 1.0
