"""Metrics of a certification log; a prediction counts as correct if predict == label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.votes import survival_of, votes_of
from pyrobust.metrics.certified import (
    CertifiedAccuracyBound,
    average_certified_radius,
    average_radius,
    certified_accuracy,
    certified_accuracy_with_confidence,
)
from pyrobust.metrics.estimate import Estimate
from pyrobust.metrics.radii import usual_radii
from pyrobust.metrics.rate import Rate, estimate_rate
from pyrobust.metrics.survival import ClassSummary, SurvivalCurve

# Largest number of labels with a summary by class.
_MAX_CLASSES = 1000


@dataclass(frozen=True, eq=False)
class CertificationMetrics:
    """Metrics of a certification. The survival curve of p_A comes first because it compares classifiers best.

    Attributes:
        survival: survival curve of p̂_A = n_A / n over all images; None if votes are unknown.
        votes: smallest and largest possible n_A of the images with a radius above 0, whether correct or not; None if
            votes are unknown, or if no radius is above 0.
        classes: summary of the curve for each label; empty if there is no curve.
        images: number of counted images.
        abstained: number of abstentions among them.
        accuracy: share of correct predictions.
        radii: radii at which certified accuracy is computed.
        certified: certified accuracy at each radius.
        bounds: lower bound of each certified accuracy, valid with probability 0.999 if noise is independent across
            images. The tuple is empty if alpha is unknown. It is also empty for verifications, whose certificates are
            proofs and cannot be false.
        average_radius: mean radius of the correct predictions (for a verification, of those with a radius above 0); NaN
            if there are none.
        average_certified_radius: mean radius over all images, where images that are not certified count as 0; listed
            last, since it is a poor measure (`pyrobust.metrics.certified.average_certified_radius`).
    """

    survival: SurvivalCurve | None
    votes: tuple[int, int] | None
    classes: tuple[ClassSummary, ...]
    images: int
    abstained: int
    accuracy: Rate
    radii: tuple[float, ...]
    certified: tuple[Rate, ...]
    bounds: tuple[CertifiedAccuracyBound, ...]
    average_radius: float
    average_certified_radius: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Return all metrics as plain numbers, lists and dictionaries; None for unknown ones."""
        return {
            "survival": None if self.survival is None else self.survival.to_dict(),
            "votes": None if self.votes is None else list(self.votes),
            "classes": [vars(summary) for summary in self.classes],
            "images": self.images,
            "abstained": self.abstained,
            "accuracy": self.accuracy.to_dict(),
            "certified_accuracy": [
                {"radius": radius, **rate.to_dict()} for radius, rate in zip(self.radii, self.certified, strict=True)
            ],
            "certified_accuracy_with_confidence": [
                {"radius": radius, **bound.to_dict()}
                for radius, bound in zip(self.radii, self.bounds, strict=bool(self.bounds))
            ],
            "average_radius": None if math.isnan(self.average_radius) else self.average_radius,
            "average_certified_radius": self.average_certified_radius.to_dict(),
        }


def certification_metrics(log: CertificationLog) -> CertificationMetrics:
    """Compute the metrics of a log with unique indices and finite radii >= 0, as ``usable_rows`` returns it."""
    certified = log.certified
    votes = votes_of(log)
    curve = survival_of(log, votes)
    positive = log.radius > 0
    votes_range = None
    if votes is not None and positive.any():
        votes_range = (int(votes[1][positive].min()), int(votes[2][positive].max()))
    labels = np.unique(log.label)
    radii = tuple(usual_radii(float(log.radius.max())))
    rates = tuple(certified_accuracy(log.radius, certified, radii))
    bounds: tuple[CertifiedAccuracyBound, ...] = ()
    if log.alpha is not None:
        bounds = tuple(certified_accuracy_with_confidence(rate.successes, len(log), log.alpha) for rate in rates)
    return CertificationMetrics(
        survival=curve,
        votes=votes_range,
        classes=tuple(curve.per_class(log.label)) if curve is not None and len(labels) <= _MAX_CLASSES else (),
        images=len(log),
        abstained=int((log.prediction < 0).sum()),
        accuracy=estimate_rate(int(log.is_correct.sum()), len(log)),
        radii=radii,
        certified=rates,
        bounds=bounds,
        average_radius=average_radius(log.radius, certified),
        average_certified_radius=average_certified_radius(log.radius, certified),
    )
