"""Table that compares certification logs, the best first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.votes import survival_of
from pyrobust.checks import number_text, numbers
from pyrobust.metrics.certified import (
    average_certified_radius,
    average_radius,
    certified_accuracy,
    certified_accuracy_with_confidence,
)
from pyrobust.metrics.radii import usual_radii
from pyrobust.metrics.survival import HARD, SurvivalCurve, rank_by_survival
from pyrobust.report.caption import ACR_NOTE, describe_run, warnings_of
from pyrobust.report.formats import Cell, Column, Quantity, ReportTable, Row
from pyrobust.report.subjects import (
    checked_logs,
    distinct_names,
    facts_of,
    method_of,
    number,
    why_no_votes,
)

_HASH = 12
_QUANTILES = (0.25, 0.5, 0.75)


def comparison_table(
    logs: CertificationLog | Sequence[CertificationLog],
    radii: Sequence[float] | None = None,
    *,
    alpha: float = 0.05,
    delta: float = 0.001,
) -> ReportTable:
    r"""Compare certification logs: each classifier's p_A, certified accuracy and average certified radius.

    The table has one column per log. The columns are ordered by the area under the survival curve of p_A, and logs
    without votes come last. ``pyrobust.metrics.survival.rank_by_survival`` explains why the average certified radius
    does not set the order. The first rows give the parameters on which the numbers depend. The next rows give the area,
    the quantiles of p_A, and the shares of images with p_A in certain ranges. They are followed by the certified
    accuracy at each radius. Some certificates may be false, so further rows give a lower bound on the true certified
    accuracy of exactly these images at each radius. The last rows give the average certified radius and the mean radius
    of the correct images.

    Args:
        logs: logs of one norm.
        radii: at least 0, in the unit of the input. By default, the radii are 0, 0.25, … up to the largest certified
            radius, or round numbers if the largest certified radius is below 0.75.
        alpha: probability that a given interval misses the true value, in (0, 1).
        delta: probability that, at one radius, the true certified accuracy of exactly these images is below the lower
            bound in the table; in (0, 1).

    Returns:
        A table to print or to write. Its notes state on what the numbers depend.

    Raises:
        InputError: there is no log, the logs have several norms, a radius is negative, or alpha or delta is out of
            range.
        InputTypeError: an argument that is not a log, or radii that are not numbers.

    >>> import tempfile, pathlib
    >>> from pyrobust.auditing.certification_log import read_certification_log
    >>> rows = "idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\t0.377\t1\n1\t8\t8\t0.48\t1\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "net_sigma0.25.tsv")
    ...     _ = file.write_text(rows)
    ...     table = comparison_table(read_certification_log(file), [0.0, 0.4])
    >>> [str(row[1]) for row in table.rows if str(row[0]).startswith("certified at")]
    ['100.00 % (15.81 to 100.00)', '50.00 % (1.25 to 98.75)']
    """
    logs = checked_logs(logs)
    curves = [survival_of(log) for log in logs]
    order = _ranked(curves)
    names = distinct_names(logs)
    logs, curves, names = [logs[i] for i in order], [curves[i] for i in order], [names[i] for i in order]
    radii = usual_radii(max(float(log.radius.max()) for log in logs)) if radii is None else numbers("radii", radii)
    sections: tuple[tuple[Row, ...], ...] = (
        _facts(logs),
        _sureness(curves, alpha),
        _accuracies(logs, radii, alpha),
        _truly(logs, radii, delta),
        (
            ("average certified radius", *(_mean_radius(log, alpha) for log in logs)),
            ("mean radius (correct only)", *(Quantity(average_radius(log.radius, log.is_correct)) for log in logs)),
        ),
    )
    return ReportTable(
        title="Certification" if len(logs) == 1 else "Certification, ranked by the survival curve of p_A",
        columns=(Column("", "left"), *map(Column, names)),
        sections=tuple(section for section in sections if section),
        notes=tuple(_notes(logs, curves, names, alpha)),
        aside=("data sha256", "model sha256"),
        details=tuple(_details(logs, curves, names, alpha, delta)),
    )


def _ranked(curves: Sequence[SurvivalCurve | None]) -> list[int]:
    with_votes = [(i, curve) for i, curve in enumerate(curves) if curve is not None]
    ranked = (
        [with_votes[rank][0] for rank in rank_by_survival([curve for _, curve in with_votes])] if with_votes else []
    )
    return ranked + [i for i, curve in enumerate(curves) if curve is None]


def _facts(logs: Sequence[CertificationLog]) -> tuple[Row, ...]:
    def hashed(name: str) -> Callable[[CertificationLog], str | None]:
        return lambda log: str(getattr(log.header, name))[:_HASH] or None if log.header is not None else None

    wanted: dict[str, Callable[[CertificationLog], Cell]] = {
        "method": method_of,
        "norm": lambda log: log.norm,
        "sigma": lambda log: None if not log.smoothed else number(log.sigma),
        "n": lambda log: None if not log.smoothed else log.n or "unknown",
        "alpha": lambda log: None if not log.smoothed else number(log.alpha),
        "guarantee": _guarantee,
        "images": len,
        "data sha256": hashed("data_sha256"),
        "model sha256": hashed("model_sha256"),
    }
    rows = [(name, *(cell(log) for log in logs)) for name, cell in wanted.items()]
    return tuple(row for row in rows if any(cell is not None for cell in row[1:]))


def _guarantee(log: CertificationLog) -> str | None:
    if log.header is None:
        return None
    step = log.header.parameters.get("grid")
    return log.header.guarantee + (f" of {step}" if step else "")


def _sureness(curves: Sequence[SurvivalCurve | None], alpha: float) -> tuple[Row, ...]:
    if not any(curve is not None for curve in curves):
        return ()

    def row(name: str, figure: Callable[[SurvivalCurve], Quantity]) -> Row:
        return (name, *(None if curve is None else figure(curve) for curve in curves))

    def quantile(share: float) -> Row:
        name = "median of p_A" if share == 0.5 else f"{100 * share:g} % quantile of p_A"
        return row(name, lambda curve: Quantity(curve.quantiles([share])[0]))

    def area(curve: SurvivalCurve) -> Quantity:
        estimate = curve.area_estimate(alpha)
        return Quantity(estimate.value, estimate.lower, estimate.upper)

    rows = [
        row("area under the survival curve of p_A", area),
        *map(quantile, _QUANTILES),
        row("share with p_A below 1/2", lambda curve: Quantity(curve.share_below_half, percent=True, digits=2)),
        row(f"share with p_A from 1/2 to {HARD:g}", lambda curve: Quantity(curve.hard_share(), percent=True, digits=2)),
    ]
    if any(curve is not None and curve.area_lower < curve.area_upper for curve in curves):
        rows.insert(
            1,
            row("the area, for possible votes", lambda curve: Quantity(curve.area, curve.area_lower, curve.area_upper)),
        )
    return tuple(rows)


def _accuracies(logs: Sequence[CertificationLog], radii: Sequence[float], alpha: float) -> tuple[Row, ...]:
    rates = [certified_accuracy(log.radius, log.certified, radii, alpha) for log in logs]
    return tuple(
        (f"certified at {number_text(radius)}", *(Quantity(r.value, r.lower, r.upper, 2, percent=True) for r in at))
        for radius, *at in zip(radii, *rates, strict=True)
    )


def _truly(logs: Sequence[CertificationLog], radii: Sequence[float], delta: float) -> tuple[Row, ...]:
    def bound(log: CertificationLog, radius: float) -> Cell:
        count = int((log.certified & (log.radius >= radius)).sum())
        if not log.smoothed:
            return Quantity(count / len(log), percent=True, digits=2, down=True)
        if log.alpha is None:
            return None
        lower = certified_accuracy_with_confidence(count, len(log), log.alpha, delta).lower
        return Quantity(lower, percent=True, digits=2, down=True)

    return tuple(
        (f"of these at least, at {number_text(radius)}", *(bound(log, radius) for log in logs)) for radius in radii
    )


def _mean_radius(log: CertificationLog, alpha: float) -> Quantity:
    mean = average_certified_radius(log.radius, log.certified, alpha)
    return Quantity(mean.value, mean.lower, mean.upper)


def _notes(
    logs: Sequence[CertificationLog], curves: Sequence[SurvivalCurve | None], names: Sequence[str], alpha: float
) -> list[str]:
    """Return the notes below the table that prevent a wrong reading of its numbers."""
    notes = []
    for name, log, curve in zip(names, logs, curves, strict=True):
        faults = [finding.message for finding in log.findings] if log.run is None else warnings_of(log.run)
        notes += [f"{name}: {fault}" for fault in faults]
        notes += [f"{name} has no votes: {why_no_votes(log)}."] if curve is None else []
    notes.append(
        f"In brackets: {100 * (1 - alpha):g} % intervals, for other images of the same kind. Of these at least: less "
        "the certificates that may be false."
    )
    return notes + [f"The logs do not have the same {what}." for what in _differences(logs)]


def _details(
    logs: Sequence[CertificationLog],
    curves: Sequence[SurvivalCurve | None],
    names: Sequence[str],
    alpha: float,
    delta: float,
) -> list[str]:
    """Return the parameters of each log, and the definitions of the quantities in the table."""
    notes = [f"{name}: {fact}" for name, log in zip(names, logs, strict=True) for fact in _origin(log)]
    if any(curve is not None for curve in curves):
        notes.append(
            "p_A: share of the noisy samples with the correct class, 0 where the prediction is wrong or abstained. "
            f"Area: from 1/2 to 1, over its largest possible; in brackets intervals of {100 * (1 - alpha):g} %, for "
            "other images of the same kind. Possible votes: those that the printed radii may stand for."
        )
    notes.append(
        f"Certified: correct, with at least that radius; in brackets intervals of {100 * (1 - alpha):g} % each, for "
        "other images of the same kind. Of these at least: without the certificates that may be false, each with "
        f"probability at most its alpha; wrong with probability at most {delta:g} at one radius, where the noise is "
        "independent from image to image."
    )
    return [*notes, ACR_NOTE]


def _origin(log: CertificationLog) -> list[str]:
    if log.run is not None:
        return describe_run(log.run)
    source = "model and data not stated"
    if log.header is not None:
        source = f"{log.header.model} on {log.header.data}"
    facts = [f"{', '.join(facts_of(log))}; {source}"]
    for origin in dict.fromkeys(log.origins.values()):
        facts.append(f"{', '.join(name for name, value in log.origins.items() if value == origin)}: {origin}")
    return [". ".join(facts)]


def _differences(logs: Sequence[CertificationLog]) -> list[str]:
    def several(values: Sequence[Any]) -> bool:
        return len(set(values)) > 1

    differences = []
    if several([np.sort(log.index).tobytes() for log in logs]):
        differences.append("images, by their indices: columns compare no better than their intervals")
    elif several([log.header.data_sha256 for log in logs if log.header is not None]):
        differences.append("data, by their hashes")
    smoothed = [log for log in logs if log.smoothed]
    if several([log.sigma for log in smoothed]):
        differences.append("sigma: each p_A is a share under the noise of its own log")
    if several([(log.n, log.alpha) for log in smoothed]):
        differences.append("n and alpha: the largest radius and the average certified radius depend on them")
    return differences
