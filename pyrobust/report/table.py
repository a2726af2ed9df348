"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from pyrobust.errors import InputError
from pyrobust.evaluation import Run
from pyrobust.report.caption import describe_run


def default_radii(run: Run) -> list[float]:
    """Radii for a table: 0, 0.25, … up to the largest certified one; wider steps where that would be more than twelve.

    Args:
        run: of kind certify.

    Returns:
        Rising radii, the first 0.0.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> default_radii(certify_dataset(smoother, load_data("digits"), n=1000, max_images=4))
    [0.0, 0.25, 0.5]
    """
    largest = float(run.table["radius"].max()) if len(run) else 0.0
    step = 0.25
    while largest >= 12 * step:
        step *= 2
    return [step * i for i in range(1 + math.floor(largest / step))]


def certified_accuracy_table(run: Run, radii: Sequence[float] | None = None) -> Table:
    """Certified accuracy at several radii, with counts, under the run's totals.

    Args:
        run: of kind certify, with at least one image.
        radii: at least 0, in the unit of the input; default `default_radii`.

    Returns:
        A table to print with rich, its caption `describe_run`.

    Raises:
        InputError: the run is of another kind or holds no image, or a radius is negative.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> certified_accuracy_table(run, [0.0, 0.25]).row_count
    6
    """
    radii = default_radii(run) if radii is None else radii
    for radius in radii:
        if not float(radius) >= 0:
            raise InputError(f"radii: expected numbers of at least 0, got {radius}")
    accuracies = run.certified_accuracy(radii)
    table = _table(run, "Certified accuracy")
    right = run.right
    table.add_row(
        "average radius of the right ones", f"{run.table['radius'][right].mean() if right.any() else 0.0:.4f}", ""
    )
    table.add_section()
    for radius, accuracy in zip(radii, accuracies, strict=True):
        table.add_row(f"certified at radius {radius:g}", _percent(accuracy), f"{round(accuracy * len(run))}")
    return table


def prediction_table(run: Run) -> Table:
    """Accuracy and abstentions of a run of either kind.

    Args:
        run: with at least one image.

    Returns:
        A table to print with rich, its caption `describe_run`.

    Raises:
        InputError: the run holds no image yet.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> prediction_table(run).row_count
    3
    """
    return _table(run, "Predictions")


def _table(run: Run, title: str) -> Table:
    if not len(run):
        raise InputError("run: expected at least one image, got none; go on with it first")
    # Names of models and data come from users and files, and could hold markup.
    # The width keeps the caption from being folded into a narrow column.
    table = Table(
        title=title,
        caption=escape("\n".join(describe_run(run))),
        title_justify="left",
        caption_justify="left",
        min_width=78,
    )
    table.add_column("")
    table.add_column("share", justify="right")
    table.add_column("images", justify="right")
    right, abstained = int(run.right.sum()), int((run.table["prediction"] < 0).sum())
    table.add_row("images", "", str(len(run)))
    table.add_row("smoothed prediction right", _percent(right / len(run)), str(right))
    table.add_row("abstained", _percent(abstained / len(run)), str(abstained))
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
