"""Predictions of a smoothed classifier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyrobust.late import numpy as np
from pyrobust.runs.kinds.columns import Probability, Votes
from pyrobust.runs.kinds.common import TOLERANCE, Smoothed, abstentions, guarantee_of, seeded, smoothed_classifier
from pyrobust.runs.kinds.kind import Contradictions, NamedRate, Parameters, Shown

if TYPE_CHECKING:
    from pyrobust.runs.reader import Header
    from pyrobust.runs.run import Run


class Predict(Smoothed, layout="predict"):
    """Predictions by the two-sided binomial test; they certify nothing."""

    table = "prediction_table"
    panel = "Certificates"
    log = ("idx", "label", "predict", "correct", "time")

    counts = Votes("n")
    p_value = Probability()

    def describe(self, header: Header) -> list[str]:
        parameters = header.parameters
        confidence = f"each prediction wrong with probability at most alpha {parameters['alpha']:g}"
        return [
            f"{smoothed_classifier(parameters)}; predictions by the two-sided binomial test, {guarantee_of(header)}",
            seeded(parameters, f"n {parameters['n']} samples an image", confidence),
        ]

    def _claim(self, parameters: Parameters) -> Iterator[str]:
        yield (
            "Each prediction is that of the smoothed classifier, except with probability at most "
            f"{parameters['alpha']:g}; nothing is certified."
        )

    def rates(self, run: Run, alpha: float) -> Iterator[NamedRate]:
        yield abstentions(run, alpha)

    def shown(self, run: Run) -> Sequence[Shown]:
        about = "Of the test that the two classes with the most votes are equally likely."
        return [("p value", about, run.table["p_value"])]

    def contradictions(self, run: Run) -> Contradictions:
        from pyrobust.smoothing.prediction import decide

        parameters, table = run.parameters, run.table
        prediction, p_value = decide(
            run.histogram(), parameters["alpha"], delta=parameters.get("delta", 0.0), tails="grid" in parameters
        )
        differs = np.abs(table["p_value"] - p_value) > TOLERANCE * np.maximum(p_value, 1e-300)
        yield "derived", differs, "p_value differs from the one that the votes give"
        differs = table["prediction"] != prediction
        yield "derived", differs, "prediction differs from the class that the votes give"
