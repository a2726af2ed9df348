"""Checks of a log's radii: valid numbers, attainable at its n, alpha and sigma."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.check_rows import first_rows, row_fault
from pyrobust.auditing.findings import Finding, format_rows
from pyrobust.auditing.saturation import ROUNDING, USUAL_ALPHA, USUAL_N, Saturation, find_saturation
from pyrobust.metrics.votes import is_attainable, maximum_radius

_Mask = npt.NDArray[np.bool_]

# Larger radii count as infinite; sums and third powers of smaller ones do not overflow.
_MAX_RADIUS = 1e90
_CANDIDATE_N = [m * 10**e for e in range(1, 6) for m in (1, 2, 5)]
_CANDIDATE_ALPHA = [m * 10.0**-e for e in range(2, 7) for m in (5, 2, 1)]
# Up to this many unattainable radii are faults of single rows; more mean that n, alpha or sigma are wrong.
_SPOILED_ROWS, _SPOILED_SHARE = 2, 0.01
# Radii tested against each candidate, and the probability below which a fit is not chance.
_MAX_TESTED, _CHANCE = 5000, 1e-9
# Radii that screen candidates without a table, and the share of them that rounding may misjudge.
_SCREENED, _MISJUDGED = 100, 0.05


def check_numbers(log: CertificationLog) -> Iterator[Finding]:
    """Flag NaN, infinite and negative radii, and abstentions with a radius."""
    infinite = np.abs(log.radius) > _MAX_RADIUS
    abstained = (log.radius > 0) & ~infinite & (log.prediction < 0)
    checks = {
        "nan": (np.isnan(log.radius), "NaN radius"),
        "infinite": (infinite, "infinite radius"),
        "negative": ((log.radius < 0) & ~infinite, "negative radius"),
        "abstained-radius": (abstained, "abstention (predict -1) with a radius"),
    }
    for kind, (rows, problem) in checks.items():
        if rows.any():
            yield row_fault(log, kind, rows, problem, "counted as abstention with radius 0")


def usable_rows(log: CertificationLog) -> CertificationLog:
    r"""Reduce a log to the first row of each image, with abstentions for invalid radii and classes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from pyrobust.auditing import read_certification_log
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "sigma0.25.tsv"
    ...     _ = file.write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\tnan\t1\n")
    ...     log = usable_rows(read_certification_log(file))
    >>> log.radius, log.prediction
    (array([0.]), array([-1]))
    """
    usable = (log.radius >= 0) & (log.radius <= _MAX_RADIUS) & (log.prediction >= 0) & (log.label >= 0)
    keep = first_rows(log)
    if keep.all() and (usable | ((log.prediction == -1) & (log.radius == 0) & (log.label >= 0))).all():
        return log

    def kept(column: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64] | None:
        return None if column is None else column[keep]

    return replace(
        log,
        index=log.index[keep],
        label=np.maximum(log.label, 0)[keep],
        prediction=np.where(usable, log.prediction, -1)[keep],
        radius=np.where(usable, log.radius, 0.0)[keep],
        correct=log.correct[keep],
        seconds=None if log.seconds is None else log.seconds[keep],
        decimals=kept(log.decimals),
        votes=None if log.votes is None else np.where(usable, log.votes, 0)[keep],
        lines=kept(log.lines),
    )


def check_certificates(log: CertificationLog) -> Iterator[Finding]:
    """Check that printed radii are attainable at n, alpha and sigma; runs store votes, for `check_run`."""
    if log.kind != "certify" or log.decimals is None:
        return
    usable = (log.radius > 0) & (log.radius <= _MAX_RADIUS) & (log.prediction >= 0)
    pile = find_saturation(np.where(usable, log.radius, 0.0), log.decimals)
    if log.sigma is None:
        message = "sigma unknown: pass --sigma to check radii and count votes"
        if pile is not None:
            unit = maximum_radius(log.n or USUAL_N, log.alpha or USUAL_ALPHA, 1.0)
            usual = f"n {log.n or USUAL_N:,} and alpha {log.alpha or USUAL_ALPHA:g}"
            message += (
                f" (saturated radii, {pile.radius:g}, imply sigma {pile.radius / unit:.3g} at {usual})" if unit else ""
            )
        yield Finding("sigma-unknown", "note", message)
        return
    yield Finding("sigma", "note", f"sigma {log.sigma:g}: {log.origins.get('sigma', 'given')}")
    yield from _check_printed(log, log.decimals, usable, pile, log.n or USUAL_N, log.alpha or USUAL_ALPHA, log.sigma)


def _check_printed(
    log: CertificationLog,
    decimals: npt.NDArray[np.int64],
    usable: _Mask,
    pile: Saturation | None,
    n: int,
    alpha: float,
    sigma: float,
) -> Iterator[Finding]:
    settings = f"n {n:,}, alpha {alpha:g} and sigma {sigma:g}"
    maximum = maximum_radius(n, alpha, sigma)
    beyond = usable & (log.radius > maximum * (1 + ROUNDING))
    above = beyond & (log.radius > maximum * (1 + ROUNDING) + 0.5 * 10.0**-decimals)
    if above.any():
        largest = float(log.radius[above].max())
        problem = f"radius up to {largest:g}, above the maximum {maximum:.6g} for {settings}"
        yield row_fault(log, "above-maximum", above, problem)
    unattainable = usable & ~above
    if unattainable.any():
        attainable = is_attainable(log.radius[unattainable], n, alpha, sigma, decimals=decimals[unattainable])
        unattainable[unattainable] = ~attainable
    count = int(unattainable.sum())
    reasons = _contradiction(_PrintedRadii(log.radius[usable], decimals[usable], pile), count, n, alpha, sigma)
    if reasons:
        yield Finding("parameters", "fault", f"radii contradict {settings}: {reasons}")
    elif count:
        yield row_fault(log, "unattainable", unattainable, f"radius that no number of votes gives for {settings}")
    rounded_up = int((beyond & ~above).sum())
    if rounded_up and not reasons:
        message = f"radii rounded to nearest: {format_rows(rounded_up)} above the maximum, {maximum:.6g}"
        yield Finding("rounded-up", "note", message)
    if pile is not None and not reasons:
        yield Finding("saturation", "note", pile.describe(n, alpha, sigma))
    assumed = [name for name in ("n", "alpha") if log.origins.get(name, "given") != "given"]
    if assumed:
        values = ", ".join(f"{name} {getattr(log, name):,}" for name in assumed)
        yield Finding("assumed", "note", f"{values}: {log.origins[assumed[0]]}")


def _contradiction(radii: _PrintedRadii, unattainable: int, n: int, alpha: float, sigma: float) -> str:
    """Describe why the radii contradict n, alpha and sigma; "" if they do not."""
    certified, pile = radii.rows, radii.pile
    agrees = pile is None or pile.agrees(n, alpha, sigma)
    if not agrees or unattainable > max(_SPOILED_ROWS, _SPOILED_SHARE * certified):
        saturated = "" if pile is None or agrees else pile.describe(n, alpha, sigma)
        rows = f"no number of votes gives {unattainable:,} of {certified:,}" if unattainable else ""
        return "; ".join(filter(None, (saturated, rows, radii.describe_fit(n, alpha, sigma))))
    smaller_n = radii.smaller_n(n, alpha, sigma) if pile is None and certified else None
    if smaller_n is None:
        return ""
    return f"all {certified:,} are among the few that n {smaller_n:,} with alpha {alpha:g} gives"


class _PrintedRadii:
    """Printed radii of certified rows, as a sample of the distinct ones, to find the n and alpha that give them all."""

    def __init__(self, radius: npt.NDArray[np.float64], decimals: npt.NDArray[np.int64], pile: Saturation | None):
        self.rows = len(radius)
        values, first = np.unique(radius, return_index=True)
        sample = np.unique(np.linspace(len(values) - 1, 0, _MAX_TESTED).astype(np.int64)) if len(values) else slice(0)
        self.radius, self.decimals, self.pile = values[sample], decimals[first][sample], pile

    def all_attainable(self, n: int, alpha: float, sigma: float) -> bool:
        """Whether some number of votes gives each radius."""
        agrees = self.pile is None or self.pile.agrees(n, alpha, sigma)
        if not agrees or not self._largest_attainable(n, alpha, sigma):
            return False
        return bool(is_attainable(self.radius, n, alpha, sigma, decimals=self.decimals).all())

    def _largest_attainable(self, n: int, alpha: float, sigma: float) -> bool:
        """Screen the largest radii, where attainable ones lie furthest apart, without a table of all attainable radii.

        R(k) ≥ x means P(Bin(n, Φ(x/sigma)) ≥ k) ≤ alpha, so the smallest such k is a quantile.
        """
        radius, unit = self.radius[-_SCREENED:], 10.0 ** -self.decimals[-_SCREENED:]
        ends = np.stack([radius - unit / 2 - radius * ROUNDING, radius + unit + radius * ROUNDING])
        if ends[0].max() > maximum_radius(n, alpha, sigma):
            return False
        first, beyond = np.ceil(special.bdtrik(1 - alpha, n, special.ndtr(ends / sigma)))
        # Rounding can move a quantile by one, and p = 1 gives NaN; the table decides those.
        return not (beyond < first).any() and not ((beyond == first) & (first < n - 1)).mean() > _MISJUDGED

    def describe_fit(self, n: int, alpha: float, sigma: float) -> str:
        """Describe the first usual n, or alpha, that gives all radii; "" if none does."""
        candidates = [*((m, alpha) for m in _CANDIDATE_N), *((n, a) for a in _CANDIDATE_ALPHA)]
        for other_n, other_alpha in candidates:
            if (other_n, other_alpha) != (n, alpha) and self.all_attainable(other_n, other_alpha, sigma):
                return f"n {other_n:,} with alpha {other_alpha:g} fits"
        return ""

    def smaller_n(self, n: int, alpha: float, sigma: float) -> int | None:
        """Find a smaller n that gives all radii and so few others that this is not chance.

        The share f of neighbouring printed radii that are attainable too approximates the probability that a radius of
        another n is attainable by chance; for m radii it is f^m.
        """
        unit = 10.0**-self.decimals
        neighbours = np.concatenate([self.radius + step * unit for step in (-3, -2, -1, 1, 2, 3)])
        places = np.tile(self.decimals, 6)[neighbours > 0]
        neighbours = neighbours[neighbours > 0]
        for other in _CANDIDATE_N:
            if other < n and self.all_attainable(other, alpha, sigma):
                share = is_attainable(neighbours, other, alpha, sigma, decimals=places).mean()
                return other if share ** len(self.radius) < _CHANCE else None
        return None
