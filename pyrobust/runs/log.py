"""Tab-separated text logs, with the columns of the reference certification script."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.checks import WORDS, file_path, flag
from pyrobust.errors import FileFormatError
from pyrobust.runs.kinds import KINDS
from pyrobust.runs.kinds.values import is_name
from pyrobust.runs.log_header import BEGINS, encode_header, header_path
from pyrobust.runs.reader import BLOCK, expect_file
from pyrobust.runs.run import Run
from pyrobust.zoo.files import check_output, write_atomically

_REAL = ("radius", "distance", "lower", "upper", "time")
_NAMES = ("broken_by", "lower_by", "upper_by")
#: Longest line that is read: the largest double has 309 digits, and a usual line has 40 bytes.
MAX_LINE_BYTES = 1000
#: Largest log that is read.
MAX_LOG_BYTES = 1 << 30


def format_seconds(seconds: float) -> str:
    """Format a duration as h:mm:ss.ffffff, with as many hours as needed and always six decimals.

    >>> format_seconds(3675.5)
    '1:01:15.500000'
    """
    total = round(seconds * 1_000_000)
    minutes, micro = divmod(total, 60_000_000)
    return f"{minutes // 60}:{minutes % 60:02d}:{micro // 1_000_000:02d}.{micro % 1_000_000:06d}"


def format_log(run: Run) -> str:
    r"""Format a run as a tab-separated log of the reference implementation (Cohen, Rosenfeld and Kolter, 2019).

    The columns are idx, label, predict (-1: abstained), radius (six decimals, rounded down), correct (0 or 1) and time.
    Logs of predictions have no column radius. For a verification at given epsilons, the radius is the largest verified
    epsilon. Logs of attacks have the columns adversarial, distance, broken_by and robust instead of radius. If the
    model is robust at an image, distance and broken_by are empty. Logs of sandwiches have the columns lower, lower_by,
    upper, upper_by and adversarial instead of radius. The columns lower (rounded down) and upper are bounds of the
    distance to misclassification. The columns lower_by and upper_by name the methods that gave these bounds. If no
    adversarial example was found, upper and upper_by are empty.

    Args:
        run: a run of any kind.

    Returns:
        The text, with a header line. The rows are sorted by index, and every line ends with a newline.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> format_log(run).splitlines()[1].split("\t")[:3]
    ['0', '0', '0']
    """
    lines = ["\t".join(run.header.type.log) + "\n"]
    for start in range(0, len(run.table["index"]), BLOCK):
        lines.append(_format_rows(run, slice(start, start + BLOCK)))
    return "".join(lines)


def _format_rows(run: Run, rows: slice) -> str:
    kind, table = run.header.type, {name: column[rows] for name, column in run.table.items()}
    columns: dict[str, list[Any]] = {
        "idx": table["index"].tolist(),
        "predict": table["prediction"].tolist(),
        "correct": run.correct[rows].astype(int).tolist(),
        "time": [format_seconds(seconds) for seconds in table["seconds"].tolist()],
    }
    for name in kind.log:
        if name not in columns:
            columns[name] = kind.columns[name].log(table[name]) if name in table else kind.logged(name, table)
    lines = zip(*(columns[name] for name in kind.log), strict=True)
    return "".join("\t".join(map(str, line)) + "\n" for line in lines)


def write_log(run: Run, path: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Write the text of `format_log` to a file atomically, and the run's parameters beside it.

    The second file is named after the log, with the suffix ``.json``. It holds the hash of the log, and the run's kind,
    parameters, model, data and guarantee. `pyrobust.evaluation.read_certification_log` reads sigma, n, alpha and method
    from this file.

    Args:
        run: a run of any kind.
        path: the file. An existing log of the same kind of run is overwritten. The file of the run itself is never
            overwritten.
        replace: whether an existing file of any other kind may also be overwritten.

    Raises:
        InputError: the path is the file of the run, or an existing file that is not a log of this kind of run.
        StoreError: the file cannot be written; an existing file stays unchanged.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_log(run, Path(folder) / "log.tsv")
    ...     read_log(Path(folder) / "log.tsv")["predict"]
    array([0, 1, 2, 3])
    """
    path = file_path("path", path)
    check_log_output("path", run, path, replace=flag("replace", replace))
    content = format_log(run).encode()
    write_atomically(path, content)
    if path.is_file():  # not a device or pipe
        write_atomically(header_path(path), encode_header(run.header, content, run.machines, run.set_aside))


def check_log_output(option: str, run: Run, path: str | os.PathLike[str], *, replace: bool) -> None:
    """Raise InputError, which names the option or argument, if the log of a run must not be written to a file."""
    header = "\t".join(run.header.type.log) + "\n"
    check_output(option, path, inputs=run.files, replace=replace, begins=header.encode())
    check_output(option, header_path(Path(path)), inputs=run.files, replace=replace, begins=BEGINS)


def read_log(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    r"""Read a log with the columns of `format_log`, written by this or another program.

    Args:
        path: the file; untrusted.

    Returns:
        A dictionary of columns by their names in the file. The columns idx, label, predict, adversarial, correct and
        robust are int64. The columns radius and distance are float64, NaN where empty. The columns lower and upper are
        float64, inf where empty. The column time is float64, in seconds. The columns broken_by, lower_by and upper_by
        are str.

    Raises:
        FileFormatError: the file is missing or not a log with these columns; the message names the line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "log.tsv"
    ...     _ = file.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t0.377\t1\t0:00:14.172309\n")
    ...     read_log(file)["radius"]
    array([0.377])
    """
    path = file_path("path", path)
    lines = _read_lines(path)
    first = next(lines)
    names = tuple(first.split("\t"))
    layouts = [kind.log for kind in KINDS.values()]
    if names not in layouts:
        expected = " or ".join(dict.fromkeys(map(" ".join, layouts)))
        raise FileFormatError(f"{path}: line 1: expected the columns {expected}, separated by tabs; got {first[:80]!r}")
    # An array takes eight bytes for each number, a list takes forty.
    values: dict[str, Any] = {name: array("d") if name in _REAL else array("q") for name in names}
    values |= {name: [] for name in _NAMES if name in values}
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t")
        if len(fields) != len(names):
            raise FileFormatError(
                f"{path}: line {number}: expected {len(names)} fields, got {len(fields)}: {line[:80]!r}"
            )
        for name, text in zip(names, fields, strict=True):
            try:
                values[name].append(_parse(name, text))
            except ValueError as error:
                raise FileFormatError(f"{path}: line {number}: {name}: {error}, got {text[:40]!r}") from error
    types = dict.fromkeys(_REAL, np.float64) | dict.fromkeys(_NAMES, np.str_)
    columns = {name: np.array(column, types.get(name, np.int64)) for name, column in values.items()}
    if len(np.unique(columns["idx"])) < len(columns["idx"]):
        raise FileFormatError(f"{path}: duplicate image index; expected one line an image")
    return columns


def _read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a log, at least one, without their line ends."""
    expect_file(path, "a log")
    number = 1
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            raise FileFormatError(f"{path}: expected a log of at most {MAX_LOG_BYTES} bytes")
        with path.open(encoding="ascii", newline="\n") as file:
            line = file.readline(MAX_LINE_BYTES)
            # A line is yielded before its end is checked, so that the header of another format is reported first.
            yield line.removesuffix("\n").removesuffix("\r")
            while line:
                if not line.endswith("\n"):
                    problem = "too long" if len(line) == MAX_LINE_BYTES else "incomplete; the file is truncated"
                    raise FileFormatError(f"{path}: line {number}: {problem}")
                if number > 1:
                    yield line.removesuffix("\n").removesuffix("\r")
                line = file.readline(MAX_LINE_BYTES)
                number += 1
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: not a readable log ({error})") from error


def _parse(name: str, text: str) -> int | float | str:
    if name in _NAMES:
        if text and not is_name(text):
            raise ValueError("expected a name")
        return text
    if name in ("distance", "upper") and not text:
        return math.nan if name == "distance" else math.inf
    if "_" in text or text != text.strip():
        raise ValueError("expected a number")
    if name == "time":
        fields = text.split(":")
        if len(fields) != 3 or not (fields[0].isdigit() and fields[1].isdigit()):
            raise ValueError("expected h:mm:ss.ffffff")
        seconds = int(fields[0]) * 3600 + int(fields[1]) * 60 + float(fields[2])
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError("expected h:mm:ss.ffffff")
        return seconds
    if name in _REAL:
        number = float(text)
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(f"expected a finite {name} of at least 0")
        return number
    value = int(text)
    flag, class_ = (0, 2), (-1, WORDS)
    ranges = {"predict": class_, "adversarial": class_, "correct": flag, "robust": flag}
    low, high = ranges.get(name, (0, WORDS))
    if not low <= value < high:
        raise ValueError(f"expected an integer from {low} to {high - 1}")
    return value
