"""Table that compares attacked and verified runs: upper and lower bounds of robust accuracy side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.checks import items, number_text
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation import RobustnessCurve, Run, minimum_norm_curve
from pyrobust.metrics import Rate
from pyrobust.report.attack_table import default_epsilons
from pyrobust.report.caption import describe_run, warnings_of
from pyrobust.report.formats import Cell, Column, Quantity, ReportTable, Row
from pyrobust.report.subjects import distinct, distinct_run_names
from pyrobust.report.table import QUARTILES
from pyrobust.runs.kinds.words import box_text, norm_of

_HASH = 12
_QUARTILES = ("lower quartile", "median", "upper quartile")


def robustness_table(runs: Run | Sequence[Run], alpha: float = 0.05) -> ReportTable:
    """Compare runs of attacks and verifications: clean accuracy, and two bounds of robust accuracy.

    The table has one column per classifier and data set. Each row is for one norm, epsilon and method. For a
    verification, the row has the verified share, which is a lower bound of robust accuracy. For an attack, the row has
    the share that withstood the attack, which is an upper bound. If an attack on the same model and data broke a
    verified image, either the attack or the verification is wrong, and a note says so.

    For minimum-norm runs, there are rows at the epsilons of the other runs and at round epsilons. Further rows have the
    quartiles of the distance at which these runs broke the images.

    Args:
        runs: runs of kind attack, or of kind verify at given epsilons, each with at least one image. All minimum-norm
            runs must have the same images of the same data set.
        alpha: probability that a given interval misses the true value, in (0, 1).

    Returns:
        A table to print or to write. Its notes state what the numbers depend on.

    Raises:
        InputError: there is no run, a run is of another kind or has no images, minimum-norm runs have different images
            or data, or alpha is out of range.
        InputTypeError: an argument that is not a run.

    >>> from pyrobust.attacks import FGSM
    >>> from pyrobust.evaluation import attack_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> run = attack_dataset(FGSM(load_model("zoo:digits-smooth-0.25"), 8 / 255), load_data("digits"), max_images=4)
    >>> [row[0] for row in robustness_table(run).rows][-1]
    'linf 8/255: robust under attack, FGSM'
    """
    checked = checked_robustness_runs(runs)
    names = distinct_run_names(checked)
    groups = by_classifier(checked)
    columns = list(groups.values())
    cells: dict[tuple[str, float, str], dict[int, Rate]] = {}
    curves = {id(run): minimum_norm_curve(run, alpha=alpha) for run in checked if run.header.type.stepwise}
    epsilons = _common_epsilons(checked, list(curves.values()))
    quartiles: dict[str, dict[int, Cell]] = {}
    for column, group in enumerate(columns):
        for run in group:
            curve = curves.get(id(run))
            if curve is not None:
                for name, value in zip(_QUARTILES, curve.quantiles(QUARTILES), strict=True):
                    row = f"{curve.norm} distance, {name}: {_method(run)}"
                    if column in quartiles.get(row, {}):
                        row = f"{row}, {names[checked.index(run)]}"
                    quartiles.setdefault(row, {})[column] = "inf" if math.isinf(value) else Quantity(value)
            for (norm, epsilon, what), rate in rates_of(run, alpha, epsilons.get(norm_of(run.parameters), [])).items():
                key = (norm, epsilon, f"{what}, {_method(run)}")
                if column in cells.get(key, {}):  # two runs of one method, with different seeds or images
                    key = (norm, epsilon, f"{key[2]}, {names[checked.index(run)]}")
                cells.setdefault(key, {})[column] = rate
    bounds: list[Row] = [
        (f"{norm} {number_text(epsilon)}: {what}", *(_share(by_column.get(column)) for column in range(len(columns))))
        for (norm, epsilon, what), by_column in sorted(cells.items())
    ]
    distances = tuple(
        (row, *(by_column.get(column) for column in range(len(columns)))) for row, by_column in quartiles.items()
    )
    clean: Row = ("clean accuracy", *(_share(group[0].clean_accuracy(alpha)) for group in columns))
    named = list(zip(names, checked, strict=True))
    notes = [f"{name}: {line}" for name, run in named for line in warnings_of(run)]
    boxes = {norm_of(run.parameters): run.parameters["box"] for run in checked if "box" in run.parameters}
    notes += [f"{norm}: multiples of the {box_text(box, named=False)}" for norm, box in boxes.items()]
    notes.append(
        f"Verified: proved, a lower bound of robust accuracy. Robust under attack: an upper bound, which a stronger "
        f"attack can lower. In brackets: {100 * (1 - alpha):g} % intervals, for other images of the same kind."
    )
    return ReportTable(
        title="Robust accuracy",
        columns=(Column("", "left"), *map(Column, distinct([key[0] for key in groups]))),
        sections=(
            _facts(columns),
            (clean, *bounds),
            *filter(None, [distances]),
        ),
        notes=(*notes, *_crossings(checked, names)),
        aside=("data sha256", "model sha256"),
        details=tuple(f"{name}: {line}" for name, run in named for line in describe_run(run)),
    )


def checked_robustness_runs(runs: Run | Sequence[Run]) -> list[Run]:
    """Return the runs as a list; refuse a run that has no images, or no rates that bound robust accuracy."""
    checked = [runs] if isinstance(runs, Run) else items("runs", runs, "runs")
    for run in checked:
        if not isinstance(run, Run):
            raise InputTypeError("runs", "runs", type(run).__name__)
        if not bounds_robustness(run) or not len(run):
            kind = f"one of kind {run.kind} with {len(run)} images"
            raise InputError("runs", "runs of kind attack, or verify at epsilons, with images", kind)
    if not checked:
        raise InputError("runs", "at least one", "none")
    first, *others = [run for run in checked if run.header.type.stepwise] or [checked[0]]
    for other in others:
        same = first.header.data_sha256 == other.header.data_sha256
        if not same or not np.array_equal(first.table["index"], other.table["index"]):
            pair = f"{first.path or first.header.model} and {other.path or other.header.model}"
            raise InputError(
                "runs",
                "minimum-norm runs on the same images",
                f"{pair}, {'of other images' if same else 'of other data'}",
                "their curves do not compare",
            )
    return checked


def bounds_robustness(run: Run) -> bool:
    """Whether a run has rates that bound robust accuracy at epsilons."""
    kind = run.header.type
    return kind.stepwise or bool(kind.epsilons_of(run.parameters))


def _common_epsilons(runs: Sequence[Run], curves: Sequence[RobustnessCurve]) -> dict[str, list[float]]:
    """Return, for each norm, the epsilons at which minimum-norm runs are shown: round ones, and those of other runs."""
    common: dict[str, list[float]] = {}
    for curve in curves:
        # The widest range covers the others; its last number is the largest.
        common[curve.norm] = max(
            common.get(curve.norm, []), default_epsilons(curve), key=lambda epsilons: epsilons[-1:]
        )
    for run in runs:
        norm = norm_of(run.parameters)
        if norm in common:
            common[norm] += run.header.type.epsilons_of(run.parameters)
    return {norm: sorted(set(epsilons)) for norm, epsilons in common.items()}


def rates_of(run: Run, alpha: float, epsilons: Sequence[float] = ()) -> dict[tuple[str, float, str], Rate]:
    """Return the bounds of a run by norm, epsilon and kind; a minimum-norm run has bounds at the given epsilons."""
    kind, norm = run.header.type, norm_of(run.parameters)
    sizes = epsilons if kind.stepwise else kind.epsilons_of(run.parameters)
    return {(norm, size, kind.outcome): kind.rate(run, size, alpha) for size in sizes}


def by_classifier(runs: Sequence[Run]) -> dict[tuple[str, str, str], list[Run]]:
    """Group runs by the model's name and the hashes of the model and the data."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        header = run.header
        groups.setdefault((header.model, header.model_sha256, header.data_sha256), []).append(run)
    return groups


def _facts(columns: Sequence[Sequence[Run]]) -> tuple[Row, ...]:
    wanted: dict[str, Callable[[Run], str]] = {
        "images": lambda run: f"{len(run):,}",
        "data sha256": lambda run: run.header.data_sha256[:_HASH],
        "model sha256": lambda run: run.header.model_sha256[:_HASH] or "unknown",
    }
    return tuple(
        (name, *(", ".join(dict.fromkeys(map(fact, group))) for group in columns)) for name, fact in wanted.items()
    )


def _method(run: Run) -> str:
    kind = run.header.type
    return kind.method_of(run.parameters) + kind.caveat(run.parameters)


def _share(rate: Rate | None) -> Cell:
    return None if rate is None else Quantity(rate.value, rate.lower, rate.upper, 2, percent=True)


def _crossings(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Return notes on images that one run verified, and another run broke within the verified radius."""

    def subject(run: Run) -> tuple[Any, ...]:
        return (run.header.model_sha256, run.header.data_sha256, norm_of(run.parameters))

    notes = []
    for attacked, name in zip(runs, names, strict=True):
        for verified, other in zip(runs, names, strict=True):
            both = (attacked.header.type.attacked, verified.header.type.certified)
            if both != (True, "radius") or subject(attacked) != subject(verified):
                continue
            broken = _broken_within(attacked, verified)
            if len(broken) and subject(attacked)[0]:
                more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
                notes.append(
                    f"CROSSING: {name} broke image {broken[0]}{more}, "
                    f"which {other} verified at this epsilon; one of the two is wrong, please report it."
                )
    return notes


def _broken_within(attacked: Run, verified: Run) -> npt.NDArray[np.int64]:
    """Return the indices of images that one run broke within the radius that the other run verified."""
    broken = attacked.correct & ~attacked.robust
    images, rows, proofs = np.intersect1d(
        attacked.table["index"][broken], verified.table["index"][verified.correct], return_indices=True
    )
    radius = verified.table["radius"][verified.correct][proofs]
    within = attacked.header.type.reach(attacked)[broken][rows]
    reached: npt.NDArray[np.int64] = images[(radius >= within) & (radius > 0)]
    return reached
