"""What has to hold of a log's radii: that its own n, alpha and sigma can give them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.check_rows import at_rows, counted_rows, first_of_each
from pyrobust.auditing.check_sequential import check_sequences
from pyrobust.auditing.findings import Finding
from pyrobust.auditing.saturation import SLACK, USUAL_ALPHA, USUAL_N, Saturation, find_saturation
from pyrobust.errors import PyrobustError
from pyrobust.metrics.votes import attainable_radii, is_attainable, maximum_radius
from pyrobust.smoothing import certified_radius

_Mask = npt.NDArray[np.bool_]

# Above it a radius is as good as infinite; below it no sum and no third power of radii overflows.
_LARGEST = 1e90
# Up to here a table of all radii is made.
_TABLE = 10**6
_SAMPLES = [m * 10**e for e in range(1, 6) for m in (1, 2, 5)]
_ALPHAS = [m * 10.0**-e for e in range(2, 7) for m in (5, 2, 1)]
# A row or two can be spoiled; where more have radii that no votes give, n, alpha or sigma are others.
_SPOILED_ROWS, _SPOILED_SHARE = 2, 0.01
# Radii that candidates for n are asked for; and how improbable a fit by chance has to be.
_ASKED, _CHANCE = 5000, 1e-9
# Radii that sort out most candidates, and the share of them that rounding may misjudge.
_SCREENED, _MISJUDGED = 100, 0.05


def check_numbers(log: CertificationLog) -> Iterator[Finding]:
    """Radii that are no radii.

    Args:
        log: as read.

    Yields:
        Findings.
    """
    endless = np.abs(log.radius) > _LARGEST
    abstained = (log.radius > 0) & ~endless & (log.prediction < 0)
    checks = {
        "nan": (np.isnan(log.radius), "radius that is not a number (NaN)"),
        "infinite": (endless, "infinite radius"),
        "negative": ((log.radius < 0) & ~endless, "negative radius"),
        "abstained-radius": (abstained, "abstention (predict -1) with a radius"),
    }
    for kind, (where, what) in checks.items():
        if where.any():
            yield at_rows(log, kind, where, what, "counted as abstention, radius 0")


def countable(log: CertificationLog) -> CertificationLog:
    r"""What of a log the metrics are computed on: the first row of each image, and abstentions for what is no radius.

    Args:
        log: as read.

    Returns:
        A log whose radii are finite and at least 0, 0 where it abstains, and whose indices are unique.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from pyrobust.evaluation import read_certification_log
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "sigma0.25.tsv"
    ...     _ = file.write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\tnan\t1\n")
    ...     log = countable(read_certification_log(file))
    >>> log.radius, log.prediction
    (array([0.]), array([-1]))
    """
    usable = (log.radius >= 0) & (log.radius <= _LARGEST) & (log.prediction >= 0) & (log.label >= 0)
    keep = first_of_each(log)
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
    """Radii against n, alpha and sigma: the largest that is possible, those that pile up there, those that none give.

    Args:
        log: as read.

    Yields:
        Findings.
    """
    if log.kind != "certify":
        return  # proofs have neither n nor alpha
    if log.header is not None and log.header.layout == "sequential":
        yield from check_sequences(log)
        return
    if log.votes is not None and log.n is not None and log.alpha is not None and log.sigma is not None:
        yield from _check_votes(log, log.votes, log.n, log.alpha, log.sigma)
        return
    if log.decimals is None:
        return
    usable = (log.radius > 0) & (log.radius <= _LARGEST) & (log.prediction >= 0)
    pile = find_saturation(np.where(usable, log.radius, 0.0), log.decimals)
    if log.sigma is None:
        message = "sigma is not known: radii are not checked and votes not counted; give it"
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
    used = f"n {n:,}, alpha {alpha:g} and sigma {sigma:g}"
    largest = maximum_radius(n, alpha, sigma)
    beyond = usable & (log.radius > largest * (1 + SLACK))
    above = beyond & (log.radius > largest * (1 + SLACK) + 0.5 * 10.0**-decimals)
    if above.any():
        most = float(log.radius[above].max())
        yield at_rows(
            log, "above-maximum", above, f"radius up to {most:g}, above the {largest:.6g} that {used} can prove"
        )
    impossible = usable & ~above
    if impossible.any():
        found = is_attainable(log.radius[impossible], n, alpha, sigma, decimals=decimals[impossible])
        impossible[impossible] = ~found
    count = int(impossible.sum())
    reasons = _contradiction(_Printed(log.radius[usable], decimals[usable], pile), count, n, alpha, sigma)
    if reasons:
        yield Finding("parameters", "fault", f"the radii are not of {used}: {reasons}")
    elif count:
        yield at_rows(log, "unattainable", impossible, f"radius that no number of votes gives at {used}")
    rounded_up = int((beyond & ~above).sum())
    if rounded_up and not reasons:
        message = f"radii are rounded to nearest: {counted_rows(rounded_up)} above the largest possible, {largest:.6g}"
        yield Finding("rounded-up", "note", message)
    if pile is not None and not reasons:
        yield Finding("saturation", "note", pile.describe(n, alpha, sigma))
    assumed = [name for name in ("n", "alpha") if log.origins.get(name, "given") != "given"]
    if assumed:
        values = ", ".join(f"{name} {getattr(log, name):,}" for name in assumed)
        yield Finding("assumed", "note", f"{values}: {log.origins[assumed[0]]}")


def _contradiction(radii: _Printed, impossible: int, n: int, alpha: float, sigma: float) -> str:
    """Why the radii are of another n, alpha or sigma, in words; nothing where they may be of these."""
    certified, pile = radii.rows, radii.pile
    agrees = pile is None or pile.agrees(n, alpha, sigma)
    if not agrees or impossible > max(_SPOILED_ROWS, _SPOILED_SHARE * certified):
        saturated = "" if pile is None or agrees else pile.describe(n, alpha, sigma)
        none = f"{impossible:,} of {certified:,} come from no number of votes" if impossible else ""
        return "; ".join(filter(None, (saturated, none, radii.fitting(n, alpha, sigma))))
    sparse = radii.sparser(n, alpha, sigma) if pile is None and certified else None
    if sparse is None:
        return ""
    return f"all {certified:,} are among the few that n {sparse:,} with alpha {alpha:g} gives"


class _Printed:
    """Radii of a log, for the question which n and alpha give them all.

    Args:
        radius: of certified rows, as printed.
        decimals: of each.
        pile: at their upper end.
    """

    def __init__(self, radius: npt.NDArray[np.float64], decimals: npt.NDArray[np.int64], pile: Saturation | None):
        self.rows = len(radius)
        values, first = np.unique(radius, return_index=True)
        some = np.unique(np.linspace(len(values) - 1, 0, _ASKED).astype(np.int64)) if len(values) else slice(0)
        self.radius, self.decimals, self.pile = values[some], decimals[first][some], pile

    def all_come_from(self, n: int, alpha: float, sigma: float) -> bool:
        """Whether votes give every one."""
        agrees = self.pile is None or self.pile.agrees(n, alpha, sigma)
        if not agrees or not self._largest_come_from(n, alpha, sigma):
            return False
        return bool(is_attainable(self.radius, n, alpha, sigma, decimals=self.decimals).all())

    def _largest_come_from(self, n: int, alpha: float, sigma: float) -> bool:
        """The same of the largest ones alone, which stand furthest apart; without a table of all radii.

        R(k) ≥ x says that P(Bin(n, Φ(x/sigma)) ≥ k) ≤ alpha, so that the first such k is a quantile.
        """
        radius, unit = self.radius[-_SCREENED:], 10.0 ** -self.decimals[-_SCREENED:]
        ends = np.stack([radius - unit / 2 - radius * SLACK, radius + unit + radius * SLACK])
        if ends[0].max() > maximum_radius(n, alpha, sigma):
            return False
        first, beyond = np.ceil(special.bdtrik(1 - alpha, n, special.ndtr(ends / sigma)))
        # A quantile that rounding moved by one, or a NaN at p = 1, is left to the table.
        return not (beyond < first).any() and not ((beyond == first) & (first < n - 1)).mean() > _MISJUDGED

    def fitting(self, n: int, alpha: float, sigma: float) -> str:
        """The first usual n, or alpha, that gives them, in words."""
        for other_n, other_alpha in [*((m, alpha) for m in _SAMPLES), *((n, a) for a in _ALPHAS)]:
            if (other_n, other_alpha) != (n, alpha) and self.all_come_from(other_n, other_alpha, sigma):
                return f"n {other_n:,} with alpha {other_alpha:g} fits"
        return ""

    def sparser(self, n: int, alpha: float, sigma: float) -> int | None:
        """A smaller n that gives them all, and so few others that this is no chance.

        The share f of their neighbours on the printed grid that it gives too is about the probability that a radius of
        another n is given by chance; for m radii that is f^m.
        """
        unit = 10.0**-self.decimals
        neighbours = np.concatenate([self.radius + step * unit for step in (-3, -2, -1, 1, 2, 3)])
        places = np.tile(self.decimals, 6)[neighbours > 0]
        neighbours = neighbours[neighbours > 0]
        for other in _SAMPLES:
            if other < n and self.all_come_from(other, alpha, sigma):
                share = is_attainable(neighbours, other, alpha, sigma, decimals=places).mean()
                return other if share ** len(self.radius) < _CHANCE else None
        return None


def _check_votes(
    log: CertificationLog, votes: npt.NDArray[np.int64], n: int, alpha: float, sigma: float
) -> Iterator[Finding]:
    """The radii of a run against its histograms."""
    if n > _TABLE:
        yield Finding("unchecked", "note", f"radii are not checked against votes: n {n:,} is above {_TABLE:,}")
        return
    try:
        p_lower = special.ndtr(attainable_radii(n, alpha, 1.0))
        proved = certified_radius(p_lower, sigma, noise=log.noise, norm=log.norm)[votes]
    except PyrobustError as error:
        yield Finding("unchecked", "note", f"radii are not checked against votes: {error}")
        return
    more = (log.prediction >= 0) & (log.radius > proved * (1 + 1e-6) + 1e-9 * sigma)
    if more.any():
        yield at_rows(log, "above-votes", more, "radius above what its votes prove")
