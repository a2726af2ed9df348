"""Read the columns of tab-separated certification logs written by this and other programs."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.findings import AuditFinding
from pyrobust.auditing.log_fields import Fields, parse_integers, parse_reals, parse_times
from pyrobust.errors import FileFormatError, InputTypeError
from pyrobust.runs.kinds import KINDS
from pyrobust.runs.kinds.certify import Certify
from pyrobust.runs.log import MAX_LINE_BYTES, MAX_LOG_BYTES
from pyrobust.runs.reader import expect_file

#: Required columns of a certification log, in the order of the reference script.
REQUIRED = Certify.log[:-1]
_LOWEST_CLASS = -(1 << 30)
_parse_classes = partial(parse_integers, low=_LOWEST_CLASS)
# Columns that are read, each with the arrays of CertificationLog that it fills, in the order of its parser's results.
# Decimals that a parser returns but no array takes are dropped.
_COLUMNS: dict[str, tuple[tuple[str, ...], Callable[[Fields], Any]]] = {
    "idx": (("index",), partial(parse_integers, low=0)),
    "label": (("label",), _parse_classes),
    "predict": (("prediction",), _parse_classes),
    "radius": (("radius", "decimals"), parse_reals),
    "correct": (("correct",), parse_reals),
    "time": (("seconds",), parse_times),
}
_OPTIONAL = [name for name in _COLUMNS if name not in REQUIRED]
_EXPECTED = f"{' '.join(REQUIRED)} and optionally {', '.join(_OPTIONAL)}, separated by tabs"
#: Reads a log of another format: path → a mapping for each row, from the names of the columns to their text.
LogReader: TypeAlias = Callable[[Path], Iterable[Mapping[str, str]]]
_BLOCK = 1 << 21
_TIME_END = re.compile(rb":\d\d:\d\d(\.\d{6})?$")


@dataclass(frozen=True)
class TextColumns:
    """The columns of a text log.

    Attributes:
        arrays: columns [N], N ≥ 1, with the names and dtypes of `CertificationLog`; ``decimals`` is the number of
            decimals with which each radius is written.
        findings: faults and notes on the text.
    """

    arrays: dict[str, Any]
    findings: tuple[AuditFinding, ...]


def read_text_columns(path: Path, reader: LogReader | None = None) -> TextColumns:
    r"""Read an untrusted tab-separated log with columns in any order, or the rows that a reader returns.

    An incomplete last line is dropped and reported as a finding. A last line without a line end counts as complete if
    it has all fields and its last field looks complete. If the last column is neither ``correct`` nor ``time``, this
    means that the field is at least as long as the field above it; so a complete line may be dropped, and a cut one
    kept. Other damage raises a FileFormatError, which usually names the line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "log.tsv"
    ...     _ = file.write_text("label\tidx\tpredict\tradius\tcorrect\n3\t0\t3\t0.377\t1\n8\t1\t8")
    ...     log = read_text_columns(file)
    >>> log.arrays["radius"], log.arrays["decimals"], log.findings[0].kind
    (array([0.377]), array([3]), 'truncated')
    """
    _check_file(path)
    findings: list[AuditFinding] = []
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    try:
        with path.open("rb") if reader is None else io.BytesIO(_translated(path, reader)) as file:
            names = _parse_header(file.readline(MAX_LINE_BYTES), findings)
            parts = {array: [] for name, (arrays, _) in _COLUMNS.items() if name in names for array in arrays}
            line = 2
            for block in _blocks(file, names, findings):
                line += _read_block(block, names, line, parts)
    except (OSError, ValueError, MemoryError) as error:
        raise FileFormatError(f"{path}: {error}") from None
    if not parts["index"]:
        raise FileFormatError(f"{path}: expected at least one complete row, got none")
    # Concatenated and freed column by column, so that at most one is in memory twice.
    return TextColumns({array: np.concatenate(parts.pop(array)) for array in list(parts)}, tuple(findings))


def _translated(path: Path, reader: LogReader) -> bytes:
    """Return the rows of a reader as the bytes of a tab-separated log, in which they keep their line numbers."""
    lines: list[str] = []
    names: list[str] = []
    for number, row in enumerate(reader(path), start=2):
        if not isinstance(row, Mapping):
            raise InputTypeError("reader", "a mapping for each row", type(row).__name__)
        names = names or list(row)
        if list(row) != names:
            raise ValueError(f"line {number}: expected the columns {', '.join(names)}, got {', '.join(row)}")
        for name, text in row.items():
            if not isinstance(text, str):
                raise InputTypeError(
                    "reader",
                    "text as it is written in the file, digit by digit",
                    type(text).__name__,
                    where=f"line {number}: {name}",
                )
            if any(character in text for character in "\t\r\n"):
                raise ValueError(f"line {number}: {name}: expected one field, got {text[:40]!r}")
        lines.append("\t".join(row.values()))
    if not lines:
        raise ValueError("expected at least one row, got none")
    return "\n".join(["\t".join(names), *lines, ""]).encode()


def _check_file(path: Path) -> None:
    try:
        expect_file(path, "a certification log")
        size = path.stat().st_size
    except OSError as error:
        raise FileFormatError(f"{path}: not a readable file ({error.strerror or error})") from None
    if size == 0:
        raise FileFormatError(f"{path}: line 1: expected the columns {_EXPECTED}; the file is empty")
    if size > MAX_LOG_BYTES:
        raise FileFormatError(f"{path}: expected a log of at most {MAX_LOG_BYTES} bytes, got {size}")


def _parse_header(line: bytes, findings: list[AuditFinding]) -> list[str]:
    """Return the column names of line 1."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if not text.rstrip("\r\n").replace("\t", " ").isprintable():
        raise ValueError(f"line 1: expected the columns {_EXPECTED}; got a binary file: {line[:20]!r}")
    text = text.strip()
    names = [name.strip().lower() for name in text.split("\t")]
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        if len(missing) > 1:
            separators = {"commas": ",", "semicolons": ";", "spaces": None}
            for description, separator in separators.items():
                words = {word.strip().strip('"').lower() for word in text.split(separator)}
                if set(REQUIRED) <= words:
                    raise ValueError(f"line 1: expected columns separated by tabs, got {description}; convert the file")
        attacked = (kind.name for kind in KINDS.values() if kind.attacked and set(kind.log) <= set(names))
        if (kind := next(attacked, None)) is not None:
            raise ValueError(
                f"line 1: expected the columns {_EXPECTED}; got the log of a run of kind {kind}, which has no "
                "certified radii; pass the run (.db) that it was exported from"
            )
        columns = "column" if len(missing) == 1 else "columns"
        raise ValueError(
            f"line 1: expected the columns {_EXPECTED}; missing {columns} {', '.join(missing)}: {text[:80]!r}"
        )
    duplicates = sorted({name for name in names if names.count(name) > 1 and name in _COLUMNS})
    if duplicates:
        raise ValueError(f"line 1: duplicate column {duplicates[0]}; expected one")
    extra = [name for name in names if name not in _COLUMNS]
    if extra:
        shown = ", ".join(map(repr, extra[:5])) + (" …" if len(extra) > 5 else "")
        findings.append(AuditFinding("extra-columns", "note", f"ignored columns: {shown}"))
    if not line.endswith(b"\n"):
        raise ValueError("line 1: incomplete; the file is truncated")
    return names


def _blocks(file: Any, names: list[str], findings: list[AuditFinding]) -> Iterator[bytes]:
    """Yield the rest of a file in blocks of whole lines, without an incomplete last line."""
    width, last_line = len(names), b""
    carry, piece = b"", file.read(_BLOCK)
    while piece:
        following = file.read(_BLOCK)
        block = carry + piece
        stop = block.rfind(b"\n") + 1
        if not following:
            if _is_complete(block[stop:], block[:stop].rstrip(b"\r\n").rpartition(b"\n")[2] or last_line, names):
                block += b"\n"
                stop = len(block)
            truncated = bool(block[stop:].strip())
            if truncated:
                _report_truncated(block[stop:], findings)
            block = _strip_end(block[:stop], width, findings, truncated)
            stop = len(block)
        carry, piece = block[stop:], following
        last_line = block[:stop].rstrip(b"\r\n").rpartition(b"\n")[2] or last_line
        if len(carry) > MAX_LINE_BYTES:
            raise ValueError(f"not a text log: line longer than {MAX_LINE_BYTES} bytes: {carry[:40]!r}…")
        if stop:
            yield block[:stop]


def _is_complete(line: bytes, previous: bytes, names: list[str]) -> bool:
    """Whether a last line that lacks a line end is complete: all fields, and a last field as in the line above."""
    fields = line.strip(b"\r\n").split(b"\t")
    if len(fields) != len(names) or not all(fields):
        return False
    field, model = fields[-1], previous.rpartition(b"\t")[2].strip()
    if names[-1] == "correct":
        return field in (b"0", b"1", b"0.0", b"1.0", b"True", b"False")
    if names[-1] == "time" and b":" in field + model:  # six decimals, or none where the time is whole seconds
        return bool(_TIME_END.search(field)) and (b"." in field or b"." not in model)
    # The start of a number is a number too; a time cut short in this way changes no certificate.
    return names[-1] == "time" or (bool(model) and len(field) >= len(model))


def _report_truncated(line: bytes, findings: list[AuditFinding]) -> None:
    _check_text(line)
    shown = line[:60].decode("utf-8", "replace")
    message = f"the last line is incomplete, so the file is truncated; the line is not counted: {shown!r}"
    findings.append(AuditFinding("truncated", "fault", message))


def _strip_end(block: bytes, width: int, findings: list[AuditFinding], truncated: bool) -> bytes:
    """Drop blank lines at the end of the file; unless ``truncated``, also drop a last line with too few fields."""
    stripped = block.rstrip(b"\r\n")
    if not stripped:
        return b""
    start = stripped.rfind(b"\n") + 1
    fields = stripped[start:].split(b"\t")
    if len(fields) < width and len(stripped) - start <= MAX_LINE_BYTES and not truncated:
        message = f"the last line has {len(fields)} of {width} fields, so the file is truncated; it is not counted"
        findings.append(AuditFinding("truncated", "fault", message))
        return block[:start]
    # rstrip also removed the newline of the last line.
    return block[: block.index(b"\n", len(stripped)) + 1]


def _check_text(block: bytes) -> None:
    if b"\0" in block:
        raise ValueError("not a text log: contains a NUL byte")
    try:
        if not block.isascii():
            block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not a text log: contains the byte {error.object[error.start]:#x}") from None


def _read_block(block: bytes, names: list[str], line: int, parts: dict[str, list[npt.NDArray[Any]]]) -> int:
    """Append the columns of a block of whole lines to the arrays in ``parts``; return the number of lines."""
    _check_text(block)
    text = np.frombuffer(block, np.uint8)
    width = len(names)
    stops = np.flatnonzero((text == ord("\t")) | (text == ord("\n")))
    ends = text[stops] == ord("\n")
    rows = int(ends.sum())
    if len(stops) != rows * width or not ends[width - 1 :: width].all():
        _raise_for_width(block, width, line)
    table = stops.reshape(rows, width)
    starts = np.concatenate([[0], stops[:-1] + 1]).reshape(rows, width)
    lengths = table - starts
    if int((table[:, -1] - starts[:, 0]).max()) > MAX_LINE_BYTES:
        number = line + int((table[:, -1] - starts[:, 0]).argmax())
        raise ValueError(f"line {number}: expected at most {MAX_LINE_BYTES} bytes; not a certification log")
    # Drop the carriage return of Windows line ends.
    lengths[:, -1] -= (lengths[:, -1] > 0) & (text[table[:, -1] - 1] == ord("\r"))
    for name, (arrays, parse) in _COLUMNS.items():
        if name not in names:
            continue
        column = names.index(name)
        start, length = (np.ascontiguousarray(values[:, column]) for values in (starts, lengths))
        parsed = parse(Fields(name, text, start, length, line))
        for array, values in zip(arrays, parsed if isinstance(parsed, tuple) else (parsed,), strict=False):
            parts[array].append(values)
    return rows


def _raise_for_width(block: bytes, width: int, line: int) -> None:
    """Raise an error that names the first line without exactly ``width`` fields."""
    for number, content in enumerate(block.split(b"\n")[:-1], start=line):
        count = content.count(b"\t") + 1
        if count != width:
            shown = content[:60].decode("utf-8", "replace")
            raise ValueError(f"line {number}: expected {width} fields separated by tabs, got {count}: {shown!r}")
