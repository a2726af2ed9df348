"""Paired comparisons of models on the same prompts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pyrobust.checks import choice, items, summary
from pyrobust.errors import InputError
from pyrobust.frames import Tabular, columns_of, plain_fields
from pyrobust.stats import binomial_test, bounded_mean_interval, holm
from pyrobust.threats.rates import Missing, error_rate, share_of_successes
from pyrobust.threats.units import Key, Prompt, of_one_judge, prompts_of
from pyrobust.threats.verdicts import ThreatVerdicts


@dataclass(frozen=True)
class ModelComparison:
    """Success rates of the same attacks against two models.

    Attributes:
        first, second: names of the models.
        difference: success rate against the first minus that against the second, on the prompts that both have; of
            the judged attempts, but no further out than the missing verdicts allow.
        lower, upper: ends of the interval of the difference.
        p_value: of the sign test over behaviours, two-sided.
        adjusted: p-value adjusted for all pairs (Holm, 1979).
        prompts: number of prompts that both have.
        clusters: number of their behaviours.
        missing: number of attempts at them without a verdict.
    """

    first: str
    second: str
    difference: float
    lower: float
    upper: float
    p_value: float
    adjusted: float
    prompts: int
    clusters: int
    missing: int


@dataclass(frozen=True)
class ModelComparisons(Tabular):
    """Paired comparisons of models; make one with ``compare_models``.

    Attributes:
        comparisons: one for each pair.
        confidence: of all intervals together.
    """

    comparisons: tuple[ModelComparison, ...]
    confidence: float

    def __repr__(self) -> str:
        return summary(self, pairs=len(self.comparisons), confidence=self.confidence)

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of(self.comparisons, ModelComparison.__dataclass_fields__)

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
) -> ModelComparisons:
    """Compare the success rates against each pair of models on the prompts that both have, clustered by behaviour.

    Prompts are the same where group, threat, behaviour and prompt are equal. The interval of the mean difference is
    that of ``bounded_mean_interval``, with the error rate (1 - confidence) divided by the number of pairs. The p-value
    tests that the difference of each behaviour is as likely positive as negative, as if the models are exchangeable: of
    the behaviours that differ, the number of positive ones is binomial then. With one attempt at each behaviour that is
    McNemar's exact test, ``metrics.paired_test``.

    Args:
        verdicts: as for ``threat_success_rate``.
        models: names, two or more; None for all pairs with a common prompt.
        confidence: of all intervals together.
        missing: what missing verdicts count as. "bounds": against the difference, at either end and in the p-value.
            "failure" or "success": as that for both models. "exclude": a prompt without judged attempts is left out.
        judge: as for ``threat_success_rate``.

    Returns:
        ModelComparisons.

    Raises:
        InputError: fewer than two models, an unknown one, or two without a common prompt.
        InputTypeError: not a table of verdicts.

    >>> from pyrobust.threats import ThreatVerdict
    >>> rows = [ThreatVerdict(f"{m}{i}", behaviour=str(i), model=m, success=m == "a") for m in "ab" for i in range(8)]
    >>> pair = compare_models(ThreatVerdicts(tuple(rows))).comparisons[0]
    >>> pair.difference, round(pair.p_value, 6), round(pair.lower, 2)
    (1.0, 0.007813, 0.26)
    """
    alpha = error_rate(confidence)
    choice("missing", missing, ("bounds", "failure", "success", "exclude"))
    tables: dict[str, dict[Key, Prompt]] = defaultdict(dict)
    for key, prompt in prompts_of(of_one_judge(verdicts, judge)).items():
        tables[key[0]][key[1:]] = prompt
    names = (
        sorted(tables)
        if models is None
        else [choice("models", name, sorted(tables)) for name in items("models", models, "names")]
    )
    pairs = list(combinations(dict.fromkeys(names), 2))
    if not pairs:
        raise InputError(f"models: expected at least two, got {', '.join(names) or 'none'}")
    if models is None:  # pairs of whatever models the log holds, as far as they were attacked alike
        pairs = [pair for pair in pairs if tables[pair[0]].keys() & tables[pair[1]].keys()] or pairs
    found = [_compare(pair, tables[pair[0]], tables[pair[1]], alpha / len(pairs), missing) for pair in pairs]
    adjusted = holm([pair["p_value"] for pair in found])
    comparisons = tuple(ModelComparison(**pair, adjusted=p) for pair, p in zip(found, adjusted, strict=True))
    return ModelComparisons(comparisons, confidence)


def _compare(
    names: tuple[str, str], first: dict[Key, Prompt], second: dict[Key, Prompt], alpha: float, missing: Missing
) -> dict[str, Any]:
    common = [key for key in first if key in second]
    differences: list[tuple[str, float, float, float | None]] = []
    for key in common:
        a, b = share_of_successes(first[key]), share_of_successes(second[key])
        middle = None if a[2] is None or b[2] is None else a[2] - b[2]
        if missing == "exclude" and middle is not None:
            differences.append((first[key].cluster, middle, middle, middle))
        elif missing in ("failure", "success"):
            single = a[0] - b[0] if missing == "failure" else a[1] - b[1]
            differences.append((first[key].cluster, single, single, single))
        elif missing == "bounds":
            differences.append((first[key].cluster, a[0] - b[1], a[1] - b[0], middle))
    if not differences:
        raise InputError(f"models: expected prompts that {names[0]} and {names[1]} have in common, got none")
    lows: defaultdict[str, list[float]] = defaultdict(list)
    highs: defaultdict[str, list[float]] = defaultdict(list)
    for cluster, low, high, _ in differences:
        lows[cluster].append(low)
        highs[cluster].append(high)
    known = [middle for *_, middle in differences if middle is not None]
    return {
        "first": names[0],
        "second": names[1],
        "difference": _within(known, lows, highs),
        "lower": _ends(lows, alpha)[0],
        "upper": _ends(highs, alpha)[1],
        "p_value": min(1.0, 2 * min(_sign_test(lows, 1), _sign_test(highs, -1))),
        "prompts": len(differences),
        "clusters": len(lows),
        "missing": sum(table[key].missing for key in common for table in (first, second)),
    }


def _within(known: list[float], lows: dict[str, list[float]], highs: dict[str, list[float]]) -> float:
    """The mean of the known differences, moved into the bounds that missing verdicts leave; NaN if there are none."""
    least, most = (math.fsum(map(math.fsum, ends.values())) / sum(map(len, ends.values())) for ends in (lows, highs))
    return min(max(sum(known) / len(known), least), most) if known else math.nan


def _ends(differences: dict[str, list[float]], alpha: float) -> tuple[float, float]:
    """Interval of the mean of differences in [-1, 1] in clusters, from that of (difference + 1) / 2."""
    totals = [min(max((math.fsum(part) + len(part)) / 2, 0.0), len(part)) for part in differences.values()]
    lower, upper = bounded_mean_interval(totals, [len(part) for part in differences.values()], alpha)
    return 2 * lower - 1, 2 * upper - 1


def _sign_test(differences: dict[str, list[float]], sign: int) -> float:
    """One-sided p-value: whether clusters with a difference of this sign are more frequent than of the other."""
    signs = [value for part in differences.values() if abs(value := sign * math.fsum(part)) > 1e-12]
    return float(binomial_test(sum(value > 0 for value in signs), len(signs), "greater")) if signs else 1.0
