"""Table of a sandwich: shares certified, undecided and attacked at several radii."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyrobust.checks import number_text
from pyrobust.evaluation import Run
from pyrobust.evaluation.sandwich import Sandwich
from pyrobust.metrics import Rate
from pyrobust.metrics.radii import rising
from pyrobust.report.caption import describe_run
from pyrobust.report.formats import Cell, Column, Interval, Quantity, ReportTable, Row
from pyrobust.report.table import QUARTILES

_COLUMNS = (Column("", "left"), Column("certified"), Column("undecided"), Column("attacked"))


def sandwich_radii(both: Sandwich) -> list[float]:
    """Radii for the table of a sandwich: AutoAttack's epsilons, and round numbers up to where most examples are broken.

    >>> from pyrobust.evaluation.sandwich import sandwich
    >>> from pyrobust.zoo import load_data, load_model
    >>> data = load_data("digits")
    >>> sandwich_radii(sandwich(load_model("zoo:digits-ibp-0.10"), data.x[:8], data.y[:8]))[0]
    0.025
    """
    finite = both.upper[np.isfinite(both.upper) & (both.upper > 0)]
    finite = finite if len(finite) else both.lower[both.lower > 0]
    rounds = rising(float(np.quantile(finite, 0.9, method="inverted_cdf"))) if len(finite) else []
    return sorted({*(radius for radius in rounds if radius > 0), *(both.run.parameters.get("epsilons") or ())})


def sandwich_table(run: Run, radii: Sequence[float] | None = None, alpha: float = 0.05) -> ReportTable:
    """Shares certified, undecided and attacked at each radius with their intervals, and quartiles of both bounds.

    Args:
        run: of kind sandwich, with at least one image.
        radii: finite, at least 0. Default: `sandwich_radii`.
        alpha: probability that one of the intervals misses, in (0, 1).

    Returns:
        A table to print or to write; its notes are `describe_run`, and every crossing.

    Raises:
        InputError: the run is of another kind or holds no image, or a value is out of range.

    >>> from pyrobust.evaluation.sandwich import sandwich
    >>> from pyrobust.zoo import load_data, load_model
    >>> data = load_data("digits")
    >>> both = sandwich(load_model("zoo:digits-ibp-0.10"), data.x[:8], data.y[:8])
    >>> len(sandwich_table(both.run, [0.1]).rows)
    7
    """
    both = Sandwich(run)
    run._expect_rows("sandwich_table")
    shares = both.shares(sandwich_radii(both) if radii is None else radii, alpha)
    totals: list[Row] = [
        ("images", len(run), "", ""),
        ("clean accuracy", *_cells(run.clean_accuracy(alpha)), ""),
    ]
    rates: list[Row] = [
        (f"{both.norm} radius {number_text(radius)}", *(cell for rate in three for cell in _cells(rate)[:1]))
        for radius, *three in zip(shares.radii, shares.certified, shares.undecided, shares.attacked, strict=True)
    ]
    bands: list[Row] = [
        (f"  {100 * (1 - alpha):g} % intervals", *(_cells(rate)[1] for rate in three))
        for three in zip(shares.certified, shares.undecided, shares.attacked, strict=True)
    ]
    rows = [row for pair in zip(rates, bands, strict=True) for row in pair]
    right = run.right
    quartiles: list[Row] = [
        (f"{name} of the right ones", _quantity(both.lower[right], q), "", _quantity(both.upper[right], q))
        for name, q in zip(("lower quartile", "median", "upper quartile"), QUARTILES, strict=True)
        if right.any()
    ]
    crossings = [
        f"CROSSING: image {c.index} certified to {c.lower!r} by {c.lower_by}, fooled at {c.upper!r} by {c.upper_by}"
        for c in both.crossings
    ]
    notes = (*describe_run(run), *crossings)
    return ReportTable("Sandwich", _COLUMNS, tuple(map(tuple, filter(None, (totals, rows, quartiles)))), notes)


def _cells(rate: Rate) -> tuple[Cell, Cell]:
    return Quantity(rate.value, text=f"{100 * rate.value:.1f} %"), Interval(rate.lower, rate.upper)


def _quantity(values: npt.NDArray[np.float64], q: float) -> Cell:
    value = float(np.quantile(values, q, method="inverted_cdf"))
    return "inf" if math.isinf(value) else Quantity(value, text=f"{value:.4g}")
