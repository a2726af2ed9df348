"""Plots, with the extra ``plot``."""

from __future__ import annotations

import io
import os

import numpy as np

from pyrobust.errors import InputError, MissingExtraError
from pyrobust.evaluation import Run
from pyrobust.report.caption import describe_run
from pyrobust.zoo.files import write_atomically

_INK = "#1f4e79"


def plot_certified_accuracy(run: Run, path: str | os.PathLike[str]) -> None:
    """Draws certified accuracy over the radius, the exact step curve, as a PNG.

    At radius r stands the share of images whose prediction is right and certified with a radius R >= r; the curve falls
    by one image's share behind every certified radius.

    Args:
        run: of kind certify, with at least one image.
        path: the file, written whole or not at all; replaced if it is there.

    Raises:
        InputError: the run is of another kind or holds no image.
        MissingExtraError: matplotlib is not installed.
        StoreError: the file cannot be written.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_certified_accuracy(run, os.path.join(folder, "curve.png"))
    ...     os.listdir(folder)
    ['curve.png']
    """
    if run.kind != "certify" or not len(run):
        raise InputError(f"run: expected a run of kind certify with images, got {run.kind} with {len(run)}")
    try:
        # The figure alone, without pyplot: no window, no global state.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError('plot: needs matplotlib; install it with pip install "pyrobust[plot]"') from error

    radii = np.sort(run.table["radius"][run.right])
    # values[i] is the accuracy between the (i-1)-th and the i-th radius; a radius R still counts at r = R.
    values = np.append(np.arange(len(radii), 0, -1), 0) / len(run)
    end = 1.08 * radii[-1] if len(radii) and radii[-1] > 0 else 1.0
    figure = Figure(figsize=(7.0, 4.8), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.11, 0.27, 0.85, 0.65))
    edges = np.concatenate([[0.0], radii, [end]])
    axes.stairs(100 * values, edges, fill=True, color=_INK, alpha=0.08)
    axes.stairs(100 * values, edges, baseline=None, color=_INK, linewidth=2)
    axes.set_xlim(0, end)
    axes.set_ylim(0, 100)
    axes.set_xlabel(f"{run.parameters['norm']} radius, in the unit of the input")
    axes.set_ylabel("certified accuracy (%)")
    # A dollar sign in a name would switch to mathematics.
    name = run.header.model.replace("$", r"\$")
    axes.set_title(f"Certified accuracy of {name}, smoothed", loc="left", fontsize=11)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    caption = "\n".join(describe_run(run)).replace("$", r"\$")
    figure.text(0.11, 0.025, caption, fontsize=7, color="#555555", va="bottom", linespacing=1.5, wrap=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())
