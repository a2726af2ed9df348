"""One run, one SQLite file: what was asked for, and one row per image.

A run is written in chunks of images, each chunk one transaction, so that a crash or a kill at any moment leaves whole
chunks. While a run is being written its file is in WAL mode, where others can read what is committed; the writer holds
SQLite's write lock from opening to closing, so that a second writer is refused. A closed run is one plain file without
companions.

Files are untrusted: nothing in them is executed or unpickled, and the schema must be letter for letter the one written
here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.checks import WORDS
from pyrobust.errors import FileFormatError, StoreError
from pyrobust.runs.parameters import check_parameters, describe_differences, layout_of
from pyrobust.runs.schema import (
    APPLICATION_ID,
    COMMON,
    KINDS,
    LAYOUTS,
    PENDING,
    RUN,
    SCHEMA_VERSIONS,
    create_statements,
)

_TYPES = {"INTEGER": int, "TEXT": str, "REAL": float, "BLOB": bytes}


@dataclass(frozen=True)
class Header:
    """What a run is.

    Args:
        kind: "certify", "predict", "attack" or "verify".
        parameters: everything that the results depend on, as JSON knows it (`pyrobust.runs.parameters`).
        model: what the model is called; for people, not compared.
        model_sha256: of its structure and numbers; empty where it has none, then the name is compared.
        data: what the images are called; for people.
        data_sha256: of images and labels.
        guarantee: what the certificates cover: "grid" or "real" of smoothing (`pyrobust.smoothing.Certificates`),
            "deterministic" for bounds; "empirical" for attacks, which certify nothing, "none" for bounds in plain
            floating-point arithmetic.
        versions: of the software that began the run.

    >>> Header("predict", {}, "net", "", "digits", "", "real", {}).kind
    'predict'
    """

    kind: str
    parameters: dict[str, Any]
    model: str
    model_sha256: str
    data: str
    data_sha256: str
    guarantee: str
    versions: dict[str, str]

    @property
    def layout(self) -> str:
        """Which columns the run has: "sequential", or its kind."""
        return layout_of(self.kind, self.parameters)

    def differences(self, other: Header, ignore: frozenset[str] = frozenset()) -> list[str]:
        """What differs between two runs, one phrase each; names are not compared, and versions only on a grid.

        There another torch, with other kernels, is another classifier, and an image in work may not be of two. Of runs
        of two kinds, which have little in common, only the kind.

        Args:
            other: the other run.
            ignore: parameters that may differ, or "torch".
        """
        if self.kind != other.kind:
            return [f"kind: {self.kind!r} there, {other.kind!r} now"]
        found = [
            f"{name}: {mine!r} there, {theirs!r} now"
            for name, mine, theirs in (
                ("hash of the model", self.model_sha256[:16], other.model_sha256[:16]),
                ("hash of the data", self.data_sha256[:16], other.data_sha256[:16]),
                ("guarantee", self.guarantee, other.guarantee),
            )
            if mine != theirs
        ]
        if not self.model_sha256 and not other.model_sha256 and self.model != other.model:
            found.append(f"model: {self.model!r} there, {other.model!r} now")
        mine, theirs = self.versions.get("torch"), other.versions.get("torch")
        if "grid" in self.parameters and "grid" in other.parameters and "torch" not in ignore and mine != theirs:
            found.append(f"torch: {mine!r} there, {theirs!r} now")
        return found + describe_differences(self.parameters, other.parameters, ignore)


def encode_counts(counts: Sequence[int] | npt.NDArray[np.int64]) -> str:
    """A histogram as JSON, classes without votes left out.

    Args:
        counts: [K+1], votes for each class and, last, those that were NaN.

    Returns:
        Class numbers with their votes, the last under "nan".

    >>> encode_counts([0, 97, 0, 3])
    '{"1":97,"nan":3}'
    """
    values = [int(value) for value in counts]
    last = len(values) - 1
    return json.dumps({"nan" if k == last else str(k): v for k, v in enumerate(values) if v}, separators=(",", ":"))


def decode_counts(text: str, num_classes: int) -> dict[int, int]:
    """The inverse of `encode_counts`.

    Args:
        text: from a file; untrusted.
        num_classes: K; "nan" becomes the column K.

    Returns:
        Columns with their votes.

    Raises:
        ValueError: the text is not such a histogram.

    >>> decode_counts('{"1":97,"nan":3}', 3)
    {1: 97, 3: 3}
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no histogram")
    counts: dict[int, int] = {}
    for name, votes in found.items():
        if name != "nan" and not (name.isascii() and name.isdigit() and len(name) < 12 and int(name) < num_classes):
            raise ValueError(f"class {name[:20]!r}")
        if type(votes) is not int or not 0 < votes <= WORDS:
            raise ValueError(f"votes of class {name}")
        counts[num_classes if name == "nan" else int(name)] = votes
    return counts


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what SQLite raises on a file that is no run, or cannot be opened, into this package's errors.

    Args:
        path: for messages.

    Raises:
        FileFormatError: what was read is damaged or something else.
        StoreError: the file is locked or cannot be opened.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        reason = str(error)
        if "locked" in reason or "busy" in reason:
            raise StoreError(f"{path}: is in use by another process; wait until it is done or stop it") from error
        if "unable to open" in reason or "readonly" in reason:
            raise StoreError(
                f"{path}: cannot be opened ({reason}); check the file, its folder and their permissions"
            ) from error
        raise FileFormatError(f"{path}: not a readable run of pyrobust ({reason})") from error
    except (sqlite3.Error, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: damaged, or not a run of pyrobust ({error}); name another file") from error


def read_header(connection: sqlite3.Connection, path: Path) -> Header | None:
    """Checks a file and reads what run it is.

    Args:
        connection: to the file.
        path: for messages.

    Returns:
        The header; None for a database that has nothing in it yet.

    Raises:
        FileFormatError: the file is damaged, of another program, or of a newer version of this one.
        StoreError: it cannot be opened.
    """
    with reading(path):
        connection.execute("PRAGMA trusted_schema = OFF")
        objects = connection.execute("SELECT type, name, sql FROM sqlite_master")
        schema = {name: (kind, sql) for kind, name, sql in objects}
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if not schema and not application:
            return None
        if application != APPLICATION_ID:
            raise FileFormatError(f"{path}: a SQLite file of another program, not a run of pyrobust; name another file")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        _check_version(path, version, *sorted(set(SCHEMA_VERSIONS.values())))
        if schema.get("run") != ("table", create_statements("certify")["run"]):
            raise ValueError("table run is not as expected")
        _check_length(connection)
        check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check != "ok":
            raise ValueError(str(check).replace("\n", " ")[:200])
        rows = connection.execute(f"SELECT {', '.join(list(RUN)[1:])} FROM run").fetchall()
        if len(rows) != 1:
            raise ValueError(f"expected one row in table run, found {len(rows)}")
        stored_version, *texts = rows[0]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("table run holds other types")
        kind, parameters, model, model_sha256, data, data_sha256, guarantee, versions = texts
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind[:40]!r}")
        found, software = json.loads(parameters), json.loads(versions)
        layout = layout_of(kind, found)
        _check_version(path, version, SCHEMA_VERSIONS[layout])
        if stored_version != version:
            raise ValueError("table run holds another version")
        if schema != {name: ("table", sql) for name, sql in create_statements(layout).items()}:
            raise ValueError("table result is not as expected")
        check_parameters(kind, found)
        if (guarantee == "grid") != ("grid" in found):
            raise ValueError("a guarantee that contradicts the parameters")
        if not isinstance(software, dict) or not all(isinstance(text, str) for text in software.values()):
            raise ValueError("versions")
        return Header(kind, found, model, model_sha256, data, data_sha256, guarantee, software)


def _check_version(path: Path, version: int, *known: int) -> None:
    if version not in known:
        raise FileFormatError(
            f"{path}: has schema version {version}, this pyrobust knows {_listed(known)}; "
            "use the version of pyrobust that wrote it"
        )


def _listed(versions: Sequence[int]) -> str:
    *some, last = map(str, versions)
    return f"{', '.join(some)} and {last}" if some else last


def _check_length(connection: sqlite3.Connection) -> None:
    """Refuses a file that was cut off within its last page, which SQLite would fill up with zeros."""
    file = connection.execute("PRAGMA database_list").fetchone()[2]
    # Where a write-ahead log holds the newest pages, the file itself may lag behind.
    if not file or (os.path.exists(f"{file}-wal") and os.path.getsize(f"{file}-wal")):
        return
    expected = (
        connection.execute("PRAGMA page_count").fetchone()[0] * connection.execute("PRAGMA page_size").fetchone()[0]
    )
    if os.path.getsize(file) != expected:
        raise ValueError(f"expected {expected} bytes, found {os.path.getsize(file)}")


def read_columns(
    connection: sqlite3.Connection, path: Path, layout: str, names: Sequence[str], table: str = "result"
) -> dict[str, list[Any]]:
    """Columns of a table, rows in the order of the index.

    Args:
        connection: to a file that `read_header` found in order.
        path: for messages.
        layout: of the run.
        names: of the columns.
        table: "result", or "pending" of a sequential run.

    Returns:
        Lists of equal length, int, float, str or bytes by the column's type; NaN for NULL where the column may hold it.

    Raises:
        FileFormatError: a value of another type, an index beyond 32 bits, an infinite number.
    """
    types = PENDING if table == "pending" else COMMON | LAYOUTS[layout]
    with reading(path):
        rows = connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY idx").fetchall()
        columns: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(names)}
        for name, values in columns.items():
            wanted = _TYPES[types[name].split()[0]]
            if wanted is float and "NOT NULL" not in types[name]:
                values[:] = [math.nan if value is None else value for value in values]
                if not all(type(value) is float and not math.isinf(value) for value in values):
                    raise ValueError(f"column {name} holds something other than finite numbers")
                continue
            if not all(type(value) is wanted for value in values):
                raise ValueError(f"column {name} holds something other than {wanted.__name__}")
            if wanted is float and not all(map(math.isfinite, values)):
                raise ValueError(f"column {name} holds an infinite number")
        if "idx" in columns and columns["idx"] and not (columns["idx"][0] >= 0 and columns["idx"][-1] < WORDS):
            raise ValueError("an image index beyond 32 bits")
        return columns


def read_histograms(
    connection: sqlite3.Connection, path: Path, layout: str, name: str, num_classes: int, table: str = "result"
) -> npt.NDArray[np.int64]:
    """A column of histograms, rows in the order of the index.

    Args:
        connection: to a file that `read_header` found in order.
        path: for messages.
        layout: of the run.
        name: of the column.
        num_classes: K.
        table: as of `read_columns`.

    Returns:
        int64 [N, K+1].

    Raises:
        FileFormatError: something else than histograms.
    """
    texts = read_columns(connection, path, layout, [name], table)[name]
    with reading(path):
        counts = np.zeros((len(texts), num_classes + 1), dtype=np.int64)
        for row, text in zip(counts, texts, strict=True):
            for column, votes in decode_counts(text, num_classes).items():
                row[column] = votes
    return counts


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Opens an existing run for reading, while it is being written too.

    Raises:
        FileFormatError: there is no such file.
        StoreError: it cannot be opened.
    """
    if not path.is_file():
        what = "a folder" if path.is_dir() else "nothing"
        raise FileFormatError(f"{path}: expected a run of pyrobust, found {what} there; check the path")
    with reading(path):
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0, isolation_level=None)
