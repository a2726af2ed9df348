"""Checks of a sequential run: its confidence limits must agree with its votes, and its results with the limits."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.smoothing.grid import lower_by, raise_by
from pyrobust.smoothing.sequential import CertificationRule, ImageSequence

if TYPE_CHECKING:
    from pyrobust.runs.kinds.certify import Sequential
    from pyrobust.runs.kinds.kind import Contradictions
    from pyrobust.runs.run import Run

_Ints = npt.NDArray[np.int64]

_NO_LIMITS = (0.0, 1.0, 0.0, 1.0)
# Tolerance for the last digits, in which versions of scipy differ; for radii, relative to sigma.
_TOLERANCE = 1e-9
_EVIDENCE = 12 * math.log(10)  # -ln of the probability 10⁻¹² below which votes are not believed
_BISECTIONS = 40


def check_sequences(run: Run) -> Contradictions:
    """Yield kind, rows and description of each contradiction among a sequential run's votes, limits and results.

    The radius, the prediction and the undecided radii must follow from the stored limits, and the limits must follow
    from the votes. A look is a sample size at which an image is judged. Only the votes at the image's last look are
    stored. A stored limit must be at least as good as the limit that these votes give. It must not be better than the
    best limit that credible votes at any look would give. Samples are exchangeable. If N samples give A votes, the
    share of votes in the first m samples therefore exceeds a > A/N with probability at most exp(-m·D(a, A/N)), where D
    is the Kullback-Leibler divergence (Hoeffding, 1963, for sampling without replacement). Votes at an earlier look are
    not credible if this bound is below 10⁻¹².
    """
    parameters, table = run.parameters, run.table
    rule_names = cast("Sequential", run.header.type).rule
    values = {name: parameters[name] for name in (*rule_names, "num_classes", "sigma", "noise", "norm")}
    delta = parameters.get("delta", 0.0)
    rule = CertificationRule(**values | {"radii": tuple(parameters["radii"])}, delta=delta)
    counts0, counts = run.histogram("counts0"), run.histogram("counts")
    top, drawn = counts0[:, :-1].argmax(axis=1), counts.sum(axis=1)
    votes = counts[np.arange(len(top)), top]
    at_look = np.isin(drawn, rule.looks)
    yield "derived", ~at_look, "number of samples at which no look takes place"
    last = np.tile(_NO_LIMITS, (len(top), 1))
    last[at_look] = rule.look(top[at_look], counts[at_look], last[at_look])
    best = _best_limits(rule, top, counts)
    stored = np.stack([table["p_lower"], table["p_upper"], np.zeros(len(top)), table["rival_upper"]], axis=1)

    def lowered(limits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the limits as a run stores them, with delta subtracted from p_lower and added to rival_upper."""
        return np.stack([lower_by(limits[:, 0], delta), limits[:, 1], limits[:, 2], raise_by(limits[:, 3], delta)], 1)

    last, best = lowered(last), lowered(best)
    yield (
        "above-votes",
        (stored[:, 0] > best[:, 0] + _TOLERANCE) | (stored[:, 3] < best[:, 3] - _TOLERANCE),
        "limits of the probabilities that its votes cannot give",
    )
    missed = (stored[:, 0] < last[:, 0] - _TOLERANCE) | (stored[:, 1] > last[:, 1] + _TOLERANCE)
    missed |= (stored[:, 3] > last[:, 3] + _TOLERANCE) | (stored[:, 1] < best[:, 1] - _TOLERANCE)
    yield "derived", missed, "limits of the probabilities that differ from those that the votes give"

    # The stored limits already include the total variation distance of the drawn noise.
    exact = dataclasses.replace(rule, delta=0.0)
    images = [ImageSequence(*row) for row in zip(range(len(top)), counts, counts0, stored, strict=True)]
    results = exact.results(images)
    excess, tolerance = table["radius"] - results["radius"], _TOLERANCE * (rule.sigma + results["radius"])
    yield "above-votes", excess > tolerance, "radius larger than its limits prove"
    yield "derived", excess < -tolerance, "radius smaller than its limits prove"
    differs = table["prediction"] != results["prediction"]
    yield "derived", differs, "prediction differs from the class that the votes give"
    if not rule.two_class:  # with two classes, the limit that rejects radii is not stored
        radii, certain = np.asarray(rule.radii), results["prediction"] >= 0
        decided = (certain[:, None] & (results["radius"][:, None] >= radii)) | exact.reached(stored)
        undecided = ~decided & ~rule.rejected(stored, votes, drawn)
        written = np.array([[digit == "1" for digit in digits] for digits in table["undecided"].tolist()], dtype=bool)
        differs = (written.reshape(undecided.shape) != undecided).any(axis=1)
        yield "derived", differs, "undecided radii that differ from those that the votes leave"


def _best_limits(rule: CertificationRule, top: _Ints, counts: _Ints) -> npt.NDArray[np.float64]:
    """Return the best limits [N, 4] that the looks of each image can have given, judged by its stored votes."""
    rows, drawn = np.arange(len(top)), counts.sum(axis=1)
    votes = counts[rows, top]
    others = counts.copy()
    others[rows, top] = -1
    rival = others.max(axis=1)
    limits = np.tile(_NO_LIMITS, (len(top), 1))
    for look in rule.looks:
        reached = np.flatnonzero(drawn >= look)
        samples = drawn[reached]
        most = _max_early_votes(votes[reached], samples, look)
        fewest = look - _max_early_votes(samples - votes[reached], samples, look)
        least = np.minimum(look - _max_early_votes(samples - rival[reached], samples, look), look - most)
        size = np.full(len(reached), look)
        upper = rule.limits_after(fewest, least, size, limits[reached])[:, 1]
        limits[reached] = rule.limits_after(most, least, size, limits[reached])
        limits[reached, 1] = upper
    return limits


def _max_early_votes(votes: _Ints, drawn: _Ints, look: int) -> _Ints:
    """Return the largest number of the ``votes`` that can credibly come from the first ``look`` samples."""
    share = votes / drawn
    low, high = share, np.ones(len(share))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        divergence = special.rel_entr(middle, share) + special.rel_entr(1 - middle, 1 - share)
        beyond = divergence * look >= _EVIDENCE
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    largest = np.minimum(np.floor(high * look), np.minimum(votes, look)).astype(np.int64)
    return np.where(drawn == look, votes, largest)
