"""Checks of a sequential run: its confidence limits and votes must be able to prove its radii."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.check_rows import row_fault
from pyrobust.auditing.findings import Finding
from pyrobust.runs.parameters import RULE
from pyrobust.runs.run import Run
from pyrobust.smoothing.sequential import CertificationRule, ImageSequence

_Ints = npt.NDArray[np.int64]

_EVIDENCE = 12 * math.log(10)  # -ln of the probability 10⁻¹² below which votes are not believed
_BISECTIONS = 40


def check_sequences(log: CertificationLog) -> Iterator[Finding]:
    """Flag radii of a sequential run that its stored limits, or its histograms, cannot prove.

    Radii must follow from the stored limits, and these from votes. Only the votes at an image's last look are stored,
    but samples are exchangeable: given A votes in N, more than a share a > A/N of the first m samples are votes with
    probability at most exp(-m·D(a, A/N)), where D is the Kullback-Leibler divergence (Hoeffding, 1963, for sampling
    without replacement). No limit may be better than votes of probability 10⁻¹² would give at the most favourable look.
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
    above = (log.prediction >= 0) & (log.radius > proved[order] * (1 + 1e-6) + 1e-9 * rule.sigma)
    if above.any():
        yield row_fault(log, "above-votes", above, "radius larger than its limits and votes prove")


def _best_limits(rule: CertificationRule, top: _Ints, counts: _Ints) -> npt.NDArray[np.float64]:
    """Return the best limits [N, 4] that the stored votes make credible over all looks."""
    rows, drawn = np.arange(len(top)), counts.sum(axis=1)
    votes = counts[rows, top]
    others = counts.copy()
    others[rows, top] = -1
    rival = others.max(axis=1)
    limits = np.tile([0.0, 1.0, 0.0, 1.0], (len(top), 1))
    for look in rule.looks:
        reached = np.flatnonzero(drawn >= look)
        samples = drawn[reached]
        most = _max_early_votes(votes[reached], samples, look)
        least = np.minimum(look - _max_early_votes(samples - rival[reached], samples, look), look - most)
        limits[reached] = rule.limits_after(most, least, np.full(len(reached), look), limits[reached])
    return limits


def _max_early_votes(votes: _Ints, drawn: _Ints, look: int) -> _Ints:
    """Return the most votes that the first ``look`` of ``drawn`` samples can credibly hold."""
    share = votes / drawn
    low, high = share, np.ones(len(share))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        divergence = special.rel_entr(middle, share) + special.rel_entr(1 - middle, 1 - share)
        beyond = divergence * look >= _EVIDENCE
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    most = np.minimum(np.floor(high * look), np.minimum(votes, look)).astype(np.int64)
    return np.where(drawn == look, votes, most)
