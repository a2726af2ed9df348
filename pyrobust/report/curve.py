"""Plots of robustness curves; they need the extra ``plot``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyrobust.checks import number_text
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.robustness_curve import RobustnessCurve
from pyrobust.report.axes import Frame, figure_format, line_style
from pyrobust.report.formats import plain_text
from pyrobust.runs.kinds.words import POINTWISE, unit_of


def plot_curve(
    curves: RobustnessCurve | Mapping[str, RobustnessCurve], path: str | os.PathLike[str], caption: Sequence[str] = ()
) -> None:
    """Plot robust accuracy over epsilon, with confidence intervals, as a PNG, PDF or SVG.

    Straight lines join the points, as in ``RobustnessCurve.area``. The band joins the confidence intervals of the
    points; the intervals do not hold jointly. If a curve is a step function, it is drawn in steps. A triangle marks
    each epsilon at which another attack confirmed such a curve.

    Args:
        curves: one curve, or several by name, all of one norm. The legend gives each name with its attack and number of
            examples. For a single curve, the attack and the number of examples are written below the plot.
        path: path of the file. Its ending (.png, .pdf or .svg) sets the format. The file is written whole or not at
            all, and an existing file is overwritten.
        caption: lines of text below the plot. They state the other conditions on which the rates depend, such as the
            model and the data. For a single curve, these lines replace the attack's name and the number of examples.

    Raises:
        InputError: there is no curve, the curves have several norms, or the file name has another ending.
        InputTypeError: an argument that is not a curve.
        MissingExtraError: matplotlib is not installed.
        StoreError: the file cannot be written.

    >>> import tempfile, torch
    >>> from pyrobust.attacks import PGD
    >>> from pyrobust.evaluation.robustness_curve import robustness_curve
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
            raise InputTypeError("curves", "a RobustnessCurve, or several by name", type(curve).__name__)
    if not named:
        raise InputError("curves", "at least one", "none")
    norms = sorted({curve.norm for curve in named.values()})
    if len(norms) > 1:
        raise InputError("curves", "one norm", ", ".join(norms), "epsilons of different norms do not compare")
    figure_format(path)
    stepwise = any(curve.stepwise for curve in named.values())
    lines = [*caption, POINTWISE] if stepwise and POINTWISE not in caption else list(caption)
    if isinstance(curves, Mapping):
        captions = [
            "\n".join([f"{plain_text(name)}: {_examples(curve)}", *_confirmed(curve)]) for name, curve in named.items()
        ]
        captions += ["\n".join(lines)] if lines else []
    else:
        captions = ["\n".join([*(lines if caption else [_examples(curves), *lines]), *_confirmed(curves)])]
    levels = ", ".join(f"{100 * (1 - alpha):g}" for alpha in sorted({curve.alpha for curve in named.values()}))
    frame = Frame(
        "Robust accuracy under attack, an upper bound",
        f"{norms[0]} epsilon, {unit_of(norms[0])}",
        f"robust accuracy (%), with {levels} % intervals",
        captions,
    )
    drawn = []
    points = [each.epsilon for curve in named.values() for each in curve.confirmations]
    largest = 1.03 * max(*points, *(float(curve.epsilons.max()) for curve in named.values()), 0.0) or 1.0
    for index, curve in enumerate(named.values()):
        style = line_style(index)
        if curve.stepwise:
            drawn.append(draw_steps(frame, curve, largest, style))
            continue
        epsilons, first = np.unique(curve.epsilons, return_index=True)
        band = (100 * curve.lower[first], 100 * curve.upper[first])
        frame.axes.fill_between(epsilons, *band, color=style["color"], alpha=0.12, lw=0)
        drawn += frame.axes.plot(epsilons, 100 * curve.robust_accuracy[first], marker="o", markersize=3, **style)
    frame.axes.set_xlim(0, largest)
    frame.label(drawn)
    frame.write(path)


def draw_steps(frame: Frame, curve: RobustnessCurve, largest: float, style: dict[str, Any]) -> Any:
    """Draw a step function up to ``largest``, its band and the points that other attacks confirmed; return its line."""
    x = np.append(curve.epsilons, largest)
    value, lower, upper = (
        100 * np.append(column, column[-1]) for column in (curve.robust_accuracy, curve.lower, curve.upper)
    )
    frame.axes.fill_between(x, lower, upper, step="post", color=style["color"], alpha=0.12, lw=0)
    [line] = frame.axes.plot(x, value, drawstyle="steps-post", **style)
    points = [(each.epsilon, 100 * curve.rate(each.epsilon).value) for each in curve.confirmations]
    if points:
        frame.axes.plot(*zip(*points, strict=True), **{**style, "linestyle": "none"}, marker="v", markersize=5)
    return line


def _examples(curve: RobustnessCurve) -> str:
    return f"{curve.attack}, {curve.n} examples"


def _confirmed(curve: RobustnessCurve) -> list[str]:
    """Return the caption's line about the points that other attacks confirmed, if there are any."""
    points = [f"{each.attack} at {number_text(each.epsilon)}" for each in curve.confirmations]
    return [f"Triangles: confirmed by {', '.join(points)}"] if points else []
