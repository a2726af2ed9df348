"""Table of a sandwich run: the shares of images certified, undecided and attacked at several radii."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyrobust.checks import number_text, numbers
from pyrobust.evaluation import Run
from pyrobust.evaluation.sandwich import Sandwich
from pyrobust.metrics import Rate
from pyrobust.metrics.radii import rising
from pyrobust.report.caption import describe_run
from pyrobust.report.formats import Cell, Column, Quantity, ReportTable, Row
from pyrobust.report.table import QUARTILES

_COLUMNS = (Column("", "left"), Column("certified"), Column("undecided"), Column("attacked"))


def sandwich_radii(both: Sandwich) -> list[float]:
    """Return the table's radii: AutoAttack's epsilons, and round numbers up to where attacks break most examples.

    >>> from pyrobust.evaluation.sandwich import sandwich
    >>> from pyrobust.zoo import load_data, load_model
    >>> data = load_data("digits")
    >>> sandwich_radii(sandwich(load_model("zoo:digits-ibp-0.10"), data.x[:2], data.y[:2]))[0]
    0.025
    """
    finite = both.upper[np.isfinite(both.upper) & (both.upper > 0)]
    finite = finite if len(finite) else both.lower[both.lower > 0]
    rounds = rising(float(np.quantile(finite, 0.9, method="inverted_cdf"))) if len(finite) else []
    return sorted({*(radius for radius in rounds if radius > 0), *(both.run.parameters.get("epsilons") or ())})


def sandwich_table(run: Run, radii: Sequence[float] | None = None, alpha: float = 0.05) -> ReportTable:
    """Show shares of certified, undecided and attacked images by radius, and quartiles of certified and attacked radii.

    Args:
        run: a run of kind sandwich, with at least one image.
        radii: finite, at least 0; by default, `sandwich_radii`. Radius 0 (the clean images) is always shown.
        alpha: probability that a given interval misses the true value, in (0, 1).

    Returns:
        A table to print or to write. Its notes are the lines of `describe_run`, and one line for every crossing, that
        is, for every image whose adversarial example lies within its certified radius (see ``Sandwich.crossings``).

    Raises:
        InputError: the run is of another kind or holds no image, or a value is out of range.

    >>> from pyrobust.evaluation.sandwich import sandwich
    >>> from pyrobust.zoo import load_data, load_model
    >>> data = load_data("digits")
    >>> both = sandwich(load_model("zoo:digits-ibp-0.10"), data.x[:2], data.y[:2])
    >>> [str(cell) for cell in sandwich_table(both.run, [0.1]).rows[1]][:2]
    ['linf radius 0.1', '100.0 % (15.8 to 100.0)']
    """
    both = Sandwich(run)
    run._expect_rows("sandwich_table")
    chosen = sandwich_radii(both) if radii is None else numbers("radii", radii)
    notes = [f"In brackets: {100 * (1 - alpha):g} % intervals. Attacked includes misclassified images"]
    groups = [_share_rows(both, [radius for radius in chosen if radius], alpha)]
    correct = run.correct
    if correct.any():
        groups.append(_quartile_rows(both.lower[correct], both.upper[correct]))
        notes[0] += f"; quartiles of both radii are of the {int(correct.sum()):,} correctly classified ones"
    notes[0] += "."
    notes += describe_run(run)
    notes += [
        f"CROSSING: image {c.index} certified to {c.lower!r} by {c.lower_by}, fooled at {c.upper!r} by {c.upper_by}"
        for c in both.crossings
    ]
    title = f"Sandwich of {len(run):,} {'image' if len(run) == 1 else 'images'}"
    return ReportTable(title, _COLUMNS, tuple(map(tuple, groups)), tuple(notes))


def _share_rows(both: Sandwich, radii: Sequence[float], alpha: float) -> list[Row]:
    """Return the row of radius 0, and one row for each positive radius."""
    shares = both.shares([0.0, *radii], alpha)
    labels = ["radius 0 (clean)", *(f"{both.norm} radius {number_text(radius)}" for radius in shares.radii[1:])]
    return [
        (label, _percentage(certified), _percentage(undecided), _percentage(attacked))
        for label, certified, undecided, attacked in zip(
            labels, shares.certified, shares.undecided, shares.attacked, strict=True
        )
    ]


def _quartile_rows(lower: npt.NDArray[np.float64], upper: npt.NDArray[np.float64]) -> list[Row]:
    names = ("lower quartile", "median", "upper quartile")
    return [(name, _quantity(lower, q), "", _quantity(upper, q)) for name, q in zip(names, QUARTILES, strict=True)]


def _percentage(rate: Rate) -> Quantity:
    return Quantity(rate.value, rate.lower, rate.upper, 1, percent=True)


def _quantity(values: npt.NDArray[np.float64], q: float) -> Cell:
    value = float(np.quantile(values, q, method="inverted_cdf"))
    return "inf" if math.isinf(value) else Quantity(value, text=f"{value:.4g}")
