"""What has to hold of a log's rows: their indices, classes and the column ``correct``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.findings import Finding, name_some
from pyrobust.runs.parameters import chosen_indices

_Mask = npt.NDArray[np.bool_]

#: Lines that a finding keeps.
KEPT = 100
#: Images of the sets that certification logs are mostly about.
KNOWN_SIZES = {10_000: "the test sets of MNIST and CIFAR", 50_000: "ImageNet's validation set"}


def lines_of(log: CertificationLog, where: _Mask) -> tuple[int, ...]:
    """The lines of some rows, the first hundred; of a run, which has none, the indices."""
    rows = np.flatnonzero(where)[:KEPT]
    return tuple((log.index if log.lines is None else log.lines)[rows].tolist())


def at_rows(log: CertificationLog, kind: str, where: _Mask, what: str, consequence: str = "") -> Finding:
    """A fault of some rows.

    Args:
        log: they are in.
        kind: of the finding.
        where: [N].
        what: is wrong with them.
        consequence: for the metrics.
    """
    count, lines = int(where.sum()), lines_of(log, where)
    some = name_some(lines, count, "index" if log.lines is None else "line")
    message = f"{what}: {counted_rows(count)} ({some})"
    return Finding(kind, "fault", f"{message}; {consequence}" if consequence else message, lines)


def counted_rows(count: int) -> str:
    """How many rows, in words.

    >>> counted_rows(1), counted_rows(2000)
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def first_of_each(log: CertificationLog) -> _Mask:
    """Whether a row is the first of its image."""
    if (log.index[1:] > log.index[:-1]).all():  # as nearly always; sorting takes longer
        return np.ones(len(log), dtype=bool)
    first = np.zeros(len(log), dtype=bool)
    first[np.unique(log.index, return_index=True)[1]] = True
    return first


def distinct_indices(log: CertificationLog) -> npt.NDArray[np.int64]:
    """The data-set indices of a log, rising, each once."""
    index = log.index
    if not (index[1:] > index[:-1]).all():
        index = np.sort(index)
        index = index[np.append(True, index[1:] > index[:-1])]
    return index


def check_indices(log: CertificationLog) -> Iterator[Finding]:
    """Duplicates, order, and images that are missing.

    Args:
        log: as read.

    Yields:
        Findings.
    """
    first = first_of_each(log)
    if not first.all():
        yield at_rows(
            log, "duplicate", ~first, "an image that was there before (a duplicate)", "the first row of each counts"
        )
    order = log.index[first]
    falls = np.zeros(len(log), dtype=bool)
    falls[np.flatnonzero(first)[1:]] = np.diff(order) < 0
    if falls.any():
        yield at_rows(log, "order", falls, "rows are not in order: the index falls")
    if log.header is not None:
        yield from _coverage_of_run(log.header.parameters, len(log))
        return
    yield from _gaps(distinct_indices(log))


def _coverage_of_run(parameters: dict[str, Any], images: int) -> Iterator[Finding]:
    expected = len(chosen_indices(parameters))
    if images < expected:
        message = f"the run is not finished: {images:,} of {expected:,} images"
        yield Finding("unfinished", "note", message)
    if parameters["shard"] is not None:
        yield Finding("shard", "note", "shard {} of {}; merge them all for the whole".format(*parameters["shard"]))
    if parameters["skip"] > 1:
        yield Finding("stride", "note", f"one image in {parameters['skip']:,}")


def _gaps(index: npt.NDArray[np.int64]) -> Iterator[Finding]:
    steps = np.diff(index)
    if not len(steps):
        return
    values, counts = np.unique(steps, return_counts=True)
    stride = int(values[counts.argmax()])
    if 2 * counts.max() <= len(steps):
        yield Finding("irregular", "note", "the indices have no stride: a subset that was chosen in some other way")
        return
    odd = steps % stride != 0
    missing = steps // stride - 1 + odd
    if missing.any():
        examples = (index[:-1][missing > 0] + stride)[:KEPT].tolist()
        total = int(missing.sum())
        some = name_some(examples, total, "index")
        message = f"{total:,} {'image is' if total == 1 else 'images are'} missing ({some})"
        yield Finding("missing", "fault", message + (f" from every {stride:,}th" if stride > 1 else ""))
    if stride > 1:
        yield Finding("stride", "note", f"every {stride:,}th image: {len(index):,} of about {covered(index):,}")
    if index[0] >= stride:
        yield Finding("start", "note", f"the indices begin with {int(index[0]):,}: a part of a data set")


def covered(index: npt.NDArray[np.int64]) -> int:
    """How many images a data set has at least if its indices, rising, go on to the end of a stride.

    >>> covered(np.array([0, 100, 200]))
    300
    """
    if len(index) == 1:
        return int(index[0]) + 1
    values, counts = np.unique(np.diff(index), return_counts=True)
    return int(index[-1]) + int(values[counts.argmax()])


def check_classes(log: CertificationLog) -> Iterator[Finding]:
    """Labels and predictions that are no classes.

    Args:
        log: as read.

    Yields:
        Findings.
    """
    if (log.label < 0).any():
        yield at_rows(log, "label", log.label < 0, "negative label")
    if (log.prediction < -1).any():
        yield at_rows(log, "prediction", log.prediction < -1, "prediction below -1, which is an abstention")


def check_correct(log: CertificationLog) -> Iterator[Finding]:
    """The column ``correct`` against predict == label, which alone is counted anywhere.

    Args:
        log: as read.

    Yields:
        Findings.
    """
    right, written = log.right, log.correct
    if np.array_equal(written, right):
        return
    cumulative = _cumulative(right, written)
    if cumulative:
        yield Finding(
            "cumulative-correct",
            "fault",
            f"the column correct is cumulative: {cumulative}; predict == label counts instead",
        )
        return
    flag = (written == 0) | (written == 1)
    abstained = (written == 1) & (log.prediction < 0)
    if abstained.any():
        yield at_rows(log, "abstained-correct", abstained, "abstention (predict -1) marked correct")
    against = flag & (written != right) & ~abstained
    if against.any():
        yield at_rows(log, "correct", against, "correct contradicts predict == label", "the latter counts")
    if not flag.all():
        yield at_rows(log, "correct-value", ~flag, "correct is neither 0 nor 1", "predict == label counts")


def _cumulative(right: _Mask, written: npt.NDArray[np.float64]) -> str:
    """In which way the column sums up, in words; nothing where it does not."""
    if not np.isfinite(written).all():
        return ""
    count = np.cumsum(right)
    if np.array_equal(written, count):
        return "it holds the number of right rows so far"
    mean = count / np.arange(1, len(right) + 1)
    if not np.isin(written, (0, 1)).all():
        # Means are printed with two digits at least.
        for scale, what in ((1, "share"), (100, "percentage")):
            if np.abs(written / scale - mean).max() <= 0.0051:
                return f"it holds the {what} of right rows so far"
    steps = np.diff(written, prepend=0)
    if written.max() > 1 and np.isin(steps, (0, 1)).all():
        off = int((steps != right).sum())
        return f"it counts up, and against predict == label in {counted_rows(off)}"
    if written.max() > 1 and (steps >= 0).all() and (written == np.floor(written)).all():
        return "its counts never fall, and are not those of predict == label"
    return ""
