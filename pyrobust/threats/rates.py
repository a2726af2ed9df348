"""Success rates of attacks, as judged by people or models, with intervals that are valid even for few behaviours.

The estimand is the mean over prompts of each prompt's share of successful attempts. Prompts and attempts with the same
behaviour depend on each other in unknown ways, even if they belong to different methods or models. The intervals
therefore treat the behaviours as the sample. The sample size is the number of behaviours, not the number of verdicts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pyrobust.checks import choice, probability, summary
from pyrobust.errors import InputError
from pyrobust.frames import Tabular, columns_of
from pyrobust.stats import bounded_mean_interval, clopper_pearson_lower, clopper_pearson_upper
from pyrobust.threats.units import Key, Prompt, grouped, prompts_of
from pyrobust.threats.verdicts import ThreatVerdicts

Missing: TypeAlias = Literal["bounds", "failure", "success", "exclude"]
_MISSING: Final = ("bounds", "failure", "success", "exclude")
#: A prompt's values in [0, 1]: with missing verdicts as failures, as successes, and from judged attempts alone (None if
#: there are none).
Values: TypeAlias = tuple[float, float, float | None]


@dataclass(frozen=True)
class ThreatRate:
    """A rate over prompts with its confidence interval; ``float(rate)`` is the rate.

    Attributes:
        group: values of the columns that the rows were grouped by.
        value: mean over prompts, with missing verdicts counted as requested.
        lower, upper: ends of the confidence interval.
        as_failures: mean over prompts if every missing verdict were a failure.
        as_successes: mean over prompts if every missing verdict were a success.
        judged_only: mean over prompts if all attempts without a verdict are left out, and with them all prompts without
            any verdict. It is NaN if there are no verdicts.
        missing: number of attempts without a verdict.
        verdicts: number of attempts, including those without a verdict.
        prompts: number of prompts.
        clusters: number of behaviours, the sample size of the interval; with missing verdicts excluded, the interval
            uses only the behaviours that have a verdict.
        method: how the interval was computed: "clopper-pearson" if each behaviour has only one prompt, whose value can
            only be 0 or 1, and "betting" (``pyrobust.stats.bounded_mean_interval``) otherwise.
        sizes: smallest and largest number of prompts of a behaviour.
    """

    group: Key
    value: float
    lower: float
    upper: float
    as_failures: float
    as_successes: float
    judged_only: float
    missing: int
    verdicts: int
    prompts: int
    clusters: int
    method: Literal["clopper-pearson", "betting"]
    sizes: tuple[int, int]

    def __float__(self) -> float:
        return self.value


_COLUMNS: Final = tuple(name for name in ThreatRate.__dataclass_fields__ if name != "group")


@dataclass(frozen=True)
class ThreatRates(Tabular):
    """Rates of groups; indexing and iteration give a ``ThreatRate``, and ``float(rates)`` gives a single group's rate.

    All intervals together cover their rates with probability at least ``confidence``. For this, the error rate of each
    interval is (1 - confidence) divided by the number of groups (Bonferroni).

    Attributes:
        rates: one for each group.
        by: columns that the rows were grouped by.
        name: name of the rate, such as "success rate".
        confidence: joint confidence level of all intervals.
        missing: how missing verdicts were counted: "bounds", "failure", "success" or "exclude".
    """

    rates: tuple[ThreatRate, ...]
    by: tuple[str, ...]
    name: str
    confidence: float
    missing: Missing

    def __repr__(self) -> str:
        if len(self.rates) != 1:
            return summary(self, name=self.name, groups=len(self.rates), confidence=self.confidence)
        rate = self.rates[0]
        interval = f"{rate.value:.4g} in [{rate.lower:.4g}, {rate.upper:.4g}]"
        return f"ThreatRates({self.name} {interval}, clusters={rate.clusters}, missing={rate.missing})"

    def __len__(self) -> int:
        return len(self.rates)

    def __iter__(self) -> Iterator[ThreatRate]:
        return iter(self.rates)

    def __getitem__(self, index: int) -> ThreatRate:
        return self.rates[index]

    def __float__(self) -> float:
        if len(self.rates) != 1:
            raise InputError("rates", "a single group", len(self.rates), "iterate over them")
        return self.rates[0].value

    @property
    def value(self) -> npt.NDArray[np.float64]:
        """The rates, [groups]."""
        return np.array([rate.value for rate in self.rates])

    @property
    def lower(self) -> npt.NDArray[np.float64]:
        """Lower ends of the intervals, [groups]."""
        return np.array([rate.lower for rate in self.rates])

    @property
    def upper(self) -> npt.NDArray[np.float64]:
        """Upper ends of the intervals, [groups]."""
        return np.array([rate.upper for rate in self.rates])

    @property
    def caveat(self) -> str:
        """The assumption that the intervals need besides independent behaviours; "" if there is none.

        The assumption is that the number of prompts of a behaviour does not depend on the outcome. It may be wrong, for
        example because an attack stops once it succeeds. In this case, simulated 95 % intervals covered the rate in
        only 45 % of runs.
        """
        sizes = [rate.sizes for rate in self.rates if rate.sizes[0] < rate.sizes[1]]
        if not sizes:
            return ""
        least, most = min(low for low, _ in sizes), max(high for _, high in sizes)
        return (
            f"Behaviours have {least:,} to {most:,} prompts: the intervals hold only if that number does not depend on "
            "the outcome."
        )

    def _columns(self) -> dict[str, list[Any]]:
        groups: dict[str, list[Any]] = {name: [rate.group[i] for rate in self.rates] for i, name in enumerate(self.by)}
        return groups | columns_of(self.rates, _COLUMNS)

    def _attributes(self) -> dict[str, Any]:
        return {"name": self.name, "confidence": self.confidence, "missing_as": self.missing, "caveat": self.caveat}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values: the attributes and a list of rates."""
        return self._attributes() | {"by": list(self.by), "rates": [asdict(rate) for rate in self.rates]}


def threat_success_rate(
    verdicts: ThreatVerdicts,
    by: str | Sequence[str] | None = None,
    confidence: float = 0.95,
    *,
    missing: Missing = "bounds",
    judge: str | None = None,
) -> ThreatRates:
    """Success rate of the attacks: the mean over prompts of each prompt's share of successful attempts.

    If each behaviour has one attempt, the interval is computed after Clopper and Pearson. Otherwise, it is computed by
    ``pyrobust.stats.bounded_mean_interval`` over behaviours. Behaviours are assumed to be independent draws. Attempts
    at the same behaviour may depend on each other in any way, even if they belong to different prompts, methods or
    models.

    Args:
        verdicts: verdicts of one judge, or of several judges on different attempts. If ``judge`` selects one judge or
            ``by`` contains "judge", the table may also have verdicts of several judges on the same attempt.
        by: one or several columns of ``ThreatVerdict``, such as "model" or "category".
        confidence: joint confidence level of all intervals.
        missing: how to count attempts without a verdict. With "bounds", the value is the rate of the judged attempts;
            the lower end of the interval counts the other attempts as failures, and the upper end counts them as
            successes. With "failure" or "success", attempts without a verdict count as this outcome. With "exclude",
            they are left out, which is right only if verdicts are missing at random.
        judge: name of the judge whose verdicts count; the hash at the end of a name may be omitted.

    Returns:
        ThreatRates. They also contain the rates with all missing verdicts counted as failures, and with all of them
        counted as successes.

    Raises:
        InputError: there are no rows, an attempt has several judges, or a column, a judge or the value of ``missing``
            is unknown.
        InputTypeError: ``verdicts`` is not a table of verdicts.

    >>> from pyrobust.threats import ThreatVerdict
    >>> rows = [ThreatVerdict(str(i), behaviour=f"b{i}", success=i < 3) for i in range(10)]
    >>> rows.append(ThreatVerdict("10", behaviour="b10", status="unsubmitted"))
    >>> threat_success_rate(ThreatVerdicts(tuple(rows)), missing="failure")
    ThreatRates(success rate 0.2727 in [0.06022, 0.6097], clusters=11, missing=1)
    """
    return rates_of(
        verdicts,
        "success rate",
        share_of_successes,
        by,
        confidence=confidence,
        missing=missing,
        judge=judge,
        binary=lambda p: len(p.rows) == 1,
    )


def targeted_success_rate(
    verdicts: ThreatVerdicts, by: str | Sequence[str] | None = None, confidence: float = 0.95, **options: Any
) -> ThreatRates:
    """Success rate of the attempts whose ``threat`` is "targeted"; arguments as for ``threat_success_rate``.

    >>> from pyrobust.threats import ThreatVerdict
    >>> rows = (ThreatVerdict("0", threat="targeted", success=True), ThreatVerdict("1", success=False))
    >>> float(targeted_success_rate(ThreatVerdicts(rows)))
    1.0
    """
    return threat_success_rate(_of_threat(verdicts, "targeted"), by, confidence, **options)


def jailbreak_rate(
    verdicts: ThreatVerdicts, by: str | Sequence[str] | None = None, confidence: float = 0.95, **options: Any
) -> ThreatRates:
    """Share of attempts that elicit what the model should refuse: success rate where ``threat`` is "jailbreak".

    Arguments as for ``threat_success_rate``.

    >>> from pyrobust.threats import ThreatVerdict
    >>> float(jailbreak_rate(ThreatVerdicts((ThreatVerdict("0", success=True), ThreatVerdict("1", success=False)))))
    0.5
    """
    return threat_success_rate(_of_threat(verdicts, "jailbreak"), by, confidence, **options)


def prompt_injection_rate(
    verdicts: ThreatVerdicts, by: str | Sequence[str] | None = None, confidence: float = 0.95, **options: Any
) -> ThreatRates:
    """Share of attempts whose injected command the model follows: success rate where ``threat`` is "prompt-injection".

    Arguments as for ``threat_success_rate``.

    >>> from pyrobust.threats import ThreatVerdict
    >>> float(prompt_injection_rate(ThreatVerdicts((ThreatVerdict("0", threat="prompt-injection", success=True),))))
    1.0
    """
    return threat_success_rate(_of_threat(verdicts, "prompt-injection"), by, confidence, **options)


def refusal_rate(
    verdicts: ThreatVerdicts, by: str | Sequence[str] | None = None, confidence: float = 0.95, **options: Any
) -> ThreatRates:
    """Share of refusals among the attempts whose ``threat`` is "refusal"; arguments as for ``threat_success_rate``.

    >>> from pyrobust.threats import ThreatVerdict
    >>> float(refusal_rate(ThreatVerdicts((ThreatVerdict("0", threat="refusal", success=True),))))
    1.0
    """
    return threat_success_rate(_of_threat(verdicts, "refusal"), by, confidence, **options)


def contradiction_rate(
    verdicts: ThreatVerdicts, by: str | Sequence[str] | None = None, confidence: float = 0.95, **options: Any
) -> ThreatRates:
    """Share of answers that contradict the facts: success rate where ``threat`` is "factuality".

    Arguments as for ``threat_success_rate``. Another measure, ``factual_consistency``, needs no facts. It measures
    whether the answers to paraphrases of a question agree.

    >>> from pyrobust.threats import ThreatVerdict
    >>> rows = (ThreatVerdict("0", threat="factuality", success=False, prompt="capital of France"),)
    >>> float(contradiction_rate(ThreatVerdicts(rows)))
    0.0
    """
    return threat_success_rate(_of_threat(verdicts, "factuality"), by, confidence, **options)


def share_of_successes(prompt: Prompt) -> Values:
    """Return a prompt's share of successful attempts."""
    n, judged = len(prompt.rows), len(prompt.rows) - prompt.missing
    return (
        prompt.successes / n,
        (prompt.successes + prompt.missing) / n,
        prompt.successes / judged if judged else None,
    )


def rates_of(
    verdicts: ThreatVerdicts,
    name: str,
    values: Callable[[Prompt], Values],
    by: str | Sequence[str] | None,
    confidence: float,
    missing: Missing,
    judge: str | None,
    binary: Callable[[Prompt], bool],
) -> ThreatRates:
    """Return the mean of the prompts' values for each group.

    ``binary`` says whether the values of a prompt can only be 0 or 1.
    """
    level = error_rate(confidence)
    choice("missing", missing, _MISSING)
    groups = grouped(verdicts, by, judge)
    if not groups:
        raise InputError("verdicts", "at least one row", "none")
    rates = []
    for group, rows in groups.items():
        prompts = list(prompts_of(rows).values())
        rates.append(
            _rate(group, prompts, [values(prompt) for prompt in prompts], level / len(groups), missing, binary)
        )
    return ThreatRates(
        tuple(rates), () if by is None else (by,) if isinstance(by, str) else tuple(by), name, confidence, missing
    )


def error_rate(confidence: float) -> float:
    """Return 1 - confidence, computed in decimal, so that 0.95 gives 0.05."""
    return float(1 - Decimal(repr(probability("confidence", confidence, "0.95 is usual"))))


def interval(clusters: Sequence[str], values: Sequence[float], alpha: float, binary: bool) -> tuple[float, float]:
    """Return a confidence interval for the mean of values in [0, 1], given the cluster of each value."""
    if binary:
        successes = round(sum(values))
        half = alpha / 2
        return clopper_pearson_lower(successes, len(values), half), clopper_pearson_upper(successes, len(values), half)
    members: defaultdict[str, list[float]] = defaultdict(list)
    for cluster, value in zip(clusters, values, strict=True):
        members[cluster].append(value)
    totals = [min(math.fsum(shares), len(shares)) for shares in members.values()]
    return bounded_mean_interval(totals, [len(shares) for shares in members.values()], alpha)


def _rate(
    group: Key,
    prompts: list[Prompt],
    values: list[Values],
    alpha: float,
    missing: Missing,
    binary: Callable[[Prompt], bool],
) -> ThreatRate:
    clusters = [prompt.cluster for prompt in prompts]
    members = Counter(clusters)
    single = len(set(clusters)) == len(clusters) and all(map(binary, prompts))
    lows, highs = [low for low, _, _ in values], [high for _, high, _ in values]
    judged = [(cluster, value) for cluster, (_, _, value) in zip(clusters, values, strict=True) if value is not None]
    as_failures, as_successes, judged_only = _mean(lows), _mean(highs), _mean([value for _, value in judged])
    if missing == "exclude":
        ends = interval([c for c, _ in judged], [v for _, v in judged], alpha, single) if judged else (0.0, 1.0)
    else:
        below = highs if missing == "success" else lows
        above = lows if missing == "failure" else highs
        ends = interval(clusters, below, alpha, single)[0], interval(clusters, above, alpha, single)[1]
    return ThreatRate(
        group,
        {"failure": as_failures, "success": as_successes}.get(missing, judged_only),
        lower=ends[0],
        upper=ends[1],
        as_failures=as_failures,
        as_successes=as_successes,
        judged_only=judged_only,
        missing=sum(prompt.missing for prompt in prompts),
        verdicts=sum(len(prompt.rows) for prompt in prompts),
        prompts=len(prompts),
        clusters=len(set(clusters)),
        method="clopper-pearson" if single else "betting",
        sizes=(min(members.values()), max(members.values())),
    )


def _mean(values: Sequence[float]) -> float:
    """Return the mean, or NaN if there are no values."""
    return float(np.sum(values)) / len(values) if values else float("nan")


def _of_threat(verdicts: ThreatVerdicts, threat: str) -> ThreatVerdicts:
    kept = verdicts.where(threat=threat)
    if not kept.rows:
        kinds = ", ".join(sorted(set(verdicts.column("threat"))))
        raise InputError("verdicts", f"rows whose threat is {threat!r}", kinds, "see read_verdicts(threat=...)")
    return kept
