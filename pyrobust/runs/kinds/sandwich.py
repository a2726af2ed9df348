"""Sandwiches: lower bounds from certificates and upper bounds from attacks, for the same classifier."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyrobust.checks import NORMS as PERTURBATION_NORMS
from pyrobust.checks import first_values, number_text
from pyrobust.late import numpy as np
from pyrobust.option import PERTURBATION_PANEL, Option
from pyrobust.runs.kinds import values
from pyrobust.runs.kinds.columns import (
    Array,
    ExampleColumn,
    Name,
    OptionalReal,
    Prediction,
    Probability,
    Radius,
    Text,
    Votes,
)
from pyrobust.runs.kinds.common import (
    P_A,
    P_LOWER,
    TOLERANCE,
    Smoothed,
    WithExamples,
    adversarial_classes,
    check_votes,
    checked_examples,
    guarantee_of,
    seeded,
    smoothed_classifier,
    unmoved,
    votes_for_class,
)
from pyrobust.runs.kinds.kind import Bound, Contradictions, Kind, Parameter, Parameters, Shown, Table
from pyrobust.runs.kinds.values import is_name, is_range, none_or
from pyrobust.runs.kinds.verify import PROOF_METHODS, Proving
from pyrobust.runs.kinds.words import ATTACKED, EXACT, MOST, attack_of, describe_budget, range_text, unit_text
from pyrobust.runs.verdicts import PROOFS

if TYPE_CHECKING:
    from pyrobust.runs.reader import Header
    from pyrobust.runs.run import Run


_BASE_PANEL = "Base classifier"
_SMOOTHED_PANEL = "Smoothed classifier"


def _samples(help: str) -> Option:
    return Option(help, "N", "integer", _SMOOTHED_PANEL)


class Sandwiched(Kind):
    """Runs that bound the distance to misclassification from both sides.

    If the image is misclassified, ``lower`` and ``upper`` are 0. If no adversarial example was found, ``upper`` is inf
    (NULL in the file).
    """

    table = "sandwich_table"
    panel = "Both sides"
    certified = "lower"
    attacked = True
    log = ("idx", "label", "predict", "lower", "lower_by", "upper", "upper_by", "adversarial", "correct", "time")

    def faults(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        yield from super().faults(parameters, table)
        prediction, lower, upper, upper_by = (table[name] for name in ("prediction", "lower", "upper", "upper_by"))
        correct = prediction == table["label"]
        # A smoothed classifier that abstains may be correct or wrong at the image.
        wrong = ~correct & ((prediction >= 0) | (table["status"] == "ok"))
        clean, none = upper_by == "clean", upper_by == ""
        moved = clean | none | (table["adversarial"] != table["label"])
        yield "a lower bound out of range", (np.isfinite(lower) & (correct | (lower == 0))).all()
        yield "an upper bound out of range", (upper >= 0).all()
        yield "an upper_by that contradicts the prediction", (clean == wrong).all()
        yield "an upper bound that contradicts upper_by", ((~clean | (upper == 0)) & (np.isinf(upper) == none)).all()
        yield "an adversarial prediction that is the label", moved.all()

    def unbroken(self, rows: Mapping[str, Any], radius: float) -> Array | None:
        if not radius:
            return None
        # None and inf where no adversarial example was found.
        unbroken: Array = ~(np.asarray(rows["upper"], dtype=np.float64) <= radius)
        return unbroken

    def found(self, run: Run) -> Array:
        fooled: Array = (run.table["upper"] > 0) & np.isfinite(run.table["upper"])
        return fooled

    def upper_bound(self, run: Run) -> Bound:
        by = tuple(run.table["upper_by"].tolist())
        return Bound(radius=run.table["upper"], by=by, method=run.parameters["attack"])


class Sandwich(Sandwiched, Proving, layout="sandwich"):
    """A sandwich of a network: a lower and an upper bound of its distance to misclassification.

    ``margin`` is the label's logit minus the largest other logit at the adversarial example x_adv: the observed value
    if ``lower`` holds for float32 arithmetic, or an upper bound of the exact value if ``lower`` holds for exact
    arithmetic. It is given only where x_adv lies within the certified distance, that is, where ``lower`` is positive
    and at least ``upper``. Elsewhere, it is NaN (NULL in the file).
    """

    norm = Proving.norm.offered(
        Option(
            "Norm of the distances. Default: linf; with --sigma, that of the noise.",
            form="choice",
            panel=PERTURBATION_PANEL,
            choices=PERTURBATION_NORMS,
            any_case=True,
        )
    )
    epsilons = Proving.epsilons.offered(
        Option(
            "Radii at which AutoAttack runs on the images that are undecided there.",
            "E[,E...]",
            "numbers",
            _BASE_PANEL,
            name="epsilon",
        )
    )
    method = Proving.method.offered(
        Option(
            "Proof method. Default: cascade, the largest radius of ibp, crown-ibp and crown.",
            form="choice",
            panel=_BASE_PANEL,
            choices=PROOF_METHODS,
        )
    )
    semantics = Proving.semantics.offered(
        Option(
            "Network that the certificates hold for. Default: float32, as it runs and is attacked.",
            form="choice",
            panel=_BASE_PANEL,
            choices=("real", "float32"),
        )
    )
    lower = Radius("a lower bound out of range")
    lower_by = Text()
    upper = OptionalReal(missing=math.inf)
    upper_by = Name()
    adversarial = Prediction("an adversarial prediction out of range")
    confidence = Probability()
    margin = OptionalReal()
    x_adv = ExampleColumn()

    def faults(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        yield from super().faults(parameters, table)
        lower, margin, by = table["lower"], table["margin"], table["lower_by"]
        # In exact arithmetic, the label may lead where only rounding misclassifies; in observed logits, it does not.
        highest = 0 if parameters["semantics"] == "float32" else np.inf
        crossed = (table["upper"] <= lower) & (lower > 0)
        named = (np.isin(by, PROOFS) == (lower > 0)).all() and (by[lower == 0] == "").all()
        yield "a lower_by that contradicts the lower bound", named
        yield "a margin that contradicts the bounds", (~np.isnan(margin) == crossed).all()
        yield "a positive margin of a misclassified example", not (margin > highest).any()

    def describe(self, header: Header) -> list[str]:
        parameters = header.parameters
        methods = "lipschitz, ibp, crown-ibp, crown" if parameters["semantics"] == "real" else "ibp, crown-ibp, crown"
        what = methods if parameters["method"] == "cascade" else parameters["method"]
        epsilons = parameters["epsilons"]
        confirmed = f"; AutoAttack at {first_values(epsilons, number_text, MOST)}" if epsilons else ""
        return [
            f"Certified radius (best of {what}) and nearest adversarial example; {unit_text(parameters)}",
            f"guarantee {header.guarantee}, semantics {parameters['semantics']}",
            attack_of(parameters) + confirmed,
        ]

    def promises(self, header: Header) -> Iterator[str]:
        yield from super().promises(header)
        if header.guarantee != "none":
            yield ATTACKED
            yield EXACT

    def contradictions(self, run: Run) -> Contradictions:
        checked_examples(run)
        yield "crossing", run.table["margin"] <= 0, "certified radius that an adversarial example contradicts"
        yield unmoved(run, "upper")

    def lower_bound(self, run: Run) -> Bound:
        by = tuple(run.table["lower_by"].tolist())
        return Bound(radius=run.table["lower"], by=by, method=self.method_of(run.parameters))

    def shown(self, run: Run) -> Sequence[Shown]:
        confidence = ("confidence", "Softmax probability of the predicted class.", run.table["confidence"])
        return [confidence, adversarial_classes(run.table["adversarial"], self.found(run))]


class SmoothedSandwich(Sandwiched, Smoothed, WithExamples, layout="smoothed-sandwich", name="sandwich"):
    """A sandwich of a smoothed classifier: a lower and an upper bound of its distance to misclassification.

    ``counts_adv`` and ``p_value`` come from the test at the adversarial example x_adv. Without a test there are no
    votes, and the p-value is 1.
    """

    sigma = Smoothed.sigma.offered(
        Option(
            "Bound the smoothed classifier, with noise of this standard deviation in every pixel.",
            "S",
            "real",
            _SMOOTHED_PANEL,
        )
    )
    noise, grid = Smoothed.noise, Smoothed.grid
    n0 = Parameter(values.count, option=_samples("Samples per image to select the class. Default: 100."))
    n = Smoothed.n.offered(_samples("Samples per image for its certificate. Default: 10,000."))
    alpha = Smoothed.alpha.offered(
        Option("Highest probability that a certificate is wrong. Default: 0.001.", "A", "real", _SMOOTHED_PANEL)
    )
    n_attack = Parameter(
        values.count, option=_samples("Samples of the test at an adversarial example. Default: 10,000.")
    )
    alpha_attack = Parameter(
        values.alpha,
        option=Option("Highest probability that such a test is wrong. Default: 0.001.", "A", "real", _SMOOTHED_PANEL),
    )
    steps = _samples("Steps of the attack. Default: 50.")
    draws = _samples("Samples that its gradients average over. Default: 32.")
    clip = Parameter(none_or(is_range))
    attack = Parameter(is_name)
    counts0 = Votes("n0")
    counts = Votes("n")
    p_lower = Probability()
    lower = Radius("a lower bound out of range")
    upper = OptionalReal(missing=math.inf)
    upper_by = Name()
    adversarial = Prediction("an adversarial prediction out of range")
    counts_adv = Votes("n_attack", optional=True)
    p_value = Probability()
    x_adv = ExampleColumn()

    def applies(self, parameters: Parameters) -> bool:
        return "sigma" in parameters

    def class_votes(self, run: Run) -> Array | None:
        return votes_for_class(run)

    def lower_bound(self, run: Run) -> Bound:
        return Bound(radius=run.table["lower"], method=self.method_of(run.parameters))

    def shown(self, run: Run) -> Sequence[Shown]:
        table = run.table
        share = np.where(table["prediction"] < 0, np.nan, votes_for_class(run) / run.parameters["n"])
        return [
            ("p_A", P_A + ".", share),
            ("p lower", P_LOWER, table["p_lower"]),
            adversarial_classes(table["adversarial"], self.found(run)),
            ("p value", "Of the test at the adversarial example; 1 without.", table["p_value"]),
        ]

    def logged(self, name: str, table: Table) -> list[Any]:
        by: list[Any] = np.where(table["lower"] > 0, "smoothing", "").tolist()
        return by

    def describe(self, header: Header) -> list[str]:
        parameters = header.parameters
        what = f"; certified and attacked {parameters['norm']} distances, {guarantee_of(header)}"
        budget = f"n0 {parameters['n0']}, n {parameters['n']} samples an image; {parameters['n_attack']} at its x_adv"
        confidence = (
            f"each certificate wrong with probability at most alpha {parameters['alpha']:g}, each attack at most "
            f"{parameters['alpha_attack']:g}; {range_text(parameters['clip'])}, attack of "
            f"{describe_budget(parameters['attack'], parameters['settings'])}"
        )
        return [smoothed_classifier(parameters) + what, seeded(parameters, budget, confidence)]

    def promises(self, header: Header) -> Iterator[str]:
        yield from super().promises(header)
        yield (
            "An adversarial example counts where a test with noise of its own rejects the label there, which is wrong "
            f"with probability at most {header.parameters['alpha_attack']:g}. {ATTACKED}"
        )

    def contradictions(self, run: Run) -> Contradictions:
        from pyrobust.smoothing import ABSTAIN
        from pyrobust.smoothing.prediction import decide, joint_delta

        checked_examples(run)
        yield from check_votes(run, "lower")
        parameters, table = run.parameters, run.table
        votes = run.histogram("counts_adv")
        tested = votes.any(axis=1)
        joint = joint_delta(parameters.get("delta", 0.0), parameters["n_attack"])
        predicted, p_value = np.full(len(votes), ABSTAIN), np.ones(len(votes))
        predicted[tested], p_value[tested] = decide(
            votes[tested], parameters["alpha_attack"], delta=joint, tails="grid" in parameters
        )
        differs = np.abs(table["p_value"] - p_value) > TOLERANCE
        yield "derived", differs, "p_value differs from the one that the votes at x_adv give"
        broken = (table["upper_by"] != "") & (table["upper_by"] != "clean")
        unproved = broken & (predicted != table["adversarial"])
        yield "derived", unproved, "adversarial example whose votes do not reject the label"
