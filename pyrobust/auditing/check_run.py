"""Checks of a run: every column that follows from stored votes or verdicts is computed again and compared."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.auditing.check_sequential import check_sequences
from pyrobust.auditing.findings import Finding, rows_fault
from pyrobust.errors import InputError
from pyrobust.grid import is_on_grid
from pyrobust.runs.digests import UNGUARDED
from pyrobust.runs.run import Run
from pyrobust.runs.verdicts import METHODS, decode_verdicts
from pyrobust.smoothing import ABSTAIN
from pyrobust.smoothing.batches import fixed_results
from pyrobust.smoothing.prediction import decide, joint_delta

_Mask = npt.NDArray[np.bool_]

# Differences between versions of scipy in the last digits; relative to sigma for radii.
_TOLERANCE = 1e-9


def check_run(run: Run) -> Iterator[Finding]:
    """Flag rows of a run whose derived columns are not what its votes, limits or verdicts give.

    The columns are computed again by the functions that wrote them. What does not follow from the file (logits, bounds,
    distances to images that are not in it) is not checked; contradictions between columns that no run can hold are
    refused when the table is read (`pyrobust.runs.row_checks`).
    """
    if not run.guarded:
        yield Finding("unguarded", "note", UNGUARDED)
    checks = {
        "certify": _check_fixed,
        "sequential": check_sequences,
        "predict": _check_predictions,
        "attack": _check_attack,
        "minimum": _check_attack,
        "certified-first": _check_attack,
        "verify": _check_verdicts,
        "sandwich": _check_sandwich,
        "smoothed-sandwich": _check_smoothed_sandwich,
    }
    try:
        differing = list(checks[run.header.layout](run))
    except InputError as error:  # a value that the functions refuse, such as a probability of 1
        yield Finding("derived", "fault", f"columns that cannot be computed again: {error}")
        return
    for kind, rows, problem in differing:
        if rows.any():
            yield rows_fault(kind, run.table["index"][rows], problem, "index")


def _check_sandwich(run: Run) -> Iterator[tuple[str, _Mask, str]]:
    if run.parameters["examples"]:
        run.examples()  # refuses examples with NaN, of another shape or outside the clip range
    table = run.table
    yield "crossing", table["margin"] <= 0, "certified radius that an adversarial example contradicts"
    unmoved = (table["upper"] == 0) & run.right
    yield "derived", unmoved, "broken at distance 0, at which the prediction is the label"


def _check_smoothed_sandwich(run: Run) -> Iterator[tuple[str, _Mask, str]]:
    if run.parameters["examples"]:
        run.examples()
    parameters, table = run.parameters, run.table
    given: dict[str, Any] = {name: parameters[name] for name in ("alpha", "sigma", "noise", "norm")}
    delta = parameters.get("delta", 0.0)
    expected = fixed_results(run.histogram("counts0"), run.histogram("counts"), **given, delta=delta)
    radius = np.where(expected["prediction"] == table["label"], expected["radius"], 0.0)
    excess = table["lower"] - radius
    tolerance = _TOLERANCE * (parameters["sigma"] + radius)
    yield "above-votes", excess > tolerance, "lower bound larger than its votes prove"
    yield "derived", excess < -tolerance, "lower bound smaller than its votes prove"
    yield (
        "derived",
        table["prediction"] != expected["prediction"],
        "prediction differs from the class that the votes give",
    )
    votes = run.histogram("counts_adv")
    tested = votes.any(axis=1)
    joint = joint_delta(delta, parameters["n_attack"])
    predicted, p_value = np.full(len(votes), ABSTAIN), np.ones(len(votes))
    predicted[tested], p_value[tested] = decide(
        votes[tested], parameters["alpha_attack"], delta=joint, tails="grid" in parameters
    )
    differs = np.abs(table["p_value"] - p_value) > _TOLERANCE
    yield "derived", differs, "p_value differs from the one that the votes at x_adv give"
    broken = (table["upper_by"] != "") & (table["upper_by"] != "clean")
    unproved = broken & (predicted != table["adversarial"])
    yield "derived", unproved, "adversarial example whose votes do not reject the label"


def _check_fixed(run: Run) -> Iterator[tuple[str, _Mask, str]]:
    parameters, table = run.parameters, run.table
    given: dict[str, Any] = {name: parameters[name] for name in ("alpha", "sigma", "noise", "norm")}
    expected = fixed_results(
        run.histogram("counts0"), run.histogram("counts"), **given, delta=parameters.get("delta", 0.0)
    )
    excess = table["radius"] - expected["radius"]
    tolerance = _TOLERANCE * (parameters["sigma"] + expected["radius"])
    yield "above-votes", excess > tolerance, "radius larger than its votes prove"
    yield "derived", excess < -tolerance, "radius smaller than its votes prove"
    differs = np.abs(table["p_lower"] - expected["p_lower"]) > _TOLERANCE
    yield "derived", differs, "p_lower differs from the bound that the votes give"
    yield (
        "derived",
        table["prediction"] != expected["prediction"],
        "prediction differs from the class that the votes give",
    )


def _check_predictions(run: Run) -> Iterator[tuple[str, _Mask, str]]:
    parameters, table = run.parameters, run.table
    prediction, p_value = decide(
        run.histogram(), parameters["alpha"], delta=parameters.get("delta", 0.0), tails="grid" in parameters
    )
    differs = np.abs(table["p_value"] - p_value) > _TOLERANCE * np.maximum(p_value, 1e-300)
    yield "derived", differs, "p_value differs from the one that the votes give"
    differs = table["prediction"] != prediction
    yield "derived", differs, "prediction differs from the class that the votes give"


def _check_attack(run: Run) -> Iterator[tuple[str, _Mask, str]]:
    if run.parameters["examples"]:
        x_adv = run.examples()  # refuses examples with NaN, of another shape or outside the clip range
        if "grid" in run.parameters:
            yield from _check_levels(run, Fraction(run.parameters["grid"]), x_adv)
    if "grid" in run.parameters:
        yield from _check_level_distances(run, Fraction(run.parameters["grid"]))
    unmoved = (run.table["distance"] == 0) & run.right
    yield "derived", unmoved, "broken at distance 0, at which the prediction is the label"


def _check_levels(run: Run, step: Fraction, x_adv: Tensor) -> Iterator[tuple[str, _Mask, str]]:
    off = np.array([not is_on_grid(image, step) for image in x_adv], dtype=bool)
    yield "derived", off, f"adversarial example that is not on the grid of {step}"


def _check_level_distances(run: Run, step: Fraction) -> Iterator[tuple[str, _Mask, str]]:
    """Distances on a grid are those of whole numbers of steps."""
    distance = np.nan_to_num(run.table["distance"])
    norm = run.parameters["norm"]
    steps = distance if norm == "l0" else (distance / float(step)) ** (2 if norm == "l2" else 1)
    between = np.abs(steps - np.round(steps)) > _TOLERANCE * np.maximum(steps, 1)
    yield "derived", between, f"distance of no whole number of {'squared ' if norm == 'l2' else ''}steps of {step}"


def _check_verdicts(run: Run) -> Iterator[tuple[str, _Mask, str]]:
    parameters, table = run.parameters, run.table
    methods = METHODS if parameters["method"] == "cascade" else (parameters["method"],)
    if parameters["examples"]:
        run.examples()
    if parameters["epsilons"] is None:
        proved = table["radius"] > 0
        yield "derived", proved & ~np.isin(table["stages"], methods), "stage that the method does not have"
        return
    decoded = decode_verdicts(table, len(parameters["epsilons"]))
    verified, falsified = (decoded["verdict"] == verdict for verdict in ("verified", "falsified"))
    foreign = verified & ~np.isin(decoded["stage"], methods)
    yield "derived", foreign.any(axis=1), "stage that the method does not have"
    # A counterexample holds at every larger epsilon, and refutes every proof there.
    lost = np.logical_or.accumulate(falsified, axis=1) & ~falsified
    yield "derived", lost.any(axis=1), "verdict at an epsilon that contradicts a counterexample at a smaller one"
    positive = (decoded["verdict"] != "verified") & (decoded["margin"] > 0)
    yield "derived", positive.any(axis=1), "verdict that contradicts its proved margin, which is positive"
