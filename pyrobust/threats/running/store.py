"""Write a threat run: each call is in the ledger before it is sent, at its largest cost, and settled afterwards.

A call that was lost, because the process was killed, stays spent at its largest cost.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyrobust.checks import is_integer
from pyrobust.errors import StoreError
from pyrobust.runs.locked_file import LockedFile
from pyrobust.runs.reader import Header
from pyrobust.runs.schema import THREAT_VERSION
from pyrobust.threats.models.answer import Answer, CallError
from pyrobust.threats.running.judges import Judge, Judgement
from pyrobust.threats.running.keys import decode_answer, encode_answer
from pyrobust.threats.running.prompts import Threat, encode_prompt
from pyrobust.threats.running.read import STATEMENTS, Ledger, ThreatRun, read_stored

logger = logging.getLogger(__name__)


class ThreatStore(LockedFile):
    """Start a threat run in a file, or in memory for path None, or resume the one there.

    Args:
        path: the file.
        judge: the judge whose verdicts are written.
        start: header and prompts of the run, to be those of an existing one; None takes an existing one as it is.

    Attributes:
        run: the run as it was opened.
        judge_number: number of the judge in the run.
        answers: number of the call that answered, by its key.
        failures: keys of calls that failed for good.
        statuses: status of the judge's verdict by item.
        calls: number of calls sent so far, lost ones included.
        tokens: tokens spent so far, with the largest cost of calls that are not settled.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, judge: Judge, start: tuple[Header, Threat] | None = None
    ) -> None:
        self._judge, self._given, self._dirty = judge, start, False
        super().__init__(path)

    def _start(self) -> None:
        name, settings = self._judge.name, json.dumps(self._judge.settings)
        stored = read_stored(self.connection, self.where)
        if stored is not None:
            self._empty = False
            self._check(stored)
        elif self._given is None:
            raise StoreError(f"{self.where}: expected a threat run, got an empty database; use another file")
        with self._writing("opened" if stored is not None else "written"):
            if stored is None and self._given is not None:
                header, threat = self._given
                self._create(THREAT_VERSION, STATEMENTS.values(), header)
                rows = ((i, encode_prompt(prompt)) for i, prompt in enumerate(threat.prompts))
                self.connection.executemany("INSERT INTO prompt VALUES (?, ?)", rows)
                stored = ThreatRun(self.path, header, threat, (), Ledger({}, set(), {}, 0, 0, 0), ())
            assert stored is not None
            if name not in stored.judges:
                values = (len(stored.judges), name, settings)
                self.connection.execute("INSERT INTO judge VALUES (?, ?, ?)", values)
                stored = replace(stored, judges=(*stored.judges, name), rows=(*stored.rows, {}))
            self.connection.execute("COMMIT")
            self._lock_in_wal_mode()
        self.run: ThreatRun = stored
        run = stored
        self.judge_number = run.judges.index(name)
        self.answers, self.failures = run.ledger.answers, run.ledger.failures
        self.calls, self.tokens = run.ledger.calls, run.ledger.tokens
        self.statuses = {item: row[0] for item, row in run.rows[self.judge_number].items()}
        self._last = max(run.ledger.spent, default=0)

    def _check(self, stored: ThreatRun) -> None:
        """Raise StoreError unless the run is the one that was given."""
        if self._given is None:
            return
        given = self._given[0]
        differences = stored.header.differences(given)
        if differences:
            raise StoreError(
                f"{self.where}: holds a run with different parameters: {'; '.join(differences)}; repeat its "
                "parameters to resume it, or use another file (another judge of the same answers: rejudge_threat, or "
                "--judge without --model)"
            )
        if stored.header.versions != given.versions:
            logger.warning("%s: started with %s, resumed with %s", self.where, stored.header.versions, given.versions)

    def reserve(self, asked: int, key: str, tokens: int) -> int:
        """Enter a call at its largest cost, and return its number; ``commit`` before sending it."""
        self._last += 1
        values = (self._last, asked, key, tokens, tokens)
        self._change("INSERT INTO call VALUES (?, ?, ?, 'sent', ?, ?, NULL, NULL, NULL)", values)
        self.calls += 1
        self.tokens += tokens
        return self._last

    def enter_cached(self, asked: int, key: str, answer: Answer) -> int:
        """Enter an answer that another run paid for, and return the number of its call."""
        self._last += 1
        values = (self._last, asked, key, encode_answer(answer))
        self._change("INSERT INTO call VALUES (?, ?, ?, 'cached', 0, 0, NULL, ?, NULL)", values)
        self.answers[key] = self._last
        return self._last

    def settle(self, number: int, key: str, reserved: int, answer: Answer, seconds: float) -> None:
        """Settle a call with its answer."""
        spent = reserved if answer.tokens is None else answer.tokens
        values = (spent, seconds, encode_answer(answer), number)
        self._change("UPDATE call SET status = 'answered', spent = ?, seconds = ?, answer = ? WHERE number = ?", values)
        self.tokens += spent - reserved
        self.answers[key] = number
        self.failures.discard(key)

    def settle_failed(
        self, number: int, key: str, reserved: int, error: CallError, seconds: float, *, final: bool
    ) -> None:
        """Settle a call without an answer. It stays spent unless the server refused it before any work."""
        refused = error.retry_after is not None or is_integer(error.raw.get("status"), 400, 499)
        spent = 0 if refused else reserved
        text = json.dumps({"message": str(error), "raw": dict(error.raw)}, default=repr)
        statement = "UPDATE call SET status = ?, spent = ?, seconds = ?, error = ? WHERE number = ?"
        self._change(statement, ("failed" if final else "retry", spent, seconds, text, number))
        self.tokens += spent - reserved
        if final:
            self.failures.add(key)

    def judge(self, item: int, judgement: Judgement, call: int | None = None) -> None:
        """Enter the judge's verdict on an item, with the number of the call that it took."""
        success = None if judgement.success is None else int(judgement.success)
        values = (self.judge_number, item, judgement.status, success, judgement.score, call, _text(judgement.error))
        self._change("INSERT OR REPLACE INTO verdict VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        self.statuses[item] = judgement.status

    def answer(self, number: int) -> Answer:
        """The answer of a call."""
        row = self.connection.execute("SELECT answer FROM call WHERE number = ?", (number,)).fetchone()
        return decode_answer(row[0], f"{self.where}: call {number}")

    def commit(self) -> None:
        """Commit what changed."""
        if self._dirty:
            with self._writing("written"):
                self._commit()
            self._dirty = self._empty = False

    def _change(self, statement: str, values: Sequence[Any]) -> None:
        with self._writing("written"):
            self.connection.execute(statement, values)
        self._dirty = True


def _text(text: str) -> str:
    """Text without unpaired surrogates, which SQLite does not take."""
    return text.encode("utf-8", "backslashreplace").decode()
