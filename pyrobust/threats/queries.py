"""Number of queries until an attack succeeds; a failed attempt gives only a lower bound on this number."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyrobust.checks import array, count, probability
from pyrobust.errors import InputError
from pyrobust.frames import plain_fields
from pyrobust.threats.rates import error_rate, interval
from pyrobust.threats.units import of_one_judge, prompts_of
from pyrobust.threats.verdicts import ThreatVerdict, ThreatVerdicts


@dataclass(frozen=True)
class QueriesToSuccess:
    """Number of queries until an attack succeeds, as returned by ``queries_to_success``.

    An attempt is censored if it ended without success before the budget was spent, or if its verdict or its number of
    queries is missing. The intervals need no assumption about censored attempts. For the lower end of a quantile's
    interval, a censored attempt counts as a success at the query after its last one. For the lower end of the mean's
    interval, it counts as a success at its last query. If its verdict or number of queries is missing, it counts for
    both lower ends as a success without any query. For all upper ends, a censored attempt counts as a failure within
    the budget. The estimates themselves are computed by the method of Kaplan and Meier (1958), which assumes that
    censored attempts do not differ from the other attempts.

    Attributes:
        budget: number of queries up to which successes count.
        mean: the restricted mean, that is, the mean of min(queries to success, budget), estimated by the method of
            Kaplan and Meier. If no attempt has both a verdict and a number of queries, the mean and the quantiles are
            NaN.
        lower, upper: ends of the interval of the restricted mean.
        levels: shares of attempts that define the quantiles.
        quantiles: for each level, the number of queries within which this share of the attempts succeeds, estimated by
            the method of Kaplan and Meier. It is inf if the share is not reached within the budget.
        quantile_lower, quantile_upper: ends of the interval of each quantile.
        successes: number of attempts that succeeded within the budget.
        censored: number of attempts that ended without success before the budget was spent, or whose verdict or number
            of queries is missing.
        attempts: number of attempts.
        clusters: number of behaviours, the sample size of the intervals.
        confidence: confidence level of each interval.
    """

    budget: int
    mean: float
    lower: float
    upper: float
    levels: tuple[float, ...]
    quantiles: tuple[float, ...]
    quantile_lower: tuple[float, ...]
    quantile_upper: tuple[float, ...]
    successes: int
    censored: int
    attempts: int
    clusters: int
    confidence: float

    to_dict = plain_fields


def queries_to_success(
    verdicts: ThreatVerdicts,
    budget: int,
    levels: Sequence[float] = (0.5,),
    confidence: float = 0.95,
    *,
    judge: str | None = None,
) -> QueriesToSuccess:
    """Restricted mean and quantiles of the number of queries until an attack succeeds.

    In the row of a successful attempt, ``queries`` is the number of queries until success. In any other row, it is the
    number of all queries spent. Means are taken over the attempts at each prompt, then over prompts. The intervals use
    the behaviours as clusters, as in ``threat_success_rate``.

    Args:
        verdicts: as in ``threat_success_rate``. Rows without ``queries`` widen the intervals, and reduce the weight of
            the other attempts at their prompt in the estimates.
        budget: number of queries up to which successes count, at least 1. It has to be chosen before seeing the
            results.
        levels: shares in (0, 1) that define the quantiles.
        confidence: confidence level of each interval.
        judge: as in ``threat_success_rate``.

    Returns:
        QueriesToSuccess.

    Raises:
        InputError: no row has ``queries``, or a value is out of range.
        InputTypeError: ``verdicts`` is not a table of verdicts.

    >>> from pyrobust.threats import ThreatVerdict
    >>> spent = [10] * 30 + [50] * 10
    >>> rows = [ThreatVerdict(str(i), behaviour=str(i), success=n < 50, queries=n) for i, n in enumerate(spent)]
    >>> result = queries_to_success(ThreatVerdicts(tuple(rows)), 50)
    >>> result.mean, result.quantiles, result.censored
    (20.0, (10.0,), 0)
    """
    budget = count("budget", budget)
    alpha = error_rate(confidence)
    shares = tuple(probability("levels", level) for level in array("levels", levels).ravel().tolist())
    rows = of_one_judge(verdicts, judge)
    if all(row.queries is None for row in rows):
        raise InputError("verdicts", "numbers of queries", "none")
    prompts = list(prompts_of(rows).values())
    clusters = [prompt.cluster for prompt in prompts]
    single = len(set(clusters)) == len(rows)

    def ends(value: Callable[[ThreatVerdict], tuple[float, float]], binary: bool, error: float) -> tuple[float, float]:
        """Return both ends of an interval: the lower from the least possible values, the upper from the greatest."""
        pairs = [[value(row) for row in prompt.rows] for prompt in prompts]
        low, high = ([sum(pair[side] for pair in some) / len(some) for some in pairs] for side in (0, 1))
        return interval(clusters, low, error, binary)[0], interval(clusters, high, error, binary)[1]

    def first(side: int, level: float, times: list[int]) -> int | None:
        """Return the first of ``times`` at which the interval's end (0: lower, 1: upper) reaches the level."""
        low, high = -1, len(times)
        while high - low > 1:
            middle = (low + high) // 2
            reached = ends(partial(_succeeded, time=times[middle]), single, alpha)[side] >= level
            low, high = (low, middle) if reached else (middle, high)
        return times[high] if high < len(times) else None

    finished = [(row.queries, bool(row.success)) for row in rows if row.queries is not None and row.success is not None]
    wins = sorted({queries for queries, success in finished if success and queries <= budget})
    # The upper end rises at successes, and after the last query of an attempt without success.
    rises = sorted({0, *wins, *(queries + 1 for queries, success in finished if not success and queries < budget)})
    latest, earliest = ([first(side, level, times) for level in shares] for side, times in ((0, wins), (1, rises)))
    spent = ends(partial(_spent, budget=budget), False, alpha)
    curve = _kaplan_meier(prompts=[prompt.rows for prompt in prompts], budget=budget)
    return QueriesToSuccess(
        budget=budget,
        mean=_area(curve, budget) if finished else math.nan,
        lower=spent[0] * budget,
        upper=spent[1] * budget,
        levels=shares,
        quantiles=tuple(
            next((float(t) for t, s in curve if 1 - s >= level - 1e-12), math.inf if finished else math.nan)
            for level in shares
        ),
        quantile_lower=tuple(float(budget if time is None else time) for time in earliest),
        quantile_upper=tuple(math.inf if time is None else float(time) for time in latest),
        successes=sum(_succeeded(row, budget)[0] == 1 for row in rows),
        censored=sum(_succeeded(row, budget) == (0, 1) for row in rows),
        attempts=len(rows),
        clusters=len(set(clusters)),
        confidence=confidence,
    )


def _spent(row: ThreatVerdict, budget: int) -> tuple[float, float]:
    """Return the least and the greatest possible min(queries to success, budget) / budget."""
    if row.queries is None or row.success is None:
        return 0.0, 1.0
    spent = min(row.queries, budget) / budget
    return spent, spent if row.success else 1.0


def _succeeded(row: ThreatVerdict, time: int) -> tuple[int, int]:
    """Return (1, 1) for a success within ``time`` queries, (0, 0) for none, and (0, 1) if this is unknown."""
    if row.queries is None or row.success is None:
        return 0, 1
    if row.queries >= time and not row.success:
        return 0, 0
    return (int(row.queries <= time),) * 2 if row.success else (0, 1)


def _kaplan_meier(prompts: list[list[ThreatVerdict]], budget: int) -> list[tuple[int, float]]:
    """Return the survival curve: each time of success up to the budget, with the share without success after it."""
    events: defaultdict[int, float] = defaultdict(float)
    leaving: defaultdict[int, float] = defaultdict(float)
    at_risk = 0.0
    for rows in prompts:
        for row in rows:
            if row.queries is not None and row.success is not None:
                at_risk += 1 / len(rows)
                (events if row.success else leaving)[row.queries] += 1 / len(rows)
    share, curve = 1.0, []
    for time in sorted({*events, *leaving}):
        if time > budget:
            break
        if events[time]:
            share *= max(0.0, 1 - events[time] / at_risk)
            curve.append((time, share))
        at_risk -= events[time] + leaving[time]
    return curve


def _area(curve: list[tuple[int, float]], budget: int) -> float:
    """Return the area below the survival curve from 0 to the budget."""
    area, before, share = 0.0, 0, 1.0
    for time, after in curve:
        area += (time - before) * share
        before, share = time, after
    return area + (budget - before) * share
