"""Success within k attempts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from pyrobust.checks import count
from pyrobust.errors import InputError
from pyrobust.threats.rates import Missing, ThreatRates, Values, rates_of
from pyrobust.threats.units import Key, Prompt, grouped, prompts_of
from pyrobust.threats.verdicts import ThreatVerdicts


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

    Of n attempts at a prompt c succeeded; ``1 - C(n - c, k) / C(n, k)`` is the share of the subsets of k attempts with
    a success, the unbiased estimate of Chen et al., "Evaluating large language models trained on code" (2021). It needs
    attempts that are exchangeable and whose number was fixed in advance. A log that stops a prompt at its first success
    is refused: there the number of attempts depends on the outcome (``queries_to_success`` is for those). The interval
    is as in ``threat_success_rate``.

    Args:
        verdicts: as there, with at least k attempts at each prompt.
        k: number of attempts.
        by: a column, or several, as there.
        confidence: of all intervals together.
        missing: as there; with "exclude", a prompt with fewer than k judged attempts is left out.
        judge: as there.

    Returns:
        ThreatRates.

    Raises:
        InputError: a prompt with fewer than k attempts, a log that stops at successes, or what is an error there.

    >>> from pyrobust.threats import ThreatVerdict
    >>> rows = [ThreatVerdict(str(i), behaviour="b", attempt=i, success=i == 2) for i in range(4)]
    >>> float(success_at_k(ThreatVerdicts(tuple(rows)), 2))
    0.5
    """
    k = count("k", k)
    for rows in grouped(verdicts, by, judge).values():
        logs: defaultdict[Key, list[Prompt]] = defaultdict(list)
        for key, prompt in prompts_of(rows).items():
            logs[key[:3]].append(prompt)  # a method against a model
        for prompts in logs.values():
            _refuse_stopped(prompts)

    def values(prompt: Prompt) -> Values:
        n, c, lost = len(prompt.rows), prompt.successes, prompt.missing
        if n < k:
            raise InputError(f"k: expected at most the number of attempts at each prompt, got {k} with {n} attempts")
        return _share(n, c, k), _share(n, c + lost, k), _share(n - lost, c, k) if n - lost >= k else None

    return rates_of(verdicts, f"success at {k}", values, by, confidence, missing, judge, lambda p: len(p.rows) == k)


def _share(n: int, c: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), correctly rounded."""
    total = math.comb(n, k)
    return (total - math.comb(n - c, k)) / total


def _refuse_stopped(prompts: list[Prompt]) -> None:
    """Raise if every success is the last attempt at its prompt, and the numbers of attempts differ by that."""
    longest = max((len(prompt.rows) for prompt in prompts), default=0)
    won = [prompt for prompt in prompts if prompt.successes]
    last = all(max(prompt.rows, key=lambda row: row.attempt).success and prompt.successes == 1 for prompt in won)
    if won and last and any(len(prompt.rows) < longest for prompt in won):
        raise InputError(
            "verdicts: expected a number of attempts that was fixed in advance, got a log that stops at the first "
            "success of each prompt; use queries_to_success, or log all attempts"
        )
