"""Verdicts in files: JSON Lines in this library's own format, and Parquet where pandas and pyarrow are installed."""

from __future__ import annotations

import io
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pyrobust.errors import FileFormatError, MissingExtraError
from pyrobust.threats.readers.rows import count, truth, verdict
from pyrobust.threats.untrusted import array_field, check_size, json_lines, object_field
from pyrobust.threats.verdicts import COLUMNS, TEXTS, ThreatVerdict, ThreatVerdicts
from pyrobust.zoo.files import check_output, write_atomically

VERSION: Final = 1
KIND: Final = "threat-verdicts"
#: First bytes of verdicts as JSON Lines.
BEGIN: Final = json.dumps({"pyrobust": KIND})[:-1].encode()


def write_verdicts(verdicts: ThreatVerdicts, path: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Write verdicts to a file atomically, as Parquet if its name ends in ``.parquet``, else as JSON Lines.

    The first line of a JSON Lines file names the format and its version. Each other line is one verdict: an object with
    the columns of ``ThreatVerdict`` and, if there are any, the ``extras`` of the verdict. A Parquet file has the
    columns of ``ThreatVerdict``, and one column for each name among the extras. To write it, pandas and pyarrow are
    needed.

    Args:
        verdicts: the table to write.
        path: the file. A JSON Lines file that this function wrote is overwritten. Any other existing file is
            overwritten only with ``replace``.
        replace: whether an existing file of any kind may be overwritten.

    Raises:
        InputError: the file exists and may not be overwritten.
        StoreError: the file cannot be written.
        MissingExtraError: pandas or pyarrow is not installed.

    >>> import tempfile
    >>> from pyrobust.threats import read_verdicts
    >>> verdicts = ThreatVerdicts((ThreatVerdict("0", success=True), ThreatVerdict("1", status="unsubmitted")))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_verdicts(verdicts, Path(folder) / "verdicts.jsonl")
    ...     read_verdicts(Path(folder) / "verdicts.jsonl").rows == verdicts.rows
    True
    """
    parquet = str(path).endswith(".parquet")
    check_output("path", path, replace=replace, begins=None if parquet else BEGIN)
    if parquet:
        pandas = _pandas()
        buffer = io.BytesIO()
        columns = {name: verdicts.column(name) for name in verdicts.names}
        for name in (*TEXTS, *verdicts.names[len(COLUMNS) :]):  # Parquet cannot hold unpaired surrogates
            columns[name] = [text.encode("utf-8", "backslashreplace").decode() for text in columns[name]]
        frame = pandas.DataFrame(columns)
        kinds = {"success": "boolean", "human_label": "boolean", "queries": "Int64", "score": "Float64"}
        frame.astype(kinds | {"cost": "Float64"}).to_parquet(buffer, index=False)
        write_atomically(path, buffer.getvalue())
        return
    lines = [json.dumps({"pyrobust": KIND, "version": VERSION})]
    lines += [json.dumps(_entry(row), allow_nan=False) for row in verdicts]
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def _entry(row: ThreatVerdict) -> dict[str, Any]:
    entry = asdict(row) | {"extras": dict(row.extras)}
    return entry if row.extras else {name: entry[name] for name in COLUMNS}


def read_json_lines(path: Path) -> list[ThreatVerdict]:
    """Read what ``write_verdicts`` wrote as JSON Lines; a newer version or an incomplete last line is an error."""
    rows: list[ThreatVerdict] = []
    for line, entry in json_lines(path):
        where = f"{path}: line {line}"
        if line == 1:
            if entry.get("pyrobust") != KIND or type(version := entry.get("version")) is not int or version != VERSION:
                raise FileFormatError(f"{where}: expected verdicts of version {VERSION}, got {str(entry)[:80]}")
            continue
        extras = object_field(entry, "extras", where)
        entry["extras"] = tuple(extras.items())
        unknown = [name for name in entry if name not in (*COLUMNS, "extras")]
        if unknown:
            raise FileFormatError(f"{where}: expected the columns {', '.join(COLUMNS)}, got {unknown[0][:40]!r}")
        rows.append(verdict(where, **entry))
    return rows


def read_parquet(path: Path) -> list[ThreatVerdict]:
    """Read a Parquet file with columns of ``ThreatVerdict``; missing columns and missing texts get their defaults."""
    check_size(path)
    pandas = _pandas()
    try:
        frame = pandas.read_parquet(path, columns=None)
        frame = frame.reset_index() if any(frame.index.names) else frame
        columns: dict[str, list[Any]] = {
            str(name): frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns
        }
    except Exception as error:  # pyarrow's own exceptions, which have no common base
        raise FileFormatError(f"{path}: not a readable Parquet file ({type(error).__name__}: {error})") from error
    array_field(columns, "id", str(path))
    values = zip(*columns.values(), strict=True)
    return [_edited(f"{path}: row {i}", dict(zip(columns, row, strict=True))) for i, row in enumerate(values)]


def _edited(where: str, row: dict[str, Any]) -> ThreatVerdict:
    """Return the verdict of a row whose types pandas may have changed, for example from integers to floats."""
    extras = {name: row.pop(name) for name in list(row) if name not in COLUMNS}
    row["extras"] = tuple((name, "" if value is None else str(value)) for name, value in extras.items())
    for name, value in row.items():
        if name in ("success", "human_label"):
            row[name] = truth(value, f"{where}: {name}")
        elif name in ("attempt", "queries") and isinstance(value, float):
            row[name] = count(value, f"{where}: {name}")
        elif name == "id" and type(value) is int:
            row[name] = str(value)
        elif value is None and name in TEXTS and name != "id":
            row[name] = ThreatVerdict.__dataclass_fields__[name].default
    return verdict(where, **row)


def _pandas() -> Any:
    try:
        import pandas
        import pyarrow  # noqa: F401 - pandas reads with it
    except ImportError as error:
        message = (
            'Parquet: needs pandas and pyarrow; install them with pip install "pyrobust[parquet]", or use JSON Lines'
        )
        raise MissingExtraError(message) from error
    return pandas
