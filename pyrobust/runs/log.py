"""Logs as text: the tab-separated columns that certification scripts write and read."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator
from decimal import ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.checks import WORDS
from pyrobust.errors import FileFormatError
from pyrobust.runs.parameters import is_name
from pyrobust.runs.run import Run
from pyrobust.zoo.files import write_atomically

#: Columns of the log of each kind of run, in this order.
COLUMNS: dict[str, tuple[str, ...]] = {
    "certify": ("idx", "label", "predict", "radius", "correct", "time"),
    "predict": ("idx", "label", "predict", "correct", "time"),
    "verify": ("idx", "label", "predict", "radius", "correct", "time"),
    "attack": ("idx", "label", "predict", "adversarial", "distance", "broken_by", "correct", "robust", "time"),
}
_REAL = ("radius", "distance", "time")
#: Decimals of a printed radius.
RADIUS_DECIMALS = 6

# Of a line, and of a file, that is read: the largest double has 309 digits; a line of a million images' log has 40.
_LONGEST_LINE = 1000
_LARGEST_LOG = 1 << 30
# Enough digits for every double, of which none is then rounded before it is rounded down.
_EXACT = Context(prec=400)


def format_radius(radius: float) -> str:
    """A radius with six decimals, rounded down: what is printed is never more than what was proved.

    >>> format_radius(0.9999999), format_radius(0.25)
    ('0.999999', '0.250000')
    """
    return f"{Decimal(radius).quantize(Decimal(1).scaleb(-RADIUS_DECIMALS), ROUND_FLOOR, _EXACT):f}"


def format_seconds(seconds: float) -> str:
    """A duration as h:mm:ss.ffffff, hours beyond 24 and all six decimals always written.

    >>> format_seconds(3675.5)
    '1:01:15.500000'
    """
    total = round(seconds * 1_000_000)
    minutes, micro = divmod(total, 60_000_000)
    return f"{minutes // 60}:{minutes % 60:02d}:{micro // 1_000_000:02d}.{micro % 1_000_000:06d}"


def format_log(run: Run) -> str:
    r"""A run as the tab-separated log of the reference implementation (Cohen, Rosenfeld and Kolter 2019).

    Columns idx, label, predict (-1: abstained), radius (six decimals, rounded down), correct (0 or 1), time; the logs
    of predictions have no radius. Of a verification at given epsilons, the radius is the largest that was verified. Of
    an attack, distance and broken_by are empty where the image withstood.

    Args:
        run: of any kind; rows are sorted by index.

    Returns:
        The text with its header, each line ended.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> format_log(run).splitlines()[1].split("\t")[:3]
    ['0', '0', '0']
    """
    table = run.table
    lines = ["\t".join(COLUMNS[run.kind])]
    columns = {
        "idx": table["index"].tolist(),
        "label": table["label"].tolist(),
        "predict": table["prediction"].tolist(),
        "correct": run.right.astype(int).tolist(),
        "time": [format_seconds(seconds) for seconds in table["seconds"].tolist()],
    }
    if "radius" in table:
        columns["radius"] = [format_radius(radius) for radius in table["radius"].tolist()]
    elif run.kind == "attack":
        columns |= {name: table[name].tolist() for name in ("adversarial", "broken_by")}
        columns["distance"] = ["" if math.isnan(distance) else distance for distance in table["distance"].tolist()]
        columns["robust"] = run.robust.astype(int).tolist()
    for row in zip(*(columns[name] for name in COLUMNS[run.kind]), strict=True):
        lines.append("\t".join(map(str, row)))
    return "\n".join(lines) + "\n"


def write_log(run: Run, path: str | os.PathLike[str]) -> None:
    """Writes `format_log` so that the file is there whole or not at all.

    Args:
        run: of any kind.
        path: the file; replaced if it is there.

    Raises:
        StoreError: the file cannot be written; what was there before stays.

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
    write_atomically(path, format_log(run).encode())


def read_log(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    r"""Reads a log with the columns of `format_log`, from this or another program.

    Args:
        path: the file; untrusted.

    Returns:
        The columns by the names in the file: idx, label, predict, adversarial, correct and robust int64, radius and
        distance float64 (NaN where empty), time float64 in seconds, broken_by str.

    Raises:
        FileFormatError: the file is missing or is no such log; the message names the line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "log.tsv"
    ...     _ = file.write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t3\t3\t0.377\t1\t0:00:14.172309\n")
    ...     read_log(file)["radius"]
    array([0.377])
    """
    path = Path(path)
    lines = _lines(path)
    first = next(lines)
    names = tuple(first.split("\t"))
    if names not in COLUMNS.values():
        expected = " or ".join(dict.fromkeys(" ".join(columns) for columns in COLUMNS.values()))
        raise FileFormatError(f"{path}: line 1: expected the columns {expected}, separated by tabs; got {first[:80]!r}")
    # Arrays, which take eight bytes a number where lists take forty.
    values: dict[str, Any] = {name: array("d") if name in _REAL else array("q") for name in names}
    if "broken_by" in values:
        values["broken_by"] = []
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
    types = dict.fromkeys(_REAL, np.float64) | {"broken_by": np.str_}
    columns = {name: np.array(column, types.get(name, np.int64)) for name, column in values.items()}
    if len(np.unique(columns["idx"])) < len(columns["idx"]):
        raise FileFormatError(f"{path}: an image is there twice; use a log with one line an image")
    return columns


def _lines(path: Path) -> Iterator[str]:
    """The lines of a log, without their ends; at least one."""
    if not path.is_file():
        what = "a folder" if path.is_dir() else "nothing"
        raise FileFormatError(f"{path}: expected a log, found {what} there; check the path")
    number = 1
    try:
        if path.stat().st_size > _LARGEST_LOG:
            raise FileFormatError(f"{path}: expected a log of at most {_LARGEST_LOG} bytes; no log has that many lines")
        with path.open(encoding="ascii", newline="\n") as file:
            line = file.readline(_LONGEST_LINE)
            yield line.removesuffix("\n").removesuffix("\r")
            # Of the first line its end comes second: another kind of file is told by what it says.
            while line:
                if not line.endswith("\n"):
                    what = "is too long" if len(line) == _LONGEST_LINE else "has no end; the file was cut off"
                    raise FileFormatError(f"{path}: line {number}: {what}")
                if number > 1:
                    yield line.removesuffix("\n").removesuffix("\r")
                line = file.readline(_LONGEST_LINE)
                number += 1
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: not a readable log ({error})") from error


def _parse(name: str, text: str) -> int | float | str:
    if name == "broken_by":
        if text and not is_name(text):
            raise ValueError("expected the name of an attack")
        return text
    if name == "distance" and not text:
        return math.nan
    if "_" in text or text != text.strip():
        raise ValueError("expected a number")
    if name == "time":
        parts = text.split(":")
        if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
            raise ValueError("expected h:mm:ss.ffffff")
        seconds = int(parts[0]) * 3600 + int(parts[1]) * 60 + float(parts[2])
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
        raise ValueError(f"expected {low} to {high - 1}")
    return value
