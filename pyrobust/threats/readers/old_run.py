"""Untrusted run files (schema 10) of those earlier versions of this library that ran language models themselves.

Each file is a database, and the verdicts are rebuilt from its tables. One of the tables is the ledger of all calls to
models. Before a call was sent, its largest possible cost was entered in the ledger. After the call, its actual cost was
entered. A lost call keeps its largest possible cost. Nothing writes or resumes such files any more.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyrobust.checks import file_path, is_integer
from pyrobust.errors import FileFormatError, PyrobustError
from pyrobust.runs.reader import Header, check_stored_version, connect_readonly, read_run_row, reading
from pyrobust.runs.schema import RUN, THREAT_VERSION
from pyrobust.threats.answers import ThreatAnswer
from pyrobust.threats.prompts import Threat, ThreatPrompt, verdict_on
from pyrobust.threats.untrusted import mapping, parse_json
from pyrobust.threats.verdicts import Status, ThreatVerdicts

#: CREATE statement of each table, as SQLite stores it.
#:
#: call: the ledger; asked: 0 for the attacked model, else 1 + the judge's number; status: "sent" (in flight, or lost),
#: "answered", "cached" (paid for by another run), "retry" and "failed" (brought no answer); reserved: largest cost in
#: tokens; spent: actual cost, or the largest cost until the actual one is known. verdict: item is prompt * attempts +
#: attempt; call is the judge's call, if it made one.
STATEMENTS: Final = {
    "run": f"CREATE TABLE run ({', '.join(f'{name} {sql}' for name, sql in RUN.items())})",
    "prompt": "CREATE TABLE prompt (idx INTEGER PRIMARY KEY, value TEXT NOT NULL)",
    "judge": "CREATE TABLE judge (idx INTEGER PRIMARY KEY, name TEXT NOT NULL, settings TEXT NOT NULL)",
    "call": "CREATE TABLE call (number INTEGER PRIMARY KEY, asked INTEGER NOT NULL, key TEXT NOT NULL, "
    "status TEXT NOT NULL, reserved INTEGER NOT NULL, spent INTEGER NOT NULL, seconds REAL, answer TEXT, error TEXT)",
    "verdict": "CREATE TABLE verdict (judge INTEGER NOT NULL, item INTEGER NOT NULL, status TEXT NOT NULL, "
    "success INTEGER, score REAL, call INTEGER, error TEXT NOT NULL, PRIMARY KEY (judge, item)) WITHOUT ROWID",
}
_STATUSES: Final = ("sent", "answered", "cached", "retry", "failed")
_KEY: Final = re.compile("[0-9a-f]{64}")
_LARGEST: Final = 1 << 53


@dataclass(frozen=True)
class Ledger:
    """The calls of a run.

    Attributes:
        answers: maps the key of each answered call to the number of the row of the table ``call`` that holds the
            answer.
        failures: keys of calls whose last try failed.
        spent: maps the number of a call to the tokens that it cost.
        calls: number of calls sent, lost ones included.
        tokens: tokens spent, counting each lost call at its largest possible cost.
        lost: number of calls that were sent but have no recorded outcome, because they were in flight or lost.
    """

    answers: dict[str, int]
    failures: set[str]
    spent: dict[int, int]
    calls: int
    tokens: int
    lost: int


#: A verdict: its status, success, score and judge's call.
Row = tuple[Status, bool | None, float | None, int | None]


@dataclass(frozen=True)
class ThreatRun:
    """A threat run as read from its file.

    Attributes:
        path: the file.
        header: model, parameters, hash of the prompts, and software versions.
        threat: the prompts.
        judges: names of the judges, beginning with the run's own judge.
        ledger: the calls.
        rows: for each judge, the existing verdicts by item. An item is an attempt at a prompt.
    """

    path: Path
    header: Header
    threat: Threat
    judges: tuple[str, ...]
    ledger: Ledger
    rows: tuple[dict[int, Row], ...]

    @property
    def keys(self) -> list[str]:
        """Return the keys of the calls to the attacked model.

        There is one key for each attempt, in the order of the prompts and attempts.
        """
        model = self.header.model
        return [_call_key(model, prompt.prompt, attempt) for _, prompt, attempt in self.threat.each_attempt()]

    @property
    def complete(self) -> bool:
        """Whether each attempt either has a verdict of the run's judge or has failed."""
        return not any(row.status == "unsubmitted" for row in self.verdicts.where(judge=self.judges[0]))

    @property
    def verdicts(self) -> ThreatVerdicts:
        """Return the verdicts of all judges on all attempts.

        If the attacked model was not called, ``status`` is "unsubmitted". If the attacked model gave no answer, or if
        the judge gave no verdict or was not called yet, ``status`` is "error". ``cost`` is the number of tokens of the
        answer and of the judge's reply.
        """
        answers, failures, spent = self.ledger.answers, self.ledger.failures, self.ledger.spent
        result = []
        for judge, rows in zip(self.judges, self.rows, strict=True):
            for item, (key, (id, prompt, attempt)) in enumerate(
                zip(self.keys, self.threat.each_attempt(), strict=True)
            ):
                number = answers.get(key)
                missing: Status = "error" if number is not None or key in failures else "unsubmitted"
                status, success, score, call = rows.get(item, (missing, None, None, None))
                columns: dict[str, Any] = {"success": success, "score": score, "judge": judge, "status": status}
                if number is not None:
                    columns |= {"queries": 1, "cost": float(spent[number] + (0 if call is None else spent[call]))}
                result.append(verdict_on(prompt, id, attempt, self.header.model, **columns))
        return ThreatVerdicts(tuple(result), str(self.path))

    def answers(self) -> list[ThreatAnswer]:
        """Return the attacked model's answers to all attempts.

        Raises:
            FileFormatError: the file is damaged.
        """
        with closing(connect_readonly(self.path)) as connection, reading(self.path):
            texts = dict(connection.execute("SELECT number, answer FROM call WHERE answer IS NOT NULL"))
        converted = []
        for key, (id, prompt, attempt) in zip(self.keys, self.threat.each_attempt(), strict=True):
            call = self.ledger.answers.get(key)
            text = None if call is None else _text(texts.get(call), f"{self.path}: call {call}")
            cost = None if call is None else float(self.ledger.spent[call])
            submitted = call is not None or key in self.ledger.failures
            converted.append(
                ThreatAnswer(id, prompt, attempt, self.header.model, text=text, submitted=submitted, cost=cost)
            )
        return converted


def read_threat_run(path: str | os.PathLike[str]) -> ThreatRun:
    """Read and check a run file; raise FileFormatError if it is missing or damaged, or has another kind or version."""
    path = file_path("path", path)
    with closing(connect_readonly(path)) as connection, reading(path):
        return _read(connection, path)


def _read(connection: sqlite3.Connection, path: Path) -> ThreatRun:
    """Read and check the tables."""
    row = read_run_row(connection, path, {THREAT_VERSION})
    if row is None:
        raise FileFormatError(f"{path}: empty database, not a run of pyrobust; use another file")
    header, version, stored_version, schema = row
    check_stored_version(version, stored_version)
    if schema != {name: ("table", sql) for name, sql in STATEMENTS.items()}:
        raise ValueError("tables have an unexpected schema")
    parameters = header.parameters
    valid = isinstance(parameters, dict) and set(parameters) == {"attempts", "prompts", "judge"}
    if header.kind != "threat" or not valid or not is_integer(parameters["attempts"], 1, _LARGEST):
        raise ValueError("parameters do not match this kind of run")
    threat = _read_threat(connection, path, header)
    judges = _numbered(connection.execute("SELECT idx, name FROM judge ORDER BY idx").fetchall())
    if not judges or judges[0] != parameters["judge"] or len(set(judges)) < len(judges):
        raise ValueError("table judge: expected the judge of the run first, and each once")
    ledger = _read_ledger(connection, len(judges))
    rows = _read_verdicts(connection, len(judges), len(threat), ledger)
    run = ThreatRun(path, header, threat, tuple(judges), ledger, tuple(rows))
    keys = run.keys
    if not all(keys[item] in ledger.answers for group in rows for item in group):
        raise ValueError("table verdict: verdict on an answer that is not there")
    return run


def _read_threat(connection: sqlite3.Connection, path: Path, header: Header) -> Threat:
    texts = _numbered(connection.execute("SELECT idx, value FROM prompt ORDER BY idx").fetchall())
    try:
        prompts = [
            ThreatPrompt(**mapping(parse_json(text.encode(), str(path)), str(path)))
            for number, text in enumerate(texts)
        ]
        threat = Threat(prompts, header.parameters["attempts"], header.data)
    except (PyrobustError, TypeError) as error:
        raise ValueError(f"table prompt: {error}") from error
    if len(prompts) != header.parameters["prompts"] or _sha256(threat) != header.data_sha256:
        raise ValueError("table prompt: contradicts its hash")
    return threat


def _read_ledger(connection: sqlite3.Connection, judges: int) -> Ledger:
    answers: dict[str, int] = {}
    failures: set[str] = set()
    spent: dict[int, int] = {}
    calls = tokens = lost = 0
    query = "SELECT number, asked, key, status, reserved, spent, typeof(answer) FROM call ORDER BY number"
    for number, asked, key, status, reserved, cost, answer in connection.execute(query):
        answered = status in ("answered", "cached")
        if (
            status not in _STATUSES
            or not is_integer(asked, 0, judges)
            or not (isinstance(key, str) and _KEY.fullmatch(key))
            or not is_integer(reserved, 0, _LARGEST)
            or not is_integer(cost, 0, _LARGEST)
            or (status == "sent" and cost != reserved)
            or answer != ("text" if answered else "null")
            or (answered and key in answers)
        ):
            raise ValueError(f"table call: unexpected values in call {number}")
        spent[number] = cost
        tokens += cost
        calls += status != "cached"
        lost += status == "sent"
        if answered:
            answers[key] = number
        elif status == "failed":
            failures.add(key)
    return Ledger(answers, failures - answers.keys(), spent, calls, tokens, lost)


def _read_verdicts(connection: sqlite3.Connection, judges: int, items: int, ledger: Ledger) -> list[dict[int, Row]]:
    rows: list[dict[int, Row]] = [{} for _ in range(judges)]
    answered = set(ledger.answers.values())
    for judge, item, status, success, score, call in connection.execute(
        "SELECT judge, item, status, success, score, call FROM verdict"
    ):
        if (
            not is_integer(judge, 0, judges - 1)
            or not is_integer(item, 0, items - 1)
            or status not in ("judged", "unparsable", "error")
            or success not in ((0, 1) if status == "judged" else (None,))
            or not (score is None or (type(score) is float and math.isfinite(score)))
            or not (call is None or call in answered)
        ):
            raise ValueError(f"table verdict: unexpected values in item {str(item)[:20]} of judge {str(judge)[:20]}")
        rows[judge][item] = (status, None if success is None else bool(success), score, call)
    return rows


def _numbered(rows: list[Any]) -> list[str]:
    """Return the texts of pairs (number, text); raise ValueError unless the numbers are 0, 1, 2 and so on."""
    if [row[0] for row in rows] != list(range(len(rows))) or not all(isinstance(row[1], str) for row in rows):
        raise ValueError("expected rows of text, numbered from 0")
    return [row[1] for row in rows]


def _call_key(model: str, text: str, attempt: int) -> str:
    """Return the key of a call: a hash of the model with its settings, the text and the attempt."""
    return hashlib.sha256(json.dumps([model, text, attempt]).encode()).hexdigest()


def _sha256(threat: Threat) -> str:
    """Hash the prompts with all their fields."""
    digest = hashlib.sha256()
    for row in threat.prompts:
        digest.update(json.dumps(vars(row) | {"extra": dict(row.extra)}, default=str).encode() + b"\n")
    return digest.hexdigest()


def _text(stored: Any, where: str) -> str:
    """Return the text of a stored answer."""
    fields = mapping(parse_json(str(stored).encode(), where), where)
    if not isinstance(fields.get("text"), str):
        raise FileFormatError(f"{where}: damaged answer")
    return str(fields["text"])
