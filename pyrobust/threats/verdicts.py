"""Verdicts on attacks against text classifiers and generative models: one row for each judgement of one attempt."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, TypeAlias

from pyrobust.checks import choice, shown, summary
from pyrobust.errors import InputError, InputTypeError
from pyrobust.frames import Tabular

Status: TypeAlias = Literal["judged", "unsubmitted", "error", "unparsable"]
STATUSES: Final[tuple[Status, ...]] = ("judged", "unsubmitted", "error", "unparsable")


@dataclass(frozen=True)
class ThreatVerdict:
    """One judge's verdict on one attempt against one model.

    Attempts with equal model, group, threat, behaviour and prompt are repeated attempts at one prompt. Prompts with
    equal behaviour are not independent. All intervals therefore use the behaviours as clusters.

    Attributes:
        id: identifier of the attempt, and so of the judged answer; each judge has one verdict on it.
        prompt: the text that was sent, or a name for it.
        behaviour: the goal of the attack, or the attacked text; if empty, the prompt.
        group: the attack's method or, in garak's reports, the probe.
        attempt: number of the attempt at this prompt, from 0 (for inspect-ai's logs, the epoch, from 1).
        threat: kind of threat, such as "jailbreak", "targeted", "prompt-injection", "factuality" (success: the answer
            contradicts the facts) or "refusal" (success: the model refused).
        success: whether the threat succeeded; None if there is no verdict.
        score: the number that the judge gave as a score, or None.
        judge: name of the judge; may be empty.
        human_label: whether the threat succeeded according to a person, or None.
        status: "judged", or why the verdict is missing: "unsubmitted" (no attempt was made), "error" (no answer, or no
            judgement of it) or "unparsable" (the judge's answer means neither success nor failure).
        queries: number of queries spent, or None. For a success, only the queries until success count.
        cost: cost in the log's currency (in tokens for inspect-ai), or None.
        category: category of the behaviour.
        model: name of the attacked model.
        extras: names of a table's further columns, and the texts in these columns. Verdicts can be grouped by these
            columns.
    """

    id: str
    prompt: str = ""
    behaviour: str = ""
    group: str = ""
    attempt: int = 0
    threat: str = "jailbreak"
    success: bool | None = None
    score: float | None = None
    judge: str = ""
    human_label: bool | None = None
    status: Status = "judged"
    queries: int | None = None
    cost: float | None = None
    category: str = ""
    model: str = ""
    extras: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in TEXTS:
            if not isinstance(getattr(self, name), str):
                raise InputTypeError(name, "a string", shown(getattr(self, name)))
        for name in ("success", "human_label"):
            if not isinstance(getattr(self, name), bool | None):
                raise InputTypeError(name, "True, False or None", shown(getattr(self, name)))
        for name, least in (("attempt", 0), ("queries", 0)):
            value = getattr(self, name)
            if value is None and name == "queries":
                continue
            if type(value) is not int or not least <= value < 1 << 63:
                raise InputError(name, f"an integer of at least {least}, below 2**63", shown(value))
        for name in ("score", "cost"):
            value = getattr(self, name)
            if value is not None and not (type(value) is float and math.isfinite(value)):
                raise InputError(name, "a finite float or None", shown(value))
        for pair in self.extras:
            if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
                raise InputTypeError("extras", "pairs of strings", shown(pair))
            if pair[0] in COLUMNS:
                raise InputError("extras", "names other than the columns of a verdict", repr(pair[0]))
        choice("status", self.status, STATUSES)
        if (self.status == "judged") != (self.success is not None):
            raise InputError("success", "None exactly if status is not judged", f"{self.success} with {self.status}")

    def value(self, name: str) -> Any:
        """Return the value of a column of ``ThreatVerdict`` or ``extras``; "" if the row does not have the column."""
        return getattr(self, name) if name in COLUMNS else dict(self.extras).get(name, "")


COLUMNS: Final = tuple(field.name for field in fields(ThreatVerdict) if field.name != "extras")
TEXTS: Final = ("id", "prompt", "behaviour", "group", "threat", "judge", "category", "model")


@dataclass(frozen=True)
class ThreatVerdicts(Tabular):
    """A table of verdicts; iterate over its rows, or take a ``column``.

    Attributes:
        rows: the verdicts; each judge has at most one verdict for each ``id``.
        source: the file that they were read from, or empty.

    >>> verdicts = ThreatVerdicts((ThreatVerdict("0", success=True), ThreatVerdict("1", status="unsubmitted")))
    >>> verdicts, verdicts.column("success")
    (ThreatVerdicts(verdicts=2, judged=1, missing=1), [True, None])
    """

    rows: tuple[ThreatVerdict, ...]
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        for row in self.rows:
            if not isinstance(row, ThreatVerdict):
                raise InputTypeError("rows", "ThreatVerdict objects", shown(row))
        pairs = Counter((row.id, row.judge) for row in self.rows)
        if len(pairs) < len(self.rows):
            (name, judge), times = pairs.most_common(1)[0]
            raise InputError(
                "rows",
                "one verdict of each judge on each id",
                f"{times} on {name!r} by {judge!r}",
                "number repeated attempts in their ids",
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ThreatVerdict]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return summary(self, verdicts=len(self), judged=len(self) - self.missing, missing=self.missing)

    @property
    def missing(self) -> int:
        """Number of rows without a verdict."""
        return sum(row.success is None for row in self.rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns: the columns of ``ThreatVerdict``, then the columns in the ``extras`` of any row."""
        return (*COLUMNS, *dict.fromkeys(name for row in self.rows for name, _ in row.extras))

    def column(self, name: str) -> list[Any]:
        """Return the values of the column with this name, which must be one of ``names``.

        Raises:
            InputError: no such column.
        """
        choice("name", name, self.names)
        return [row.value(name) for row in self.rows]

    def where(self, **equal: Any) -> ThreatVerdicts:
        """Rows whose columns have these values: ``verdicts.where(model="m", judge="j")``.

        Args:
            equal: the required value for each column, by name.

        Raises:
            InputError: no such column.
        """
        for name in equal:
            choice("column", name, self.names)
        kept = [row for row in self.rows if all(row.value(name) == value for name, value in equal.items())]
        return ThreatVerdicts(tuple(kept), self.source)

    def _columns(self) -> dict[str, list[Any]]:
        return {name: self.column(name) for name in self.names}

    def _attributes(self) -> dict[str, Any]:
        return {"source": self.source}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values, a list for each column."""
        return self._attributes() | self._columns()


def join_verdicts(tables: Sequence[ThreatVerdicts]) -> ThreatVerdicts:
    """Join tables of verdicts into one.

    Rows with equal ids in several tables belong to the same answer only if two conditions hold: their model, threat,
    behaviour, group, prompt and attempt are equal, and their judges differ. Both hold, for example, if each judge has
    its own file. If they do not hold, all ids of the later table get the table's number as a prefix.

    Args:
        tables: at least one.

    Returns:
        ThreatVerdicts. Its ``source`` lists the sources of all tables, one per line.

    Raises:
        InputError: no table.

    >>> first, second = (ThreatVerdicts((ThreatVerdict("0", model=m, success=True),), f"{m}.csv") for m in "ab")
    >>> join_verdicts([first, second]).column("id")
    ['0', '2:0']
    """
    if not tables:
        raise InputError("tables", "at least one", "none")
    answers: dict[str, tuple[Any, ...]] = {}
    judged: set[tuple[str, str]] = set()
    rows: list[ThreatVerdict] = []
    for number, table in enumerate(tables, 1):
        keys = {row.id: (row.model, row.threat, row.behaviour, row.group, row.prompt, row.attempt) for row in table}
        pairs = {(row.id, row.judge) for row in table}
        clash = bool(pairs & judged) or any(answers.get(name, answer) != answer for name, answer in keys.items())
        renumbered = [replace(row, id=f"{number}:{row.id}") for row in table] if clash else list(table)
        rows += renumbered
        judged |= {(row.id, row.judge) for row in renumbered}
        answers |= {row.id: keys[before.id] for row, before in zip(renumbered, table, strict=True)}
    return ThreatVerdicts(tuple(rows), "\n".join(table.source for table in tables if table.source))
