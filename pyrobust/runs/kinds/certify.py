"""Certifications of a smoothed classifier, with a fixed number of samples or by sequential sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pyrobust.checks import first_values, number_text
from pyrobust.late import numpy as np
from pyrobust.option import Option
from pyrobust.runs.kinds import values
from pyrobust.runs.kinds.columns import Array, Column, Index, Integer, Probability, Radius, Real, Text, Votes
from pyrobust.runs.kinds.common import (
    SMOOTHING_PANEL,
    Smoothed,
    abstentions,
    check_votes,
    guarantee_of,
    seeded,
    smoothed_classifier,
    votes_for_class,
)
from pyrobust.runs.kinds.kind import Contradictions, NamedRate, Parameter, Parameters, Table
from pyrobust.runs.kinds.values import finite, increasing, is_word, one_of
from pyrobust.runs.kinds.words import MOST

if TYPE_CHECKING:
    import numpy.typing as npt

    from pyrobust.runs.reader import Header
    from pyrobust.runs.run import Run


_SEQUENTIAL_PANEL = "Smoothing with --method sequential"


class Certify(Smoothed, layout="certify"):
    """A certification with a fixed number of samples."""

    table = "certified_accuracy_table"
    panel = "Certificates"
    certified = "radius"
    log = ("idx", "label", "predict", "radius", "correct", "time")

    method = Parameter(
        is_word,
        option=Option(
            "Sampling method: fixed draws --n samples per image; sequential stops once --radii are decided.",
            form="choice",
            panel=SMOOTHING_PANEL,
            default="fixed",
            choices=("fixed", "sequential"),
        ),
    )
    n0 = Parameter(
        values.count,
        option=Option("Samples per image to select the class.", "N", "integer", SMOOTHING_PANEL, default=100),
    )
    n = Smoothed.n.offered(
        Option(
            "Samples per image for the bound; with --method sequential, their maximum.",
            "N",
            "integer",
            SMOOTHING_PANEL,
            default=100_000,
        )
    )
    alpha = Smoothed.alpha
    counts0 = Votes("n0")
    counts = Votes("n")
    p_lower = Probability()
    radius = Radius()

    def describe(self, header: Header) -> list[str]:
        parameters = header.parameters
        what = f"{smoothed_classifier(parameters)}; {parameters['norm']} radii, method {parameters['method']}, "
        confidence = f"each certificate wrong with probability at most alpha {parameters['alpha']:g}"
        return [
            what + guarantee_of(header) + self._rule_text(parameters),
            seeded(parameters, self._budget(parameters), confidence),
        ]

    def _rule_text(self, parameters: Parameters) -> str:
        return ""

    def _budget(self, parameters: Parameters) -> str:
        return f"n0 {parameters['n0']}, n {parameters['n']} samples an image"

    def rates(self, run: Run, alpha: float) -> Iterator[NamedRate]:
        yield abstentions(run, alpha)

    def class_votes(self, run: Run) -> Array | None:
        return votes_for_class(run)

    def contradictions(self, run: Run) -> Contradictions:
        return check_votes(run, "radius")


class Sequential(Certify, layout="sequential", name="certify"):
    """A sequential certification, whose images start and finish one by one."""

    #: Parameters that define the certification rule.
    rule = ("radii", "n", "alpha", "hybrid", "two_class")
    sampled_by_votes = True
    #: Columns of the votes and confidence limits so far, from which sampling resumes.
    pending: ClassVar[dict[str, Column]] = {
        "idx": Index(),
        "counts0": Votes("n0"),
        "counts": Votes("n"),
        "p_lower": Real(),
        "p_upper": Real(),
        "rival_lower": Real(),
        "rival_upper": Real(),
        "seconds": Real(),
    }

    # Without chunks, images of the whole run share batches.
    chunk = Parameter(values.count, group="chunk", execution="always")
    method = Parameter(one_of("sequential"))
    radii = Parameter(
        increasing(lambda first: first >= 0),
        option=Option("Radii to decide, such as 0.25,0.5.", "R[,R...]", "numbers", _SEQUENTIAL_PANEL),
    )
    hybrid = Parameter(
        finite(lambda value: 0 <= value < 1),
        option=Option(
            "Share of alpha for one Clopper-Pearson bound at n samples. Default: 0.01.",
            "SHARE",
            "real",
            _SEQUENTIAL_PANEL,
        ),
    )
    two_class = Parameter(
        one_of(False, True),
        option=Option(
            "Bound the probabilities of the other classes too.", form="flag", panel=_SEQUENTIAL_PANEL, default=False
        ),
    )
    counts0 = Votes("n0")
    counts = Votes("n")
    samples = Integer()  # for selection and sequence together
    p_lower = Probability()
    p_upper = Probability()
    rival_upper = Probability()  # 1 without two_class
    undecided = Text()  # one digit for each radius, 1 if undecided
    radius = Radius()

    def applies(self, parameters: Parameters) -> bool:
        return parameters.get("method") == "sequential"

    def faults(self, parameters: Parameters, table: Table) -> Iterator[tuple[str, Any]]:
        yield from super().faults(parameters, table)
        drawn = table["samples"] - parameters["n0"]
        radii = parameters["radii"]
        digits = _digits(table["undecided"], len(radii))
        # A radius can be undecided only if it was not certified; abstentions certify none.
        certified = (table["radius"][:, None] >= np.array(radii)) & (table["prediction"] >= 0)[:, None]
        yield "numbers of samples out of range", ((drawn >= 1) & (drawn <= parameters["n"])).all()
        yield "undecided radii that contradict the radius", digits is not None and not (digits & certified).any()
        early = digits is not None and not (digits.any(axis=1) & (drawn < parameters["n"])).any()
        yield "undecided radii before all samples were drawn", early

    def reference(self, parameters: Parameters) -> float:
        return float(parameters["radii"][0])

    def _rule_text(self, parameters: Parameters) -> str:
        what = f"; decided: radius {first_values(parameters['radii'], number_text, MOST)}"
        what += f"; {parameters['hybrid']:g} of alpha for one bound at n" if parameters["hybrid"] else ""
        return what + ("; two classes bounded" if parameters["two_class"] else "")

    def _budget(self, parameters: Parameters) -> str:
        return f"n0 {parameters['n0']}, n at most {parameters['n']} samples an image"

    def promises(self, header: Header) -> Iterator[str]:
        yield from super().promises(header)
        radii = ", ".join(map(number_text, header.parameters["radii"]))
        yield f"Sampling stopped once the radii {radii} were decided: no certified radius is larger than these."

    def class_votes(self, run: Run) -> Array | None:
        return None  # biased: sampling stops at favourable votes

    def contradictions(self, run: Run) -> Contradictions:
        from pyrobust.runs.sequences import check_sequences

        return check_sequences(run)


def _digits(texts: npt.NDArray[np.str_], count: int) -> npt.NDArray[np.bool_] | None:
    """Return which digits of texts [N] are 1, bool [N, count]; None if a text is not ``count`` digits, each 0 or 1."""
    if (np.char.str_len(texts) != count).any():
        return None
    codes = np.ascontiguousarray(texts, dtype=f"U{count}").view(np.uint32).reshape(len(texts), count)
    digits = codes == ord("1")
    return digits if (digits | (codes == ord("0"))).all() else None
