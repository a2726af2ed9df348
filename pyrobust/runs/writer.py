"""Write a run chunk by chunk, starting a new file or resuming an existing one."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pyrobust.checks import WORDS
from pyrobust.errors import FileFormatError, InputError, StoreError
from pyrobust.runs.identity import Identity
from pyrobust.runs.reader import Header, encode_counts, read_columns, read_header
from pyrobust.runs.schema import (
    APPLICATION_ID,
    COMMON,
    IDENTITY_VERSION,
    LAYOUTS,
    PENDING,
    create_statements,
    schema_version,
)
from pyrobust.zoo.files import COMPANIONS

logger = logging.getLogger(__name__)

# A writer that holds the lock only ever waits for a reader that is opening or closing the file.
_TIMEOUT_S = 5
_SMALLEST_DATABASE = 512


class RunWriter:
    """Start a run in a file, or in memory for path None, or resume the one there, and append results.

    The header must agree with that of the existing run. A new file appears with its header or not at all. With
    ``allow_changed_code`` the code of the model may differ; the run records it.

    >>> from pyrobust.runs.parameters import example
    >>> with RunWriter(None, Header("predict", example("predict"), "net", "", "digits", "", "real", {})) as writer:
    ...     writer.append({"idx": [7], "label": [1], "prediction": [1], "status": ["ok"], "seconds": [0.1],
    ...                    "counts": [[0, 10] + [0] * 9], "p_value": [0.002]})
    ...     sorted(writer.done)
    [7]
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, header: Header, *, allow_changed_code: bool = False
    ) -> None:
        self.header = header
        self._allow_changed_code = allow_changed_code
        self.path = None if path is None else Path(path)
        self._where = Path("(in memory)") if self.path is None else self.path
        # SQLite follows symbolic links and names its companions after the file that they lead to.
        self._file: str | None = None
        if self.path is not None:
            try:
                self._file = os.path.realpath(self.path)
            except ValueError as error:
                raise StoreError(f"{self.path}: cannot create the file ({error}); name another") from error
        self._created = self._make_file()
        self.done: set[int] = set()
        self._empty = True
        try:
            with self._writing("opened"):
                self.connection = self._connect()
        except BaseException:
            self._remove()
            raise
        try:
            with self._writing("opened"):
                # Reading first waits for another process that is recovering the file of a killed writer.
                self.connection.execute("SELECT 1 FROM sqlite_master").fetchone()
                # No waiting for the write lock: another writer keeps it for its whole run, as does this one.
                self.connection.execute("PRAGMA busy_timeout = 0")
                self.connection.execute("BEGIN IMMEDIATE")
                self.connection.execute(f"PRAGMA busy_timeout = {1000 * _TIMEOUT_S}")
            stored = read_header(self.connection, self._where)
            if stored is None:
                self._begin()
            else:
                self._resume(stored)
        except BaseException:
            self._discard()
            raise

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and self._created and self._empty:
            self._discard()
        else:
            self.close()

    def append(self, rows: Mapping[str, Sequence[Any]], pending: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Commit results, and the state of unfinished sequential images, in one transaction.

        Both map each column of the layout to a sequence, all of one length: histograms as counts [B, K+1], adversarial
        examples as bytes, None for a missing distance. Finished images are removed from the pending ones.
        """
        values = _sqlite_columns(COMMON | LAYOUTS[self.header.layout], rows)
        unfinished = None if pending is None else _sqlite_columns(PENDING, pending)
        with self._writing("written"):
            if not self.connection.in_transaction:  # the previous chunk was refused
                self.connection.execute("BEGIN IMMEDIATE")
            try:
                self._insert("INSERT INTO result", values)
                if unfinished is not None:
                    self.connection.executemany("DELETE FROM pending WHERE idx = ?", [(index,) for index in values[0]])
                    self._insert("INSERT OR REPLACE INTO pending", unfinished)
                self.connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            self.done.update(values[0])
            self._empty = False
            self.connection.execute("BEGIN IMMEDIATE")

    def _insert(self, statement: str, values: list[list[Any]]) -> None:
        marks = ", ".join("?" * len(values))
        self.connection.executemany(f"{statement} VALUES ({marks})", zip(*values, strict=True))

    def close(self) -> None:
        """Leave one plain file that can be read from read-only media; a run in memory stays open."""
        self._roll_back()
        if self.path is None:
            return
        # Fails while another process reads; the file then stays in WAL mode and is complete all the same.
        with contextlib.suppress(sqlite3.Error):
            self.connection.execute("PRAGMA journal_mode = DELETE")
        self.connection.close()

    def _make_file(self) -> bool:
        """Create an empty file, an empty database to SQLite, unless the path exists; return whether it was created."""
        if self._file is None:
            return False
        if os.path.isdir(self._file):
            raise StoreError(f"{self.path}: is a folder; expected a path for a run file")
        for suffix in COMPANIONS:
            if self._file.endswith(suffix) and os.path.exists(self._file.removesuffix(suffix)):
                raise StoreError(f"{self.path}: SQLite's name for a companion of another run; use another file")
            # SQLite would take it for what a killed writer left, and remove it.
            if os.path.exists(self._file + suffix) and not os.path.exists(self._file):
                raise StoreError(
                    f"{self.path}: expected no {Path(self._file).name}{suffix} without the run it belongs to; use "
                    "another file, or remove that one"
                )
        try:
            try:
                os.close(os.open(self._file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            except FileExistsError:
                status = os.stat(self._file)
            else:
                return True
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(
                f"{self.path}: cannot create the file ({reason}); use an existing folder with write permission"
            ) from error
        # SQLite would take a file this short for an empty database and overwrite it.
        if not stat.S_ISREG(status.st_mode) or 0 < status.st_size < _SMALLEST_DATABASE:
            raise FileFormatError(f"{self.path}: not a run of pyrobust; use another file")
        return False

    def _connect(self) -> sqlite3.Connection:
        if self.path is None:
            return sqlite3.connect(":memory:", isolation_level=None)
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        return sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_S, isolation_level=None)

    def _begin(self) -> None:
        # WAL mode cannot be set inside a transaction, so it follows the one that writes the header.
        header = self.header
        version = schema_version(header.layout, header.identity is not None)
        if version >= IDENTITY_VERSION and header.identity is None:
            raise InputError(f"store: expected the identity of the model for a run of layout {header.layout}, got none")
        with self._writing("written"):
            self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.connection.execute(f"PRAGMA user_version = {version}")
            for statement in create_statements(header.layout, header.identity is not None).values():
                self.connection.execute(statement)
            self.connection.execute(
                "INSERT INTO run VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    version,
                    header.kind,
                    json.dumps(header.parameters, allow_nan=False),
                    header.model,
                    header.model_sha256,
                    header.data,
                    header.data_sha256,
                    header.guarantee,
                    json.dumps(header.versions),
                ),
            )
            if header.identity is not None:
                self.connection.execute("INSERT INTO identity VALUES (1, ?)", (header.identity.encode(),))
            self.connection.execute("COMMIT")
            self._lock_in_wal_mode()

    def _resume(self, stored: Header) -> None:
        given = self.header.identity
        known: tuple[str, ...] = () if stored.identity is None else stored.identity.code
        if self._allow_changed_code and given is not None:
            self.header = replace(self.header, identity=replace(given, code=(*known, *given.code)))
        differences = stored.differences(self.header)
        if differences:
            if stored.kind != self.header.kind:
                raise StoreError(
                    f"{self._where}: holds a run of kind {stored.kind}, expected {self.header.kind}; use another file"
                )
            raise StoreError(
                f"{self._where}: holds a run with different parameters: {'; '.join(differences)}; "
                f"repeat its parameters to resume it{_grid_hint(stored, self.header)}"
                f"{_code_hint(stored, self.header)}, or use another file"
            )
        if stored.versions != self.header.versions:
            logger.warning("%s: started with %s, resumed with %s", self._where, stored.versions, self.header.versions)
        if stored.identity is None:
            logger.warning("%s: holds no identity of the model; only its parameters were compared", self._where)
        self.header = stored
        self.done = set(read_columns(self.connection, self._where, stored.layout, ["idx"])["idx"])
        with self._writing("opened"):
            self._roll_back()
            self._lock_in_wal_mode()
        if stored.identity is not None and given is not None and not set(given.code) <= set(known):
            logger.warning("%s: the code of the model has changed; the run records it", self._where)
            self._store_identity(replace(stored.identity, code=(*known, *given.code)))

    def void(self, reason: str) -> None:
        """Mark the run void, so that its results cannot be read, because the model turned out to be no function."""
        if self.header.identity is not None:
            self._store_identity(replace(self.header.identity, void=reason[:4096]))

    def _store_identity(self, identity: Identity) -> None:
        self.header = replace(self.header, identity=identity)
        with self._writing("written"):
            self._roll_back()
            self.connection.execute("UPDATE identity SET value = ?", (identity.encode(),))
            self.connection.execute("BEGIN IMMEDIATE")

    def _lock_in_wal_mode(self) -> None:
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        # Some errors make SQLite roll back by itself, others do not.
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def _discard(self) -> None:
        """Close the run, and remove its file if this writer created it."""
        self._roll_back()
        self.connection.close()
        self._remove()

    def _remove(self) -> None:
        if self._created and self._file is not None:
            for suffix in ("", *COMPANIONS):
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._file}{suffix}")

    @contextlib.contextmanager
    def _writing(self, action: str) -> Iterator[None]:
        """Translate SQLite's errors to this package's; ``action`` is "opened" or "written"."""
        try:
            yield
        except sqlite3.Error as error:
            reason = str(error)
            if "locked" in reason or "busy" in reason:
                self._created = False  # another process started a run in the file that this writer created
                raise StoreError(
                    f"{self._where}: being written by another process; wait for it to finish, or stop it"
                ) from error
            if type(error) is sqlite3.DatabaseError:
                raise FileFormatError(
                    f"{self._where}: damaged, or not a run of pyrobust ({reason}); use another file"
                ) from error
            if isinstance(error, sqlite3.IntegrityError):
                raise StoreError(
                    f"{self._where}: already holds one of these images ({reason}); start a new run"
                ) from error
            if "readonly" in reason or "unable to open" in reason:
                raise StoreError(
                    f"{self._where}: cannot be {action} to resume the run ({reason}): the file and its folder must be "
                    "writable; change their permissions, or copy the run to another folder; `pyrobust log` only reads "
                    "it"
                ) from error
            raise StoreError(
                f"{self._where}: cannot be {action} ({reason}): disk full, file size limit reached, or permission "
                "missing; committed results are kept"
            ) from error


def _grid_hint(stored: Header, header: Header) -> str:
    """The argument and option that request the grid of the stored run, if it differs; its name may never be typed."""
    grid, asked = stored.parameters.get("grid"), header.parameters.get("grid")
    if grid == asked:
        return ""
    return " (without a grid: grid=None, --grid none)" if grid is None else f' (grid="{grid}", --grid {grid})'


def _code_hint(stored: Header, header: Header) -> str:
    """The argument and option that allow a model whose code alone differs."""
    if stored.identity is None or header.identity is None:
        return ""
    allowed = replace(header, identity=replace(header.identity, code=stored.identity.code))
    if stored.differences(allowed):
        return ""
    return " (with allow_changed_code=True, --allow-changed-code, if the new code computes the same)"


def _sqlite_columns(types: Mapping[str, str], rows: Mapping[str, Sequence[Any]]) -> list[list[Any]]:
    """Convert columns to SQLite values, in schema order."""
    if set(rows) != set(types):
        raise InputError(f"store: expected the columns {', '.join(types)}, got {', '.join(rows)}")
    columns = [_sqlite_values(name, types[name], rows[name]) for name in types]
    if any(len(column) != len(columns[0]) for column in columns):
        raise InputError(f"store: expected columns of one length, got {[len(column) for column in columns]}")
    return columns


def _sqlite_values(name: str, sql_type: str, values: Sequence[Any]) -> list[Any]:
    """Convert a column to values that SQLite returns bit for bit."""
    if name.startswith("counts"):
        return [encode_counts(row) for row in values]
    if sql_type.startswith("TEXT"):
        return [str(value) for value in values]
    if sql_type.startswith("BLOB"):
        return [bytes(value) for value in values]
    if sql_type.startswith("REAL"):
        if "NOT NULL" not in sql_type and None in values:
            return [None if value is None else _sqlite_values(name, sql_type, [value])[0] for value in values]
        numbers = [float(value) for value in values]
        # SQLite would store NaN as NULL.
        if not all(map(math.isfinite, numbers)):
            raise InputError(f"store: {name}: expected finite numbers, got {numbers}; the results are not stored")
        return numbers
    integers = [int(value) for value in values]
    if name == "idx" and not all(0 <= index < WORDS for index in integers):
        raise InputError(f"store: idx: expected image indices from 0 to 2**32 - 1, got {integers}")
    return integers
