"""Check that a log's radii are valid numbers, and attainable at its n, alpha and sigma."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.certification_log import MAX_RADIUS, CertificationLog
from pyrobust.auditing.check_judgement import check_judgement
from pyrobust.auditing.check_rows import first_rows, row_fault
from pyrobust.auditing.findings import AuditFinding, format_rows
from pyrobust.auditing.judgement import ParameterJudgement
from pyrobust.auditing.printed_radii import PrintedRadii
from pyrobust.auditing.saturation import ROUNDING, USUAL_ALPHA, USUAL_N
from pyrobust.metrics.votes import attainable_radii, maximum_radius
from pyrobust.smoothing import certified_radius

_Mask = npt.NDArray[np.bool_]

# Inverse of the largest relative rounding error of each format.
_PARTS = {"float16": 2048, "bfloat16": 256}

# Largest n with a table of all attainable radii.
_MAX_TABLE = 10**6
# If sigma is unknown: least rows of a pile that implies a sigma, and of one that makes larger radii faults; and the
# most votes that a pile may lie below the maximum.
_LIKELY_PILE, _CLEAR_PILE, _BELOW_MAXIMUM = 10, 20, 3


def check_numbers(log: CertificationLog) -> Iterator[AuditFinding]:
    """Flag NaN, infinite and negative radii, and abstentions with a radius."""
    infinite = np.abs(log.radius) > MAX_RADIUS
    abstained = (log.radius > 0) & ~infinite & (log.prediction < 0)
    checks = {
        "nan": (np.isnan(log.radius), "NaN radius"),
        "infinite": (infinite, f"radius infinite or above {MAX_RADIUS:g}"),
        "negative": ((log.radius < 0) & ~infinite, "negative radius"),
        "abstained-radius": (abstained, "abstention (predict -1) with a radius"),
    }
    for kind, (rows, problem) in checks.items():
        if rows.any():
            yield row_fault(log, kind, rows, problem, "counted as abstention with radius 0")


def usable_rows(log: CertificationLog) -> CertificationLog:
    r"""Reduce a log to the first row of each image; invalid radii and classes become abstentions.

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
    usable = (log.radius >= 0) & (log.radius <= MAX_RADIUS) & (log.prediction >= 0) & (log.label >= 0)
    keep = first_rows(log)
    if keep.all() and (usable | ((log.prediction == -1) & (log.radius == 0) & (log.label >= 0))).all():
        return log
    columns: dict[str, Any] = log._columns() | {
        "label": np.maximum(log.label, 0),
        "prediction": np.where(usable, log.prediction, -1),
        "radius": np.where(usable, log.radius, 0.0),
    }
    if log.votes is not None:
        columns["votes"] = np.where(usable, log.votes, 0)
    return replace(log, **{name: column[keep] for name, column in columns.items()})


def check_certificates(log: CertificationLog) -> Iterator[AuditFinding]:
    """Check that printed radii are attainable at n, alpha and sigma; `check_run` checks runs by their votes."""
    if not log.smoothed or log.decimals is None:
        return
    usable = (log.radius > 0) & (log.radius <= MAX_RADIUS) & (log.prediction >= 0)
    printed = PrintedRadii(log.radius[usable], log.decimals[usable])
    if printed.precision:
        message = f"radii are {printed.precision} numbers, rounded by up to a part in {_PARTS[printed.precision]:,}"
        yield AuditFinding("precision", "note", message)
    if log.judgement is None:
        check = _check_without_sigma(log, printed) if log.sigma is None else _check_maximum(log, usable)
        yield from check
        return
    yield from check_judgement(log, log.judgement, usable)
    sigma = log.judgement.assumed.parameters.sigma
    yield AuditFinding("sigma", "note", f"sigma {sigma:g}: {log.origins.get('sigma', 'given')}")
    yield from _notes(log, log.judgement)


def _check_without_sigma(log: CertificationLog, printed: PrintedRadii) -> Iterator[AuditFinding]:
    """Judge radii relative to the largest pile of equal radii, which is at the maximum or a few votes below it."""
    message, pile = "sigma unknown: pass --sigma to check radii and count votes", printed.saturation()
    if pile is not None and pile.rows >= _LIKELY_PILE:
        n, alpha = log.n or USUAL_N, log.alpha or USUAL_ALPHA
        votes = n - min(_BELOW_MAXIMUM, n // 2)
        below = float(attainable_radii(n, alpha, 1.0)[votes]) if n <= _MAX_TABLE else maximum_radius(n, alpha, 1.0)
        unit = maximum_radius(n, alpha, 1.0)
        if below > 0:
            sigma = f"sigma {pile.radius / unit:.3g} at n {n:,} and alpha {alpha:g}"
            message += f" (saturated radii, {pile.radius:g}, imply {sigma})"
            largest = (pile.radius + 10.0**-pile.decimals) * unit / below
            above = (log.radius > largest) & (log.radius <= MAX_RADIUS) & (log.prediction >= 0)
            if above.any() and pile.rows >= _CLEAR_PILE:
                problem = (
                    f"radius up to {float(log.radius[above].max()):g}, above the maximum, at which {pile.rows:,} rows "
                    f"have {pile.radius:g}"
                )
                yield row_fault(log, "above-maximum", above, problem)
    yield AuditFinding("sigma-unknown", "note", message)


def _check_maximum(log: CertificationLog, usable: _Mask) -> Iterator[AuditFinding]:
    """Flag radii above the one that n unanimous votes certify, in logs of non-Gaussian noise or of sequential runs."""
    if log.n is None or log.alpha is None or log.sigma is None or log.header is None or log.decimals is None:
        return
    if log.header.parameters.get("two_class"):  # a rival without votes allows larger radii
        return
    p_lower = math.exp(math.log(log.alpha) / log.n)
    maximum = float(certified_radius(p_lower, log.sigma, noise=log.noise, norm=log.norm))
    above = usable & (log.radius > maximum * (1 + ROUNDING) + 0.5 * 10.0**-log.decimals)
    if above.any():
        problem = f"radius up to {float(log.radius[above].max()):g}, above the maximum {maximum:.6g}"
        yield row_fault(log, "above-maximum", above, problem)


def _notes(log: CertificationLog, judgement: ParameterJudgement) -> Iterator[AuditFinding]:
    """Yield notes on rounded and saturated radii under the assumed parameters, and on parameters not stated."""
    fit = judgement.assumed
    if judgement.innocent is not fit:
        return
    parameters = fit.parameters
    rounded_up = (fit.radii.value > parameters.maximum * (1 + ROUNDING)) & ~fit.beyond
    if rounded_up.any():
        rows = format_rows(int(fit.radii.count[rounded_up].sum()))
        yield AuditFinding(
            "rounded-up", "note", f"radii rounded to nearest: {rows} above the maximum, {parameters.maximum:.6g}"
        )
    pile = judgement.saturation
    if pile is not None and pile.agrees(parameters.maximum):
        message = pile.describe(parameters.n, parameters.alpha, parameters.sigma)
        yield AuditFinding("saturation", "note", message)
    assumed = [name for name in ("n", "alpha") if "assumed" in log.origins.get(name, "given")]
    if assumed:
        values = ", ".join(f"{name} {getattr(log, name):,}" for name in assumed if getattr(log, name) is not None)
        yield AuditFinding("assumed", "note", f"{values}: {log.origins[assumed[0]]}")
