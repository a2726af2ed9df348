"""Answers that several runs share, in a file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyrobust.checks import file_path
from pyrobust.errors import FileFormatError, StoreError
from pyrobust.runs.reader import reading
from pyrobust.threats.models.answer import Answer
from pyrobust.threats.running.keys import decode_answer, encode_answer

_VERSION: Final = 1
#: "PyRc" in the header of every cache.
_APPLICATION_ID: Final = 0x50795263
_TABLE: Final = "CREATE TABLE answer (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
_TIMEOUT_S: Final = 30.0


class AnswerCache:
    """A file of answers by the keys of their calls; several processes may use it at once.

    Args:
        path: the file; a new one is created.

    Raises:
        FileFormatError: a file of another kind or version.
        StoreError: it cannot be opened or written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, AnswerCache(os.path.join(folder, "cache.db")) as cache:
    ...     cache.put({"ab": Answer("Sure")})
    ...     cache.get("ab"), cache.get("cd")
    (Answer(text='Sure', input_tokens=None, output_tokens=None, raw={}), None)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = file_path("cache", path)
        if self.path.exists() and not self.path.is_file():
            raise FileFormatError(f"{self.path}: expected the file of a cache, got a folder or device")
        with self._errors():
            uri = f"{self.path.absolute().as_uri()}?mode=rwc"
            self._connection = sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_S, isolation_level=None)
        try:
            with self._errors():
                self._connection.execute("PRAGMA trusted_schema = OFF")
                self._connection.execute("BEGIN IMMEDIATE")
                self._open()
                self._connection.execute("COMMIT")
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        schema = [row[0] for row in self._connection.execute("SELECT sql FROM sqlite_master")]
        application, version = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if not schema and not application:
            self._connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._connection.execute(f"PRAGMA user_version = {_VERSION}")
            self._connection.execute(_TABLE)
        elif application != _APPLICATION_ID:
            raise FileFormatError(f"{self.path}: expected a cache of answers, got another database; name another file")
        elif version != _VERSION:
            raise FileFormatError(
                f"{self.path}: expected a cache of version {_VERSION}, got {version}; name another file, or use the "
                "version of pyrobust that wrote it"
            )
        elif schema != [_TABLE]:
            raise FileFormatError(f"{self.path}: expected the table of a cache, got another schema; name another file")

    def __enter__(self) -> AnswerCache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def get(self, key: str) -> Answer | None:
        """The answer of a call; None if the cache has none."""
        with self._errors():
            row = self._connection.execute("SELECT value FROM answer WHERE key = ?", (key,)).fetchone()
        return None if row is None else decode_answer(row[0], f"{self.path}: key {key[:16]}")

    def put(self, answers: dict[str, Answer]) -> None:
        """Add answers, whole or not at all; those of known keys stay."""
        rows = [(key, encode_answer(answer)) for key, answer in answers.items()]
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany("INSERT OR IGNORE INTO answer VALUES (?, ?)", rows)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with reading(Path(self.path)):
                yield
        except FileFormatError as error:
            if isinstance(error.__cause__, sqlite3.OperationalError):
                raise StoreError(f"{self.path}: cannot be written ({error.__cause__}); answers are kept") from error
            raise
