"""Certification logs as text: columns out of the tab-separated files of many programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.findings import Finding
from pyrobust.auditing.log_fields import Fields, parse_integers, parse_reals, parse_times
from pyrobust.errors import FileFormatError

#: The columns that a certification log has to have, in the order of the reference script.
REQUIRED = ("idx", "label", "predict", "radius", "correct")
_KNOWN = (*REQUIRED, "time")
_EXPECTED = f"{' '.join(REQUIRED)} (and time, if it has it), separated by tabs"
# Of a line, and of a file, that is read; a line of a million images' log has 40 bytes.
_LONGEST_LINE = 1000
_LARGEST_LOG = 1 << 30
_BLOCK = 1 << 21


@dataclass(frozen=True)
class TextColumns:
    """What a log's text says.

    Args:
        values: by the column's name; idx, label and predict int64, the others float64. All of one length, at least 1.
        decimals: [N], that each radius is written with.
        findings: what was not as it should be.
    """

    values: dict[str, npt.NDArray[Any]]
    decimals: npt.NDArray[np.int64]
    findings: tuple[Finding, ...]


def read_text_columns(path: Path) -> TextColumns:
    r"""Reads a tab-separated log, its columns in any order.

    A last line that was cut off is left out and a finding; other damage is an error.

    Args:
        path: the file; untrusted.

    Returns:
        Its columns.

    Raises:
        FileFormatError: the file is missing or no such log; the message names the line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "log.tsv"
    ...     _ = file.write_text("label\tidx\tpredict\tradius\tcorrect\n3\t0\t3\t0.377\t1\n8\t1\t8")
    ...     log = read_text_columns(file)
    >>> log.values["radius"], log.decimals, log.findings[0].kind
    (array([0.377]), array([3]), 'truncated')
    """
    _check_file(path)
    findings: list[Finding] = []
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    try:
        with path.open("rb") as file:
            names = _header(file.readline(_LONGEST_LINE), findings)
            parts = {name: [] for name in (*_KNOWN, "decimals") if name in names or name == "decimals"}
            line = 2
            for block in _blocks(file, len(names), findings):
                line += _read_block(block, names, line, parts)
    except (OSError, ValueError, MemoryError) as error:
        raise FileFormatError(f"{path}: {error}") from None
    if not parts["idx"]:
        raise FileFormatError(f"{path}: expected at least one whole row, found none")
    # One column after the other, so that no more than one is there twice.
    columns = {name: np.concatenate(parts.pop(name)) for name in list(parts)}
    return TextColumns(columns, columns.pop("decimals"), tuple(findings))


def _check_file(path: Path) -> None:
    try:
        if not path.is_file():
            what = "a folder" if path.is_dir() else "a special file" if path.exists() else "nothing"
            raise FileFormatError(f"{path}: expected a certification log, found {what} there; check the path")
        size = path.stat().st_size
    except OSError as error:
        raise FileFormatError(f"{path}: not a readable file ({error.strerror or error})") from None
    if size == 0:
        raise FileFormatError(f"{path}: line 1: expected the columns {_EXPECTED}; the file is empty")
    if size > _LARGEST_LOG:
        raise FileFormatError(f"{path}: expected a log of at most {_LARGEST_LOG} bytes; no log has that many lines")


def _header(line: bytes, findings: list[Finding]) -> list[str]:
    """The names of the columns."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if not text.rstrip("\r\n").replace("\t", " ").isprintable():
        raise ValueError(f"line 1: expected the columns {_EXPECTED}; this is no text: {line[:20]!r}")
    text = text.strip()
    names = [name.strip().lower() for name in text.split("\t")]
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        if len(missing) > 1:
            others = {"commas": ",", "semicolons": ";", "spaces": None}
            for what, separator in others.items():
                words = {word.strip().strip('"').lower() for word in text.split(separator)}
                if set(REQUIRED) <= words:
                    raise ValueError(f"line 1: the columns are separated by {what}; expected tabs: convert the file")
        columns = "the column" if len(missing) == 1 else "the columns"
        raise ValueError(
            f"line 1: expected the columns {_EXPECTED}; {columns} {', '.join(missing)} missing: {text[:80]!r}"
        )
    twice = sorted({name for name in names if names.count(name) > 1 and name in _KNOWN})
    if twice:
        raise ValueError(f"line 1: the column {twice[0]} is there twice; expected one")
    extra = [name for name in names if name not in _KNOWN]
    if extra:
        shown = ", ".join(map(repr, extra[:5])) + (" …" if len(extra) > 5 else "")
        findings.append(Finding("extra-columns", "note", f"columns that are not read: {shown}"))
    if not line.endswith(b"\n"):
        raise ValueError("line 1: has no end; the file was cut off there")
    return names


def _blocks(file: Any, width: int, findings: list[Finding]) -> Iterator[bytes]:
    """The rest of a file in pieces that end with a line; a last line that was cut off is left out."""
    carry, piece = b"", file.read(_BLOCK)
    while piece:
        following = file.read(_BLOCK)
        block = carry + piece
        end = block.rfind(b"\n") + 1
        if not following:
            block = block[:end] + _end(block[end:], findings)
            block = _without_short_line(block, width, findings)
            end = len(block)
        carry, piece = block[end:], following
        if len(carry) > _LONGEST_LINE:
            raise ValueError(f"expected lines of at most {_LONGEST_LINE} bytes: {carry[:40]!r}…; this is no such log")
        if end:
            yield block[:end]


def _end(rest: bytes, findings: list[Finding]) -> bytes:
    """What is behind the last line's end; blanks are nothing."""
    if rest.strip():
        _check_text(rest)
        shown = rest[:60].decode("utf-8", "replace")
        message = f"the last line has no end, so the file was cut off; the line is not counted: {shown!r}"
        findings.append(Finding("truncated", "fault", message))
    return b""


def _without_short_line(block: bytes, width: int, findings: list[Finding]) -> bytes:
    stripped = block.rstrip(b"\r\n")
    if not stripped:
        return b""
    start = stripped.rfind(b"\n") + 1
    fields = stripped[start:].split(b"\t")
    if len(fields) < width and len(stripped) - start <= _LONGEST_LINE and not findings_of(findings, "truncated"):
        message = f"the last line has {len(fields)} of {width} fields, so the file was cut off; it is not counted"
        findings.append(Finding("truncated", "fault", message))
        return block[:start]
    # The line's own end is among what was stripped.
    return block[: block.index(b"\n", len(stripped)) + 1]


def findings_of(findings: list[Finding], kind: str) -> list[Finding]:
    """Those of one kind."""
    return [finding for finding in findings if finding.kind == kind]


def _check_text(block: bytes) -> None:
    if b"\0" in block:
        raise ValueError("expected text, found a zero byte; this is no such log")
    try:
        if not block.isascii():
            block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected text, found the byte {error.object[error.start]:#x}; this is no such log") from None


def _read_block(block: bytes, names: list[str], line: int, parts: dict[str, list[npt.NDArray[Any]]]) -> int:
    """Appends the columns of whole lines; how many lines they were."""
    _check_text(block)
    text = np.frombuffer(block, np.uint8)
    width = len(names)
    stops = np.flatnonzero((text == ord("\t")) | (text == ord("\n")))
    ends = text[stops] == ord("\n")
    rows = int(ends.sum())
    if len(stops) != rows * width or not ends[width - 1 :: width].all():
        _name_odd_line(block, width, line)
    table = stops.reshape(rows, width)
    starts = np.concatenate([[0], stops[:-1] + 1]).reshape(rows, width)
    lengths = table - starts
    if int((table[:, -1] - starts[:, 0]).max()) > _LONGEST_LINE:
        number = line + int((table[:, -1] - starts[:, 0]).argmax())
        raise ValueError(f"line {number}: expected at most {_LONGEST_LINE} bytes; this is no such log")
    # Lines may end with a carriage return too.
    lengths[:, -1] -= (lengths[:, -1] > 0) & (text[table[:, -1] - 1] == ord("\r"))
    for name in parts:
        if name == "decimals":
            continue
        column = names.index(name)
        fields = Fields(text, np.ascontiguousarray(starts[:, column]), np.ascontiguousarray(lengths[:, column]), line)
        try:
            if name == "radius":
                values, decimals = parse_reals(fields)
                parts[name].append(values)
                parts["decimals"].append(decimals)
            elif name == "correct":
                parts[name].append(parse_reals(fields)[0])
            elif name == "time":
                parts[name].append(parse_times(fields))
            else:
                parts[name].append(parse_integers(fields, 0 if name == "idx" else -_LARGEST_LOG))
        except ValueError as error:
            place, _, what = str(error).partition(": ")
            raise ValueError(f"{place}: {name}: {what}") from None
    return rows


def _name_odd_line(block: bytes, width: int, line: int) -> None:
    for number, content in enumerate(block.split(b"\n")[:-1], start=line):
        count = content.count(b"\t") + 1
        if count != width:
            shown = content[:60].decode("utf-8", "replace")
            raise ValueError(f"line {number}: expected {width} fields separated by tabs, got {count}: {shown!r}")
