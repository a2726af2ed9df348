"""Check whether abstentions were written as certificates or removed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.auditing.certification_log import MAX_RADIUS, CertificationLog
from pyrobust.auditing.check_rows import row_fault
from pyrobust.auditing.findings import AuditFinding, format_rows
from pyrobust.auditing.formulas import Parameters
from pyrobust.auditing.piles import pile_evidence

# Logarithms of likelihood ratios at which findings are certain, and probable.
_CERTAIN, _PROBABLE = 20.0, 10.0
# Widths of the range just above the fewest certified votes, in standard deviations of the votes; and least number of
# rows there that allow a conclusion.
_WIDTHS, _MIN_ROWS = (0.5, 1.0, 2.0), 10
# The rows with the smallest radii are compared with this many times as many rows above them.
_ABOVE = 3


def check_abstentions(log: CertificationLog) -> Iterator[AuditFinding]:
    """Flag rows that predict a class with radius 0, abstentions written as small certificates, and removed abstentions.

    For any classifier, vote counts just below the smallest certified count are about as frequent as vote counts just
    above it (`pyrobust.auditing.piles`), so a log with many radii near 0 must also have abstentions.
    """
    if not log.smoothed or log.decimals is None or log.noise != "gaussian":
        return
    certified = (log.prediction >= 0) & (log.radius <= MAX_RADIUS)
    zero = certified & (log.radius == 0)
    abstained = int((log.prediction < 0).sum())
    parameters = None if log.judgement is None else log.judgement.innocent.parameters
    zeros = list(_zeros(log, zero, abstained, parameters)) if zero.any() else []
    yield from zeros
    if not zeros and not abstained and parameters is not None:
        yield from _no_abstentions(log, parameters)


def _zeros(
    log: CertificationLog,
    zero: npt.NDArray[np.bool_],
    abstained: int,
    parameters: Parameters | None,
) -> Iterator[AuditFinding]:
    """Flag rows whose radius prints as 0, since chance gives few such rows."""
    count = int(zero.sum())
    unit = float(10.0 ** -float(log.decimals[zero].min())) if log.decimals is not None else 0.0
    near = int(((log.radius > 0) & (log.radius < 2.5 * unit) & (log.prediction >= 0)).sum())
    smallest = float(log.radius[log.radius > 0].min(initial=MAX_RADIUS))
    ratio = 1.0
    if parameters is not None:
        # Number of votes whose radius prints as 0; then that number over the standard deviation of the votes,
        # squared.
        width = unit / parameters.sigma / math.sqrt(2 * math.pi) * parameters.n
        ratio = min(50.0, 4 * width**2 / parameters.n)
    evidence = float(
        pile_evidence(
            np.array([float(abstained)]), np.array([float(count)]), np.array([float(near)]), np.array([ratio])
        )[0]
    )
    classes = np.unique(log.prediction[zero])
    which = f"all of class {int(classes[0])}" if len(classes) == 1 else f"of {len(classes):,} classes"
    problem = f"radius 0 with a class, {which}"
    if evidence > _CERTAIN:
        yield row_fault(log, "abstained-class", zero, problem, "probably abstentions, which have predict -1")
    elif (count >= 3 and smallest > 2.5 * unit) or evidence > _PROBABLE:
        message = f"{problem}: {format_rows(count)}; an abstention has predict -1"
        yield AuditFinding("abstained-class", "note", message)


def _no_abstentions(log: CertificationLog, parameters: Parameters) -> Iterator[AuditFinding]:
    positive = (log.radius > 0) & (log.radius <= MAX_RADIUS) & (log.prediction >= 0)
    radius = np.sort(log.radius[positive])
    unit = 10.0 ** -float(log.decimals[positive].min()) if log.decimals is not None and positive.any() else 1.0
    best, rows, largest = 0.0, 0, 0.0
    for width in _WIDTHS:
        # Radius at this width, in votes, above the fewest certified votes.
        edge = parameters.sigma * math.sqrt(2 * math.pi) * width / (2 * math.sqrt(parameters.n))
        inside = int(np.searchsorted(radius, edge, side="right"))
        above = int(np.searchsorted(radius, 2 * edge, side="right")) - inside
        if edge < 2 * unit or inside < _MIN_ROWS:
            continue
        evidence = float(
            pile_evidence(np.zeros(1), np.array([float(inside)]), np.array([float(above)]), np.array([width**2]))[0]
        )
        if evidence > best:
            best, rows, largest = evidence, inside, edge
    order = np.argsort(np.where(positive, log.radius, np.inf), kind="stable")[: int(positive.sum())]
    correct = log.is_correct[order]
    surprise, lead, share, after = max(
        (_surprise(correct, 10 * 2**step) for step in range(12) if (1 + _ABOVE) * 10 * 2**step <= len(correct)),
        default=(0.0, 0, 0.0, 0.0),
    )
    reasons = []
    if best > _PROBABLE:
        reasons.append(f"{rows:,} radii are at most {largest:.2g}, where votes are as often too few as enough")
    if surprise > _PROBABLE:
        reasons.append(
            f"of the {lead:,} smallest radii {100 * share:.0f} % are correct, above them {100 * after:.0f} %"
        )
    if reasons:
        message = f"no abstentions, but {' and '.join(reasons)}: probably abstentions were certified, or left out"
        yield AuditFinding("abstentions", "fault" if max(best, surprise) > _CERTAIN else "note", message)


def _surprise(correct: npt.NDArray[np.bool_], lead: int) -> tuple[float, int, float, float]:
    """Return (log-likelihood ratio, lead, two shares) for more correct rows at the smallest radii than above them."""
    share, after = float(correct[:lead].mean()), float(correct[lead : (1 + _ABOVE) * lead].mean())
    if share <= after:
        return 0.0, lead, share, after
    both = (lead * share + _ABOVE * lead * after) / ((1 + _ABOVE) * lead)
    evidence = lead * _divergence(share, both) + _ABOVE * lead * _divergence(after, both)
    return evidence, lead, share, after


def _divergence(p: float, q: float) -> float:
    return float(special.rel_entr(p, q) + special.rel_entr(1 - p, 1 - q))
