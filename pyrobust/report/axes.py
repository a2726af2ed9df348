"""What the figures share: a frame with its captions below, lines that stay apart, and how a file of one is made."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyrobust.errors import InputError, MissingExtraError
from pyrobust.report.formats import plain_text
from pyrobust.zoo.files import write_atomically

#: Formats of figures, by the ending of their files.
FIGURE_FORMATS = ("png", "pdf", "svg")
# At least 26 from each other in CIELAB, also as Machado, Oliveira and Fernandes (2009) simulate the three kinds of
# colour blindness, and in three steps of grey; in grey the dashes tell those of one step apart.
_INKS = ("#1f4e79", "#b3541e", "#49b5a6", "#0d0d0d", "#8a6fd0", "#c89b00")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (7, 1.5, 1, 1.5, 1, 1.5)), (0, (10, 2)))
_WIDTH, _AXES, _ABOVE, _LABEL, _LINE, _GAP = 7.0, 3.2, 0.38, 0.62, 0.118, 0.05  # inches
_LEFT, _RIGHT = 0.09, 0.97
_SIZE, _HANDLE = 7.0, 4.0  # of the captions: the font in points, a line's sample in font sizes
# Beside the sample, in points, less what hinting can widen letters by.
_ROOM = 0.92 * (72 * _WIDTH * (_RIGHT - _LEFT) - (_HANDLE + 1) * _SIZE)


def figure_format(path: str | os.PathLike[str]) -> str:
    """The format that the ending of a file name asks for.

    Args:
        path: a name that ends in .png, .pdf or .svg, in whatever case.

    Returns:
        The ending, in lower case.

    Raises:
        InputError: another ending.

    >>> figure_format("curve.PDF")
    'pdf'
    """
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in FIGURE_FORMATS:
        raise InputError(f"path: expected a name that ends in .png, .pdf or .svg, got {os.fspath(path)!r}")
    return ending


def line_style(place: int) -> dict[str, Any]:
    """Colour and dashes of the line with this number; the first thirty-six have a pair each.

    >>> line_style(0)["linestyle"], line_style(1)["linestyle"]
    ('-', '--')
    """
    count = len(_INKS)
    dashes = _DASHES[(place + place // count) % count]
    # not hidden by the frame where it runs along 0 or 100
    return {"color": _INKS[place % count], "linestyle": dashes, "linewidth": 1.6, "clip_on": False, "zorder": 3}


class Frame:
    """Axes with a title above and the captions of their lines below.

    Args:
        title: a line.
        x_label, y_label: of the axes.
        captions: of the lines to come, in their order; each may have several lines of text.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """

    def __init__(self, title: str, x_label: str, y_label: str, captions: Sequence[str]) -> None:
        try:
            # The figure alone, without pyplot: no window, no global state.
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingExtraError('plot: needs matplotlib; install it with pip install "pyrobust[plot]"') from error
        self._captions = [_folded(caption) for caption in captions]
        below = _LABEL + sum(_LINE * (caption.count("\n") + 1) + _GAP for caption in self._captions)
        height = below + _AXES + _ABOVE
        self._figure = Figure(figsize=(_WIDTH, height), dpi=150)
        FigureCanvasAgg(self._figure)
        #: The axes to draw in.
        self.axes: Any = self._figure.add_axes((_LEFT, below / height, _RIGHT - _LEFT, _AXES / height))
        self.axes.set_xlabel(x_label)
        self.axes.set_ylabel(y_label)
        self.axes.set_ylim(0, 100)
        self.axes.set_title(_as_text(title), loc="left", fontsize=11)
        self.axes.grid(True, color="#dddddd", linewidth=0.6)
        self.axes.set_axisbelow(True)
        self.axes.spines[["top", "right"]].set_visible(False)

    def label(self, lines: Sequence[Any]) -> None:
        """Writes the captions, each beside a piece of its line.

        Args:
            lines: what was drawn, one for each caption; captions beyond them stand by themselves.
        """
        from matplotlib.lines import Line2D

        beyond = len(self._captions) - len(lines)
        self._figure.legend(
            [*lines, *(Line2D([], [], linestyle="none") for _ in range(beyond))],
            self._captions,
            loc="lower left",
            bbox_to_anchor=(_LEFT - 0.01, 0.0),
            frameon=False,
            fontsize=_SIZE,
            labelcolor="#444444",
            labelspacing=0.5,
            handlelength=_HANDLE,
            borderaxespad=0.2,
        )

    def render(self, form: str) -> bytes:
        """The figure as a file; the same figure gives the same bytes.

        Args:
            form: "png", "pdf" or "svg".
        """
        import matplotlib

        buffer = io.BytesIO()
        # No date. Fonts as TrueType: journals refuse Type 3.
        without = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
        with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "pyrobust"}):
            self._figure.savefig(buffer, format=form, metadata=without.get(form))
        return buffer.getvalue()

    def write(self, path: str | os.PathLike[str]) -> None:
        """The figure as a file of the format that the name asks for, there whole or not at all.

        Args:
            path: the file; replaced if it is there.
        """
        write_atomically(path, self.render(figure_format(path)))


def _folded(caption: str) -> str:
    """A caption in lines that fit; a word that is too long for one is broken."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font, measure = FontProperties(size=_SIZE), TextToPath()

    def fits(text: str) -> bool:
        width, *_ = measure.get_text_width_height_descent(text, font, ismath=False)
        return bool(width <= _ROOM)

    lines: list[str] = []
    for paragraph in caption.split("\n"):
        line = ""
        for word in plain_text(paragraph).split():
            if line and not fits(f"{line} {word}"):
                lines.append(line)
                line = ""
            line = f"{line} {word}".lstrip()
            while not fits(line):
                end = next(end for end in range(len(line) - 1, 0, -1) if end == 1 or fits(line[:end]))
                lines.append(line[:end])
                line = line[end:]
        lines.append(line)
    return "\n".join(map(_as_text, lines))


def _as_text(name: str) -> str:
    """A name as text: a dollar sign would switch to mathematics."""
    return plain_text(name).replace("$", r"\$")
