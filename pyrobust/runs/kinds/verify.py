"""Verifications of a network by bound propagation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyrobust.checks import NORMS as PERTURBATION_NORMS
from pyrobust.checks import first_values, number, number_text, positive
from pyrobust.errors import InputError
from pyrobust.late import numpy as np
from pyrobust.option import CLIP, PERTURBATION_PANEL, SEED, Option
from pyrobust.runs.kinds import values
from pyrobust.runs.kinds.columns import Array, ExampleColumn, Radius, Text
from pyrobust.runs.kinds.common import WithExamples, checked_examples
from pyrobust.runs.kinds.kind import Bound, Contradictions, Parameter, Parameters, Table
from pyrobust.runs.kinds.values import frozen, is_clip, is_name, none_or, one_of
from pyrobust.runs.kinds.words import (
    MOST,
    attack_and_budget,
    attack_of,
    ball_text,
    change_text,
    range_text,
    unit_text,
)
from pyrobust.runs.verdicts import CASCADE, METHODS, PROOFS, decode_verdicts

if TYPE_CHECKING:
    import numpy.typing as npt

    from pyrobust.metrics import Rate
    from pyrobust.runs.reader import Header
    from pyrobust.runs.run import Run


_BOUNDS_PANEL = "Bounds"
#: Methods that prove bounds.
PROOF_METHODS = ("cascade", *METHODS, "lipschitz")


class Proving(WithExamples):
    """Runs that prove bounds of a network."""

    method = Parameter(one_of(*PROOF_METHODS))
    norm = Parameter(one_of(*PERTURBATION_NORMS))
    epsilons = Parameter(values.epsilons)
    clip = Parameter(is_clip, option=CLIP)
    box = Parameter(values.is_box, group="box")  # radii of elements; epsilons and radii are multiples of them
    semantics = Parameter(one_of("real", "float32"))
    attack = Parameter(is_name)
    seed = Parameter(none_or(values.seed), option=SEED)

    def reference(self, parameters: Parameters) -> float:
        return float((parameters["epsilons"] or [0.0])[0])

    def method_of(self, parameters: Parameters) -> str:
        return str(parameters["method"])

    def promises(self, header: Header) -> Iterator[str]:
        parameters = header.parameters
        clip = parameters["clip"]
        within = "" if clip is None else f" and stays in {range_text(clip)}"
        yield (
            f"A radius r proves: no change of the input for which {change_text(parameters)}{within} changes the "
            "network's prediction."
        )
        if header.guarantee == "none":
            yield "NOT SOUND: plain floating-point bounds, which prove nothing."
            return
        arithmetic = {
            "real": "the network in exact arithmetic, whose parameters are the given floating-point numbers; rounding "
            "in its deployed forward pass is not covered",
            "float32": "the network as it runs in float32, with direct algorithms and sums in any order",
        }[parameters["semantics"]]
        yield f"Deterministic: proved without sampling, every rounding error of the proof counted, for {arithmetic}."
        yield "Not proved does not mean not robust: a tighter method may prove more."

    def arithmetic(self, parameters: Parameters) -> tuple[Any, ...]:
        return (parameters["semantics"], parameters.get("sound", True), frozen(parameters["clip"]))


class Verify(Proving, layout="verify"):
    """A verification at given epsilons, or a search for the largest radius.

    Verdicts, stages and margins have one value for each epsilon (`pyrobust.runs.verdicts`). In a search for the largest
    radius, ``stages`` is the method that proved the radius ("" for none), and the other two columns are empty text.
    """

    table = "verification_table"
    panel = "Certificates"
    certified = "radius"
    log = ("idx", "label", "predict", "radius", "correct", "time")
    outcome = "verified"
    side = "verified, a lower bound"

    #: Stage of a counterexample.
    broken_stage = "attack"

    norm = Proving.norm.offered(
        Option(
            "Norm of the perturbation.",
            form="choice",
            panel=PERTURBATION_PANEL,
            default="linf",
            choices=PERTURBATION_NORMS,
            any_case=True,
        )
    )
    epsilons = Proving.epsilons.offered(
        Option(
            "Perturbation radii to verify, in the unit of the pixels: 0.1 or 2/255,8/255.",
            "E[,E...]",
            "numbers",
            PERTURBATION_PANEL,
            name="epsilon",
        )
    )
    search = Option(
        "Search for the certified radius of each image, in place of --epsilon.",
        form="flag",
        panel=PERTURBATION_PANEL,
        name="radius",
        default=False,
    )
    largest = Parameter(
        none_or(values.radius),
        option=Option("Largest radius that --radius tries. Default: 1.", "R", "number", PERTURBATION_PANEL),
    )
    method = Proving.method.offered(
        Option(
            "Proof method: ibp, crown-ibp, crown or alpha-crown, each tighter and slower; cascade, the first three in "
            "turn; lipschitz, a Lipschitz constant.",
            form="choice",
            panel=_BOUNDS_PANEL,
            default="cascade",
            choices=PROOF_METHODS,
        )
    )
    semantics = Proving.semantics.offered(
        Option(
            "Network that the bounds hold for: in exact arithmetic (real), or as it runs in floating point (float32).",
            form="choice",
            panel=_BOUNDS_PANEL,
            default="real",
            choices=("real", "float32"),
        )
    )
    sound = Parameter(one_of(False, True))
    unsound = Option(
        "Compute plain floating-point bounds, which prove nothing.", form="flag", panel=_BOUNDS_PANEL, default=False
    )
    attack = Parameter(
        none_or(is_name),
        option=Option(
            "Attack to look for counterexamples at each epsilon, for verified images too.",
            form="choice",
            panel="Counterexamples",
            choices=("pgd",),
        ),
    )
    batch_size = Proving.batch_size.offered(Option("Images per chunk. Default: 32.", "N", "count"))
    radius = Radius()
    verdicts = Text()
    stages = Text()
    margins = Text()
    x_adv = ExampleColumn()

    def faults(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        correct = table["prediction"] == table["label"]
        attacked = not parameters["examples"] or parameters["attack"]
        yield "examples without an attack", attacked
        yield "a certified image that the model gets wrong", (correct | (table["radius"] == 0)).all()
        epsilons = parameters["epsilons"]
        if epsilons is None:
            certified = table["radius"] > 0
            yield "a radius out of range", (table["radius"] <= (parameters["largest"] or 0.0)).all()
            stages = (np.isin(table["stages"], PROOFS) == certified).all() and (table["stages"][~certified] == "").all()
            yield "a stage that contradicts the radius", stages
            yield "verdicts in a search for radii", ((table["verdicts"] == "") & (table["margins"] == "")).all()
            return
        try:
            decoded = decode_verdicts(table, len(epsilons))
        except ValueError as error:
            yield str(error), False
            return
        largest = np.max(np.where(decoded["verdict"] == "verified", epsilons, 0.0), axis=1, initial=0.0)
        forward = decoded["stage"] == "forward"
        broken = decoded["stage"] == self.broken_stage
        yield "a verdict that contradicts the prediction", (forward == ~correct[:, None]).all()
        yield "a counterexample without an attack", parameters["attack"] or not broken.any()
        yield "a radius that contradicts the verdicts", (table["radius"] == largest).all()

    def counted(self, radius: Array) -> Array:
        # A radius of 0 proves nothing, not even that the model is correct at the image itself.
        counted: Array = radius > 0
        return counted

    def epsilons_of(self, parameters: Parameters) -> Sequence[float]:
        return parameters["epsilons"] or ()

    def rate(self, run: Run, epsilon: float, alpha: float) -> Rate:
        return self.verified_accuracy(run, epsilon, alpha)

    def verified_accuracy(self, run: Run, epsilon: float, alpha: float) -> Rate:
        from pyrobust.metrics import estimate_rate

        epsilon = positive("epsilon", epsilon)
        run._expect_rows("verified_accuracy")
        return estimate_rate(int((run.correct & (run.table["radius"] >= epsilon)).sum()), len(run), alpha)

    def verdicts_at(self, run: Run, epsilon: float) -> dict[str, npt.NDArray[Any]]:
        epsilons = run.parameters["epsilons"]
        if not epsilons:
            raise InputError("verdicts", "a run at given epsilons", "one that searched for radii")
        radius = number("epsilon", epsilon)
        if radius not in epsilons:
            raise InputError("epsilon", f"one of {', '.join(map(repr, epsilons))}", radius)
        column = epsilons.index(radius)
        return {
            name: column_values[:, column] for name, column_values in decode_verdicts(run.table, len(epsilons)).items()
        }

    def caveat(self, parameters: Parameters) -> str:
        return "" if parameters["sound"] else ", not sound"

    def describe(self, header: Header) -> list[str]:
        parameters = header.parameters
        method, clip = parameters["method"], parameters["clip"]
        what = "ibp, crown-ibp, crown in turn" if method == "cascade" else method
        alone = clip is None or isinstance(clip[0], list)
        where = range_text(clip) if alone else f"clip range {range_text(clip)}"
        if parameters["epsilons"] is None:
            unit = f" in {unit_text(parameters)}" if "box" in parameters else ""
            budget = f"certified radii up to {number_text(parameters['largest'])}{unit}"
        else:
            budget = first_values(parameters["epsilons"], number_text, MOST)
            budget = f"{ball_text(parameters)} {budget}" if "box" in parameters else f"epsilon {budget}"
        name = "Lipschitz constant" if method == "lipschitz" else f"Bound propagation, {what}"
        lines = [
            f"{name}; {parameters['norm']}, {where}; {budget}",
            f"guarantee {header.guarantee}, semantics {parameters['semantics']}"
            + ("" if parameters["sound"] else "; NOT SOUND: plain floating-point bounds"),
        ]
        return lines if parameters["attack"] is None else [*lines, attack_of(parameters)]

    def contradictions(self, run: Run) -> Contradictions:
        parameters, table = run.parameters, run.table
        methods = CASCADE if parameters["method"] == "cascade" else (parameters["method"],)
        checked_examples(run)
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
        positive_margin = (decoded["verdict"] != "verified") & (decoded["margin"] > 0)
        yield "derived", positive_margin.any(axis=1), "verdict that contradicts its proved margin, which is positive"

    def without_examples(self, parameters: Parameters) -> str:
        return "a verification without attack" if parameters["attack"] is None else super().without_examples(parameters)

    def lower_bound(self, run: Run) -> Bound:
        return Bound(
            radius=np.where(run.correct, run.table["radius"], 0.0),
            by=self._proved_by(run),
            method=self.method_of(run.parameters) + self.caveat(run.parameters),
            marks=tuple(run.parameters["epsilons"] or ()),
        )

    def _proved_by(self, run: Run) -> tuple[str, ...] | None:
        """Return the stage that proved each image's largest verified epsilon; None in a search for radii."""
        if not run.parameters["epsilons"]:
            return None
        verdicts = [self.verdicts_at(run, epsilon) for epsilon in run.parameters["epsilons"]]
        proved = [np.where(each["verdict"] == "verified", each["stage"], "") for each in verdicts]
        return tuple(next((stages[i] for stages in reversed(proved) if stages[i]), "") for i in range(len(run)))

    def _counterexamples(self, run: Run) -> Array:
        """Whether the attack broke each image at each epsilon, bool [E, N]."""
        verdicts = [self.verdicts_at(run, epsilon) for epsilon in run.parameters["epsilons"]]
        return np.stack([(each["verdict"] == "falsified") & (each["stage"] == self.broken_stage) for each in verdicts])

    def found(self, run: Run) -> Array | None:
        if not run.parameters["epsilons"] or run.parameters["attack"] is None:
            return None
        falsified: Array = np.logical_or.reduce(self._counterexamples(run))
        return falsified

    def upper_bound(self, run: Run) -> Bound | None:
        falsified, parameters = self.found(run), run.parameters
        if falsified is None:
            return None
        epsilons = parameters["epsilons"]
        nearest = np.where(falsified, np.array(epsilons)[self._counterexamples(run).argmax(axis=0)], np.inf)
        return Bound(
            radius=np.where(run.correct, nearest, 0.0),
            by=tuple(parameters["attack"] if each else "" for each in falsified.tolist()),
            method=attack_and_budget(parameters),
            limit=epsilons[-1],
            marks=tuple(epsilons),
        )
