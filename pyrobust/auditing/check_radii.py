"""Checks of a log's radii: valid numbers, attainable at its n, alpha and sigma."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.certification_log import MAX_RADIUS, CertificationLog
from pyrobust.auditing.check_rows import first_rows, row_fault
from pyrobust.auditing.findings import Finding, format_rows
from pyrobust.auditing.printed_radii import ROUND_N, USUAL_SIGMA, Judgement, Parameters, Pile, PrintedRadii
from pyrobust.auditing.saturation import ROUNDING, USUAL_ALPHA, USUAL_N, Saturation
from pyrobust.metrics.votes import attainable_radii, maximum_radius
from pyrobust.smoothing import certified_radius

_Mask = npt.NDArray[np.bool_]

# Up to this many rows, or this share, are spoiled by themselves; more contradict n, alpha or sigma.
_SPOILED_ROWS, _SPOILED_SHARE = 2, 0.01
# Largest n with a table of all attainable radii.
_MAX_TABLE = 10**6
# Without sigma: rows of a pile that implies a sigma, and of one that faults larger radii; and how many votes it may lie
# below the maximum.
_LIKELY_PILE, _CLEAR_PILE, _BELOW_MAXIMUM = 10, 20, 3


def check_numbers(log: CertificationLog) -> Iterator[Finding]:
    """Flag NaN, infinite and negative radii, and abstentions with a radius."""
    infinite = np.abs(log.radius) > MAX_RADIUS
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


def check_certificates(log: CertificationLog) -> Iterator[Finding]:
    """Check that printed radii are attainable at n, alpha and sigma; runs store votes, for `check_run`."""
    if log.kind != "certify" or log.decimals is None:
        return
    usable = (log.radius > 0) & (log.radius <= MAX_RADIUS) & (log.prediction >= 0)
    printed = PrintedRadii(log.radius[usable], log.decimals[usable])
    if log.judgement is None:
        check = _check_without_sigma(log, printed) if log.sigma is None else _check_maximum(log, usable)
        yield from check
        return
    yield from _lead(log, log.judgement)
    yield Finding("sigma", "note", f"sigma {log.judgement.assumed.sigma:g}: {log.origins.get('sigma', 'given')}")
    yield from _check_rows(log, printed, usable, log.judgement)


def _check_without_sigma(log: CertificationLog, printed: PrintedRadii) -> Iterator[Finding]:
    """Judge radii against the largest pile, which lies at the maximum or a few votes below it."""
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
    yield Finding("sigma-unknown", "note", message)


def _check_maximum(log: CertificationLog, usable: _Mask) -> Iterator[Finding]:
    """Check printed radii of other noise or of a sequential run against the largest that n unanimous votes prove."""
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


def _lead(log: CertificationLog, judgement: Judgement) -> Iterator[Finding]:
    """State first which parameters the radii were made with, if not with those assumed."""
    assumed, better = judgement.assumed, judgement.better
    if better is None:
        return
    names = better.differing(assumed)
    made = " and ".join(f"{name} {getattr(better, name):,} (not {getattr(assumed, name):,})" for name in names)
    options = " ".join(f"--{name} {getattr(better, name)}" for name in names)
    usable = (log.radius > 0) & (log.radius <= MAX_RADIUS) & (log.prediction >= 0)
    decimals = log.decimals[usable] if log.decimals is not None else np.zeros(0, np.int64)
    printed = PrintedRadii(log.radius[usable], decimals)
    beyond, attainable = printed.beyond(assumed), printed.attainable(assumed)
    reasons = [
        f"{count:,} of {printed.rows:,} radii {problem}"
        for count, problem in (
            (int(printed.count[beyond].sum()), f"exceed the maximum, {assumed.maximum:.6g}"),
            (int(printed.count[~attainable & ~beyond].sum()), "come from no number of votes"),
        )
        if count
    ]
    if not reasons:
        reasons = [
            f"{pile.rows:,} equal radii of {pile.radius:g} are not the maximum, {assumed.maximum:.6g}"
            for pile in printed.piles(assumed)[-1:]
        ] or [f"all {printed.rows:,} radii are among the few that {_name(better, names)} gives"]
    yield Finding(
        "parameters",
        "fault",
        f"made with {made}: pass {options}; with {_name(assumed, names)}, {' and '.join(reasons)}",
    )


def _name(parameters: Parameters, names: list[str]) -> str:
    return " and ".join(f"{name} {getattr(parameters, name):,}" for name in names)


def _check_rows(log: CertificationLog, printed: PrintedRadii, usable: _Mask, judgement: Judgement) -> Iterator[Finding]:
    """Flag the rows that even the likeliest parameters do not give."""
    parameters = judgement.parameters

    def rows_of(distinct: _Mask) -> _Mask:
        rows = np.zeros(len(log), dtype=bool)
        rows[usable] = distinct[printed.inverse]
        return rows

    beyond, attainable = printed.beyond(parameters), printed.attainable(parameters)
    above, unattainable = rows_of(beyond), rows_of(~attainable & ~beyond)
    if above.any():
        largest = float(log.radius[above].max())
        problem = f"radius up to {largest:g}, above the maximum {parameters.maximum:.6g} for {parameters}"
        yield row_fault(log, "above-maximum", above, problem)
    if unattainable.any():
        yield row_fault(log, "unattainable", unattainable, f"radius that no number of votes gives for {parameters}")
    for pile in judgement.piles:
        beside = f"{pile.beside:,} with as many different votes beside {'it' if pile.rows == 1 else 'them'}"
        message = f"{pile.rows:,} equal radii of {pile.radius:g}, {beside}: only the maximum can pile up"
        yield Finding("pile", "fault", message + _origin_of(pile, parameters))
    spoiled = int((above | unattainable).sum())
    if judgement.better is None and spoiled > max(_SPOILED_ROWS, _SPOILED_SHARE * printed.rows):
        message = (
            f"radii contradict {parameters}: {spoiled:,} of {printed.rows:,}; no usual n, alpha or sigma gives all"
        )
        yield Finding("parameters", "fault", message)
    rounded_up = int(printed.count[(printed.value > parameters.maximum * (1 + ROUNDING)) & ~beyond].sum())
    if rounded_up:
        message = f"radii rounded to nearest: {format_rows(rounded_up)} above the maximum, {parameters.maximum:.6g}"
        yield Finding("rounded-up", "note", message)
    if judgement.better is None and judgement.saturation is not None:
        message = judgement.saturation.describe(parameters.n, parameters.alpha, parameters.sigma)
        yield Finding("saturation", "note", message)
    assumed = [name for name in ("n", "alpha") if log.origins.get(name, "given") != "given"]
    if assumed:
        values = ", ".join(f"{name} {getattr(log, name):,}" for name in assumed)
        yield Finding("assumed", "note", f"{values}: {log.origins[assumed[0]]}")


def _origin_of(pile: Pile, parameters: Parameters) -> str:
    """Describe the n or sigma whose maximum a pile is; "" if none is usual."""
    saturation, n, alpha, sigma = Saturation(pile.radius, pile.rows, pile.decimals), *astuple(parameters)
    for other in (sigma / 2, sigma * 2, *USUAL_SIGMA):
        if other != sigma and saturation.agrees(n, alpha, other):
            return f", and this is the maximum of sigma {other:g}"
    for other_n in ROUND_N:
        if other_n != n and saturation.agrees(other_n, alpha, sigma):
            return f", and this is the maximum of n {other_n:,}"
    return ""
