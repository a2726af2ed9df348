"""Read a threat run: its tables are untrusted, and verdicts are put together from them anew."""

from __future__ import annotations

import math
import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyrobust.checks import file_path, is_integer, summary
from pyrobust.errors import FileFormatError, PyrobustError
from pyrobust.runs.reader import Header, check_stored_version, connect_readonly, read_run_row, reading
from pyrobust.runs.schema import RUN, THREAT_VERSION
from pyrobust.threats.models.answer import Answer
from pyrobust.threats.readers.untrusted import mapping, parse_json
from pyrobust.threats.running.keys import call_key, decode_answer
from pyrobust.threats.running.prompts import Threat, ThreatPrompt
from pyrobust.threats.units import judge_named
from pyrobust.threats.verdicts import Status, ThreatVerdict, ThreatVerdicts

#: CREATE statement of each table, as SQLite stores it.
#:
#: call: the ledger; asked: 0 for the attacked model, else 1 + the judge; status: "sent" (in flight, or lost),
#: "answered", "cached" (paid for by another run), "retry" and "failed" (brought no answer); reserved: largest cost in
#: tokens; spent: actual cost, and the largest one until that is known. verdict: item is prompt * attempts + attempt;
#: call is the judge's own, if it needed one.
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
        answers: number of the call that answered, by its key.
        failures: keys of calls that failed for good.
        spent: tokens by the number of the call.
        calls: number of calls sent, lost ones included.
        tokens: tokens spent, with the largest cost of lost calls.
        lost: number of calls in flight or lost.
    """

    answers: dict[str, int]
    failures: set[str]
    spent: dict[int, int]
    calls: int
    tokens: int
    lost: int


#: Status, success, score and the judge's call of a verdict.
Row = tuple[Status, bool | None, float | None, int | None]


@dataclass(frozen=True)
class ThreatRun:
    """A threat run as read from its file.

    Attributes:
        path: the file; None for a run in memory.
        header: model, parameters, hash of the prompts, and software versions.
        threat: the prompts.
        judges: names of the judges, that of the run first.
        ledger: the calls.
        rows: verdicts by judge and item, where there are any.
    """

    path: Path | None
    header: Header
    threat: Threat
    judges: tuple[str, ...]
    ledger: Ledger
    rows: tuple[dict[int, Row], ...]

    def __repr__(self) -> str:
        return summary(
            self,
            model=self.header.model,
            prompts=len(self.threat.prompts),
            attempts=self.threat.attempts,
            calls=self.ledger.calls,
            tokens=self.ledger.tokens,
        )

    @property
    def keys(self) -> list[str]:
        """Key of the attacked model's call for each item, prompt by prompt and attempt by attempt."""
        numbers = self.threat.attempt_numbers()
        return [
            call_key(self.header.model, prompt.prompt, first + attempt)
            for prompt, first in zip(self.threat.prompts, numbers, strict=True)
            for attempt in range(self.threat.attempts)
        ]

    @property
    def complete(self) -> bool:
        """Whether each attempt has a verdict of the run's judge, or failed."""
        return not any(row.status == "unsubmitted" for row in self.verdicts.where(judge=self.judges[0]))

    @property
    def verdicts(self) -> ThreatVerdicts:
        """Verdicts of all judges on all attempts.

        ``status`` is "unsubmitted" where the attacked model was not asked, "error" where it brought no answer or the
        judge no verdict, or was not asked yet. ``cost`` is in tokens: those of the answer and of the judge's reply.
        """
        attempts = self.threat.attempts
        numbers = self.threat.attempt_numbers()
        answers, failures, spent = self.ledger.answers, self.ledger.failures, self.ledger.spent
        keys = self.keys
        result = []
        for judge, rows in zip(self.judges, self.rows, strict=True):
            for item, key in enumerate(keys):
                place, attempt = divmod(item, attempts)
                prompt, number = self.threat.prompts[place], answers.get(key)
                missing: Status = "error" if number is not None or key in failures else "unsubmitted"
                status, success, score, call = rows.get(item, (missing, None, None, None))
                cost = None if number is None else float(spent[number] + (0 if call is None else spent[call]))
                result.append(
                    ThreatVerdict(
                        attempt_id(prompt, attempt, attempts),
                        prompt.prompt,
                        prompt.behaviour,
                        prompt.group,
                        numbers[place] + attempt,
                        prompt.threat,
                        success,
                        score,
                        judge,
                        None,
                        status,
                        None if number is None else 1,
                        cost,
                        prompt.category,
                        self.header.model,
                    )
                )
        return ThreatVerdicts(tuple(result), "" if self.path is None else str(self.path))

    def answers(self, judge: str | None = None) -> dict[str, Answer]:
        """The attacked model's answers by the ``id`` of their verdicts; those that failed are left out.

        Args:
            judge: name of a judging model, with or without its hash, for its replies to these answers.

        Returns:
            Answers with their text, tokens and whatever the server sent; none of a judge that is a rule or a function.

        Raises:
            FileFormatError: the file is damaged.
            InputError: the run has no such judge.
        """
        if self.path is None:
            raise FileFormatError("answers: expected a run in a file, got one in memory; pass out=")
        if judge is None:
            calls = {item: self.ledger.answers.get(key) for item, key in enumerate(self.keys)}
        else:
            rows = self.rows[self.judges.index(judge_named(judge, self.judges))]
            calls = {item: call for item, (*_, call) in rows.items()}
        with closing(connect_readonly(self.path)) as connection, reading(self.path):
            texts = dict(connection.execute("SELECT number, answer FROM call WHERE answer IS NOT NULL"))
        attempts = self.threat.attempts
        return {
            attempt_id(self.threat.prompts[item // attempts], item % attempts, attempts): decode_answer(
                texts[call], f"{self.path}: call {call}"
            )
            for item, call in sorted(calls.items())
            if call in texts
        }

    def last_error(self) -> str:
        """The error of the last call or judgement without a result, in one line; "" where none failed.

        Raises:
            FileFormatError: the file is damaged.
        """
        if self.path is None:
            raise FileFormatError("last_error: expected a run in a file, got one in memory; pass out=")
        with closing(connect_readonly(self.path)) as connection, reading(self.path):
            call = connection.execute("SELECT error FROM call WHERE status = 'failed' ORDER BY number DESC").fetchone()
            verdict = connection.execute("SELECT error FROM verdict WHERE status = 'error'").fetchone()
        if call is None:
            text = "" if verdict is None else str(verdict[0])
        else:
            text = str(mapping(parse_json(str(call[0]).encode(), str(self.path)), str(self.path)).get("message", ""))
        return "".join(c if c.isprintable() else " " for c in text)[:300]


def read_threat_run(path: str | os.PathLike[str]) -> ThreatRun:
    """Read a run of ``evaluate_threat``, also while it is being written.

    Args:
        path: the file; untrusted.

    Returns:
        ThreatRun, with ``verdicts`` and ``answers()``.

    Raises:
        FileFormatError: the file is missing, damaged, of another kind of run or of a newer version.

    >>> import tempfile
    >>> from pyrobust.threats import evaluate_threat
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = os.path.join(folder, "run.db")
    ...     _ = evaluate_threat(str.upper, ["hi"], "contains:HI", out=file)
    ...     read_threat_run(file).answers()["0"].text
    'HI'
    """
    path = file_path("path", path)
    with closing(connect_readonly(path)) as connection:
        found = read_stored(connection, path)
    if found is None:
        raise FileFormatError(f"{path}: empty database, not a run of pyrobust; use another file")
    return found


def attempt_id(prompt: ThreatPrompt, attempt: int, attempts: int) -> str:
    """The id of an attempt's verdicts: that of the prompt, with the number of the attempt if there are several."""
    return prompt.id if attempts == 1 else f"{prompt.id}#{attempt}"


def read_stored(connection: sqlite3.Connection, path: Path, threat: Threat | None = None) -> ThreatRun | None:
    """Read and check the tables of a threat run, all but those of ``threat`` if given; None for an empty database."""
    with reading(path):
        found = read_run_row(connection, path, {THREAT_VERSION})
        if found is None:
            return None
        header, version, stored_version, schema = found
        check_stored_version(version, stored_version)
        if schema != {name: ("table", sql) for name, sql in STATEMENTS.items()}:
            raise ValueError("tables have an unexpected schema")
        parameters = header.parameters
        valid = isinstance(parameters, dict) and set(parameters) == {"attempts", "prompts", "judge"}
        if header.kind != "threat" or not valid or not is_integer(parameters["attempts"], 1, _LARGEST):
            raise ValueError("parameters do not match this kind of run")
        threat = threat or _read_threat(connection, path, header)
        judges = _numbered(connection.execute("SELECT idx, name FROM judge ORDER BY idx").fetchall())
        if not judges or judges[0] != parameters["judge"] or len(set(judges)) < len(judges):
            raise ValueError("table judge: expected the judge of the run first, and each once")
        ledger = _read_ledger(connection, len(judges))
        rows = _read_verdicts(connection, len(judges), len(threat), ledger)
        run = ThreatRun(
            None if str(path) == "(in memory)" else path, header, threat, tuple(judges), ledger, tuple(rows)
        )
        keys = run.keys
        if not all(keys[item] in ledger.answers for part in rows for item in part):
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
    if len(prompts) != header.parameters["prompts"] or threat.sha256 != header.data_sha256:
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
    """The texts of rows that have to be numbered from 0."""
    if [row[0] for row in rows] != list(range(len(rows))) or not all(isinstance(row[1], str) for row in rows):
        raise ValueError("expected rows of text, numbered from 0")
    return [row[1] for row in rows]
