"""Read run files: one SQLite file per run, with its parameters and one row for each image.

A run is written in chunks of images, each in one transaction, so that after a crash or a kill, the file contains only
whole chunks. The exception is a sequential certification: about every second, its finished images and the state of the
unfinished images of the chunk are written in one transaction. While a run is being written, its file is in SQLite's WAL
mode, and other processes can read the committed data. The writer holds SQLite's write lock except for a moment between
two transactions, so that a second writer is refused. A closed run is one plain file without companion files, unless
another process was reading it when it was closed; the file then stays in WAL mode, complete.

Files are untrusted: nothing in them is executed or unpickled. Their schema must equal the schema that this package
writes, character for character.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.errors import FileFormatError, StoreError
from pyrobust.runs.digests import check_header
from pyrobust.runs.identity import Identity, decode_identity
from pyrobust.runs.kinds import Kind, kind_of
from pyrobust.runs.kinds.columns import Column, decode_histograms
from pyrobust.runs.kinds.values import parse_json
from pyrobust.runs.parameters import describe_difference, describe_differences
from pyrobust.runs.schema import (
    APPLICATION_ID,
    RUN,
    THREAT_VERSION,
    VERSION,
    create_statement,
    create_statements,
)

_SQLITE = b"SQLite format 3\0"
#: Schema versions of runs on images written by older software; only the header of such a file is read.
OLDER = frozenset(range(1, VERSION)) - {THREAT_VERSION}
#: Key of the command line, which is stored with the software versions.
COMMAND = "command"
#: Rows that are read at a time.
BLOCK = 1 << 14


class OlderFileError(FileFormatError):
    """Error for a file written by older software; only the file's header is read.

    Attributes:
        header: header of the run, with unchecked parameters.
    """

    def __init__(self, path: Path, header: Header) -> None:
        wrote = header.versions.get("pyrobust", "")
        super().__init__(
            f"{path}: made by version {header.schema_version} of pyrobust's files; this version reads only its header: "
            f"kind {header.kind}, guarantee {header.guarantee}; read it with pyrobust{wrote and f' {wrote}'}, which "
            "wrote it, or start a new run in another file"
        )
        self.header = header


@dataclass(frozen=True)
class Header:
    """The header of a run: its kind, parameters, model, data and guarantee.

    Attributes:
        kind: "certify", "predict", "attack", "verify" or "sandwich".
        parameters: everything that the results depend on, as JSON values (`pyrobust.runs.parameters`).
        model: display name of the model; two runs' names are compared only if neither model has a hash.
        model_sha256: hash of the model's structure and parameters; "" for a callable without such a hash.
        data: display name of the images.
        data_sha256: hash of images and labels.
        guarantee: "grid" or "real" for smoothing (`pyrobust.smoothing.Certificates`), "deterministic" for sound bounds,
            "empirical" for attacks, which certify nothing, or "none" for bounds in plain floating-point arithmetic.
        versions: versions of the software that started the run.
        identity: fingerprint of the model's code and of its logits on probe inputs; None in the header of an exported
            log.
        schema_version: schema version of the file.
        command: the command line that started the run; "" if none is stored, for example for a run started from Python.

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
    identity: Identity | None = None
    schema_version: int = VERSION
    command: str = field(default="", compare=False)

    @property
    def type(self) -> Kind:
        """The class of the run; raise ValueError for an unknown kind."""
        return kind_of(self.kind, self.parameters)

    @property
    def layout(self) -> str:
        """The layout of the run's columns, as a key of ``KINDS``; the default layout of a kind has the kind's name."""
        return self.type.layout

    def differences(
        self,
        other: Header,
        wording: tuple[str, str] = ("stored", "given"),
        ignore: frozenset[str] = frozenset(),
    ) -> list[str]:
        """Return one phrase for each difference from another run; if the kinds differ, only the phrase about the kinds.

        Display names are not compared, except for models without a hash. The torch versions are compared only if both
        runs have the guarantee "grid". All samples of one image must then come from one classifier, and a torch version
        that has other kernels would define another classifier. ``ignore`` holds the names of parameters that may
        differ; "torch" stands for the torch version.
        """
        if self.kind != other.kind:
            return [describe_difference("kind", self.kind, other.kind, wording)]
        pairs = [
            ("hash of the model", self.model_sha256[:16], other.model_sha256[:16]),
            ("hash of the data", self.data_sha256[:16], other.data_sha256[:16]),
            ("guarantee", self.guarantee, other.guarantee),
        ]
        if not self.model_sha256 and not other.model_sha256:
            pairs.append(("model", self.model, other.model))
        if self.guarantee == other.guarantee == "grid" and "torch" not in ignore:
            pairs.append(("torch", self.versions.get("torch", ""), other.versions.get("torch", "")))
        differences = [describe_difference(*pair, wording) for pair in pairs if pair[1] != pair[2]]
        if self.identity is not None and other.identity is not None and "identity" not in ignore:
            differences += self.identity.differences(other.identity, wording)
        return differences + describe_differences(self.parameters, other.parameters, wording, ignore)


def is_run(path: Path) -> bool:
    """Whether a file is a SQLite database, as every run file is."""
    try:
        if not path.is_file():  # opening a pipe would block
            return False
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False  # the text reader raises the error


def expect_file(path: Path, description: str) -> None:
    """Raise FileFormatError unless the path is a regular file."""
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "is a special file" if path.exists() else "file not found"
        raise FileFormatError(f"{path}: {problem}; expected {description}")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate SQLite and decoding errors to FileFormatError, or StoreError if the file is locked or unreadable."""
    try:
        yield
    except sqlite3.OperationalError as error:
        reason = str(error)
        if "locked" in reason or "busy" in reason:
            raise StoreError(f"{path}: in use by another process; wait for it to finish, or stop it") from error
        if "unable to open" in reason or "readonly" in reason:
            raise StoreError(
                f"{path}: cannot open the file ({reason}); check it, its folder and their permissions"
            ) from error
        raise FileFormatError(f"{path}: not a readable run of pyrobust ({reason})") from error
    except (sqlite3.Error, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: damaged, or not a run of pyrobust ({error}); use another file") from error


@contextlib.contextmanager
def one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """Read in a single transaction, reusing an open one, so that later commits are not seen."""
    begun = not connection.in_transaction
    if begun:
        connection.execute("BEGIN")
    try:
        yield
    finally:
        if begun and connection.in_transaction:
            connection.execute("ROLLBACK")


def read_header(connection: sqlite3.Connection, path: Path, *, whole: bool = True) -> Header | None:
    """Validate the schema of a run file and read its header; None for an empty database.

    If ``whole`` is False, only the pages of the header are checked, because other pages may be changing.
    """
    with reading(path):
        row = read_run_row(connection, path, {VERSION, *OLDER}, whole=whole)
        if row is None:
            return None
        header, version, stored_version, schema = row
        header = dataclasses.replace(header, schema_version=version)
        kind = header.type
        check_stored_version(version, stored_version)
        if version in OLDER:
            raise OlderFileError(path, header)
        if schema != {name: ("table", sql) for name, sql in create_statements(kind).items()}:
            raise ValueError("table result has an unexpected schema")
        check_header(connection, path)
        kind.check(header.parameters)
        if (header.guarantee == "grid") != kind.guarantees_grid(header.parameters):
            raise ValueError("guarantee contradicts the parameters")
        identity = _read_identity(connection)
    if identity.void:
        raise StoreError(f"{path}: void, do not use its results: {identity.void}; start a new run in another file")
    return dataclasses.replace(header, identity=identity)


def read_run_row(
    connection: sqlite3.Connection, path: Path, versions: Collection[int], *, whole: bool = True
) -> tuple[Header, int, int, dict[str, tuple[str, str]]] | None:
    """Read the table "run" of a file with one of the given schema versions; None for an empty database.

    The kind and the parameters are not checked. The result also holds the schema versions of the file and of the header
    row, and the SQL of all tables.
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    objects = connection.execute("SELECT type, name, sql FROM sqlite_master")
    schema = {name: (kind, sql) for kind, name, sql in objects}
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if not schema and not application:
        return None
    if application != APPLICATION_ID:
        raise FileFormatError(f"{path}: a SQLite file of another program, not a run of pyrobust; use another file")
    version = file_version(connection)
    if version not in versions and version in {THREAT_VERSION, VERSION, *OLDER}:
        held, reads = ("threats", "read_verdicts") if version == THREAT_VERSION else ("images", "Run")
        raise FileFormatError(f"{path}: expected another kind of run, got one on {held}, which {reads} reads")
    if version not in versions:
        expected = max(versions)
        raise FileFormatError(
            f"{path}: schema version {version}, expected {expected}; use the version of pyrobust that wrote it"
        )
    if schema.get("run") != ("table", create_statement("run", RUN)):
        raise ValueError("table run has an unexpected schema")
    if whole:
        _check_length(connection)
        check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check != "ok":
            raise ValueError(str(check).replace("\n", " ")[:200])
    rows = connection.execute(f"SELECT {', '.join(list(RUN)[1:])} FROM run").fetchall()
    if len(rows) != 1:
        raise ValueError(f"table run: expected one row, got {len(rows)}")
    stored_version, *texts = rows[0]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("table run: expected text")
    kind, parameters, model, model_sha256, data, data_sha256, guarantee, software = texts
    libraries = parse_json(software)
    if not isinstance(libraries, dict) or not all(isinstance(text, str) for text in libraries.values()):
        raise ValueError("versions: expected an object of strings")
    command = libraries.pop(COMMAND, "")
    values = parse_json(parameters)
    return (
        Header(
            kind,
            values,
            model,
            model_sha256,
            data=data,
            data_sha256=data_sha256,
            guarantee=guarantee,
            versions=libraries,
            command=command,
        ),
        version,
        stored_version,
        schema,
    )


def file_version(connection: sqlite3.Connection) -> int:
    """Return the schema version of an open file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def check_stored_version(version: int, stored: int) -> None:
    """Raise ValueError unless the header row has the schema version of the file."""
    if stored != version:
        raise ValueError(f"table run: schema version {stored} contradicts the file's, {version}")


def _read_identity(connection: sqlite3.Connection) -> Identity:
    values = [row[0] for row in connection.execute("SELECT value FROM identity").fetchall()]
    if len(values) != 1 or not isinstance(values[0], str):
        raise ValueError("table identity: expected one row of text")
    return decode_identity(values[0])


def _check_length(connection: sqlite3.Connection) -> None:
    """Refuse a file that was cut off within its last page; SQLite would pad that page with zeros."""
    file = connection.execute("PRAGMA database_list").fetchone()[2]
    # The file may be older than a write-ahead log, which then holds the newest pages.
    if not file or (os.path.exists(f"{file}-wal") and os.path.getsize(f"{file}-wal")):
        return
    expected = (
        connection.execute("PRAGMA page_count").fetchone()[0] * connection.execute("PRAGMA page_size").fetchone()[0]
    )
    if os.path.getsize(file) != expected:
        raise ValueError(f"expected {expected} bytes, got {os.path.getsize(file)}")


def read_blocks(
    connection: sqlite3.Connection, path: Path, kind: Kind, names: Sequence[str], table: str = "result"
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Read columns in index order, some rows at a time; check types and finiteness, and read NULL as NaN or inf.

    The table is "result" or "pending". The rows of "pending", the unfinished images, are read in the order in which
    sampling resumes. An empty table gives one block without rows.
    """
    pending = table == "pending"
    columns = kind.pending if pending else kind.columns
    with reading(path):
        if pending:
            places = "SELECT count(*) FROM pending WHERE typeof(place) != 'integer' OR place < 0"
            if connection.execute(places).fetchone()[0]:
                raise ValueError("column place: expected integers of at least 0")
        order = "place, idx" if pending else "idx"
        cursor = connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY {order}")
        rows = cursor.fetchmany(BLOCK)
        yield _arrays(columns, names, rows)
        while rows := cursor.fetchmany(BLOCK):
            yield _arrays(columns, names, rows)


def _arrays(
    columns: Mapping[str, Column], names: Sequence[str], rows: list[tuple[Any, ...]]
) -> dict[str, npt.NDArray[Any]]:
    """Convert rows to a checked array for each column."""
    values = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {name: columns[name].decode(name, column) for name, column in zip(names, values, strict=True)}


def read_columns(
    connection: sqlite3.Connection, path: Path, kind: Kind, names: Sequence[str], table: str = "result"
) -> dict[str, npt.NDArray[Any]]:
    """Read whole columns, in the order and with the checks of `read_blocks`."""
    return join_blocks(list(read_blocks(connection, path, kind, names, table)))


def join_blocks(blocks: list[dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    """Join blocks of the same columns.

    There must be at least one block. The blocks are emptied one column at a time, so that memory never holds all
    columns twice.

    >>> join_blocks([{"idx": np.array([0])}, {"idx": np.array([1])}])
    {'idx': array([0, 1])}
    """
    return {name: np.concatenate([block.pop(name) for block in blocks]) for name in list(blocks[0])}


def read_histograms(
    connection: sqlite3.Connection, path: Path, kind: Kind, name: str, num_classes: int, table: str = "result"
) -> npt.NDArray[np.int64]:
    """Read a column of histograms in index order, int64 [N, K+1]."""
    texts = read_columns(connection, path, kind, [name], table)[name]
    with reading(path):
        return decode_histograms(texts, num_classes)


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Open an existing run for reading, even while it is being written."""
    expect_file(path, "a run of pyrobust")
    with reading(path):
        _roll_back_killed_writer(path)
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0, isolation_level=None)


def _roll_back_killed_writer(path: Path) -> None:
    """Let SQLite undo the transaction of a writer that was killed while it created or closed a run.

    SQLite undoes the transaction only for a connection that may write. Until this is done, read-only connections cannot
    open the file. This function touches neither the journal of a writer that still runs nor databases of other
    programs.
    """
    file = os.path.realpath(path)
    journal = f"{file}-journal"
    try:
        if not os.path.getsize(journal):
            return
        with open(file, "rb") as opened:
            header = opened.read(100)
    except OSError:  # usually no journal, or its writer just removed it; SQLite reports an unreadable file
        return
    if header and int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{Path(file).as_uri()}?mode=rw", uri=True, timeout=5.0)) as connection:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise
        raise StoreError(
            f"{path}: a killed writer left {journal}, which has to be rolled back before the file can be read, and "
            f"cannot be here ({error}); make the file and its folder writable, or copy both files to a folder that is"
        ) from error
