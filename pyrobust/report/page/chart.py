"""Charts as inline SVG: the page draws them without any script, at any width, in the colours of its theme.

Coordinates along an axis are percentages, so that text keeps its size at every width. Paths are drawn in a square with
sides of 1000 units, which the page stretches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyrobust.checks import number_text
from pyrobust.metrics.radii import rising
from pyrobust.report.formats import ReportTable

#: Side of the square in which paths are drawn.
SQUARE = 1000

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tick:
    """A position on an axis in percent from the left or the top, with its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Shape:
    """A path, or the area inside it, with the CSS class of its style."""

    style: str
    path: str


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram: its left edge, width and height in percent, and a text that says what it counts."""

    left: float
    width: float
    height: float
    about: str


@dataclass(frozen=True)
class Line:
    """An entry of a chart's legend and of its readout, which shows the values at a position that the reader picks.

    Attributes:
        style: CSS class of the line.
        name: what the line shows.
        values: values at the positions; empty if the readout does not list the line.
        lower, upper: ends of the intervals at the positions; empty if there are no intervals.
    """

    style: str
    name: str
    values: tuple[float, ...] = ()
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A chart with its text alternative.

    Attributes:
        name: prefix of the HTML ids of the chart's parts; different for each chart of a page.
        title: heading.
        about: what the chart shows, in a few sentences.
        x_label, y_label: labels of the axes.
        x_ticks, y_ticks: positions and texts of the ticks.
        shapes: shapes, from back to front.
        bars: bars of a histogram.
        marker: position of a vertical line in percent; None for no line.
        lines: entries of the legend and of the readout, which shows the values at a position that the reader picks.
        positions: positions that the reader can pick for the readout, in the unit of the x axis; empty without a
            readout.
        start: index of the position that the readout shows first.
        begin, end: smallest and largest x.
        style: CSS class of the chart; "" for none.
        table: the numbers of the chart, for readers who do not see it; None for no table.
    """

    name: str
    title: str
    about: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    shapes: tuple[Shape, ...] = ()
    bars: tuple[Bar, ...] = ()
    marker: Tick | None = None
    lines: tuple[Line, ...] = ()
    positions: tuple[float, ...] = ()
    start: int = 0
    begin: float = 0.0
    end: float = 1.0
    table: ReportTable | None = None
    style: str = ""

    @property
    def readout(self) -> dict[str, object] | None:
        """Return the values that the page's script displays for a position; None for a chart without such values."""
        if not self.positions:
            return None
        shown = [line for line in self.lines if line.values]
        return {
            "begin": self.begin,
            "end": self.end,
            "start": self.start,
            "x": [float(f"{x:.6g}") for x in self.positions],
            "texts": [number_text(x) for x in self.positions],
            "lines": [
                {
                    "name": line.name,
                    "style": line.style,
                    "values": [round(100 * value, 1) for value in line.values],
                    # rounded outward
                    "lower": [math.floor(1000 * value) / 10 for value in line.lower],
                    "upper": [math.ceil(1000 * value) / 10 for value in line.upper],
                }
                for line in shown
            ],
        }


def percent_ticks() -> tuple[Tick, ...]:
    """Return the ticks of a vertical axis of shares."""
    return tuple(Tick(100 - share, f"{share} %") for share in (0, 25, 50, 75, 100))


def ticks(begin: float, end: float, limit: int = 8) -> tuple[Tick, ...]:
    """Return round numbers as ticks of a horizontal axis.

    >>> [tick.text for tick in ticks(0.0, 1.0, 6)]
    ['0', '0.2', '0.4', '0.6', '0.8', '1']
    """
    values = [begin + step for step in [0.0, *rising(end - begin)]]
    skip = -(-len(values) // limit)
    if skip > 1 and (len(values) - 1) % skip:
        skip += next((more for more in range(2) if (len(values) - 1) % (skip + more) == 0), 0)
    return tuple(Tick(round(100 * (x - begin) / (end - begin), 3), f"{x:g}") for x in values[::skip])


def step_path(x: Sequence[float], y: Sequence[float], begin: float, end: float, *, before: bool) -> str:
    """Draw a step function of shares: each value holds from its position on (with ``before``, up to its position).

    >>> step_path([0.0, 0.5, 1.0], [1.0, 1.0, 0.5], 0.0, 1.0, before=True)
    'M0 0L500 0L500 500L1000 500'
    """
    points = [(x[0], y[0])]
    for i in range(1, len(x)):
        if y[i] != y[i - 1]:
            corner = x[i - 1] if before else x[i]
            points += [(corner, y[i - 1]), (corner, y[i])]
    points.append((x[-1], y[-1]))
    return _path(points, begin, end)


def line_path(x: Sequence[float], y: Sequence[float], begin: float, end: float) -> str:
    """Return the path of the straight lines that join the points (x, y), where each y is a share."""
    points = list(zip(x, y, strict=True))
    kept = [
        point
        for i, point in enumerate(points)
        if i in (0, len(points) - 1) or not points[i - 1][1] == point[1] == points[i + 1][1]
    ]
    return _path(kept, begin, end)


def between(upper: str, lower: str) -> str:
    """Return the outline of the area between two paths, each of which runs from left to right."""
    back = [point for point in lower.removeprefix("M").split("L")]
    return f"{upper}L{'L'.join(reversed(back))}Z"


def _path(points: Sequence[tuple[float, float]], begin: float, end: float) -> str:
    width = end - begin
    points_text = [f"{SQUARE * (x - begin) / width:.6g} {SQUARE * (1 - y):.6g}" for x, y in points]
    kept = [point for i, point in enumerate(points_text) if i == 0 or point != points_text[i - 1]]
    return f"M{'L'.join(kept)}"


def histogram(values: _Floats, limit: int = 30) -> tuple[list[Bar], tuple[Tick, ...], tuple[Tick, ...], float]:
    """Return the bars of a histogram of positive numbers, the ticks of both axes, and the end of the horizontal axis.

    >>> bars, _, _, end = histogram(np.array([0.1, 0.12, 0.9]))
    >>> len(bars), end >= 0.9
    (2, True)
    """
    largest = max(float(values.max()), 1e-300)
    scale = 10.0 ** math.floor(math.log10(largest / limit))
    step = next(width * scale for width in (1, 2, 2.5, 5, 10, 20) if largest / (width * scale) <= limit)
    bins = int(np.floor(largest / step)) + 1
    counts = np.bincount(np.minimum(np.floor(values / step).astype(np.int64), bins - 1), minlength=bins)
    x_max = bins * step
    top = _round_up(int(counts.max(initial=1)))
    bars = [
        Bar(
            round(100 * i / bins, 3),
            round(100 / bins, 3),
            round(100 * count / top, 3),
            f"{i * step:g} to {(i + 1) * step:g}: {count:,}",
        )
        for i, count in enumerate(counts.tolist())
        if count
    ]
    levels = [0, top // 2, top] if top % 2 == 0 else [0, top]
    vertical = tuple(Tick(round(100 - 100 * level / top, 3), f"{level:,}") for level in levels)
    return bars, ticks(0.0, x_max), vertical, x_max


def _round_up(count: int) -> int:
    """Return the smallest round number that is at least a count."""
    scale = 1
    while True:
        for factor in (1, 2, 4, 6, 8, 10):
            if factor * scale >= count:
                return factor * scale
        scale *= 10
