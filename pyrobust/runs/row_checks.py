"""Validate rows read from untrusted run files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pyrobust.attacks.engine.norms import NORMS
from pyrobust.errors import FileFormatError
from pyrobust.runs.parameters import chosen_indices, is_name
from pyrobust.runs.verdicts import PROOFS, decode_verdicts

Table: TypeAlias = dict[str, npt.NDArray[Any]]

# More than the rounding error of a distance and of a diameter.
_ROUNDING = 1e-9


def check_table(layout: str, parameters: dict[str, Any], table: Table, path: Path) -> None:
    """Raise FileFormatError for rows that no run of this layout and these parameters can hold.

    >>> from pyrobust.runs.parameters import example
    >>> columns = {"index": [20], "label": [1], "prediction": [1], "status": ["ok"], "seconds": [0.5], "p_value": [0.1]}
    >>> table = {name: np.array(values) for name, values in columns.items()}
    >>> check_table("predict", example("predict"), table, Path("run.db"))
    Traceback (most recent call last):
    pyrobust.errors.FileFormatError: run.db: damaged: holds an image that the run does not cover; do not use this file
    """
    classes = parameters["num_classes"]
    expected = chosen_indices(parameters)
    places, rest = np.divmod(table["index"] - expected.start, expected.step)
    checks = {
        "an image that the run does not cover": ((rest == 0) & (places >= 0) & (places < len(expected))).all(),
        "a label out of range": ((table["label"] >= 0) & (table["label"] < classes)).all(),
        "a prediction out of range": _in_range(table["prediction"], classes),
        "a negative time": (table["seconds"] >= 0).all(),
        **_layout_checks(layout, parameters, table),
    }
    failed = [fault for fault, passed in checks.items() if not passed]
    if failed:
        raise FileFormatError(f"{path}: damaged: holds {failed[0]}; do not use this file")


def _layout_checks(layout: str, parameters: dict[str, Any], table: Table) -> dict[str, Any]:
    if layout == "verify":
        return _verify_checks(parameters, table)
    if layout == "sandwich":
        return _sandwich_checks(parameters, table) | _base_sandwich_checks(parameters, table)
    if layout == "smoothed-sandwich":
        return _smoothing_checks(table) | _sandwich_checks(parameters, table)
    if layout == "sequential":
        return _smoothing_checks(table) | _sequential_checks(parameters, table)
    if layout == "minimum":
        return _broken_checks(parameters, table) | _minimum_checks(parameters, table)
    if layout in ("attack", "certified-first"):
        proofs = _proof_checks(table) if layout == "certified-first" else {}
        return _broken_checks(parameters, table) | _attack_checks(parameters, table) | proofs
    return _smoothing_checks(table)


def _verify_checks(parameters: dict[str, Any], table: Table) -> dict[str, Any]:
    right = table["prediction"] == table["label"]
    checks = {
        "an unknown status": (table["status"] == "ok").all(),
        "examples without an attack and its clip range": not parameters["examples"]
        or (parameters["attack"] and parameters["clip"]),
        "a certified image that the model gets wrong": (right | (table["radius"] == 0)).all(),
    }
    epsilons = parameters["epsilons"]
    if epsilons is None:
        largest = parameters["largest"] or 0.0
        certified = table["radius"] > 0
        no_verdicts = (table["verdicts"] == "") & (table["margins"] == "")
        return checks | {
            "a radius out of range": ((table["radius"] >= 0) & (table["radius"] <= largest)).all(),
            "a stage that contradicts the radius": (np.isin(table["stages"], PROOFS) == certified).all()
            and (table["stages"][~certified] == "").all(),
            "verdicts in a search for radii": no_verdicts.all(),
        }
    try:
        decoded = decode_verdicts(table, len(epsilons))
    except ValueError as error:
        return checks | {str(error): False}
    proved = decoded["verdict"] == "verified"
    forward = decoded["stage"] == "forward"
    return checks | {
        "a verdict that contradicts the prediction": (forward == ~right[:, None]).all(),
        "a counterexample without an attack": parameters["attack"] or not (decoded["stage"] == "attack").any(),
        "a radius that contradicts the verdicts": (
            table["radius"] == np.max(np.where(proved, epsilons, 0.0), axis=1, initial=0.0)
        ).all(),
    }


def _smoothing_checks(table: Table) -> dict[str, Any]:
    abstained = table["prediction"] < 0
    checks = {
        "an unknown status": np.isin(table["status"], ("ok", "abstain")).all(),
        "a status that contradicts the prediction": ((table["status"] == "abstain") == abstained).all(),
    }
    for name in {"p_lower", "p_upper", "rival_upper", "p_value"} & set(table):
        checks[f"a {name} out of range"] = ((table[name] >= 0) & (table[name] <= 1)).all()
    if "radius" in table:
        checks["a radius out of range"] = ((table["radius"] >= 0) & ~(abstained & (table["radius"] > 0))).all()
    return checks


def _sequential_checks(parameters: dict[str, Any], table: Table) -> dict[str, Any]:
    drawn = table["samples"] - parameters["n0"]
    radii = parameters["radii"]
    digits = _digits(table["undecided"], len(radii))
    # A radius can be undecided only if it was not certified; abstentions certify none.
    certified = (table["radius"][:, None] >= np.array(radii)) & (table["prediction"] >= 0)[:, None]
    return {
        "numbers of samples out of range": ((drawn >= 1) & (drawn <= parameters["n"])).all(),
        "undecided radii that contradict the radius": digits is not None and not (digits & certified).any(),
        "undecided radii before all samples were drawn": digits is not None
        and not (digits.any(axis=1) & (drawn < parameters["n"])).any(),
    }


def _digits(texts: npt.NDArray[np.str_], count: int) -> npt.NDArray[np.bool_] | None:
    """Whether each digit of texts [N] is 1, bool [N, count]; None unless all are ``count`` digits 0 or 1."""
    if (np.char.str_len(texts) != count).any():
        return None
    codes = np.ascontiguousarray(texts, dtype=f"U{count}").view(np.uint32).reshape(len(texts), count)
    digits = codes == ord("1")
    return digits if (digits | (codes == ord("0"))).all() else None


def _attack_checks(parameters: dict[str, Any], table: Table) -> dict[str, Any]:
    robust, distance = table["broken_by"] == "", table["distance"]
    return {
        "a distance out of range": (robust | ((distance >= 0) & (distance <= parameters["epsilon"]))).all(),
        "a distance for a robust image": np.isnan(distance[robust]).all(),
    }


def _proof_checks(table: Table) -> dict[str, Any]:
    proved = table["proved"] == 1
    return {
        "a proof that is neither there nor missing": (proved | (table["proved"] == 0)).all(),
        "a proved image that an attack broke": (table["broken_by"][proved] == "").all(),
        "rows saved without a proof, or none with one": ((table["rows_saved"] > 0) == proved).all()
        and (table["rows_saved"] >= 0).all(),
        "a negative time of a proof": (table["proof_seconds"] >= 0).all(),
    }


def _minimum_checks(parameters: dict[str, Any], table: Table) -> dict[str, Any]:
    clean, none = table["broken_by"] == "clean", table["broken_by"] == ""
    low, high = parameters["clip"]
    # Rounded up, so that the range of valid pixels bounds every distance.
    largest = NORMS[parameters["norm"]].diameter(math.prod(parameters["shape"]), high - low) * (1 + _ROUNDING)
    distance = table["distance"]
    found = distance[~none & ~clean]
    return {
        "a distance of a misclassified image other than 0": (distance[clean] == 0).all(),
        "a distance where no adversarial example was found": np.isinf(distance[none]).all(),
        "a distance out of range": ((found >= 0) & (found <= largest)).all(),
        "a number of changed coordinates that is no integer": parameters["norm"] != "l0"
        or (found == np.floor(found)).all(),
    }


def _sandwich_checks(parameters: dict[str, Any], table: Table) -> dict[str, Any]:
    prediction, lower, upper, upper_by = (table[name] for name in ("prediction", "lower", "upper", "upper_by"))
    right = prediction == table["label"]
    # A smoothed classifier that abstains may be right or wrong at the image.
    wrong = ~right & ((prediction >= 0) | (table["status"] == "ok"))
    clean, none = upper_by == "clean", upper_by == ""
    return {
        "an adversarial prediction out of range": _in_range(table["adversarial"], parameters["num_classes"]),
        "an invalid attack name in upper_by": all(is_name(name) for name in np.unique(upper_by).tolist() if name),
        "a lower bound out of range": ((lower >= 0) & np.isfinite(lower) & (right | (lower == 0))).all(),
        "an upper bound out of range": (upper >= 0).all(),
        "an upper_by that contradicts the prediction": (clean == wrong).all(),
        "an upper bound that contradicts upper_by": ((~clean | (upper == 0)) & (np.isinf(upper) == none)).all(),
        "an adversarial prediction that is the label": (clean | none | (table["adversarial"] != table["label"])).all(),
    }


def _base_sandwich_checks(parameters: dict[str, Any], table: Table) -> dict[str, Any]:
    lower, margin = table["lower"], table["margin"]
    # In exact arithmetic the label may be ahead where rounding alone misclassifies; the observed logits are behind.
    highest = 0 if parameters["semantics"] == "float32" else np.inf
    crossed = (table["upper"] <= lower) & (lower > 0)
    return {
        "an unknown status": (table["status"] == "ok").all(),
        "a confidence out of range": ((table["confidence"] >= 0) & (table["confidence"] <= 1)).all(),
        "a lower_by that contradicts the lower bound": (np.isin(table["lower_by"], PROOFS) == (lower > 0)).all()
        and (table["lower_by"][lower == 0] == "").all(),
        "a margin that contradicts the bounds": (~np.isnan(margin) == crossed).all(),
        "a positive margin of a misclassified example": not (margin > highest).any(),
    }


def _broken_checks(parameters: dict[str, Any], table: Table) -> dict[str, Any]:
    right = table["prediction"] == table["label"]
    robust = right & (table["adversarial"] == table["label"])
    broken_by = table["broken_by"]
    return {
        "an unknown status": (table["status"] == "ok").all(),
        "an adversarial prediction out of range": _in_range(table["adversarial"], parameters["num_classes"]),
        "an invalid attack name in broken_by": all(is_name(name) for name in np.unique(broken_by).tolist() if name),
        "a broken_by that contradicts the predictions": (
            ((broken_by == "clean") == ~right) & ((broken_by == "") == robust)
        ).all(),
    }


def _in_range(column: npt.NDArray[Any], classes: int) -> Any:
    """Whether all values are classes or -1, an abstention."""
    return ((column >= -1) & (column < classes)).all()
