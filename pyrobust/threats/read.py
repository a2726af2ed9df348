"""Read verdicts from the logs of several programs."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyrobust.checks import choice, file_path, finite, flag
from pyrobust.errors import FileFormatError, InputError
from pyrobust.runs.reader import is_run
from pyrobust.runs.schema import APPLICATION_ID, THREAT_VERSION
from pyrobust.threats.answers import ThreatAnswer
from pyrobust.threats.files import read_json_lines, read_parquet
from pyrobust.threats.readers import garak, inspect_ai, jailbreakbench, promptfoo, textattack
from pyrobust.threats.readers.old_run import read_threat_run
from pyrobust.threats.readers.table import read_csv
from pyrobust.threats.untrusted import check_size, mapping, parse_json, read_bytes, read_errors
from pyrobust.threats.verdicts import ThreatVerdict, ThreatVerdicts

# Formats that are one JSON object, by name: the key that identifies it, and its reader of (object, path, threshold).
# The first whose key is present counts: inspect-ai's logs also have "results".
_Reader: TypeAlias = Callable[[dict[str, Any], Path, float | None, str | None], list[ThreatVerdict]]
_OBJECTS: Final[dict[str, tuple[str, _Reader]]] = {
    "jailbreakbench": ("jailbreaks", lambda log, path, *_: jailbreakbench.read_artifact(log, path)),
    "textattack": ("Attack Results", lambda log, path, *_: textattack.read_summary(log, path)),
    "inspect-ai": (
        "eval",
        lambda log, path, limit, name: inspect_ai.verdicts_of(inspect_ai.log_parts(log, path), limit, name),
    ),
    "promptfoo": ("results", lambda log, path, _, name: promptfoo.read_results(log, path, name)),
}
# Formats whose behaviours a user can take from another field.
_NAMED: Final = ("csv", "garak", "inspect-ai", "promptfoo")
#: Formats by name.
FORMATS: Final = ("run", "verdicts", "parquet", *_OBJECTS, "garak", "csv")
_HEAD: Final = 1 << 16
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"


def read_verdicts(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    threat: str | None = None,
    threshold: float | None = None,
    invert: bool = False,
    behaviour: str | None = None,
) -> ThreatVerdicts:
    r"""Read the verdicts of a log; files are untrusted, and nothing in them is run.

    There are nine formats:

    - "run": run files of earlier versions;
    - "verdicts" and "parquet": files written by ``write_verdicts``;
    - "jailbreakbench": artifacts, and tables of their judgements;
    - "textattack": CSV logs, and JSON summaries, which contain only counts;
    - "garak": reports in JSON Lines;
    - "inspect-ai": logs in ``.json`` or ``.eval``;
    - "promptfoo": results in JSON or JSON Lines;
    - "csv": tables with the columns of ``ThreatVerdict`` and further columns.

    Args:
        path: the file.
        format: one of these names; None detects it from the content.
        threat: kind of threat of all rows. If it is None, the rows keep the kinds that the reader of their format
            assigns.
        threshold: least score that counts as success in logs of garak and inspect-ai. If it is None, the threshold is
            0.5 for inspect-ai. For garak, it is then the threshold stated in the report, or 0.5 if the report states
            none.
        invert: whether a success in the log means that the model withstood the attack, so that all results have to be
            inverted. An example is a log of inspect-ai in which correct answers are scored as successes. In promptfoo,
            a passed test always means that the model withstood the attack, so these results are inverted even without
            this argument.
        behaviour: name of the field that holds the behaviour, in place of the default for the format. For inspect-ai,
            it is a field of a sample's metadata; for garak, a field of an attempt; for promptfoo, a field of a test's
            metadata or variables; and for CSV, a column. Dots separate the names of nested fields, as in
            "notes.settings.attack". The intervals treat different behaviours as independent. If variants of one
            behaviour count as several behaviours, every interval is therefore too narrow.

    Returns:
        ThreatVerdicts, at least one row.

    Raises:
        FileFormatError: the file is missing, damaged, too large or of another format; the message names the line or the
            position.
        InputError: the format is unknown, or ``behaviour`` is given for a format that has no such field.
        MissingExtraError: a package is not installed: pandas or pyarrow for a Parquet file, or zstandard for a
            compressed log.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "table.csv"
    ...     _ = file.write_text("id,behaviour,success\n0,phishing,true\n1,fraud,\n")
    ...     read_verdicts(file).column("status")
    ['judged', 'error']
    """
    path = file_path("path", path)
    if format is not None:
        choice("format", format, FORMATS)
    limit = None if threshold is None else finite("threshold", threshold)
    flag("invert", invert)
    if format == "run" or (format is None and is_run(path)):
        form, rows = "run", list(read_threat_run(path).verdicts)
    else:
        content = read_bytes(path)
        form = format or _detect(content, path)
        rows = _read(form, content, path, limit, behaviour)
    if behaviour is not None and form not in _NAMED:
        raise InputError("behaviour", f"a field of a log of {', '.join(_NAMED)}", f"a log of {form}")
    if not rows:
        raise FileFormatError(f"{path}: expected at least one verdict, got none")
    if threat is not None:
        rows = [replace(row, threat=threat) for row in rows]
    if invert:
        rows = [row if row.success is None else replace(row, success=not row.success) for row in rows]
    try:
        return ThreatVerdicts(tuple(rows), str(path))
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from error


def read_answers(path: str | os.PathLike[str]) -> list[ThreatAnswer]:
    """Read the answers of the attacked model from a log of inspect-ai, or from a run file of earlier versions.

    Args:
        path: the file; untrusted.

    Returns:
        One ThreatAnswer for each attempt, with the ``id`` of the attempt's verdicts. If there was no answer, ``text``
        is None.

    Raises:
        FileFormatError: the file is missing or damaged, or its format has no answers.
        MissingExtraError: a log is compressed with zstandard, which is not installed.

    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "log.json"
    ...     output = {"choices": [{"message": {"content": "No way."}}]}
    ...     log = {"eval": {}, "samples": [{"id": 1, "input": "Pick a lock.", "output": output}]}
    ...     _ = file.write_text(json.dumps(log))
    ...     [(answer.id, answer.prompt.prompt, answer.text) for answer in read_answers(file)]
    [('1/1', 'Pick a lock.', 'No way.')]
    """
    path = file_path("path", path)
    if is_run(path):
        return read_threat_run(path).answers()
    content = read_bytes(path)
    if _detect(content, path) != "inspect-ai":
        raise FileFormatError(f"{path}: expected a log with answers, of inspect-ai, got another one")
    if content.startswith(b"PK"):
        return inspect_ai.answers_of(inspect_ai.archive_parts(path))
    return inspect_ai.answers_of(inspect_ai.log_parts(mapping(parse_json(content, str(path)), str(path)), path))


def is_verdicts(path: str | os.PathLike[str]) -> bool:
    r"""Whether a file begins like a log of verdicts in one of the formats of ``read_verdicts``.

    For a certification log, the result is False: the first line of such a log has names separated by tabs, and none of
    them is "success". A file that begins like a log of verdicts may still be damaged. The damage is found when the file
    is read.

    Args:
        path: a file, of any content.

    Returns:
        True or False; False for a file that is missing or not readable.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "log"
    ...     _ = file.write_text("idx\tlabel\tpredict\tradius\tcorrect\n")
    ...     before = is_verdicts(file)
    ...     _ = file.write_text("id,success\n")
    ...     before, is_verdicts(file)
    (False, True)
    """
    try:
        with check_size(file_path("path", path)).open("rb") as file:
            head = file.read(_HEAD)
        start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if head.startswith(b"SQLite"):  # application id and user version, as in read_run_row
            return head[60:72] == THREAT_VERSION.to_bytes(4, "big") + bytes(4) + APPLICATION_ID.to_bytes(4, "big")
        return start.startswith((b"{", b"[", b"PAR1", b"PK")) or _of_table(start) is not None
    except (FileFormatError, OSError):
        return False


def _of_table(start: bytes) -> str | None:
    """Return the format of a CSV file from the names in its first line; None if they fit no format."""
    with read_errors("line 1"):
        line = start[:_HEAD].split(b"\n", 1)[0].decode()
        names = set() if "\t" in line else set(next(csv.reader([line]), []))
    if names >= jailbreakbench.TABLE:
        return "jailbreakbench"
    if names >= {"original_text", "result_type"}:
        return "textattack"
    return "csv" if "success" in names else None


def _read(
    named: str, content: bytes, path: Path, threshold: float | None, behaviour: str | None
) -> list[ThreatVerdict]:
    if named == "verdicts":
        return read_json_lines(path)
    if named == "parquet":
        return read_parquet(path)
    if named == "garak":
        return garak.read_report(path, threshold, behaviour)
    if named == "csv":
        return read_csv(path, behaviour)
    if named == "inspect-ai" and content.startswith(b"PK"):
        return inspect_ai.verdicts_of(inspect_ai.archive_parts(path), threshold, behaviour)
    is_json = content.lstrip(_BLANK).startswith(b"{")
    if not is_json and named == "jailbreakbench":
        return jailbreakbench.read_table(path)
    if not is_json and named == "textattack":
        return textattack.read_table(path)
    if named == "promptfoo" and "testIdx" in _first_line(content, path):
        return promptfoo.read_lines(path, behaviour)
    return _OBJECTS[named][1](mapping(parse_json(content, str(path)), str(path)), path, threshold, behaviour)


def _detect(content: bytes, path: Path) -> str:
    """Return the format of a file from its first bytes or, for JSON, from its keys."""
    if content.startswith(b"PAR1"):
        return "parquet"
    if content.startswith(b"PK"):
        return "inspect-ai"
    start = content.lstrip(_BLANK)
    if start.startswith(b"{"):
        first = _first_line(content, path)
        lines = {"pyrobust": "verdicts", "entry_type": "garak", "testIdx": "promptfoo"}
        for key, named in lines.items():
            if key in first:
                return named
        log = mapping(parse_json(content, str(path)), str(path))
        return next((named for named, (key, _) in _OBJECTS.items() if key in log), None) or _unknown(path)
    with read_errors(str(path)):
        return _of_table(start) or _unknown(path)


def _first_line(content: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object in the first line, or an empty one if the line is not a whole JSON object."""
    try:
        first: Any = parse_json(content.lstrip(_BLANK).split(b"\n", 1)[0], str(path))
    except FileFormatError:
        return {}
    return first if isinstance(first, dict) else {}


def _unknown(path: Path) -> str:
    raise FileFormatError(f"{path}: expected verdicts in one of the formats {', '.join(FORMATS)}, got another file")
