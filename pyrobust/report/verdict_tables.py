"""Tables of verdicts on threats: success rates, accuracy of judges, agreement of judges, and comparisons."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import PurePath

from pyrobust.checks import choice, probability
from pyrobust.metrics import Rate, estimate_rate
from pyrobust.report.formats import Cell, Column, Quantity, ReportTable
from pyrobust.threats import (
    QueriesToSuccess,
    ThreatRate,
    ThreatRates,
    ThreatVerdict,
    ThreatVerdicts,
    queries_to_success,
    success_at_k,
    threat_success_rate,
)
from pyrobust.threats.at_k import largest_k, stops_at_success
from pyrobust.threats.compare import Side, compare_by
from pyrobust.threats.judges import JudgeLabels, judge_accuracy, labelled_success_rate
from pyrobust.threats.units import Key, grouped, judges_of, prompts_of

_BEHAVIOURS = (
    "Sample: the behaviours, which are taken for independent draws; attempts at one depend on each other in any way."
)
# Names of models may contain system prompts.
_LONGEST = 100


def threat_tables(
    verdicts: ThreatVerdicts,
    by: Sequence[str] | None = None,
    *,
    judge: str | None = None,
    k: int | None = None,
    budget: int | None = None,
    alpha: float = 0.05,
) -> dict[str, ReportTable]:
    """Return all tables that can be made from the verdicts, by name.

    Args:
        verdicts: verdicts of one judge or several.
        by: columns of ``ThreatVerdict`` to group the rates by; None for the model. The kind of threat and the judge are
            added if there are several, because rates of different kinds or judges should not be pooled.
        judge: name of the judge whose verdicts count; None for all.
        k: number of attempts that ``success_at_k`` considers; None for the largest k that it accepts for all prompts.
        budget: number of queries up to which ``queries_to_success`` counts successes; None for the largest number of
            queries of any attempt.
        alpha: probability that at least one of the intervals of a column misses the true value, in (0, 1).

    Returns:
        A dictionary of tables. "threats" is always included. "judges" is included if there are human labels.
        "agreement" is included if several judges have verdicts on the same answers. "models" is included if several
        models share a behaviour. "attacks" is included if several attacks share a model and a behaviour.

    Raises:
        InputError: a column or a judge is unknown, or a value is out of range.

    >>> rows = [ThreatVerdict(f"{m}{i}", behaviour=str(i), model=m, success=m == "a") for m in "ab" for i in range(8)]
    >>> tables = threat_tables(ThreatVerdicts(tuple(rows)))
    >>> list(tables), [str(row[0]) for row in tables["threats"].rows]
    (['threats', 'models'], ['a', 'b'])
    """
    chosen = verdicts if judge is None else ThreatVerdicts(tuple(grouped(verdicts, None, judge)[()]), verdicts.source)
    tables = {
        "threats": threat_table(chosen, by, k=k, budget=budget, alpha=alpha),
        "judges": judge_table(chosen, alpha=alpha),
        "agreement": agreement_table(chosen, alpha=alpha),
        "models": model_table(chosen, alpha=alpha),
        "attacks": attack_comparison_table(chosen, alpha=alpha),
    }
    return {name: table for name, table in tables.items() if table is not None}


def grouping(verdicts: ThreatVerdicts, by: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the columns to group by: ``by`` (default: the model), plus threat and judge if these must be kept apart.

    >>> rows = (ThreatVerdict("0", success=True, judge="a"), ThreatVerdict("0", success=False, judge="b"))
    >>> grouping(ThreatVerdicts(rows))
    ('model', 'judge')
    """
    names = ["model"] if by is None else [choice("by", name, verdicts.names) for name in by]
    if len(set(verdicts.column("threat"))) > 1:
        names.append("threat")
    if len(judges_of(verdicts)) > 1:
        names.append("judge")
    return tuple(dict.fromkeys(names))


def group_name(group: Key) -> str:
    """Return the values that a group has in the grouping columns, as one text.

    >>> group_name(("vicuna", "rule")), group_name(("", ""))
    ('vicuna · rule', 'all')
    """
    return " · ".join(_short(value) for value in group if value) or "all"


def _short(name: str) -> str:
    """Shorten a long name by leaving out its middle."""
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]} … {name[-20:]}"


def threat_table(
    verdicts: ThreatVerdicts,
    by: Sequence[str] | None = None,
    *,
    k: int | None = None,
    budget: int | None = None,
    alpha: float = 0.05,
) -> ReportTable:
    """Show success rates by group.

    Each group has its counts, its rate with an interval, and the smallest and the largest rate that its missing
    verdicts allow.

    If each prompt has at least k attempts, a further column has the success rate within k attempts, for a k that was
    fixed in advance. In a log whose attempts stop at the first success, a prompt with a success may have fewer
    attempts. If the log has numbers of queries above 1, further columns have the mean and the median of
    ``queries_to_success``.

    Args:
        verdicts: any verdicts.
        by: columns to group by, see `grouping`.
        k: as in `threat_tables`.
        budget: as in `threat_tables`.
        alpha: probability that at least one of the intervals of a column misses the true value, in (0, 1).

    Returns:
        A table to print or to write. Its notes state the sample, the confidence of the intervals, and their correction
        for multiplicity.

    Raises:
        InputError: a column is unknown, a value is out of range, or a prompt has fewer than the given k attempts and
            did not stop at a success.

    >>> rows = [ThreatVerdict(str(i), behaviour=str(i), success=i < 3, model="net") for i in range(10)]
    >>> [str(cell) for cell in threat_table(ThreatVerdicts(tuple(rows))).rows[0]]
    ['net', '30.0 % (6.6 to 65.3)', '10', '10', '10', '10', '0']
    """
    level = probability("alpha", alpha, "0.05 is usual")
    names = grouping(verdicts, by)
    rates = threat_success_rate(verdicts, names, 1 - level)
    at_k, why = _at_k(verdicts, names, k, level)
    queries, spent = _queries(verdicts, names, budget, level)
    columns = [Column(", ".join(names), "left")]
    columns += map(Column, ("success rate", "attempts", "prompts", "behaviours", "judged", "missing"))
    incomplete = any(rate.missing for rate in rates)
    columns += [Column("missing as failures"), Column("missing as successes")] if incomplete else []
    columns += [] if at_k is None else [Column(at_k.name)]
    columns += [Column(f"mean queries, of {spent:,}"), Column("median queries")] if queries else []
    rows = []
    for row, rate in enumerate(rates):
        cells: list[Cell] = [group_name(rate.group), share_of(rate), rate.verdicts, rate.prompts, rate.clusters]
        cells += [rate.verdicts - rate.missing, rate.missing]
        if incomplete:
            cells += [Quantity(extreme, digits=1, percent=True) for extreme in (rate.as_failures, rate.as_successes)]
        cells += [] if at_k is None else [share_of(at_k[row])]
        if queries:
            use = queries.get(rate.group)
            cells += [None, None] if use is None else [_number(use.mean, use.lower, use.upper), _median(use)]
        rows.append(tuple(cells))
    notes = [*rate_notes(rates), *why]
    if queries:
        notes.append(
            f"Queries: mean of min(queries to success, {spent:,}) and median, after Kaplan and Meier; their intervals "
            "need no assumption about attempts that gave up early."
            + (f" The log's largest number of queries, {spent:,}, is taken for the budget." if budget is None else "")
        )
    return ReportTable("Success of threats", tuple(columns), (tuple(rows),), (*notes, *origin_notes(verdicts)))


def judge_table(verdicts: ThreatVerdicts, *, alpha: float = 0.05) -> ReportTable | None:
    """Show the accuracy of judges for each model, and success rates according to their verdicts and to human labels.

    Args:
        verdicts: any verdicts. The rows with a ``human_label`` are assumed to be a random sample of the judged answers.
        alpha: probability that at least one of the intervals of a column misses the true value, in (0, 1).

    Returns:
        A table; None if no judged answer has a human label.

    Raises:
        InputError: a value out of range.

    >>> rows = [ThreatVerdict(str(i), behaviour=str(i), success=i < 40, human_label=i % 10 < 3) for i in range(100)]
    >>> [str(cell) for cell in judge_table(ThreatVerdicts(tuple(rows))).rows[0]][:4]
    ['all', '100', '100', '40.0 % (22.6 to 59.4)']
    """
    level = probability("alpha", alpha, "0.05 is usual")
    names = tuple(dict.fromkeys((*grouping(verdicts), *(("judge",) if len(judges_of(verdicts)) > 1 else ()))))
    judged = {
        key: [row for row in rows if row.success is not None] for key, rows in grouped(verdicts, names, None).items()
    }
    groups = {key: rows for key, rows in judged.items() if any(row.human_label is not None for row in rows)}
    if not groups:
        return None
    error = level / len(groups)
    rows = [(group_name(key), *_judge_cells(group, error)) for key, group in groups.items()]
    columns = [Column(", ".join(names), "left"), Column("judged"), Column("labelled")]
    columns += map(Column, ("sensitivity", "specificity", "rate of the verdicts", "rate of the labels"))
    notes = (
        "Labels are taken for drawn at random from the judged answers of each row, whole behaviours where they have "
        "several attempts. The rate of the labels is of the labelled answers alone: the judge's errors have no part in "
        "it.",
        f"{_confidence(level, len(groups))}.",
        _BEHAVIOURS,
        "Sensitivity and specificity: Clopper and Pearson, with answers taken for independent.",
    )
    return ReportTable("Judges against human labels", tuple(columns), (tuple(rows),), notes)


def agreement_table(verdicts: ThreatVerdicts, *, alpha: float = 0.05) -> ReportTable | None:
    """Show how often each pair of judges agrees on answers that both judged; None if no pair judged the same answer.

    Args:
        verdicts: any verdicts.
        alpha: probability that at least one of the intervals of a column misses the true value, in (0, 1).

    Returns:
        A table, or None.

    Raises:
        InputError: a value out of range.

    >>> rows = [ThreatVerdict(str(i), success=i < 4 + (j == "b"), judge=j) for i in range(10) for j in "ab"]
    >>> [str(cell) for cell in agreement_table(ThreatVerdicts(tuple(rows))).rows[0]][:3]
    ['a, b', '10', '1']
    """
    level = probability("alpha", alpha, "0.05 is usual")
    judged: defaultdict[str, dict[str, ThreatVerdict]] = defaultdict(dict)
    for row in verdicts:
        if row.success is not None:
            judged[row.judge][row.id] = row
    pairs: dict[tuple[str, ...], list[tuple[bool, bool]]] = {}
    several = len(set(verdicts.column("model"))) > 1
    for first, second in combinations(sorted(judged), 2):
        for name, row in judged[first].items():
            if name in judged[second]:
                both = bool(row.success), bool(judged[second][name].success)
                pairs.setdefault((first, second), []).append(both)
                if several:
                    pairs.setdefault((first, second, row.model), []).append(both)
    if not pairs:
        return None
    error = level / len(pairs)
    rows = []
    for key, counts in pairs.items():
        equal = sum(a == b for a, b in counts)
        name = ", ".join(_short(judge or "(unnamed)") for judge in key[:2]) + (
            f" · {_short(key[2])}" if key[2:] else ""
        )
        rows.append(
            (
                name,
                len(counts),
                len(counts) - equal,
                rate_cell(estimate_rate(equal, len(counts), error)),
            )
        )
    columns = [Column("judges · model" if several else "judges", "left"), Column("answers of both"), Column("differ")]
    columns += [Column("agree")]
    notes = (
        "Where almost all verdicts are alike, judges agree often by chance: see how many differ.",
        f"{_confidence(level, len(pairs))}: Clopper and Pearson, with answers taken for independent.",
    )
    return ReportTable("Agreement of judges", tuple(columns), (tuple(rows),), notes)


def model_table(verdicts: ThreatVerdicts, *, alpha: float = 0.05) -> ReportTable | None:
    """Compare the success rates of models on behaviours that they share; None if no two models share a behaviour.

    Args:
        verdicts: any verdicts; each judge and kind of threat is compared separately.
        alpha: probability that at least one of the intervals misses the true value, in (0, 1).

    Returns:
        A table, or None.

    Raises:
        InputError: a value out of range.

    >>> rows = [ThreatVerdict(f"{m}{i}", behaviour=str(i), model=m, success=m == "a") for m in "ab" for i in range(8)]
    >>> [str(cell) for cell in model_table(ThreatVerdicts(tuple(rows))).rows[0]][:4]
    ['a - b', '8', '0', '0']
    """
    return _comparison_table(verdicts, "model", alpha)


def attack_comparison_table(verdicts: ThreatVerdicts, *, alpha: float = 0.05) -> ReportTable | None:
    """Compare the success rates of attacks on the same models and behaviours; None if no two can be compared.

    Args:
        verdicts: any verdicts; each judge and kind of threat is compared separately.
        alpha: probability that at least one of the intervals misses the true value, in (0, 1).

    Returns:
        A table, or None.

    Raises:
        InputError: a value out of range.

    >>> rows = [ThreatVerdict(f"{a}{i}", behaviour=str(i), group=a, success=a == "x") for a in "xy" for i in range(8)]
    >>> [str(cell) for cell in attack_comparison_table(ThreatVerdicts(tuple(rows))).rows[0]][:4]
    ['x - y', '8', '0', '0']
    """
    return _comparison_table(verdicts, "group", alpha)


def _comparison_table(verdicts: ThreatVerdicts, side: Side, alpha: float) -> ReportTable | None:
    level = probability("alpha", alpha, "0.05 is usual")
    names = grouping(verdicts)[1:]
    what = {"model": "models", "group": "attacks"}[side]
    parts = [
        (key, table)
        for key, rows in grouped(verdicts, names, None).items()
        if _have_common_behaviours(table := ThreatVerdicts(tuple(rows)), side)
    ]
    if not parts:
        return None
    rows, pairs, tests = [], 0, set()
    for key, table in parts:
        compared = compare_by(side, table, confidence=1 - level / len(parts)).comparisons
        pairs += len(compared)
        for pair in compared:
            tests.add(pair.test)
            sides = f"{_short(pair.first or '(unnamed)')} - {_short(pair.second or '(unnamed)')}"
            rows.append(
                (
                    " · ".join((sides, *map(_short, filter(None, key)))),
                    pair.clusters,
                    pair.only_first + pair.only_second,
                    pair.missing,
                    Quantity(pair.difference, pair.lower, pair.upper, 1, percent=True),
                    Quantity(pair.adjusted, text="<0.0001" if pair.adjusted < 1e-4 else f"{pair.adjusted:.4f}"),
                )
            )
    columns = [Column(" · ".join((what, *names)), "left"), Column("common behaviours"), Column("prompts left out")]
    columns += [Column("missing"), Column("difference of the rates"), Column("adjusted p")]
    methods = {"mcnemar": "McNemar's exact test", "betting": "by betting, as the interval"}
    used = " or ".join(methods[test] for test in sorted(tests))
    notes = (
        "Difference: success rate of the first minus that of the second, a mean over the behaviours that both have, "
        "whatever the prompts; left out: prompts of behaviours, threats or "
        f"{'attacks' if side == 'model' else 'models'} that only one has. Missing verdicts count against it.",
        f"{_confidence(level, pairs)}. p: that the difference is 0, {used}, "
        f"adjusted for the pairs{' of each ' + ' and '.join(names) if names else ''} (Holm).",
        _BEHAVIOURS,
    )
    return ReportTable(f"{what.capitalize()} on common behaviours", tuple(columns), (tuple(rows),), notes)


def rate_notes(rates: ThreatRates) -> list[str]:
    """Return notes that define the rates and the sample, and that state the confidence and method of the intervals."""
    methods = {rate.method for rate in rates}
    made = {
        "clopper-pearson": "Clopper and Pearson, as each behaviour has one attempt",
        "betting": "bounded means by betting, as behaviours have several prompts or attempts",
    }
    how = made[methods.pop()] if len(methods) == 1 else "Clopper and Pearson or, with several attempts, by betting"
    notes = ["Success rate: mean over prompts of each prompt's share of successful attempts."]
    if any(rate.missing for rate in rates):
        notes[0] += (
            " Its value is of the judged attempts; the interval counts missing verdicts as failures at its lower end "
            "and as successes at its upper one."
        )
    caveat = [rates.caveat] if rates.caveat else []
    return [*notes, f"{_confidence(1 - rates.confidence, len(rates))}: {how}.", _BEHAVIOURS, *caveat]


def origin_notes(verdicts: ThreatVerdicts) -> Iterator[str]:
    """Yield notes on the source of the verdicts, on missing verdicts, and on rows without a behaviour."""
    counts = Counter(verdicts.column("status"))
    judges = judges_of(verdicts)
    missing = ", ".join(f"{count:,} {status}" for status, count in counts.items() if status != "judged")
    source = "; ".join(PurePath(path).name for path in verdicts.source.split("\n") if path) or "in memory"
    named = "; ".join(_short(judge) or "(unnamed)" for judge in judges)
    yield (
        f"{source}: {len(verdicts):,} rows{f', of these {missing}' if missing else ''}. "
        f"Judge{'s' if len(judges) > 1 else ''}: {named or 'none'}. The intervals say nothing about judges' errors."
    )
    unknown = sum(not row.behaviour for row in verdicts)
    if unknown:
        yield (
            f"{unknown:,} rows have no behaviour: each prompt counts as one. Variants of one prompt make such an "
            "interval too narrow."
        )


def share_of(rate: ThreatRate) -> Quantity:
    """Return a rate in percent with its interval."""
    return Quantity(rate.value, rate.lower, rate.upper, 1, percent=True)


def rate_cell(rate: Rate) -> Quantity:
    """Return a binomial rate in percent with its interval."""
    return Quantity(rate.value, rate.lower, rate.upper, 1, percent=True)


def _confidence(alpha: float, intervals: int) -> str:
    text = f"Intervals of {100 * (1 - alpha):g} %"
    return f"{text} for all {intervals} rows of a column together (Bonferroni)" if intervals > 1 else text


def _at_k(
    verdicts: ThreatVerdicts, by: tuple[str, ...], k: int | None, alpha: float
) -> tuple[ThreatRates | None, list[str]]:
    """Return success at k, or None if there are too few attempts, and a list of notes that explain it."""
    groups = grouped(verdicts, by, None).values()
    attempts = max(len(prompt.rows) for rows in groups for prompt in prompts_of(rows).values())
    if k is None and attempts == 1:
        return None, []
    chosen = min(map(largest_k, groups)) if k is None else k
    if k is None and chosen == 1:
        return None, [f"No success at k: prompts have 1 to {attempts} attempts."]
    rates = success_at_k(verdicts, chosen, by, 1 - alpha)
    if any(map(stops_at_success, groups)):
        return rates, [f"{rates.name.capitalize()}: share of prompts with a success in the first {chosen} attempts."]
    what = "probability that one of so many attempts at a prompt succeeds, 1 - C(n - c, k)/C(n, k) of n attempts"
    return rates, [f"{rates.name.capitalize()}: {what}."]


def _queries(
    verdicts: ThreatVerdicts, by: tuple[str, ...], budget: int | None, alpha: float
) -> tuple[dict[Key, QueriesToSuccess], int]:
    """Return the ``QueriesToSuccess`` of each group whose rows have numbers of queries, and the budget."""
    queries = max((row.queries for row in verdicts if row.queries is not None), default=0)
    spent = budget if budget is not None else queries
    if queries <= 1:  # a count of attempts, not a search
        return {}, 0
    groups = grouped(verdicts, by, None)
    confidence = 1 - alpha / len(groups)
    return {
        key: queries_to_success(ThreatVerdicts(tuple(rows)), spent, confidence=confidence)
        for key, rows in groups.items()
        if any(row.queries is not None for row in rows)
    }, spent


def _number(value: float, lower: float, upper: float) -> Quantity:
    return Quantity(value, lower, upper, 1)


def _median(use: QueriesToSuccess) -> Cell:
    value, lower, upper = use.quantiles[0], use.quantile_lower[0], use.quantile_upper[0]
    beyond = f">{use.budget:,}"
    ends = [beyond if math.isinf(number) else f"{number:,.0f}" for number in (value, lower, upper)]
    return Quantity(value, lower, upper, text=f"{ends[0]} ({ends[1]} to {ends[2]})")


def _judge_cells(judged: list[ThreatVerdict], alpha: float) -> list[Cell]:
    labelled = [row for row in judged if row.human_label is not None]
    labels = JudgeLabels.of([bool(row.success) for row in labelled], [bool(row.human_label) for row in labelled])
    accuracy, verdicts = judge_accuracy(labels, alpha), ThreatVerdicts(tuple(judged))
    rates = [share_of(rate(verdicts, confidence=1 - alpha)[0]) for rate in (threat_success_rate, labelled_success_rate)]
    return [len(judged), len(labelled), rate_cell(accuracy.sensitivity), rate_cell(accuracy.specificity), *rates]


def _have_common_behaviours(verdicts: ThreatVerdicts, side: Side) -> bool:
    other = "group" if side == "model" else "model"
    names = {(row.value(side), row.value(other), row.threat, row.behaviour or row.prompt or row.id) for row in verdicts}
    return max(Counter(key[1:] for key in names).values(), default=0) > 1
