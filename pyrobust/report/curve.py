"""Plots of robustness curves, with the extra ``plot``."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pyrobust.errors import InputError, InputTypeError, MissingExtraError
from pyrobust.evaluation.curve import RobustnessCurve
from pyrobust.zoo.files import write_atomically

_FORMATS = ("png", "pdf", "svg")
# Dark, and apart from each other for most colour-blind readers; the lines differ in their dashes, too.
_INKS = ("#1f4e79", "#b3541e", "#2e7d4f", "#7b3f8c", "#8a6d00", "#444444")
_DASHES = ("-", "--", "-.", ":")
# Characters of a caption that fit beside each other.
_LINE = 120


def plot_curve(
    curves: RobustnessCurve | Mapping[str, RobustnessCurve], path: str | os.PathLike[str], caption: Sequence[str] = ()
) -> None:
    """Draws robust accuracy over epsilon, each point with its confidence interval, as a PNG, PDF or SVG.

    Straight lines join the points, as ``RobustnessCurve.area`` joins them. The band joins their intervals, and each of
    these holds for its point by itself.

    Args:
        curves: one, or several by name, all of one norm. The legend has each name with its attack and its number of
            examples; one without a name has these below the plot.
        path: the file, its format by its ending: .png, .pdf or .svg; written whole or not at all, replaced if it is
            there.
        caption: what the rates depend on besides, lines of text below the plot; of one curve without a name in place
            of its attack and number of examples.

    Raises:
        InputError: no curve, curves of several norms, a file name of another ending.
        InputTypeError: something else than curves.
        MissingExtraError: matplotlib is not installed.
        StoreError: the file cannot be written.

    >>> import tempfile, torch
    >>> from pyrobust.attacks import PGD
    >>> from pyrobust.evaluation.curve import robustness_curve
    >>> from pyrobust.zoo import load_data, load_model
    >>> data = load_data("digits")
    >>> model = load_model("zoo:digits-smooth-0.25")
    >>> curve = robustness_curve(PGD, model, data.x[:20], data.y[:20], [0.0, 0.05, 0.1], steps=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_curve({"digits-smooth-0.25": curve}, os.path.join(folder, "curve.svg"))
    ...     os.listdir(folder)
    ['curve.svg']
    """
    named = curves if isinstance(curves, Mapping) else {"": curves}
    for curve in named.values():
        if not isinstance(curve, RobustnessCurve):
            raise InputTypeError(f"curves: expected a RobustnessCurve, or several by name, got {type(curve).__name__}")
    if not named:
        raise InputError("curves: expected at least one, got none")
    norms = sorted({curve.norm for curve in named.values()})
    if len(norms) > 1:
        raise InputError(f"curves: expected one norm, got {', '.join(norms)}; epsilons of several do not compare")
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in _FORMATS:
        raise InputError(f"path: expected a name that ends in .png, .pdf or .svg, got {os.fspath(path)!r}")
    try:
        # The figure alone, without pyplot: no window, no global state.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError('plot: needs matplotlib; install it with pip install "pyrobust[plot]"') from error

    figure = Figure(figsize=(7.0, 4.8), dpi=150)
    FigureCanvasAgg(figure)
    lines = list(caption)
    if not isinstance(curves, Mapping) and not lines:
        lines = [_examples(curves)]
    alphas = ", ".join(f"{alpha:g}" for alpha in sorted({curve.alpha for curve in named.values()}))
    lines.append(f"Bands: the interval of each point, wrong with probability at most {alphas}")
    lines = [part for line in lines for part in textwrap.wrap(line, _LINE)]
    bottom = 0.17 + 0.032 * len(lines)
    axes = figure.add_axes((0.11, bottom, 0.85, 0.92 - bottom))
    for place, (name, curve) in enumerate(named.items()):
        ink = _INKS[place % len(_INKS)]
        epsilons, first = np.unique(curve.epsilons, return_index=True)
        axes.fill_between(epsilons, 100 * curve.lower[first], 100 * curve.upper[first], color=ink, alpha=0.12, lw=0)
        axes.plot(
            epsilons,
            100 * curve.robust_accuracy[first],
            color=ink,
            linestyle=_DASHES[place % len(_DASHES)],
            marker="o",
            markersize=3,
            label=_plain(f"{name}: {_examples(curve)}"),
        )
    end = max(float(curve.epsilons.max()) for curve in named.values())
    axes.set_xlim(0, 1.03 * end or 1.0)
    axes.set_ylim(0, 100)
    axes.set_xlabel(f"{norms[0]} epsilon, in the unit of the input")
    axes.set_ylabel("robust accuracy (%)")
    axes.set_title("Robust accuracy under attack, an upper bound", loc="left", fontsize=11)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if isinstance(curves, Mapping):
        axes.legend(frameon=False, fontsize=8)
    figure.text(0.11, 0.025, _plain("\n".join(lines)), fontsize=7, color="#555555", va="bottom", linespacing=1.5)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=ending)
    write_atomically(path, buffer.getvalue())


def _examples(curve: RobustnessCurve) -> str:
    return f"{curve.attack}, {curve.n} examples"


def _plain(name: str) -> str:
    """A name as text: a dollar sign would switch to mathematics."""
    return name.replace("$", r"\$")
