"""The page of verdicts on threats: rates by group, missing verdicts, judges, models and a table of attempts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyrobust.checks import probability
from pyrobust.errors import FileFormatError, InputTypeError
from pyrobust.report.formats import Interval, Quantity, ReportTable
from pyrobust.report.page.render import document
from pyrobust.report.page.words import KeyNumber
from pyrobust.report.verdict_tables import group_name, grouping, rate_notes, threat_tables
from pyrobust.runs.reader import is_run
from pyrobust.threats import ThreatRate, ThreatVerdicts, is_verdicts, read_answers, threat_success_rate
from pyrobust.threats.readers.old_run import ThreatRun, read_threat_run
from pyrobust.threats.units import grouped, judges_of
from pyrobust.threats.verdicts import STATUSES

#: Most rows of the table of attempts; the figures include all attempts.
MAX_ROWS = 50_000
#: Most characters of all texts of a column together, and of a single text.
_ALL_TEXT, _LONGEST, _SHORTEST = 4_000_000, 2_000, 60
# Most rows of a figure: nobody reads more.
_MOST_GROUPS = 60
_SHOWN_BEHAVIOUR, _LONGEST_NAME = 80, 200
_CHART_COLUMNS = ("model", "group", "category", "threat")
_TITLES = {
    "model": "model",
    "group": "attack or probe",
    "category": "category",
    "threat": "kind of threat",
    "judge": "judge",
}


@dataclass(frozen=True)
class RateRow:
    """A row of a figure of success rates; its positions are in percent.

    Attributes:
        name: name of the group.
        value, lower, upper: the rate and its interval; the value is None if there is no verdict.
        least, most: the rate if all missing verdicts count as failures (least) or as successes (most).
        text: the rate with its interval.
        parts: parts of the bar that shows all attempts; each part is a tuple of its style, left edge and width.
        counts: the numbers of attempts, behaviours and missing verdicts, in words.
    """

    name: str
    value: float | None
    lower: float
    upper: float
    least: float
    most: float
    text: str
    parts: tuple[tuple[str, float, float], ...]
    counts: str


@dataclass(frozen=True)
class RateChart:
    """A figure of success rates by group.

    Attributes:
        name: name of the figure, unique on its page.
        title: heading.
        about: what the figure shows.
        column: what the rows stand for.
        rows: rows, the highest rate first.
        missing: whether any verdict is missing.
    """

    name: str
    title: str
    about: str
    column: str
    rows: tuple[RateRow, ...]
    missing: bool


def threat_page_html(
    verdicts: ThreatVerdicts,
    by: Sequence[str] | None = None,
    *,
    judge: str | None = None,
    k: int | None = None,
    budget: int | None = None,
    alpha: float = 0.05,
    title: str | None = None,
) -> str:
    """Write verdicts on threats as one self-contained HTML page, which sends no request and needs no network.

    The page contains the prompts and, if the verdicts were read from logs of inspect-ai or from run files, the answers.
    Each text is shown on click and cut to 2,000 characters. If there are many texts, they are cut to fewer characters.
    The table has the first 50,000 attempts.

    Args:
        verdicts: verdicts of one judge or several.
        by: columns to group by, as in `threat_tables`.
        judge: as in `threat_tables`.
        k: as in `threat_tables`.
        budget: as in `threat_tables`.
        alpha: probability that at least one of the intervals of a figure or of a column misses the true value, in (0,
            1).
        title: title of the page; by default, it has the name of the model or the number of models.

    Returns:
        The page. The same verdicts give the same text.

    Raises:
        InputError: as for `threat_tables`.
        InputTypeError: ``verdicts`` is not a table of verdicts.
        MissingExtraError: jinja2 is not installed.

    >>> from pyrobust.threats import ThreatVerdict
    >>> rows = [ThreatVerdict(str(i), behaviour=str(i), success=i < 3, model="net") for i in range(10)]
    >>> "<h1><bdi>Threats against net</bdi></h1>" in threat_page_html(ThreatVerdicts(tuple(rows)))
    True
    """
    if not isinstance(verdicts, ThreatVerdicts):
        raise InputTypeError("verdicts", "ThreatVerdicts", type(verdicts).__name__, "use read_verdicts")
    level = probability("alpha", alpha, "0.05 is usual")
    tables = threat_tables(verdicts, by, judge=judge, k=k, budget=budget, alpha=level)
    if judge is not None:
        verdicts = ThreatVerdicts(tuple(grouped(verdicts, None, judge)[()]), verdicts.source)
    charts = _charts(verdicts, by, level)
    runs = _runs(verdicts)
    columns = attempt_columns(verdicts, _answers(verdicts))
    models = sorted({row.model for row in verdicts if row.model})
    view = {
        "id": "s1",
        "name": "Threats",
        "lead": _lead(charts[0], verdicts),
        "unfinished": [run.path.name for run in runs.values() if not run.complete],
        "numbers": _numbers(verdicts, charts[0]),
        "charts": charts,
        "tables": {name: tables.get(name) for name in ("threats", "judges", "agreement", "models", "attacks")},
        "agreement": _agreement_bars(tables.get("agreement")),
        "columns": columns,
        "choices": _choices(columns),
        "shown": min(len(verdicts), MAX_ROWS),
        "rows": len(verdicts),
        "facts": _facts(verdicts, runs),
        "nav": _nav(tables),
    }
    what = _cut(models[0], _LONGEST_NAME) if len(models) == 1 else f"{len(models)} models" if models else "a model"
    level_text = f"{100 * (1 - level):g} %"
    footer = (
        f"Intervals of one figure or column hold together with {level_text}, for other behaviours of the same kind."
    )
    return document(f"Threats against {what}" if title is None else title, [], footer=footer, threats=view)


def _charts(verdicts: ThreatVerdicts, by: Sequence[str] | None, alpha: float) -> list[RateChart]:
    """Return one figure with rates by the requested columns, and one for each other column with several values."""
    groupings = [grouping(verdicts, by)]
    for name in _CHART_COLUMNS:
        several = 1 < len(set(verdicts.column(name))) <= _MOST_GROUPS
        if several and name not in groupings[0]:
            groupings.append(grouping(verdicts, [name]))
    charts = []
    for number, names in enumerate(dict.fromkeys(groupings)):
        rates = threat_success_rate(verdicts, names, 1 - alpha)
        ranked = sorted(rates, key=lambda rate: -rate.value if rate.value == rate.value else 0.0)
        notes = rate_notes(rates)
        if len(ranked) > _MOST_GROUPS:
            notes.append(
                f"The {_MOST_GROUPS - 1} highest and the lowest of {len(ranked):,} rates are shown; the table has all."
            )
            lowest = next((rate for rate in reversed(ranked) if rate.value == rate.value), ranked[-1])
            ranked = [*ranked[: _MOST_GROUPS - 1], lowest]
        charts.append(
            RateChart(
                f"s1-rates-{number}",
                "Success rate by " + " and ".join(_TITLES.get(name, name) for name in names),
                " ".join(notes),
                ", ".join(names),
                tuple(map(_row, ranked)),
                any(rate.missing for rate in rates),
            )
        )
    return charts


def _row(rate: ThreatRate) -> RateRow:
    successes = 100 * rate.as_failures
    missing = 100 * (rate.as_successes - rate.as_failures)
    is_number = rate.value == rate.value
    text = str(Quantity(rate.value, rate.lower, rate.upper, 1, percent=True)) if is_number else "no verdict"
    counts = f"{rate.verdicts:,} attempts, {rate.clusters:,} behaviours"
    return RateRow(
        name=group_name(rate.group),
        value=100 * rate.value if is_number else None,
        lower=100 * rate.lower,
        upper=100 * rate.upper,
        least=successes,
        most=100 * rate.as_successes,
        text=text,
        parts=(
            ("lost", 0.0, successes),
            ("undecided", successes, missing),
            ("proved", successes + missing, 100 - successes - missing),
        ),
        counts=counts + (f", {rate.missing:,} missing" if rate.missing else ""),
    )


def _lead(chart: RateChart, verdicts: ThreatVerdicts) -> str:
    """Describe the rates in one sentence."""
    behaviours = len({row.behaviour or row.prompt or row.id for row in verdicts})
    sample = f"{behaviours:,} behaviours" if behaviours > 1 else "one behaviour"
    rows = [row for row in chart.rows if row.value is not None]
    if not rows:
        return f"No attempt of {len(verdicts):,} has a verdict: nothing is known of the success rate."
    missing = f" {verdicts.missing:,} of {len(verdicts):,} verdicts are missing." if verdicts.missing else ""
    if len(rows) == 1:
        group = "" if len(chart.rows) == 1 else f" of {rows[0].name}, the only group with verdicts"
        return f"The attacks succeed in {rows[0].text} of the attempts{group}, over {sample}.{missing}"
    high, low = rows[0], rows[-1]
    return (
        f"Success rates of {len(rows)} groups lie between {low.value:.1f} % ({low.name}) and {high.value:.1f} % "
        f"({high.name}), over {sample}.{missing}"
    )


def _numbers(verdicts: ThreatVerdicts, chart: RateChart) -> list[KeyNumber]:
    """Return the counts, and the highest and lowest rates."""
    statuses = Counter(verdicts.column("status"))
    behaviours = len({row.behaviour or row.prompt or row.id for row in verdicts})
    reasons = ", ".join(f"{statuses[name]:,} {name}" for name in STATUSES[1:] if statuses[name])
    numbers = [
        KeyNumber("Behaviours, the sample", f"{behaviours:,}", f"{len(verdicts):,} verdicts"),
        KeyNumber("Missing verdicts", f"{verdicts.missing:,}", reasons, "undecided"),
    ]
    rows = [row for row in chart.rows if row.value is not None]
    limits = (
        [("Highest rate", rows[0]), ("Lowest rate", rows[-1])]
        if len(rows) > 1
        else [("Success rate", row) for row in rows]
    )
    for name, row in limits:
        about = f"{Interval(row.lower / 100, row.upper / 100)}" + (f" · {row.name}" if len(rows) > 1 else "")
        numbers.append(
            KeyNumber(name, f"{row.value:.1f} %", about, "attacked" if name != "Lowest rate" else "certified")
        )
    return numbers


def _agreement_bars(table: ReportTable | None) -> tuple[tuple[tuple[str, float, float], ...], ...]:
    """Return one bar per pair of judges, in two parts: answers on which they agree, and on which they differ."""
    bars = []
    for row in () if table is None else table.rows:
        answers, differ = row[1], row[2]
        assert isinstance(answers, int)
        assert isinstance(differ, int)
        equal = 100 * (answers - differ) / answers
        bars.append((("proved", 0.0, equal), ("lost", equal, 100 - equal)))
    return tuple(bars)


def _nav(tables: dict[str, ReportTable]) -> list[tuple[str, str]]:
    sections = [
        ("rates", "Rates"),
        ("judges", "Judges"),
        ("models", "Models"),
        ("attacks", "Attacks"),
        ("examples", "Attempts"),
        ("origin", "Origin"),
    ]
    there = {"rates", "examples", "origin"} | ({"judges"} if tables.keys() & {"judges", "agreement"} else set())
    there |= {"models", "attacks"} & tables.keys()
    return [(f"s1-{name}", title) for name, title in sections if name in there]


def _runs(verdicts: ThreatVerdicts) -> dict[int, ThreatRun]:
    """Return the runs that the verdicts were read from, by the number of their file."""
    files = [Path(name) for name in verdicts.source.split("\n") if name]
    return {
        position: read_threat_run(path) for position, path in enumerate(files, 1) if is_run(path) and is_verdicts(path)
    }


def _answers(verdicts: ThreatVerdicts) -> dict[str, str]:
    """Return answers by the id of their verdicts; if ids are not distinct, the file's number precedes the id."""
    ids = set(verdicts.column("id"))
    answers = {}
    for position, name in enumerate(filter(None, verdicts.source.split("\n")), 1):
        with suppress(FileFormatError):  # a format without answers, or a file moved since
            for answer in read_answers(name):
                numbered = f"{position}:{answer.id}"
                answers[numbered if numbered in ids else answer.id] = answer.text or ""
    return answers


def attempt_columns(
    verdicts: ThreatVerdicts, answers: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return the columns of the attempts that the page's table has, which are the first ones; omit empty columns.

    ``answers`` are the answers of the attacked model, by id.

    >>> from pyrobust.threats import ThreatVerdict
    >>> [column["name"] for column in attempt_columns(ThreatVerdicts((ThreatVerdict("7", "Say it", success=True),)))]
    ['row', 'outcome', 'id', 'prompt']
    """
    rows = verdicts.rows[:MAX_ROWS]
    outcome = [row.status if row.success is None else "success" if row.success else "failure" for row in rows]
    columns = [
        {
            "name": "row",
            "about": "Number of the row in the file.",
            "kind": "integer",
            "values": list(range(1, len(rows) + 1)),
        },
        _texts("outcome", "Whether the threat succeeded, or why there is no verdict.", outcome),
        _texts("model", "The attacked model.", [row.model for row in rows]),
        _texts("threat", "Kind of threat.", [row.threat for row in rows])
        if len(set(verdicts.column("threat"))) > 1
        else None,
        _texts("group", "Method of the attack, or probe.", [row.group for row in rows]),
        _texts("category", "Category of the behaviour.", [row.category for row in rows]),
        _texts("behaviour", "What the attack is after.", [row.behaviour for row in rows], _SHOWN_BEHAVIOUR),
        _numbers_column("attempt", "Number of the attempt at this prompt.", [row.attempt for row in rows])
        if any(row.attempt for row in rows)
        else None,
        _texts("judge", "Who gave the verdict.", [row.judge for row in rows]) if len(judges_of(verdicts)) > 1 else None,
        _texts("label", "The outcome according to a person.", [_LABELS[row.human_label] for row in rows]),
        _numbers_column("score", "The judge's number.", [row.score for row in rows]),
        _numbers_column("queries", "Queries spent, at a success those until it.", [row.queries for row in rows]),
        _numbers_column("cost", "In the log's currency; of language models, tokens.", [row.cost for row in rows]),
        _texts("id", "Identifier of the attempt.", [row.id for row in rows], _SHOWN_BEHAVIOUR),
        _texts("prompt", "What was sent.", [row.prompt for row in rows], None),
        _texts("answer", "What the model answered.", [answers.get(row.id, "") for row in rows], None),
    ]
    return [column for column in columns if column is not None]


_LABELS = {None: "", True: "success", False: "failure"}


def _texts(name: str, about: str, values: list[str], longest: int | None = _LONGEST_NAME) -> dict[str, Any] | None:
    """Return a column of shortened texts that stores each distinct text once; None if all texts are empty."""
    distinct = list(dict.fromkeys(values))
    if not any(distinct):
        return None
    places = {text: position for position, text in enumerate(distinct)}
    hidden = longest is None
    length = longest or max(_SHORTEST, min(_LONGEST, _ALL_TEXT // len(distinct)))
    texts: list[Any] = [_cut(text, length) for text in distinct]
    if hidden:
        texts = [text.splitlines() or [""] for text in texts]
    column = {"name": name, "about": about, "kind": "text", "texts": texts, "values": [places[v] for v in values]}
    return column | ({"hidden": True} if hidden else {})


def _cut(text: str, longest: int) -> str:
    """Return the beginning of a text, followed by the number of characters that were cut off.

    >>> _cut("abcdef", 3)
    'abc … [3 characters left out]'
    """
    return text if len(text) <= longest else f"{text[:longest]} … [{len(text) - longest:,} characters left out]"


def _numbers_column(name: str, about: str, values: list[Any]) -> dict[str, Any] | None:
    if all(value is None for value in values):
        return None
    whole = all(value is None or (float(value).is_integer() and abs(value) < 1 << 53) for value in values)
    numbers = [value if value is None else int(value) if whole else float(f"{value:.6g}") for value in values]
    return {"name": name, "about": about, "kind": "integer" if whole else "number", "values": numbers}


def _choices(columns: list[dict[str, Any]]) -> list[str]:
    """Return the names of the columns that have only a few values, to be offered in menus."""
    return [
        column["name"]
        for column in columns
        if column["kind"] == "text"
        and not column.get("hidden")
        and 1 < len(column["texts"]) <= 200
        and column["name"] != "id"
    ]


def _facts(verdicts: ThreatVerdicts, runs: dict[int, ThreatRun]) -> list[tuple[str, str]]:
    """Return the files, and counts of their contents."""
    facts = []
    for position, name in enumerate(filter(None, verdicts.source.split("\n")), 1):
        path = Path(name)
        facts.append(("file", path.name))
        if position in runs:
            facts += _run_facts(runs[position])
            continue  # a run in progress has no lasting hash
        if path.is_file():
            facts.append(("sha256", hashlib.sha256(path.read_bytes()).hexdigest()))
    facts += [("verdicts", f"{len(verdicts):,}")]
    facts += [(name, f"{count:,}") for name, count in Counter(verdicts.column("status")).items()]
    for name, title in (
        ("model", "models"),
        ("group", "attacks or probes"),
        ("category", "categories"),
        ("threat", "threats"),
    ):
        values = sorted(set(filter(None, verdicts.column(name))))
        if values:
            more = f" and {len(values) - 20:,} more" if len(values) > 20 else ""
            facts.append((title, ", ".join(_cut(each, _LONGEST_NAME) for each in values[:20]) + more))
    judges = [_cut(judge, _LONGEST_NAME) or "(unnamed)" for judge in judges_of(verdicts)]
    labels = sum(row.human_label is not None for row in verdicts)
    return [*facts, ("judges", ", ".join(judges) or "none"), ("human labels", f"{labels:,}")]


def _run_facts(run: ThreatRun) -> Iterator[tuple[str, str]]:
    """Yield facts of the run, and its cost."""
    yield "model", _cut(run.header.model, 2_000)
    yield "prompts, sha256", run.header.data_sha256
    yield "attempts at each prompt", f"{run.threat.attempts:,}"
    yield "calls, tokens", f"{run.ledger.calls:,}, {run.ledger.tokens:,}; {run.ledger.lost:,} calls lost or in flight"
    yield "finished", "yes" if run.complete else "no"
    for name, version in run.header.versions.items():
        yield f"version of {name}", version
