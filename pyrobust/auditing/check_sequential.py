"""What has to hold of a sequential run: that its limits and its votes can have proved its radii."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.check_rows import at_rows
from pyrobust.auditing.findings import Finding
from pyrobust.runs.parameters import RULE
from pyrobust.runs.run import Run
from pyrobust.smoothing.sequential import CertificationRule, ImageSequence

_Ints = npt.NDArray[np.int64]

_IMPROBABLE = 12 * math.log(10)
_HALVINGS = 40


def check_sequences(log: CertificationLog) -> Iterator[Finding]:
    """The radii of a sequential run against its histograms.

    They have to follow from the limits that are kept beside them, and these from votes. Of an image's looks only the
    last one's votes are kept; but samples are exchangeable: of A votes in N, the first m samples have more than a share
    a > A/N with probability at most exp(-m·D(a, A/N)), D the Kullback-Leibler divergence (Hoeffding, 1963, of drawing
    without replacement). No limit may be better than votes as improbable as 10⁻¹² would give at the best of the looks.

    Args:
        log: of a sequential run.

    Yields:
        Findings.
    """
    run = Run(log.path)
    parameters = run.parameters
    given = {name: parameters[name] for name in (*RULE, "num_classes", "sigma", "noise", "norm")}
    rule = CertificationRule(**given | {"radii": tuple(parameters["radii"])})
    counts0, counts = run.histogram("counts0"), run.histogram("counts")
    top = counts0[:, :-1].argmax(axis=1)
    limits = _best_limits(rule, top, counts)
    limits[:, 0] = np.minimum(limits[:, 0], run.table["p_lower"])
    limits[:, 3] = np.maximum(limits[:, 3], run.table["rival_upper"])
    images = [ImageSequence(*row) for row in zip(range(len(top)), counts, counts0, limits, strict=True)]
    proved = rule.results(images)["radius"]
    order = np.searchsorted(run.table["index"], log.index)
    more = (log.prediction >= 0) & (log.radius > proved[order] * (1 + 1e-6) + 1e-9 * rule.sigma)
    if more.any():
        yield at_rows(log, "above-votes", more, "radius above what its limits and votes prove")


def _best_limits(rule: CertificationRule, top: _Ints, counts: _Ints) -> npt.NDArray[np.float64]:
    rows, drawn = np.arange(len(top)), counts.sum(axis=1)
    votes = counts[rows, top]
    others = counts.copy()
    others[rows, top] = -1
    rival = others.max(axis=1)
    limits = np.tile([0.0, 1.0, 0.0, 1.0], (len(top), 1))
    for look in rule.looks:
        there = np.flatnonzero(drawn >= look)
        samples = drawn[there]
        most = _most(votes[there], samples, look)
        least = np.minimum(look - _most(samples - rival[there], samples, look), look - most)
        limits[there] = rule.limits_after(most, least, np.full(len(there), look), limits[there])
    return limits


def _most(votes: _Ints, drawn: _Ints, look: int) -> _Ints:
    """How many of some votes the first samples can have had."""
    share = votes / drawn
    low, high = share, np.ones(len(share))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        divergence = special.rel_entr(middle, share) + special.rel_entr(1 - middle, 1 - share)
        beyond = divergence * look >= _IMPROBABLE
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    most = np.minimum(np.floor(high * look), np.minimum(votes, look)).astype(np.int64)
    return np.where(drawn == look, votes, most)
