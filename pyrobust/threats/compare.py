"""Paired comparisons of models, or of attacks, on the same behaviours."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from pyrobust.checks import choice, items, summary
from pyrobust.errors import InputError
from pyrobust.frames import Tabular, columns_of, plain_fields
from pyrobust.stats import binomial_test, bounded_mean_interval, holm
from pyrobust.threats.rates import Missing, Values, error_rate, share_of_successes
from pyrobust.threats.units import Key, Prompt, of_one_judge, prompts_of
from pyrobust.threats.verdicts import ThreatVerdicts

#: Column whose values are compared: the attacked model, or the attack.
Side: TypeAlias = Literal["model", "group"]
_ARGUMENT: Final[dict[Side, str]] = {"model": "models", "group": "attacks"}
# Grid of p-values: the ratio of neighbours, and the smallest value.
_STEP, _LEAST = 1.05, 1e-9


@dataclass(frozen=True)
class ThreatComparison:
    """Comparison of the success rates of two attacks, or of attacks against two models, on common behaviours.

    Attributes:
        first, second: names of the two models or attacks.
        difference: success rate of the first minus success rate of the second, as a mean over behaviours. It is
            computed from the judged attempts, and then clipped to the range of differences that the missing verdicts
            leave possible. It is NaN if no behaviour has judged attempts of both.
        lower, upper: ends of the interval of the difference.
        p_value: two-sided p-value of the hypothesis that the difference is 0.
        adjusted: p-value adjusted for all pairs (Holm, 1979).
        test: "mcnemar" where the difference for every behaviour is -1, 0 or 1, else "betting"
            (``pyrobust.stats.bounded_mean_interval``).
        clusters: number of behaviours that both models or attacks have (with missing "exclude", only those with judged
            attempts of both); this is the sample size.
        prompts: number of prompts with these behaviours, summed over both models or attacks.
        missing: number of attempts at these prompts without a verdict.
        only_first: number of prompts of ``first`` that are left out because ``second`` has no matching prompt. If
            models are compared, a matching prompt has the same behaviour, kind of threat and attack. If attacks are
            compared, it has the same behaviour, kind of threat and model.
        only_second: number of prompts of ``second`` that are left out for the same reason.
    """

    first: str
    second: str
    difference: float
    lower: float
    upper: float
    p_value: float
    adjusted: float
    test: Literal["mcnemar", "betting"]
    clusters: int
    prompts: int
    missing: int
    only_first: int
    only_second: int


@dataclass(frozen=True)
class ThreatComparisons(Tabular):
    """Paired comparisons; make them with ``compare_models`` or ``compare_attacks``.

    Attributes:
        comparisons: one for each pair.
        confidence: joint confidence level of all intervals.
    """

    comparisons: tuple[ThreatComparison, ...]
    confidence: float

    def __repr__(self) -> str:
        return summary(self, pairs=len(self.comparisons), confidence=self.confidence)

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of(self.comparisons, ThreatComparison.__dataclass_fields__)

    def _attributes(self) -> dict[str, Any]:
        return {"confidence": self.confidence, "correction": "bonferroni, holm"}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values: the attributes and a list of comparisons."""
        return self._attributes() | {"comparisons": list(map(plain_fields, self.comparisons))}


def compare_models(
    verdicts: ThreatVerdicts,
    models: Sequence[str] | None = None,
    confidence: float = 0.95,
    *,
    missing: Missing = "bounds",
    judge: str | None = None,
) -> ThreatComparisons:
    """Compare the success rates of attacks against each pair of models, on their common behaviours.

    Attacks that write their own prompts send different prompts to different models. Therefore, behaviours are paired,
    not prompts. For each attack and kind of threat, a model's value for a behaviour is the share of successful attempts
    at a prompt, averaged over the model's prompts with this behaviour. The difference for a behaviour is the difference
    between the values of the two models, averaged over the attacks that both models have. All behaviours have the same
    weight, so the interval is valid for any number of prompts per behaviour. The interval is computed by
    ``bounded_mean_interval``, with the error rate (1 - confidence) divided by the number of pairs.

    The null hypothesis of the p-value is that the mean difference is 0. If the difference for every behaviour is -1, 0
    or 1, the p-value is computed by McNemar's exact test, as in ``metrics.paired_test``. Otherwise it is the smallest
    error rate at which the interval excludes 0, rounded up by at most 5 %, but never below 2e-9.

    Args:
        verdicts: as for ``threat_success_rate``.
        models: two or more names; None for all pairs of models with a common behaviour.
        confidence: joint confidence level of all intervals.
        missing: what missing verdicts count as. "bounds": each end of the interval and the p-value assume the worst
            case for the missing verdicts. "failure" or "success": missing verdicts count as this outcome for both
            models. "exclude": a prompt without judged attempts is left out.
        judge: as for ``threat_success_rate``.

    Returns:
        ThreatComparisons.

    Raises:
        InputError: there are fewer than two models, a model is unknown, or two models share no behaviour.
        InputTypeError: ``verdicts`` is not a table of verdicts.

    >>> from pyrobust.threats import ThreatVerdict
    >>> rows = [ThreatVerdict(f"{m}{i}", behaviour=str(i), model=m, success=m == "a") for m in "ab" for i in range(8)]
    >>> pair = compare_models(ThreatVerdicts(tuple(rows))).comparisons[0]
    >>> pair.difference, round(pair.p_value, 6), round(pair.lower, 2)
    (1.0, 0.007813, 0.26)
    """
    return compare_by("model", verdicts, models, confidence, missing=missing, judge=judge)


def compare_attacks(
    verdicts: ThreatVerdicts,
    attacks: Sequence[str] | None = None,
    confidence: float = 0.95,
    *,
    missing: Missing = "bounds",
    judge: str | None = None,
) -> ThreatComparisons:
    """Compare the success rates of each pair of attacks against the same models, on their common behaviours.

    This function works as ``compare_models`` does, with the roles of the columns ``group`` (the attack) and ``model``
    exchanged.

    Args:
        verdicts: as in ``compare_models``.
        attacks: two or more values of ``group``; None for all pairs of attacks with a common behaviour.
        confidence: as in ``compare_models``.
        missing: as in ``compare_models``.
        judge: as in ``compare_models``.

    Returns:
        ThreatComparisons.

    Raises:
        InputError, InputTypeError: as in ``compare_models``.

    >>> from pyrobust.threats import ThreatVerdict
    >>> rows = [ThreatVerdict(f"{a}{i}", behaviour=str(i), group=a, success=a == "x") for a in "xy" for i in range(8)]
    >>> compare_attacks(ThreatVerdicts(tuple(rows))).comparisons[0].first
    'x'
    """
    return compare_by("group", verdicts, attacks, confidence, missing=missing, judge=judge)


def compare_by(
    side: Side,
    verdicts: ThreatVerdicts,
    names: Sequence[str] | None = None,
    confidence: float = 0.95,
    *,
    missing: Missing = "bounds",
    judge: str | None = None,
) -> ThreatComparisons:
    """Compare success rates for each pair of a column's values; see ``compare_models`` and ``compare_attacks``."""
    alpha, argument = error_rate(confidence), _ARGUMENT[side]
    choice("missing", missing, ("bounds", "failure", "success", "exclude"))
    tables = _tables(of_one_judge(verdicts, judge), side)
    chosen = (
        sorted(tables)
        if names is None
        else [choice(argument, name, sorted(tables)) for name in items(argument, names, "names")]
    )
    pairs = list(combinations(dict.fromkeys(chosen), 2))
    if not pairs:
        raise InputError(argument, "at least two", ", ".join(chosen) or "none")
    if names is None:  # all pairs in the log that have a behaviour in common
        pairs = [pair for pair in pairs if tables[pair[0]].keys() & tables[pair[1]].keys()] or pairs
    level = alpha / len(pairs)
    compared = [_compare((a, b), argument, tables[a], tables[b], level, missing) for a, b in pairs]
    adjusted = holm([pair["p_value"] for pair in compared])
    comparisons = tuple(ThreatComparison(**pair, adjusted=p) for pair, p in zip(compared, adjusted, strict=True))
    return ThreatComparisons(comparisons, confidence)


def _tables(rows: Sequence[Any], side: Side) -> dict[str, dict[Key, list[Prompt]]]:
    """Return the prompts of each model (or attack), grouped by attack (or model), kind of threat and behaviour."""
    tables: defaultdict[str, dict[Key, list[Prompt]]] = defaultdict(dict)
    for (model, group, threat, *_), prompt in prompts_of(rows).items():
        name, other = (model, group) if side == "model" else (group, model)
        tables[name].setdefault((other, threat, prompt.cluster), []).append(prompt)
    return tables


def _compare(
    names: tuple[str, str],
    argument: str,
    first: dict[Key, list[Prompt]],
    second: dict[Key, list[Prompt]],
    alpha: float,
    missing: Missing,
) -> dict[str, Any]:
    common = dict.fromkeys(key for key in first if key in second)
    # By behaviour: differences with missing verdicts against the first, in its favour, and left out.
    differences: defaultdict[str, list[Values]] = defaultdict(list)
    for key in common:
        a, b = _mean_values(first[key]), _mean_values(second[key])
        middle = None if a[2] is None or b[2] is None else a[2] - b[2]
        if missing == "exclude" and middle is not None:
            differences[key[-1]].append((middle, middle, middle))
        elif missing in ("failure", "success"):
            single = a[0] - b[0] if missing == "failure" else a[1] - b[1]
            differences[key[-1]].append((single, single, single))
        elif missing == "bounds":
            differences[key[-1]].append((a[0] - b[1], a[1] - b[0], middle))
    if not differences:
        raise InputError(argument, f"behaviours that {names[0]} and {names[1]} have in common", "none")
    lows = np.array([_mean([low for low, *_ in triples]) for triples in differences.values()])
    highs = np.array([_mean([high for _, high, _ in triples]) for triples in differences.values()])
    judged = [[middle for *_, middle in triples if middle is not None] for triples in differences.values()]
    means = [_mean(triples) for triples in judged if triples]
    whole = bool(np.isin(np.concatenate([lows, highs]), (-1.0, 0.0, 1.0)).all())
    one_sided = _sign_test if whole else _betting_test
    left_out = [sum(len(table[key]) for key in table if key not in common) for table in (first, second)]
    return {
        "first": names[0],
        "second": names[1],
        "difference": min(max(_mean(means), float(lows.mean())), float(highs.mean())) if means else math.nan,
        "lower": _ends(lows, alpha)[0],
        "upper": _ends(highs, alpha)[1],
        "p_value": min(1.0, 2 * min(one_sided(lows), one_sided(-highs))),
        "test": "mcnemar" if whole else "betting",
        "clusters": len(differences),
        "prompts": sum(len(table[key]) for key in common for table in (first, second)),
        "missing": sum(p.missing for key in common for table in (first, second) for p in table[key]),
        "only_first": left_out[0],
        "only_second": left_out[1],
    }


def _mean_values(prompts: list[Prompt]) -> Values:
    values = [share_of_successes(prompt) for prompt in prompts]
    judged = [middle for *_, middle in values if middle is not None]
    return _mean([low for low, *_ in values]), _mean([high for _, high, _ in values]), _mean(judged) if judged else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _ends(differences: np.ndarray[Any, np.dtype[np.float64]], alpha: float) -> tuple[float, float]:
    """Return the ends of the confidence interval for the mean of differences that lie in [-1, 1]."""
    lower, upper = bounded_mean_interval(np.clip((differences + 1) / 2, 0.0, 1.0), 1, alpha)
    return 2 * lower - 1, 2 * upper - 1


def _sign_test(differences: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return a sign test's one-sided p-value for the hypothesis mean ≤ 0, where each difference is -1, 0 or 1."""
    positive, negative = int((differences > 0).sum()), int((differences < 0).sum())
    return float(binomial_test(positive, positive + negative, "greater")) if positive + negative else 1.0


def _betting_test(differences: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return the one-sided p-value for the hypothesis that the mean of the differences is ≤ 0, rounded up."""

    def rejects(step: int) -> bool:
        return _ends(differences, 2 * _LEAST * _STEP**step)[0] > 0

    steps = math.floor(math.log(0.5 / _LEAST) / math.log(_STEP))
    if not differences.mean() > 0 or not rejects(steps):
        return 1.0
    return _LEAST * _STEP ** _first(rejects, steps)


def _first(holds: Callable[[int], bool], last: int) -> int:
    """Return the least n ≥ 0 for which a condition holds from n to ``last``; it must hold at ``last``."""
    low = -1
    while last - low > 1:
        middle = (low + last) // 2
        low, last = (low, middle) if holds(middle) else (middle, last)
    return last
