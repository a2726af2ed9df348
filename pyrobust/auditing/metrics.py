"""The metrics of a certification log, from what is right by predict == label."""

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

# Beyond that many labels a table of classes is of no use to anyone.
_MOST_CLASSES = 1000


@dataclass(frozen=True, eq=False)
class CertificationMetrics:
    """What a certification says, the survival of p_A first: it is what classifiers should be compared by.

    Attributes:
        survival: the curve of p̂_A = n_A / n over all images; None where votes are not known.
        votes: the fewest and the most n_A that a certified image can have; None likewise.
        classes: by label, from the curve; empty without one.
        images: counted.
        abstained: of them.
        accuracy: share of right predictions.
        radii: at which certified accuracies stand.
        certified: at each of them.
        bounds: what of each is true with probability 0.999 if noise is independent from image to image; empty where
            alpha is not known, and for proofs, which are never false.
        average_radius: of the right ones; NaN where none is right.
        average_certified_radius: over all images; a poor measure (see there), so it comes last.
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
        """All of it as plain numbers, lists and dictionaries; None for what cannot be had."""
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
    """The metrics of a log whose rows are in order.

    Args:
        log: radii finite and at least 0, indices unique, as `pyrobust.auditing.check_radii.countable` makes them.

    Returns:
        CertificationMetrics.

    Raises:
        InputError: the log is not as it has to be.
    """
    certified = log.certified
    votes = votes_of(log)
    curve = survival_of(log, votes)
    some = log.radius > 0
    span = (int(votes[1][some].min()), int(votes[2][some].max())) if votes is not None and some.any() else None
    labels = np.unique(log.label)
    radii = tuple(usual_radii(float(log.radius.max())))
    rates = tuple(certified_accuracy(log.radius, certified, radii))
    bounds: tuple[CertifiedAccuracyBound, ...] = ()
    if log.alpha is not None:
        bounds = tuple(certified_accuracy_with_confidence(rate.successes, len(log), log.alpha) for rate in rates)
    return CertificationMetrics(
        survival=curve,
        votes=span,
        classes=tuple(curve.per_class(log.label)) if curve is not None and len(labels) <= _MOST_CLASSES else (),
        images=len(log),
        abstained=int((log.prediction < 0).sum()),
        accuracy=estimate_rate(int(log.right.sum()), len(log)),
        radii=radii,
        certified=rates,
        bounds=bounds,
        average_radius=average_radius(log.radius, certified),
        average_certified_radius=average_certified_radius(log.radius, certified),
    )
