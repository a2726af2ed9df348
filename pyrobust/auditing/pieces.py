"""Changes within a log: rows made with other parameters than the rows around them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.candidates import ROUND_N, oddness
from pyrobust.auditing.fit import Fit
from pyrobust.auditing.formulas import Parameters
from pyrobust.auditing.judgement import AS_WELL, BELIEVED, explain
from pyrobust.auditing.printed_radii import PrintedRadii

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]

# Kuiper's statistic at which contradictory rows are not evenly spread, at level 10⁻⁵, and least number of these rows.
_UNEVEN, _MIN_CONTRADICTORY = 2.8, 5
# Least number of rows of a piece, and numbers of explanations of each piece that are tried, and listed.
_MIN_PIECE, _TRIED, _LISTED = 20, 12, 3


@dataclass(frozen=True, eq=False)
class Change:
    """A block of rows made with other parameters than the rows around it; rows without radii are not counted.

    Attributes:
        start: first row of the block.
        stop: row after the block.
        piece: fits of the parameters that explain the block's radii, usual parameters first.
        others: fits of the parameters that explain the other radii.
    """

    start: int
    stop: int
    piece: tuple[Fit, ...]
    others: tuple[Fit, ...]


def find_change(radius: _Floats, decimals: _Ints, fit: Fit, level: float, free: Iterable[str] = ()) -> Change | None:
    """Find the block of a log, if any, whose radii contradict the parameters that fit all rows best.

    Radii and decimals are [N], in file order. ``level`` is the score of the best parameters for all rows. The result is
    None if the contradictory rows are spread over the whole log, or if no block with parameters of its own raises the
    total score far above ``level`` and far above the score of ``fit``. It is also None if there are too few rows in the
    block or outside of it.
    """
    radii, own_scores = fit.radii, fit.row_scores()
    if radii.rows < 2 * _MIN_PIECE:
        return None
    if np.count_nonzero(own_scores < 0) >= _MIN_CONTRADICTORY:
        dense = _densest(own_scores < 0)
        if dense is None:
            return None
        tried = _explanations(radius[dense], decimals[dense], fit.parameters, free)
    else:
        tried = _fewer_samples(radius, decimals, fit.parameters)
    best, piece = -np.inf, (0, 0, fit.parameters, fit.parameters)
    for parameters in tried:
        better = Fit(radii, parameters).row_scores() - own_scores
        for scores, inside, outside in (
            (better, parameters, fit.parameters),
            (-better, fit.parameters, parameters),
        ):
            gain, start, stop = _largest_sum(scores)
            gain += 0.0 if outside is fit.parameters else float(better.sum())
            if gain > best:
                best, piece = gain, (start, stop, inside, outside)
    start, stop, inside, outside = piece
    if (
        best + min(0.0, fit.score - level) < BELIEVED + 2 * np.log(radii.rows)
        or min(stop - start, len(radius) - stop + start) < _MIN_PIECE
    ):
        return None
    rows = np.zeros(len(radius), dtype=bool)
    rows[start:stop] = True
    # Both sides are explained afresh: parameters that explain all rows, or a part of one side, best may hold for
    # neither side.
    sides = []
    for chosen, parameters in ((rows, inside), (~rows, outside)):
        others = _explanations(radius[chosen], decimals[chosen], fit.parameters, free)
        radii = PrintedRadii(radius[chosen], decimals[chosen])
        sides.append(_fits(radii, [parameters, *tried, *others], fit.parameters, free))
    return Change(start, stop, *sides)


def _densest(marked: _Mask) -> _Mask | None:
    """Mark the block with the largest excess of marked rows over an even spread; None if chance explains the excess."""
    total = int(marked.sum())
    excess = np.append(0.0, np.cumsum(marked) / total - np.arange(1, len(marked) + 1) / len(marked))
    lowest, highest = int(excess.argmin()), int(excess.argmax())
    if (excess[highest] - excess[lowest]) * np.sqrt(total) < _UNEVEN:
        return None
    between = np.zeros(len(marked), dtype=bool)
    between[min(lowest, highest) : max(lowest, highest)] = True
    return between if lowest < highest else ~between


def _largest_sum(scores: _Floats) -> tuple[float, int, int]:
    """Find the interval of consecutive scores with the largest sum; return this sum and the interval."""
    total = np.append(0.0, np.cumsum(scores))
    least = np.minimum.accumulate(total)
    stop = int((total - least).argmax())
    start = int(total[: stop + 1].argmin())
    return float(total[stop] - total[start]), start, stop


def _explanations(radius: _Floats, decimals: _Ints, assumed: Parameters, free: Iterable[str]) -> list[Parameters]:
    fits = explain(PrintedRadii(radius, decimals), assumed, free)
    best = max((fit.score for fit in fits), default=0.0)
    return [fit.parameters for fit in fits if fit.score >= best - BELIEVED / 2][:_TRIED]


def _fewer_samples(radius: _Floats, decimals: _Ints, assumed: Parameters) -> list[Parameters]:
    """Return smaller usual n that explain the first or the second half of the rows far better."""
    half, changes = len(radius) // 2, []
    if half < _MIN_PIECE:
        return []
    for rows in (slice(None, half), slice(half, None)):
        radii = PrintedRadii(radius[rows], decimals[rows])
        largest, assumed_score = radii.largest(30), Fit(radii, assumed).score
        for n in ROUND_N:
            parameters = replace(assumed, n=n)
            likely = n < assumed.n and Fit(largest, parameters).attainable.mean() > 0.9
            if likely and Fit(radii, parameters).score > assumed_score + BELIEVED:
                changes.append(parameters)
    return changes


def _fits(
    radii: PrintedRadii, tried: Iterable[Parameters], assumed: Parameters, free: Iterable[str]
) -> tuple[Fit, ...]:
    """Fit the radii by the parameters that explain them best; usual parameters come first."""
    fits = [Fit(radii, parameters) for parameters in dict.fromkeys(tried)]
    best = max((fit.score for fit in fits), default=0.0)
    fitting = [fit for fit in fits if fit.score >= best - AS_WELL]
    fitting.sort(key=lambda fit: (oddness(fit.parameters, assumed, free), -fit.score))
    return tuple(fitting[:_LISTED])
