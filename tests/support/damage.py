"""Tamper with and damage run files, for tests that they are refused."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from pyrobust.runs.chunk_digests import ChunkDigests
from pyrobust.runs.chunks import Chunks
from pyrobust.runs.digests import renew_header
from pyrobust.runs.reader import Header
from pyrobust.runs.run import Run
from pyrobust.runs.schema import VERSION
from pyrobust.runs.writer import RunWriter


def change(path: str | Path, statement: str, *values: object) -> None:
    """Run a statement, asserting that it changes something, and renew the digests, as a forger would."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute(statement, values).rowcount != 0
        connection.commit()
    reseal(path)


def reseal(path: str | Path) -> None:
    """Renew the digests of a run whose contents were changed on purpose, unless older software wrote it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        renew_header(connection)
        connection.execute("DELETE FROM digest")
        connection.execute("UPDATE seal SET contents = x'', examples = x''")
        # What cannot be hashed, such as unknown parameters or a missing table, is refused before digests are compared.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, sqlite3.OperationalError):
            kind, parameters = connection.execute("SELECT kind, parameters FROM run").fetchone()
            header = Header(kind, json.loads(parameters), "", "", "", "", "", {})
            chunks = Chunks(header.parameters)
            # Those beyond have no rows; a forged number of images may be huge.
            ChunkDigests(connection, header, chunks).renew(range(min(len(chunks), 4096)))
        connection.execute("COMMIT")


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files, which looks to a program like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def being_written(path: Path) -> Iterator[None]:
    """Another process, which holds the run open as its writer."""
    header = Run(path).header
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with RunWriter(path, header):
            os.write(ready[1], b".")
            os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        yield
    finally:
        os.write(go[1], b".")
        os.waitpid(child, 0)
