"""Check for rows that repeat other rows under another index."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.check_rows import first_rows, row_fault
from pyrobust.auditing.findings import AuditFinding

_Ints = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]

# Logarithm of the probability below which repeated rows are no chance, and number of neighbouring rows compared at
# once.
_LOG_CHANCE, _WINDOW = -24.0, 12
_MIN_ROWS, _MIN_COPIES = 30, 3
# Share of neighbours of equal label, above chance, from which a log counts as sorted by class.
_CLUSTERED = 0.05
# Share of distinct times from which repeated times allow a conclusion.
_DISTINCT = 0.5


def check_copies(log: CertificationLog) -> Iterator[AuditFinding]:
    """Flag rows that repeat label, prediction, radius and time of others, and blocks that repeat all but the times."""
    rows = np.flatnonzero(first_rows(log))
    if len(rows) < _MIN_ROWS or not log.smoothed:
        return
    label = np.unique(log.label[rows], return_inverse=True)[1]
    content = _code(log.label[rows], log.prediction[rows], log.radius[rows])
    copied = np.zeros(len(rows), dtype=bool)
    seconds = None if log.seconds is None else log.seconds[rows]
    if seconds is not None:
        copied = _same_times(content, seconds)
    if not copied.any():
        copied = _repeated_blocks(content, label)
    if copied.any():
        mask = np.zeros(len(log), dtype=bool)
        mask[rows[copied]] = True
        yield row_fault(log, "copied", mask, "row that repeats label, prediction and radius of another image")
        return
    if seconds is None or log.run is not None:
        return
    if (seconds == seconds[0]).all() and seconds[0] > 0:
        yield AuditFinding("time", "note", f"all times are {seconds[0]:g} s")
        return
    times = _code(seconds)
    if int(times.max()) < _DISTINCT * len(times):
        return
    copied = _repeated_blocks(times, np.zeros(len(times), dtype=np.int64))
    if copied.any():
        mask = np.zeros(len(log), dtype=bool)
        mask[rows[copied]] = True
        yield row_fault(log, "copied-time", mask, "time that repeats, with its neighbours, times of other rows")


def _code(*columns: npt.NDArray[np.float64] | _Ints) -> _Ints:
    """Assign a number to each row of some columns: equal rows get equal numbers, distinct rows get distinct numbers."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values = np.unique(column, return_inverse=True)[1].astype(np.int64)
        code = np.unique(code * (int(values.max()) + 1) + values, return_inverse=True)[1].astype(np.int64)
    return code


def _same_times(content: _Ints, seconds: npt.NDArray[np.float64]) -> _Mask:
    """Mark copies among rows of equal time, if chance cannot explain how many of these rows have equal content."""
    order = np.lexsort((np.arange(len(content)), content, seconds))
    same_time = seconds[order][1:] == seconds[order][:-1]
    same = same_time & (content[order][1:] == content[order][:-1])
    copied = np.zeros(len(content), dtype=bool)
    equal, pairs = int(same.sum()), int(same_time.sum())
    # Share of pairs of equal content; after sorting, the pairs of one time lie side by side.
    share = float((np.bincount(content) / len(content)) @ (np.bincount(content) / len(content)))
    sizes = np.diff(np.append(np.flatnonzero(np.append(True, ~same_time)), len(content)))
    chance = min(1.0, share * float(sizes.max()))
    if equal >= _MIN_COPIES and special.bdtrc(equal - 1, pairs, chance) < np.exp(_LOG_CHANCE):
        copied[order[1:][same]] = True
    return copied


def _repeated_blocks(content: _Ints, label: _Ints) -> _Mask:
    """Flag the rows of blocks that repeat an earlier block, if chance cannot explain this repetition.

    The probability of a repetition by chance is computed from the frequencies of the contents of rows. In logs sorted
    by class, neighbours share their label, so the frequencies are those among rows of the same label.
    """
    size = len(content)
    copied = np.zeros(size, dtype=bool)
    if size < 2 * _WINDOW:
        return copied
    share = np.bincount(label) / size
    if (label[1:] == label[:-1]).mean() < 2 * float(share @ share) + _CLUSTERED:
        label = np.zeros(size, dtype=np.int64)
    rarity = -np.log(np.bincount(content)[content] / np.bincount(label)[label])
    evidence = np.convolve(rarity, np.ones(_WINDOW), "valid")
    # A hash of each window; windows with a repeated hash are compared in full.
    weights = np.random.default_rng(0).integers(1, 2**63 - 1, int(content.max()) + 1, dtype=np.uint64)
    multiplier, window = np.uint64(0x9E3779B97F4A7C15), np.zeros(size - _WINDOW + 1, dtype=np.uint64)
    for step in range(_WINDOW):
        window = window * multiplier + weights[content[step : size - _WINDOW + 1 + step]]
    _, first, inverse = np.unique(window, return_index=True, return_inverse=True)
    earlier = first[inverse]
    starts = np.flatnonzero((earlier < np.arange(len(window))) & (evidence > 2 * np.log(size) - _LOG_CHANCE))
    for step in range(_WINDOW):
        starts = starts[content[starts + step] == content[earlier[starts] + step]]
    for step in range(_WINDOW):
        copied[starts + step] = True
    return copied
