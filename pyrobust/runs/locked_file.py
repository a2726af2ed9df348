"""A run file that one process has open for writing: it is created atomically, locked, and closed as one plain file."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from pyrobust.errors import FileFormatError, StoreError
from pyrobust.runs.reader import COMMAND, Header
from pyrobust.runs.schema import APPLICATION_ID
from pyrobust.zoo.files import COMPANIONS

# A writer that holds the lock waits only while a reader opens or closes the file.
_TIMEOUT_S = 5
_PAUSE_S = 0.01
_SMALLEST_DATABASE = 512

_Self = TypeVar("_Self", bound="LockedFile")


class LockedFile(ABC):
    """Hold a run file, new or existing, open for writing until ``close``; if the path is None, the run is in memory.

    SQLite's write lock is held from opening to closing, so that a second writer is refused. Readers see the committed
    data. ``_start`` writes a new file's tables in one transaction. If an exception occurs while a new file holds no
    results, the file is removed.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)
        self.where = Path("(in memory)") if self.path is None else self.path
        # SQLite follows symbolic links, and names its companion files after the target.
        self._file: str | None = None
        if self.path is not None:
            try:
                self._file = os.path.realpath(self.path)
            except ValueError as error:
                raise StoreError(f"{self.path}: cannot create the file ({error}); name another") from error
        self._created = self._make_file()
        self._empty = True
        self._sealed: list[tuple[object, ...]] = []  # the seal that this writer last committed
        opened = self._identity_of_file()
        try:
            with self._writing("opened"):
                self.connection = self._connect()
        except BaseException:
            if self._created and self._file is not None and os.path.getsize(self._file) == 0:
                os.unlink(self._file)
            raise
        try:
            with self._writing("opened"):
                # Reading first waits for another process that is recovering the file of a killed writer.
                self.connection.execute("SELECT 1 FROM sqlite_master").fetchone()
                # No waiting for the write lock: a writer keeps it for its whole run.
                self.connection.execute("PRAGMA busy_timeout = 0")
                self.connection.execute("BEGIN IMMEDIATE")
                self.connection.execute(f"PRAGMA busy_timeout = {1000 * _TIMEOUT_S}")
            if self._identity_of_file() != opened:
                self._created = False
                raise StoreError(f"{self.where}: removed or replaced by another process as it was opened; run again")
            self._start()
        except BaseException:
            self._discard()
            raise

    @abstractmethod
    def _start(self) -> None:
        """Create an empty database's tables with ``_create``, or check existing tables; keep the database locked."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and self._created and self._empty:
            self._discard()
        else:
            self.close()

    def close(self) -> None:
        """Close the file, and leave one plain file unless another process is reading it; a run in memory stays open."""
        self._roll_back()
        if self.path is None:
            return
        # SQLite refuses this at once while a reader has the file open; the file then stays in WAL mode, complete.
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = DELETE")
                break
            except sqlite3.Error as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    break
            time.sleep(_PAUSE_S)
        self.connection.close()

    def _make_file(self) -> bool:
        """Create an empty file (to SQLite, an empty database) unless the path exists; return whether it was created."""
        if self._file is None:
            return False
        if os.path.isdir(self._file):
            raise StoreError(f"{self.path}: is a folder; expected a path for a run file")
        for suffix in COMPANIONS:
            if self._file.endswith(suffix) and os.path.exists(self._file.removesuffix(suffix)):
                raise StoreError(f"{self.path}: SQLite's name for a companion of another run; use another file")
            # SQLite would take this file for what a killed writer left, and remove it.
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

    def _create(self, version: int, statements: Iterable[str], header: Header) -> None:
        """Write the schema version, the tables and the header row into an empty database."""
        self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self.connection.execute(f"PRAGMA user_version = {version}")
        for statement in statements:
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
                json.dumps(header.versions | ({COMMAND: header.command} if header.command else {})),
            ),
        )

    def _commit(self) -> None:
        """Commit, and take the write lock again."""
        self.connection.execute("COMMIT")
        self.connection.execute("BEGIN IMMEDIATE")

    def _lock_in_wal_mode(self) -> None:
        """Set WAL mode, and take the write lock again, after the transaction that read or created the file.

        WAL mode cannot be set inside a transaction, so the lock is released for a moment. If another process writes at
        this moment, the seal (the digest of the file's whole content) reveals it.
        """
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("BEGIN IMMEDIATE")
        if self._seal() != self._sealed:
            self._created = False
            raise StoreError(f"{self.where}: written by another process as it was opened; run again to resume")

    def _seal(self) -> list[tuple[object, ...]]:
        return self.connection.execute("SELECT * FROM seal").fetchall()

    def _identity_of_file(self) -> tuple[int, int] | None:
        """Return device and inode of the file; None for a run in memory, and for a file that no longer exists."""
        if self._file is None:
            return None
        with contextlib.suppress(OSError):
            status = os.stat(self._file)
            return status.st_dev, status.st_ino
        return None

    def _roll_back(self) -> None:
        # Some errors make SQLite roll back by itself, others do not.
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def _discard(self) -> None:
        """Close the run, and remove its file if this writer created it and no other process has written to it.

        The file is removed under the write lock. A process that has the file open notices the removal by comparing
        inodes.
        """
        if self._created and self._file is not None and self._is_alone():
            with contextlib.suppress(OSError):
                os.unlink(self._file)
        self._roll_back()
        self.connection.close()

    def _is_alone(self) -> bool:
        """Leave WAL mode and take the write lock; return whether this writer made the file's last commit."""
        assert self._file is not None
        self._roll_back()
        try:
            self.connection.execute("PRAGMA journal_mode = DELETE")
            self.connection.execute("BEGIN IMMEDIATE")
            tables = self.connection.execute("SELECT name FROM sqlite_master WHERE name = 'seal'").fetchall()
            return (self._seal() if tables else []) == self._sealed
        except sqlite3.Error as error:  # such as a disk so full that the first page is cut
            if "locked" in str(error) or not os.path.exists(self._file):
                return False
            return os.path.getsize(self._file) < _SMALLEST_DATABASE

    @contextlib.contextmanager
    def _writing(self, action: str) -> Iterator[None]:
        """Translate SQLite's errors to this package's; ``action`` is "opened" or "written"."""
        try:
            yield
        except UnicodeDecodeError as error:  # SQLite's message quotes damaged text
            raise FileFormatError(
                f"{self.where}: damaged, or not a run of pyrobust ({error}); use another file"
            ) from error
        except sqlite3.Error as error:
            reason = str(error)
            if "locked" in reason or "busy" in reason:
                self._created = False  # another process started a run in the file that this writer created
                raise StoreError(
                    f"{self.where}: being written by another process; wait for it to finish, or stop it"
                ) from error
            if type(error) is sqlite3.DatabaseError:
                raise FileFormatError(
                    f"{self.where}: damaged, or not a run of pyrobust ({reason}); use another file"
                ) from error
            if isinstance(error, sqlite3.IntegrityError):
                raise StoreError(
                    f"{self.where}: already holds one of these images ({reason}); start a new run"
                ) from error
            if "readonly" in reason or "unable to open" in reason:
                raise StoreError(
                    f"{self.where}: cannot be {action} to resume the run ({reason}): the file and its folder must be "
                    "writable; change their permissions, or copy the run to another folder; `pyrobust log` only reads "
                    "it"
                ) from error
            raise StoreError(
                f"{self.where}: cannot be {action} ({reason}): disk full, file size limit reached, or permission "
                "missing; committed results are kept"
            ) from error
