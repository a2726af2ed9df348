"""Frame of a figure: axes with captions below, distinct line styles, and rendering to files."""

from __future__ import annotations

import io
import os
from collections.abc import Hashable, Sequence
from typing import Any

from pyrobust.checks import file_path
from pyrobust.errors import InputError, extra
from pyrobust.report.formats import plain_text
from pyrobust.zoo.files import write_atomically

#: Formats of figures, by the ending of their files.
FIGURE_FORMATS = ("png", "pdf", "svg")
# Colours at least 26 apart in CIELAB, also under the three kinds of colour blindness as simulated by Machado, Oliveira
# and Fernandes (2009). In greyscale they have three levels; lines of one level differ in their dashes.
_INKS = ("#1f4e79", "#b3541e", "#49b5a6", "#0d0d0d", "#8a6fd0", "#c89b00")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (7, 1.5, 1, 1.5, 1, 1.5)), (0, (10, 2)))
_WIDTH, _AXES, _ABOVE, _LABEL, _LINE, _GAP = 7.0, 3.2, 0.38, 0.62, 0.118, 0.05  # inches
_LEFT, _RIGHT = 0.09, 0.97
_SIZE, _HANDLE = 7.0, 4.0  # font of the captions in points, length of a line sample in font sizes
# Width of the text beside the sample in points, reduced because hinting can widen letters.
_ROOM = 0.92 * (72 * _WIDTH * (_RIGHT - _LEFT) - (_HANDLE + 1) * _SIZE)


def figure_format(path: str | os.PathLike[str]) -> str:
    """Return the figure format that a file name's ending states, in lower case.

    Raises:
        InputError: the name does not end in .png, .pdf or .svg, in upper or lower case.

    >>> figure_format("curve.PDF")
    'pdf'
    """
    ending = file_path("path", path).suffix.lower().removeprefix(".")
    if ending not in FIGURE_FORMATS:
        raise InputError("path", "a name that ends in .png, .pdf or .svg", repr(os.fspath(path)))
    return ending


def line_style(index: int) -> dict[str, Any]:
    """Return colour and dashes of the line with this number; the first thirty-six combinations are distinct.

    >>> line_style(0)["linestyle"], line_style(1)["linestyle"]
    ('-', '--')
    """
    count = len(_INKS)
    dashes = _DASHES[(index + index // count) % count]
    # not clipped, so that a line along 0 or 100 is not hidden by the frame
    return {"color": _INKS[index % count], "linestyle": dashes, "linewidth": 1.6, "clip_on": False, "zorder": 3}


class LineStyles:
    """Styles of lines by classifier: a classifier keeps its colour and dashes in all figures that share this object.

    >>> styles = LineStyles()
    >>> styles.of(["a", "b"])[1] == styles.of(["b"])[0]
    True
    """

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}

    def of(self, classifiers: Sequence[Hashable]) -> list[dict[str, Any]]:
        """Return the styles of the lines of one figure; if a classifier has several lines, they differ in style."""
        keys = [(key, classifiers[:index].count(key)) for index, key in enumerate(classifiers)]
        return [line_style(self._places.setdefault(key, len(self._places))) for key in keys]


class Frame:
    """Axes with a title above them and, below them, the captions of the lines.

    Args:
        title: one line of text.
        x_label, y_label: labels of the axes.
        captions: captions of the drawn lines, in drawing order; each may have several lines of text.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """

    def __init__(self, title: str, x_label: str, y_label: str, captions: Sequence[str]) -> None:
        with extra("plot", "plot: needs matplotlib"):
            # pyplot is avoided: it has windows and global state.
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
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
        """Write the captions, each beside a sample of its line.

        Args:
            lines: drawn lines; line i belongs to caption i. If there are more captions than lines, the last captions
                have no sample beside them.
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
        """Render the figure as the bytes of a file; equal figures give equal bytes.

        Args:
            form: "png", "pdf" or "svg".
        """
        import matplotlib

        buffer = io.BytesIO()
        # No date in the file; fonts as TrueType, because journals refuse Type 3.
        without = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
        with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "pyrobust"}):
            self._figure.savefig(buffer, format=form, metadata=without.get(form))
        return buffer.getvalue()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the figure atomically to a file, in the format of its ending; an existing file is overwritten."""
        write_atomically(path, self.render(figure_format(path)))


def _folded(caption: str) -> str:
    """Break a caption into lines that fit; break words only if they are longer than a line."""
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
                length = next(length for length in range(len(line) - 1, 0, -1) if length == 1 or fits(line[:length]))
                lines.append(line[:length])
                line = line[length:]
        lines.append(line)
    return "\n".join(map(_as_text, lines))


def _as_text(name: str) -> str:
    """Escape dollar signs, which would start a formula."""
    return plain_text(name).replace("$", r"\$")
