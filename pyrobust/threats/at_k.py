"""Success within k attempts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from pyrobust.checks import count
from pyrobust.errors import InputError
from pyrobust.threats.rates import Missing, ThreatRates, Values, rates_of
from pyrobust.threats.units import Key, Prompt, grouped, prompts_of
from pyrobust.threats.verdicts import ThreatVerdict, ThreatVerdicts


def success_at_k(
    verdicts: ThreatVerdicts,
    k: int,
    by: str | Sequence[str] | None = None,
    confidence: float = 0.95,
    *,
    missing: Missing = "bounds",
    judge: str | None = None,
) -> ThreatRates:
    """Probability that at least one of k attempts at a prompt succeeds, as a mean over prompts.

    If c of n attempts at a prompt succeeded, ``1 - C(n - c, k) / C(n, k)`` is the share of subsets of k attempts in
    which at least one attempt succeeded. This share is the unbiased estimate of Chen et al., "Evaluating large language
    models trained on code" (2021). The estimate requires exchangeable attempts whose number was fixed in advance. If a
    method stopped at the first success, the number of attempts depends on the outcome. The values of all prompts of the
    table are then 1 if one of the first k attempts succeeded, and 0 otherwise. Stopping does not change this value. A
    method is taken to stop if each success is the last attempt at its prompt, and a prompt with a success has fewer
    attempts than another prompt. The interval is as in ``threat_success_rate``.

    Args:
        verdicts: as in ``threat_success_rate``, with at least k attempts at each prompt. If a method stopped at the
            first success, a prompt with a success may have fewer attempts.
        k: number of attempts.
        by: a column, or several, as in ``threat_success_rate``.
        confidence: joint confidence level of all intervals.
        missing: as in ``threat_success_rate``; with "exclude", a prompt with fewer than k judged attempts is left out,
            unless a method stopped and the verdicts decide the prompt's value.
        judge: as in ``threat_success_rate``.

    Returns:
        ThreatRates.

    Raises:
        InputError: a prompt has fewer than k attempts, or one of the errors of ``threat_success_rate`` occurs.

    >>> from pyrobust.threats import ThreatVerdict
    >>> rows = [ThreatVerdict(str(i), behaviour="b", attempt=i, success=i == 2) for i in range(4)]
    >>> float(success_at_k(ThreatVerdicts(tuple(rows)), 2))
    0.5
    """
    k = count("k", k)
    stopped = any(map(stops_at_success, grouped(verdicts, by, judge).values()))

    def values(prompt: Prompt) -> Values:
        n, c, lost = len(prompt.rows), prompt.successes, prompt.missing
        if stopped and (n >= k or c):
            first = sorted(prompt.rows, key=lambda row: row.attempt)[:k]
            won, open_ = any(row.success for row in first), any(row.success is None for row in first)
            return float(won), float(won or open_), None if open_ and not won else float(won)
        if n < k:
            raise InputError("k", "at most the number of attempts at each prompt", f"{k} with {n} attempts")
        return _share(n, c, k), _share(n, c + lost, k), _share(n - lost, c, k) if n - lost >= k else None

    return rates_of(
        verdicts,
        f"success at {k}",
        values,
        by,
        confidence=confidence,
        missing=missing,
        judge=judge,
        binary=lambda p: stopped or len(p.rows) == k,
    )


def largest_k(rows: Sequence[ThreatVerdict]) -> int:
    """Return the largest k that ``success_at_k`` accepts for one judge's rows; if any k, the most attempts."""
    prompts = list(prompts_of(rows).values())
    stopped = stops_at_success(rows)
    open_ = [len(prompt.rows) for prompt in prompts if not (stopped and prompt.successes)]
    return min(open_, default=max(len(prompt.rows) for prompt in prompts))


def _share(n: int, c: int, k: int) -> float:
    """Compute 1 - C(n - c, k) / C(n, k), correctly rounded."""
    total = math.comb(n, k)
    return (total - math.comb(n - c, k)) / total


def stops_at_success(rows: Sequence[ThreatVerdict]) -> bool:
    """Whether a method stopped at the first success on each prompt, so that the numbers of attempts differ.

    Every success is then the last attempt at its prompt, and some prompts with a success have fewer attempts than other
    prompts.
    """
    logs: defaultdict[Key, list[Prompt]] = defaultdict(list)
    for key, prompt in prompts_of(rows).items():
        logs[key[:3]].append(prompt)
    return any(map(_stopped, logs.values()))


def _stopped(prompts: list[Prompt]) -> bool:
    longest = max(len(prompt.rows) for prompt in prompts)
    won = [prompt for prompt in prompts if prompt.successes]
    last = all(max(prompt.rows, key=lambda row: row.attempt).success and prompt.successes == 1 for prompt in won)
    return last and any(len(prompt.rows) < longest for prompt in won)
