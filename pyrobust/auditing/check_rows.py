"""Checks of a log's indices, classes and the column ``correct``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.findings import AuditFinding, format_rows, list_numbers, rows_fault
from pyrobust.runs.parameters import chosen_indices

_Mask = npt.NDArray[np.bool_]

_MAX_LINES = 100
# Largest share of rows that may be strays, of classes outside those of the other rows; number of rows that makes a
# class certain; and logarithm of the probability below which a log is not believed to lack classes by chance.
_STRAY, _SEEN, _LOG_CHANCE = 0.01, 8, float(np.log(1e-9))
# Least number of rows that shows how classes are numbered, and largest number of classes whose order is compared.
_MIN_NUMBERED, _MAX_ORDERED = 20, 200
# Share of a data set of known size below which images missing at the end mean an unfinished log, not a choice.
_MISSING_AT_END = 0.05
#: Sizes of the data sets most often certified.
KNOWN_SIZES = {
    10_000: "the test sets of MNIST and CIFAR",
    26_032: "the test set of SVHN",
    50_000: "ImageNet's validation set",
    60_000: "the training set of MNIST",
}


def row_fault(log: CertificationLog, kind: str, rows: _Mask, problem: str, consequence: str = "") -> AuditFinding:
    """Return the fault of the rows that a mask [N] selects; it names line numbers or, for a run, indices."""
    numbers, noun = (log.index, "index") if log.lines is None else (log.lines, "line")
    return rows_fault(kind, numbers[rows], problem, noun, consequence)


def first_rows(log: CertificationLog) -> _Mask:
    """Return a mask of the first row of each image."""
    if (log.index[1:] > log.index[:-1]).all():  # the usual case, without sorting
        return np.ones(len(log), dtype=bool)
    first = np.zeros(len(log), dtype=bool)
    first[np.unique(log.index, return_index=True)[1]] = True
    return first


def distinct_indices(log: CertificationLog) -> npt.NDArray[np.int64]:
    """Return the data-set indices of a log, sorted and without duplicates."""
    index = log.index
    if not (index[1:] > index[:-1]).all():
        index = np.sort(index)
        index = index[np.append(True, index[1:] > index[:-1])]
    return index


def check_indices(log: CertificationLog) -> Iterator[AuditFinding]:
    """Flag duplicate, unordered and missing images; note strides and subsets."""
    first = first_rows(log)
    if not first.all():
        yield row_fault(log, "duplicate", ~first, "duplicate image", "the first row of each image counts")
    order = log.index[first]
    decreasing = np.zeros(len(log), dtype=bool)
    decreasing[np.flatnonzero(first)[1:]] = np.diff(order) < 0
    if decreasing.any():
        yield row_fault(log, "order", decreasing, "rows out of order, with a decreasing index")
    if log.header is not None:
        yield from check_coverage(log.header.parameters, len(log))
        return
    yield from _text_coverage(distinct_indices(log))


def check_coverage(parameters: dict[str, Any], images: int) -> Iterator[AuditFinding]:
    """Note which part of the data set a run with these parameters does not cover."""
    expected = len(chosen_indices(parameters))
    if images < expected:
        yield AuditFinding("unfinished", "note", f"unfinished run: {images:,} of {expected:,} images")
    if parameters["shard"] is not None:
        yield AuditFinding(
            "shard", "note", "shard {} of {}; merge all shards for the sweep".format(*parameters["shard"])
        )
    if parameters["skip"] > 1:
        yield AuditFinding("stride", "note", f"one image in {parameters['skip']:,}")


def _text_coverage(index: npt.NDArray[np.int64]) -> Iterator[AuditFinding]:
    steps = np.diff(index)
    if not len(steps):
        return
    values, counts = np.unique(steps, return_counts=True)
    stride = int(values[counts.argmax()])
    if 2 * counts.max() <= len(steps):
        yield AuditFinding("irregular", "note", "irregular indices, without a common stride: an arbitrary subset")
        return
    off_stride = steps % stride != 0
    missing = steps // stride - 1 + off_stride
    if missing.any():
        examples = (index[:-1][missing > 0] + stride)[:_MAX_LINES].tolist()
        total = int(missing.sum())
        listed = list_numbers(examples, total, "index")
        message = f"{total:,} missing {'image' if total == 1 else 'images'} ({listed})"
        yield AuditFinding("missing", "fault", message + (f" at a stride of {stride:,}" if stride > 1 else ""))
    yield from _missing_at_end(index, stride)
    if stride > 1:
        size = minimum_size(index)
        yield AuditFinding("stride", "note", f"every {stride:,}th image: {len(index):,} of about {size:,}")
    if index[0] >= stride:
        yield AuditFinding("start", "note", f"first index {int(index[0]):,}: part of a data set")


def _missing_at_end(index: npt.NDArray[np.int64], stride: int) -> Iterator[AuditFinding]:
    """Flag a log that stops shortly before a data set of known size does, unless the log's image count is round."""
    last = int(index[-1])
    size = min((size for size in KNOWN_SIZES if size > last), default=0)
    expected, count = range(0, size, stride), last // stride + 1
    missing = len(expected) - count
    if 0 < missing < _MISSING_AT_END * len(expected) and count % 100:
        listed = list_numbers(list(expected[count:][:_MAX_LINES]), missing, "index")
        images = f"{missing:,} missing {'image' if missing == 1 else 'images'} at the end ({listed})"
        yield AuditFinding("missing", "fault", f"{images} of {size:,}, the size of {KNOWN_SIZES[size]}")


def minimum_size(index: npt.NDArray[np.int64]) -> int:
    """Return the last of these sorted indices plus their most common stride (1 for one index), as a data set's size.

    >>> minimum_size(np.array([0, 100, 200]))
    300
    """
    if len(index) == 1:
        return int(index[0]) + 1
    values, counts = np.unique(np.diff(index), return_counts=True)
    return int(index[-1]) + int(values[counts.argmax()])


def check_classes(log: CertificationLog) -> Iterator[AuditFinding]:
    """Flag labels and predictions that are not classes, or are not among the classes of the other rows."""
    classes = None if log.header is None else int(log.header.parameters["num_classes"])
    for kind, column, lowest, problem in (
        ("label", log.label, 0, "negative label"),
        ("prediction", log.prediction, -1, "prediction below -1 (-1 is an abstention)"),
    ):
        if (column < lowest).any():
            yield row_fault(log, kind, column < lowest, problem)
    label = log.label[log.label >= 0]
    if classes is None:
        last_label = _last_class(label)
        labels, counts = np.unique(label[label <= last_label], return_counts=True)
        if 0 < len(labels) == last_label + 1 and counts.min() >= _SEEN:
            last = last_label  # every class is among the labels
        else:
            last = max(
                last_label, _last_class(np.append(label[label <= last_label], log.prediction[log.prediction >= 0]))
            )
    else:
        last_label = last = classes - 1
    for kind, column, largest in (("label", log.label, last_label), ("prediction", log.prediction, last)):
        outside = column > largest
        if outside.any():
            problem = f"{kind} {int(column[outside].max())}, outside the {largest + 1:,} classes of the other rows"
            if outside.sum() <= max(1, _STRAY * len(log)):
                yield row_fault(log, kind, outside, problem)
            else:
                yield AuditFinding("classes", "note", f"{problem}: {format_rows(int(outside.sum()))}")


def check_numbering(log: CertificationLog) -> Iterator[AuditFinding]:
    """Flag labels that start at 1 where predictions start at 0, or the reverse; note classes in another order."""
    rows = (log.prediction >= 0) & (log.label >= 0)
    label, prediction = log.label[rows], log.prediction[rows]
    if len(label) < _MIN_NUMBERED:
        return
    correct = int((label == prediction).sum())
    for shift in (1, -1):
        shifted = int((label == prediction + shift).sum())
        if shifted > max(_MIN_NUMBERED, 4 * correct, 0.4 * len(label)):
            share, shifted_share = 100 * correct / len(label), 100 * shifted / len(label)
            yield AuditFinding(
                "numbering",
                "fault",
                f"labels {int(label.min())} to {int(label.max())} beside predictions {int(prediction.min())} to "
                f"{int(prediction.max())}: label == predict {shift:+d} in {shifted_share:.0f} % of rows, "
                f"label == predict in {share:.0f} %",
            )
            return
    classes = int(max(label.max(), prediction.max())) + 1
    if classes > _MAX_ORDERED or len(label) < 20 * classes:
        return
    pairs = np.bincount(label * classes + prediction, minlength=classes**2).reshape(classes, classes)
    best = int(pairs[optimize.linear_sum_assignment(pairs, maximize=True)].sum())
    if best > max(2 * correct, min(0.75, max(0.3, 2.5 / classes)) * len(label)):
        message = (
            f"predict == label in {100 * correct / len(label):.0f} % of rows, in {100 * best / len(label):.0f} % with "
            "labels in another order: the classes are probably numbered in two ways"
        )
        yield AuditFinding("numbering", "note", message)


def _last_class(values: npt.NDArray[np.int64]) -> int:
    """Return the largest class that is not a stray; -1 if there is none.

    A stray is a rare class that lies far above all other classes, or that is much rarer than each of them. The first
    means that the absence of all classes in between has a probability below 10⁻⁹ by chance. The second means that a
    count as small as that of the stray has a probability below 10⁻⁹ by chance. Both probabilities assume that the
    frequencies of classes differ by at most a factor of four.
    """
    classes, counts = np.unique(values, return_counts=True)
    while len(classes) > 1:
        largest, count, others = int(classes[-1]), int(counts[-1]), int(counts[:-1].sum())
        gap = (largest - int(classes[-2]) - 1) / (4 * (largest + 1))
        far = others * np.log1p(-gap) < _LOG_CHANCE
        rare = special.pdtr(count, counts[:-1].min() / 4) < np.exp(_LOG_CHANCE)
        if count > max(1, _STRAY * others) or not (far or rare):
            break
        classes, counts = classes[:-1], counts[:-1]
    return int(classes[-1]) if len(classes) else -1


def check_correct(log: CertificationLog) -> Iterator[AuditFinding]:
    """Flag values of the column ``correct`` that contradict predict == label, from which all metrics are computed."""
    correct, written = log.is_correct, log.correct
    if np.array_equal(written, correct):
        return
    cumulative = _cumulative(correct, written)
    if cumulative:
        yield AuditFinding(
            "cumulative-correct",
            "fault",
            f"column correct is cumulative: {cumulative}; predict == label is used instead",
        )
        return
    flag = (written == 0) | (written == 1)
    abstained = (written == 1) & (log.prediction < 0)
    if abstained.any():
        yield row_fault(log, "abstained-correct", abstained, "abstention (predict -1) marked correct")
    contradiction = flag & (written != correct) & ~abstained
    if contradiction.any():
        problem = "correct contradicts predict == label"
        yield row_fault(log, "correct", contradiction, problem, "predict == label is used")
    if not flag.all():
        yield row_fault(log, "correct-value", ~flag, "correct is neither 0 nor 1", "predict == label is used")


def _cumulative(correct: _Mask, written: npt.NDArray[np.float64]) -> str:
    """Describe how the column accumulates; "" if it does not."""
    if not np.isfinite(written).all():
        return ""
    count = np.cumsum(correct)
    if np.array_equal(written, count):
        return "it holds the running count of correct rows"
    mean = count / np.arange(1, len(correct) + 1)
    if not np.isin(written, (0, 1)).all():
        # Running means are printed with at least two digits.
        for scale, quantity in ((1, "share"), (100, "percentage")):
            if np.abs(written / scale - mean).max() <= 0.0051:
                return f"it holds the running {quantity} of correct rows"
    steps = np.diff(written, prepend=0)
    if written.max() > 1 and np.isin(steps, (0, 1)).all():
        contradictions = int((steps != correct).sum())
        return f"it holds a running count that contradicts predict == label in {format_rows(contradictions)}"
    if written.max() > 1 and (steps >= 0).all() and (written == np.floor(written)).all():
        return "it holds counts that never decrease and do not match predict == label"
    return ""
