"""Readers of untrusted JSON and CSV files.

Every error names the file, and the line or the position in the JSON.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyrobust.errors import FileFormatError, MissingExtraError
from pyrobust.zoo.untrusted import READ_ERRORS, existing_file

#: Limits: bytes of a file, bytes of a line, and rows of a table.
MAX_BYTES: Final = 1 << 30
MAX_LINE_BYTES: Final = 64 << 20
MAX_ROWS: Final = 10**7
#: Nesting limit of JSON; the logs that are read nest less than half as deep.
MAX_DEPTH: Final = 100


def check_size(path: Path) -> Path:
    """Raise FileFormatError unless the path is a file of at most ``MAX_BYTES`` bytes."""
    existing_file(path)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise FileFormatError(f"{path}: not a readable file ({error.strerror or error})") from error
    if size > MAX_BYTES:
        raise FileFormatError(f"{path}: expected at most {MAX_BYTES} bytes, got {size}; split the file")
    return path


def read_bytes(path: Path) -> bytes:
    """Return the whole content of a file that is not too large."""
    with read_errors(str(path)):
        return check_size(path).read_bytes()


@contextmanager
def read_errors(where: str) -> Iterator[None]:
    """Raise FileFormatError in place of the exceptions that damaged bytes cause while they are read."""
    try:
        yield
    except (FileFormatError, MissingExtraError):
        raise
    except csv.Error as error:
        hint = "; write longer fields as JSON Lines" if "field limit" in str(error) else ""
        raise FileFormatError(f"{where}: expected CSV, got: {str(error)[:200]}{hint}") from error
    except (*READ_ERRORS, RecursionError) as error:
        raise FileFormatError(f"{where}: {type(error).__name__}: {str(error)[:200]}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object; refuse a repeated name, because programs differ in which value they use."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in members if names.count(name) > 1)
        raise ValueError(f"expected different names in an object, got {repeated[:40]!r} twice")
    return members


def parse_json(content: bytes | bytearray, where: str) -> Any:
    """Parse JSON, and refuse JSON that is nested too deep (see ``MAX_DEPTH``)."""
    with read_errors(where):
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_distinct)
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return value
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    raise FileFormatError(f"{where}: expected JSON nested at most {MAX_DEPTH} deep; not a log of verdicts")


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file of JSON Lines with their line numbers; empty lines are skipped."""
    check_size(path)
    with read_errors(str(path)), path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"{path}: line {number}"
            if len(line) > MAX_LINE_BYTES:
                raise FileFormatError(f"{where}: expected at most {MAX_LINE_BYTES} bytes")
            if line.strip():
                yield number, mapping(parse_json(line, where), where)


def csv_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield, for each row of a CSV file, its place (file and line) and its values by column name.

    The first row contains the column names.
    """
    with read_errors(str(path)):
        text = read_bytes(path).decode("utf-8-sig")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: list[str] = []
    while True:
        with read_errors(f"{path}: line {reader.line_num + 1}"):
            row = next(reader, None)
        where = f"{path}: line {reader.line_num}"
        if row is None:
            return
        if not names:
            names = row
            if len(set(names)) < len(names) or not names:
                raise FileFormatError(f"{where}: expected different column names, got {','.join(names)[:80]!r}")
        elif row:
            if len(row) != len(names):
                raise FileFormatError(f"{where}: expected {len(names)} fields, got {len(row)}")
            yield where, dict(zip(names, row, strict=True))


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a JSON object, or raise FileFormatError."""
    if not isinstance(value, dict):
        raise FileFormatError(f"{where}: expected an object, got {_kind(value)}")
    return value


def object_field(record: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """Return a field that is an object; an empty object if the field is missing or null."""
    value = record.get(name)
    return {} if value is None else mapping(value, f"{where}: {name}")


def array_field(record: Mapping[str, Any], name: str, where: str) -> list[Any]:
    """Return a required field, which has to be an array."""
    value = record.get(name)
    if not isinstance(value, list):
        raise FileFormatError(f"{where}: {name}: expected an array, got {_kind(value)}")
    if len(value) > MAX_ROWS:
        raise FileFormatError(f"{where}: {name}: expected at most {MAX_ROWS} entries, got {len(value)}")
    return value


def text_field(record: Mapping[str, Any], *names: str) -> str:
    """Return the first of the named fields that is a non-empty string; if there is none, return an empty string."""
    return next((record[name] for name in names if isinstance(record.get(name), str) and record[name]), "")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
