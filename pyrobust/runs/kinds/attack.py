"""Runs of attacks: attacks at one epsilon (with or without prior certification), and minimum-norm attacks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pyrobust.checks import ATTACK_NORMS, non_negatives, number, number_text
from pyrobust.errors import InputError
from pyrobust.grid import is_on_grid
from pyrobust.late import numpy as np
from pyrobust.option import CLIP, PERTURBATION_PANEL, SEED, Option
from pyrobust.runs.kinds import values
from pyrobust.runs.kinds.columns import (
    Array,
    ExampleColumn,
    FlagColumn,
    Integer,
    Name,
    OptionalReal,
    Prediction,
    Seconds,
)
from pyrobust.runs.kinds.common import TOLERANCE, WithExamples, adversarial_classes, unmoved
from pyrobust.runs.kinds.kind import Bound, Contradictions, NamedRate, Parameter, Parameters, Shown, Table
from pyrobust.runs.kinds.values import frozen, is_clip, is_grid_step, is_name, none_or, one_of
from pyrobust.runs.kinds.words import (
    ATTACKED,
    EXACT,
    POINTWISE,
    attack_and_budget,
    attack_of,
    ball_text,
    unit_text,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from pyrobust.metrics import Rate
    from pyrobust.runs.reader import Header
    from pyrobust.runs.run import Run

# More than the rounding errors of a distance and a diameter.
_ROUNDING = 1e-9


class _Attacking(WithExamples):
    """Runs that consist of an attack alone."""

    table = "attack_table"
    panel = "Attacks"
    log = ("idx", "label", "predict", "adversarial", "distance", "broken_by", "correct", "robust", "time")
    attacked = True
    outcome = "robust under attack"

    attack = Parameter(is_name)
    norm = Parameter(
        one_of(*ATTACK_NORMS),
        option=Option(
            "Norm of the perturbation; l0 counts changed values.",
            form="choice",
            panel=PERTURBATION_PANEL,
            default="linf",
            choices=ATTACK_NORMS,
            any_case=True,
        ),
    )
    clip = Parameter(is_clip, option=CLIP)
    box = Parameter(values.is_box, group="box")  # radii of elements; epsilon and distances are multiples of them
    seed = Parameter(none_or(values.seed), option=SEED)
    targeted = Parameter(one_of(False))
    grid = Parameter(
        is_grid_step,
        group="grid",
        option=Option(
            "Step of the values that an image file holds, such as 1/255: attack with images on this grid only, which "
            "stay adversarial when they are saved. auto: find it in the data. Default: any float.",
            "STEP",
            "step",
            PERTURBATION_PANEL,
            none="none",
        ),
    )
    adversarial = Prediction("an adversarial prediction out of range")
    distance = OptionalReal()
    broken_by = Name()
    x_adv = ExampleColumn()

    def guarantees_grid(self, parameters: Parameters) -> bool:
        return False  # even on a grid, an attack certifies nothing

    def faults(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        correct = table["prediction"] == table["label"]
        robust = correct & (table["adversarial"] == table["label"])
        consistent = ((table["broken_by"] == "clean") == ~correct) & ((table["broken_by"] == "") == robust)
        yield "a broken_by that contradicts the predictions", consistent.all()

    def robust(self, run: Run) -> npt.NDArray[np.bool_]:
        return _robust(run.table)

    def logged(self, name: str, table: Table) -> list[Any]:
        flags: list[Any] = _robust(table).astype(int).tolist()
        return flags

    def method_of(self, parameters: Parameters) -> str:
        return attack_and_budget(parameters)

    def contradictions(self, run: Run) -> Contradictions:
        step = Fraction(run.parameters["grid"]) if "grid" in run.parameters else None
        if run.parameters["examples"]:
            x_adv = run.examples()  # refuses examples with NaN, of another shape or outside the clip range
            if step is not None:
                off = np.array([not is_on_grid(image, step) for image in x_adv], dtype=bool)
                yield "derived", off, f"adversarial example that is not on the grid of {step}"
        if step is not None:
            yield _between_levels(run, step)
        yield unmoved(run, "distance")

    def arithmetic(self, parameters: Parameters) -> tuple[Any, ...]:
        # Proofs in place of an attack hold for the arithmetic in which the attack runs.
        return ("float32", True, frozen(parameters["clip"]))

    def limit(self, parameters: Parameters) -> float:
        return math.inf

    def found(self, run: Run) -> Array:
        return run.correct & ~run.robust

    def upper_bound(self, run: Run) -> Bound:
        limit = self.limit(run.parameters)
        # The float64 distance of a point inside the ball may be rounded above epsilon.
        distance = np.where(self.found(run), np.minimum(run.table["distance"], limit), np.inf)
        return Bound(
            radius=np.where(run.correct, distance, 0.0),
            by=tuple(run.table["broken_by"].tolist()),
            method=self.method_of(run.parameters),
            limit=limit,
            marks=(limit,) if math.isfinite(limit) else (),
        )

    def shown(self, run: Run) -> Sequence[Shown]:
        return [adversarial_classes(run.table["adversarial"], self.found(run))]


class Attack(_Attacking, layout="attack"):
    """An attack at one epsilon."""

    side = "under attack, an upper bound"

    norm = _Attacking.norm
    epsilon = Parameter(
        values.radius,
        option=Option(
            "Perturbation radius, in the unit of the pixels: 0.1 or 8/255.", "E", "number", PERTURBATION_PANEL
        ),
    )
    clip, grid = _Attacking.clip, _Attacking.grid

    def faults(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        yield from super().faults(parameters, table)
        robust, distance = table["broken_by"] == "", table["distance"]
        within = robust | ((distance >= 0) & (distance <= parameters["epsilon"]))
        yield "a distance out of range", within.all()
        yield "a distance for a robust image", np.isnan(distance[robust]).all()

    def unbroken(self, rows: Mapping[str, Any], radius: float) -> Array:
        unbroken: Array = np.asarray(rows["adversarial"]) == rows["label"]
        return unbroken

    def epsilons_of(self, parameters: Parameters) -> Sequence[float]:
        return (parameters["epsilon"],)

    def rate(self, run: Run, epsilon: float, alpha: float) -> Rate:
        return self.robust_accuracy(run, alpha)

    def robust_accuracy(self, run: Run, alpha: float, epsilon: float | None = None) -> Rate:
        if epsilon is not None and number("epsilon", epsilon) != run.parameters["epsilon"]:
            raise InputError(
                "epsilon",
                f"that of the run, {run.parameters['epsilon']!r}",
                repr(epsilon),
                "only a minimum-norm run knows others",
            )
        from pyrobust.metrics import estimate_rate

        run._expect_rows("robust_accuracy")
        return estimate_rate(int(self.robust(run).sum()), len(run), alpha)

    def rates(self, run: Run, alpha: float) -> Iterator[NamedRate]:
        yield NamedRate("robust accuracy", self.robust_accuracy(run, alpha))

    def limit(self, parameters: Parameters) -> float:
        return float(parameters["epsilon"])

    def reach(self, run: Run) -> Array:
        return np.full(len(run), run.parameters["epsilon"])

    def describe(self, header: Header) -> list[str]:
        parameters = header.parameters
        steps = f" in steps of {parameters['grid']}" if "grid" in parameters else ""
        budget = f"{ball_text(parameters)} {number_text(parameters['epsilon'])}{steps}"
        return [f"Under attack, {budget}; robust accuracy is an upper bound", attack_of(parameters)]

    def promises(self, header: Header) -> Iterator[str]:
        parameters = header.parameters
        yield ATTACKED
        yield from self._exceptions()
        within = "" if parameters["clip"] is None else " and the clip range"
        yield (
            f"Every adversarial example lies within {ball_text(parameters)} {number_text(parameters['epsilon'])}"
            f"{within}, and was judged by a forward pass of its own."
        )

    def _exceptions(self) -> Iterator[str]:
        yield from ()


class Minimum(_Attacking, layout="minimum", name="attack"):
    """A minimum-norm attack, which searches for the nearest adversarial example of each image.

    ``distance`` is 0 where x itself is misclassified, and inf (NULL in the file) where no adversarial example was
    found.
    """

    stepwise = True
    side = "nearest adversarial examples, an upper bound"

    minimum = Parameter(one_of(True))
    distance = OptionalReal(missing=math.inf)
    broken_by = Name()
    x_adv = ExampleColumn()

    def applies(self, parameters: Parameters) -> bool:
        return "minimum" in parameters

    def faults(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        from pyrobust.metrics.distance import box_diameter

        yield from super().faults(parameters, table)
        clean, none, distance = table["broken_by"] == "clean", table["broken_by"] == "", table["distance"]
        low, high = parameters["clip"] or (-math.inf, math.inf)
        width = float(np.max(high) - np.min(low))
        if "box" in parameters:
            radii = np.array(parameters["box"], dtype=np.float64)
            room = np.broadcast_to(np.asarray(high, dtype=np.float64) - low, radii.shape)
            width = float(np.max(room[radii > 0] / radii[radii > 0]))
        # Distances are rounded up; the range of valid pixels bounds them.
        largest = box_diameter(parameters["norm"], math.prod(parameters["shape"]), width) * (1 + _ROUNDING)
        distances = distance[~none & ~clean]
        yield "a distance of a misclassified image other than 0", (distance[clean] == 0).all()
        yield "a distance where no adversarial example was found", np.isinf(distance[none]).all()
        yield "a distance out of range", ((distances >= 0) & (distances <= largest)).all()
        whole = parameters["norm"] != "l0" or (distances == np.floor(distances)).all()
        yield "a number of changed coordinates that is no integer", whole

    def rate(self, run: Run, epsilon: float, alpha: float) -> Rate:
        return self.robust_accuracy(run, alpha, epsilon)

    def robust_accuracy(self, run: Run, alpha: float, epsilon: float | None = None) -> Rate:
        if epsilon is None:
            raise InputError("epsilon", "a radius for a minimum-norm run", "None", "pass epsilon=")
        robust = run.table["distance"] > non_negatives("epsilon", [epsilon])[0]
        from pyrobust.metrics import estimate_rate

        run._expect_rows("robust_accuracy")
        return estimate_rate(int(robust.sum()), len(run), alpha)

    def reach(self, run: Run) -> Array:
        return run.table["distance"]

    def describe(self, header: Header) -> list[str]:
        parameters = header.parameters
        steps = f" in steps of {parameters['grid']}" if "grid" in parameters else ""
        what = f"Nearest adversarial examples, {unit_text(parameters)}{steps}"
        return [f"{what}; robust accuracy is an upper bound at every epsilon", POINTWISE, attack_of(parameters)]

    def promises(self, header: Header) -> Iterator[str]:
        yield ATTACKED
        yield EXACT


class CertifiedFirst(Attack, layout="certified-first", name="attack"):
    """An attack on only those images that are not proved robust beforehand."""

    certify_first = Parameter(one_of(True))
    proved = FlagColumn("a proof that is neither there nor missing")
    rows_saved = Integer()  # least rows that attacks would have run
    proof_seconds = Seconds("a negative time of a proof")  # the image's share of the proof time; part of ``seconds``
    x_adv = ExampleColumn()

    def applies(self, parameters: Parameters) -> bool:
        return "certify_first" in parameters

    def faults(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        yield from super().faults(parameters, table)
        proved, saved = table["proved"] == 1, table["rows_saved"]
        yield "a proved image that an attack broke", (table["broken_by"][proved] == "").all()
        yield "rows saved without a proof, or none with one", ((saved > 0) == proved).all() and (saved >= 0).all()

    def describe(self, header: Header) -> list[str]:
        return [*super().describe(header), certified_first()]

    def _exceptions(self) -> Iterator[str]:
        yield (
            "Examples that were proved robust at that epsilon, without sampling and for the arithmetic of the attack, "
            "were not attacked."
        )

    def lower_bound(self, run: Run) -> Bound:
        epsilon = float(run.parameters["epsilon"])
        proved = np.where(run.table["proved"] == 1, epsilon, 0.0)
        return Bound(radius=proved, method="proofs before the attack", marks=(epsilon,))


def certified_first() -> str:
    """Describe which images are not attacked because they were certified beforehand."""
    from pyrobust.arithmetic import GUARANTEE

    return f"Certified first: images proved robust ({GUARANTEE}) are not attacked"


def _robust(table: Table) -> npt.NDArray[np.bool_]:
    from pyrobust.metrics.accuracy import robust_examples

    return robust_examples(table["prediction"], table["adversarial"], table["label"])


def _between_levels(run: Run, step: Fraction) -> tuple[str, Array, str]:
    """Flag distances that are impossible if all perturbations are whole steps of the grid."""
    distance = np.nan_to_num(run.table["distance"])
    norm = run.parameters["norm"]
    steps = distance if norm == "l0" else (distance / float(step)) ** (2 if norm == "l2" else 1)
    between = np.abs(steps - np.round(steps)) > TOLERANCE * np.maximum(steps, 1)
    return "derived", between, f"distance of no whole number of {'squared ' if norm == 'l2' else ''}steps of {step}"
