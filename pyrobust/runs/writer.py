"""Writing a run: beginning one, going on with one, chunk by chunk."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pyrobust.checks import WORDS
from pyrobust.errors import FileFormatError, InputError, StoreError
from pyrobust.runs.reader import Header, encode_counts, read_columns, read_header
from pyrobust.runs.schema import APPLICATION_ID, COMMON, LAYOUTS, PENDING, SCHEMA_VERSIONS, create_statements

logger = logging.getLogger(__name__)

# Only a reader that has just come or gone can be in the way of a writer that had the lock already.
_TIMEOUT_S = 5
_SMALLEST_DATABASE = 512


class RunWriter:
    """Begins a run, or goes on with one, and adds results to it.

    Args:
        path: the file; None keeps the run in memory. A new file is there with its header or not at all.
        header: of the run; where the file holds a run already, the two must agree.

    Raises:
        StoreError: the file cannot be written, is in use by another writer, or holds a run with other parameters, each
            named with both values.
        FileFormatError: the file is not a run, damaged, or of a newer version.

    >>> from pyrobust.runs.parameters import example
    >>> with RunWriter(None, Header("predict", example("predict"), "net", "", "digits", "", "real", {})) as writer:
    ...     writer.append({"idx": [7], "label": [1], "prediction": [1], "status": ["ok"], "seconds": [0.1],
    ...                    "counts": [[0, 10] + [0] * 9], "p_value": [0.002]})
    ...     sorted(writer.done)
    [7]
    """

    def __init__(self, path: str | os.PathLike[str] | None, header: Header) -> None:
        self.header = header
        self.path = None if path is None else Path(path)
        self._where = Path("(in memory)") if self.path is None else self.path
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
                # A first look waits for whoever is just repairing what a killed writer left.
                self.connection.execute("SELECT 1 FROM sqlite_master").fetchone()
                # Then no waiting: a lock that is held now is held for the whole of a run. So is this one, since two
                # writers would do the work twice.
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
        """Adds results, and what is known of images in work, all of it or nothing.

        Args:
            rows: a sequence for each column of this layout, all of one length. Histograms as [B, K+1] counts,
                adversarial examples as bytes, None for a distance that there is not.
            pending: of a sequential run, the same for images in work; takes the place of what was kept of them before.
                Images that have their results are in work no more.

        Raises:
            InputError: a NaN or infinite number, an index beyond 32 bits, or other columns.
            StoreError: the disk is full, an image is there already, or another writer came in between.
        """
        values = _values(COMMON | LAYOUTS[self.header.layout], rows)
        kept = None if pending is None else _values(PENDING, pending)
        with self._writing("written"):
            if not self.connection.in_transaction:  # a chunk before this one was refused
                self.connection.execute("BEGIN IMMEDIATE")
            try:
                self._insert("INSERT INTO result", values)
                if kept is not None:
                    self.connection.executemany("DELETE FROM pending WHERE idx = ?", [(index,) for index in values[0]])
                    self._insert("INSERT OR REPLACE INTO pending", kept)
                self.connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            self.done.update(values[0])
            self._empty = False
            self.connection.execute("BEGIN IMMEDIATE")

    def _insert(self, how: str, values: list[list[Any]]) -> None:
        marks = ", ".join("?" * len(values))
        self.connection.executemany(f"{how} VALUES ({marks})", zip(*values, strict=True))

    def close(self) -> None:
        """Leaves the file as one plain file, readable from read-only media; a run in memory stays open."""
        self._roll_back()
        if self.path is None:
            return
        # Fails while somebody reads; the file then stays in WAL mode, which is as good.
        with contextlib.suppress(sqlite3.Error):
            self.connection.execute("PRAGMA journal_mode = DELETE")
        self.connection.close()

    def _make_file(self) -> bool:
        """Creates an empty file where there is none, which is an empty database to SQLite; True if this call did."""
        if self.path is None:
            return False
        if os.path.isdir(self.path):
            raise StoreError(f"{self.path}: is a folder; name a file for the run")
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            # SQLite takes such a file for an empty database and would write over it.
            if 0 < self.path.stat().st_size < _SMALLEST_DATABASE:
                raise FileFormatError(f"{self.path}: not a run of pyrobust; name another file") from None
            return False
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(
                f"{self.path}: cannot be created ({reason}); name a file in a folder that is there and can be written"
            ) from error
        return True

    def _connect(self) -> sqlite3.Connection:
        if self.path is None:
            return sqlite3.connect(":memory:", isolation_level=None)
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        return sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_S, isolation_level=None)

    def _begin(self) -> None:
        # WAL cannot be switched on inside the transaction that holds the lock; the new run is written in one without.
        header = self.header
        version = SCHEMA_VERSIONS[header.layout]
        with self._writing("written"):
            self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.connection.execute(f"PRAGMA user_version = {version}")
            for statement in create_statements(header.layout).values():
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
            self.connection.execute("COMMIT")
            self._lock_in_wal_mode()

    def _resume(self, stored: Header) -> None:
        differences = stored.differences(self.header)
        if differences:
            if stored.kind != self.header.kind:
                raise StoreError(
                    f"{self._where}: holds a run of another kind, {stored.kind}, not {self.header.kind}; "
                    "name another file"
                )
            raise StoreError(
                f"{self._where}: holds a run with other parameters: {'; '.join(differences)}; "
                f"use the same ones to go on with it{_grid_of(stored, self.header)}, or another file"
            )
        if stored.versions != self.header.versions:
            logger.warning("%s: begun with %s, goes on with %s", self._where, stored.versions, self.header.versions)
        self.header = stored
        self.done = set(read_columns(self.connection, self._where, stored.layout, ["idx"])["idx"])
        with self._writing("opened"):
            self._roll_back()
            self._lock_in_wal_mode()

    def _lock_in_wal_mode(self) -> None:
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        # SQLite rolls back by itself after some errors and not after others.
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def _discard(self) -> None:
        """Closes, and removes a file that this writer made and that has no results."""
        self._roll_back()
        self.connection.close()
        self._remove()

    def _remove(self) -> None:
        if self._created and self.path is not None:
            for suffix in ("", "-wal", "-shm", "-journal"):
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.path}{suffix}")

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Turns SQLite's errors into this package's."""
        try:
            yield
        except sqlite3.Error as error:
            reason = str(error)
            if "locked" in reason or "busy" in reason:
                self._created = False  # somebody else began a run in the file that this writer made
                raise StoreError(
                    f"{self._where}: is being written by another process; wait until it is done, or stop it"
                ) from error
            if type(error) is sqlite3.DatabaseError:
                raise FileFormatError(
                    f"{self._where}: damaged, or not a run of pyrobust ({reason}); name another file"
                ) from error
            if isinstance(error, sqlite3.IntegrityError):
                raise StoreError(
                    f"{self._where}: holds one of these images already ({reason}); begin a new run"
                ) from error
            if "readonly" in reason or "unable to open" in reason:
                raise StoreError(
                    f"{self._where}: cannot be {what} to go on with it ({reason}): the file and its folder have to be "
                    "writable; change their permissions, or copy the run to another folder; `pyrobust log` reads it as "
                    "it is"
                ) from error
            raise StoreError(
                f"{self._where}: cannot be {what} ({reason}): a full disk, a file size limit, or missing permission; "
                "what was committed before is kept"
            ) from error


def _grid_of(stored: Header, header: Header) -> str:
    """How to ask for the grid of a run, or for none, where another is asked for: nobody types it who has it found."""
    grid, asked = stored.parameters.get("grid"), header.parameters.get("grid")
    if grid == asked:
        return ""
    return " (it has no grid: grid=None, --grid none)" if grid is None else f' (grid="{grid}", --grid {grid})'


def _values(columns: Mapping[str, str], rows: Mapping[str, Sequence[Any]]) -> list[list[Any]]:
    """Columns in their order, as SQLite takes them."""
    if set(rows) != set(columns):
        raise InputError(f"store: expected the columns {', '.join(columns)}, got {', '.join(rows)}")
    values = [_convert(name, columns[name], rows[name]) for name in columns]
    if any(len(value) != len(values[0]) for value in values):
        raise InputError(f"store: expected columns of one length, got {[len(value) for value in values]}")
    return values


def _convert(name: str, kind: str, values: Sequence[Any]) -> list[Any]:
    """Values as SQLite takes them and gives them back bit for bit."""
    if name.startswith("counts"):
        return [encode_counts(row) for row in values]
    if kind.startswith("TEXT"):
        return [str(value) for value in values]
    if kind.startswith("BLOB"):
        return [bytes(value) for value in values]
    if kind.startswith("REAL"):
        if "NOT NULL" not in kind and None in values:
            return [None if value is None else _convert(name, kind, [value])[0] for value in values]
        numbers = [float(value) for value in values]
        # SQLite turns NaN into NULL; and no certificate and no distance is NaN or infinite.
        if not all(map(math.isfinite, numbers)):
            raise InputError(f"store: {name}: expected finite numbers, got {numbers}; such a result must not be kept")
        return numbers
    integers = [int(value) for value in values]
    if name == "idx" and not all(0 <= index < WORDS for index in integers):
        raise InputError(f"store: idx: expected image indices of 0 to 2**32 - 1, got {integers}")
    return integers
