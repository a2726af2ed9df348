"""SQL tables of a run file, and their schema version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyrobust.runs.kinds import Kind

#: Schema version of runs on images. Only the header of older files is read.
VERSION = 12
#: Schema version of runs on threats by earlier pyrobust versions; `pyrobust.threats.readers.old_run` reads these.
THREAT_VERSION = 10
#: "PyRb" in the header of every file; distinguishes runs from SQLite files of other programs.
APPLICATION_ID = 0x50795262

#: Additional column of unfinished images: the order in which sampling resumes.
PLACE = {"place": "INTEGER NOT NULL"}
#: Chunks by their first image: the machine that computed the chunk ("" for that of the run's identity), and the error
#: for which it was set aside ("" for none). Chunks with "" for both have no row.
CHUNK = {"first": "INTEGER PRIMARY KEY", "machine": "TEXT NOT NULL", "error": "TEXT NOT NULL"}
#: The header of a run; one row.
RUN = {
    "id": "INTEGER PRIMARY KEY CHECK (id = 1)",
    "schema_version": "INTEGER NOT NULL",
    "kind": "TEXT NOT NULL",
    "parameters": "TEXT NOT NULL",
    "model": "TEXT NOT NULL",
    "model_sha256": "TEXT NOT NULL",
    "data": "TEXT NOT NULL",
    "data_sha256": "TEXT NOT NULL",
    "guarantee": "TEXT NOT NULL",
    "versions": "TEXT NOT NULL",
}
#: The identity of the model (`pyrobust.runs.identity`), as JSON; one row.
IDENTITY = {"id": "INTEGER PRIMARY KEY CHECK (id = 1)", "value": "TEXT NOT NULL"}
#: Two digests of each chunk that has a row in any table, by its first image: of everything except examples, and of
#: examples.
DIGEST = {"first": "INTEGER PRIMARY KEY", "contents": "BLOB NOT NULL", "examples": "BLOB NOT NULL"}
#: The digest of the header, and the XOR of each column of `DIGEST`; one row.
SEAL = {
    "id": "INTEGER PRIMARY KEY CHECK (id = 1)",
    "header": "BLOB NOT NULL",
    "contents": "BLOB NOT NULL",
    "examples": "BLOB NOT NULL",
}


def create_statement(table: str, columns: Mapping[str, str]) -> str:
    """Return the CREATE statement of a table, character for character as SQLite stores it.

    >>> create_statement("chunk", {"first": "INTEGER PRIMARY KEY", "error": "TEXT NOT NULL"})
    'CREATE TABLE chunk (first INTEGER PRIMARY KEY, error TEXT NOT NULL)'
    """
    return f"CREATE TABLE {table} ({', '.join(f'{name} {sql}' for name, sql in columns.items())})"


def create_statements(kind: Kind) -> dict[str, str]:
    """Return the CREATE statement of each table of a run.

    >>> from pyrobust.runs.kinds.certify import Sequential
    >>> sorted(create_statements(Sequential()))
    ['chunk', 'digest', 'identity', 'pending', 'result', 'run', 'seal']
    """
    tables = {"run": RUN, "result": {name: column.sql for name, column in kind.columns.items()}, "identity": IDENTITY}
    if kind.pending:
        tables["pending"] = {name: column.sql for name, column in kind.pending.items()} | PLACE
    tables |= {"chunk": CHUNK, "digest": DIGEST, "seal": SEAL}
    return {table: create_statement(table, columns) for table, columns in tables.items()}
