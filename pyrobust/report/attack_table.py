"""Tables of attacks and robustness curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from pyrobust.checks import number_text
from pyrobust.evaluation import RobustnessCurve, minimum_norm_curve
from pyrobust.metrics import perturbation_quantiles
from pyrobust.metrics.radii import rising
from pyrobust.report.caption import checked_run, describe_run
from pyrobust.report.formats import Interval, Quantity, ReportTable, Row
from pyrobust.report.table import (
    QUARTILES,
    count_cells,
    rate_row,
    share_cell,
    shares_table,
    total_rows,
)
from pyrobust.runs.kinds.words import POINTWISE, attacks_of, norm_of
from pyrobust.runs.run import Run


def default_epsilons(curve: RobustnessCurve) -> list[float]:
    """Return the epsilons for the table of a curve.

    For a curve of points, these are the epsilons of the points. For a step function, these are of two kinds: round
    numbers up to the distance within which nine tenths of the broken images lie (misclassified images have distance 0),
    and every epsilon at which another attack confirmed the curve.

    Args:
        curve: a curve of any attack.

    Returns:
        The epsilons. The points of a curve keep their order. The epsilons of a step function increase, and are whole
        numbers in l0.

    >>> from pyrobust.attacks import MinimumNorm
    >>> from pyrobust.evaluation import minimum_norm_curve
    >>> distance = torch.tensor([0.1, 0.2, torch.inf], dtype=torch.float64)
    >>> found = MinimumNorm(torch.zeros(3, 1), distance, distance.isfinite(), ("FMN", "FMN", None), "linf", 0, 0)
    >>> default_epsilons(minimum_norm_curve(found))[-1]
    0.2
    """
    if not curve.stepwise:
        return [float(epsilon) for epsilon in curve.epsilons]
    finite = torch.from_numpy(curve.broken_epsilon[np.isfinite(curve.broken_epsilon)])
    epsilons = rising(perturbation_quantiles(finite, [0.9])[0]) if len(finite) else []
    if curve.norm == "l0":
        epsilons = [float(math.floor(epsilon)) for epsilon in epsilons if epsilon >= 1]
    return sorted({*epsilons, *(confirmation.epsilon for confirmation in curve.confirmations)})


def attack_table(run: Run, alpha: float = 0.05, curve: RobustnessCurve | None = None) -> ReportTable:
    """Show clean and robust accuracy of a run with their intervals, and the number of images that each attack broke.

    For a minimum-norm run, the table has quartiles of the distance, and robust accuracy at `default_epsilons`.

    Args:
        run: a run of kind attack, with at least one image.
        alpha: for each interval, the probability that it misses the true value, in (0, 1).
        curve: for a minimum-norm run, its robustness curve, to which ``confirm_curve`` may have added the results of
            other attacks. All intervals then have the curve's alpha. By default, the curve is the `minimum_norm_curve`
            of the run with ``alpha``.

    Returns:
        A table to print or to write, with the lines of `describe_run` as notes.

    Raises:
        InputError: the run is of another kind or holds no image.

    >>> from pyrobust.attacks import FGSM
    >>> from pyrobust.evaluation import attack_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> run = attack_dataset(FGSM(load_model("zoo:digits-smooth-0.25"), epsilon=0.1), load_data("digits"), skip=20)
    >>> len(attack_table(run).rows)
    5
    """
    robust = checked_run(run).robust
    broken_by = run.table["broken_by"].tolist()
    planned = attacks_of(run.parameters)
    names = dict.fromkeys([*planned, *sorted(set(broken_by) - {"", "clean"})])
    if run.header.type.stepwise:
        curve = curve or minimum_norm_curve(run, alpha=alpha)
        totals = total_rows(run, curve.alpha)
        nearest: list[Row] = [(*count_cells(f"nearest by {name}", broken_by.count(name), run), "") for name in names]
        nearest += [(*count_cells("none found", broken_by.count(""), run), "")] if "" in broken_by else []
        return shares_table("Attack", describe_run(run), totals, nearest, *_step_rows(curve), alpha=curve.alpha)
    totals = total_rows(run, alpha)
    attacks: list[Row] = [(*count_cells(f"broken by {name}", broken_by.count(name), run), "") for name in names]
    broken = run.correct & ~robust
    mean = _mean(run.table["distance"][broken].tolist())
    if "proved" in run.table:
        seconds, saved = float(run.table["proof_seconds"].sum()), int(run.table["rows_saved"].sum())
        attacks.append((*count_cells("proved robust, not attacked", int(run.table["proved"].sum()), run), ""))
        attacks.append(("seconds of the proofs", Quantity(seconds, text=f"{seconds:.1f}"), "", ""))
        attacks.append(("rows of the model saved, at least", Quantity(saved, text=f"{saved:,}"), "", ""))
    attacks.append((f"mean {norm_of(run.parameters)} distance of the broken ones", mean, "", ""))
    return shares_table("Attack", describe_run(run), totals, attacks, alpha=alpha)


def curve_table(curve: RobustnessCurve, caption: Sequence[str]) -> ReportTable:
    """Show robust accuracy, with its interval, at each epsilon of a curve.

    For a curve that is a step function, the table has quartiles of the distances at which examples are broken, and
    robust accuracy at `default_epsilons`.

    Args:
        curve: a curve of any attack.
        caption: lines of text that state what else determines the rates, such as the model and the data.

    Returns:
        A table to print or to write, with the caption as notes.

    >>> from pyrobust.attacks import FGSM
    >>> from pyrobust.evaluation.robustness_curve import robustness_curve
    >>> from pyrobust.zoo import load_data, load_model
    >>> data = load_data("digits")
    >>> curve = robustness_curve(FGSM, load_model("zoo:digits-smooth-0.25"), data.x[:9], data.y[:9], [0.0, 0.1])
    >>> len(curve_table(curve, ["Data digits"]).rows)
    2
    """
    if curve.stepwise:
        return shares_table("Robust accuracy", [*caption, POINTWISE], *_step_rows(curve), alpha=curve.alpha)
    columns = (curve.epsilons, curve.robust_accuracy, curve.counts, curve.lower, curve.upper)
    rows: list[Row] = [
        (f"{curve.norm} epsilon {number_text(epsilon)}", share_cell(accuracy), count, Interval(lower, upper))
        for epsilon, accuracy, count, lower, upper in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return shares_table("Robust accuracy", caption, rows, alpha=curve.alpha)


def _step_rows(curve: RobustnessCurve) -> tuple[list[Row], list[Row], list[Row]]:
    """Return three lists of rows: quartiles of the distance, robust accuracy at epsilons, and confirmations."""
    names = (f"{curve.norm} distance, lower quartile", "median", "upper quartile")
    quartiles: list[Row] = [
        (name, "inf" if math.isinf(value) else Quantity(value, text=f"{value:.4g}"), "", "")
        for name, value in zip(names, curve.quantiles(QUARTILES), strict=True)
    ]
    accuracies = [
        rate_row(f"{curve.norm} epsilon {number_text(epsilon)}", curve.rate(epsilon))
        for epsilon in default_epsilons(curve)
    ]
    confirmed: list[Row] = [
        (
            f"also broken by {each.attack} at {number_text(each.epsilon)}",
            f"of {each.examples}{f', {each.proved} of them proved robust' if each.proved else ''}",
            each.broken,
            "",
        )
        for each in curve.confirmations
    ]
    return quartiles, accuracies, confirmed


def _mean(values: Sequence[float]) -> Quantity | str:
    if not values:
        return "none"
    mean = float(np.mean(values))
    return Quantity(mean, text=f"{mean:.4g}")
