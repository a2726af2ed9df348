"""Whether a certification log can be what it claims to be, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.check_radii import check_certificates, check_numbers, countable
from pyrobust.auditing.check_rows import (
    KNOWN_SIZES,
    check_classes,
    check_correct,
    check_indices,
    covered,
    distinct_indices,
)
from pyrobust.auditing.findings import Finding
from pyrobust.auditing.metrics import CertificationMetrics, certification_metrics
from pyrobust.checks import summary

# From this share of a data set on its figures are those of the whole.
_WHOLE = 0.99


@dataclass(frozen=True, eq=False)
class Audit:
    """A log, what is wrong with it, and its metrics.

    Attributes:
        log: as it was read.
        counted: what of it the metrics are computed on: the first row of each image, abstentions for what is no
            radius, n and alpha unknown where they are in doubt; its findings are the faults.
        findings: faults first.
        metrics: of what is counted.
    """

    log: CertificationLog
    counted: CertificationLog
    findings: tuple[Finding, ...]
    metrics: CertificationMetrics

    def __repr__(self) -> str:
        path, counted = str(self.log.path), self.metrics.images
        return summary(self, path=path, images=counted, faults=len(self.faults), notes=len(self.notes))

    @property
    def faults(self) -> list[Finding]:
        """What a log that is what it claims to be cannot have."""
        return [finding for finding in self.findings if finding.severity == "fault"]

    @property
    def notes(self) -> list[Finding]:
        """What else a reader of its figures should know."""
        return [finding for finding in self.findings if finding.severity == "note"]

    @property
    def exit_status(self) -> int:
        """1 where there is a fault, else 0."""
        return 1 if self.faults else 0

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, as JSON takes it."""
        log = self.log
        return {
            "path": str(log.path),
            "kind": log.kind,
            "rows": len(log),
            "n": log.n,
            "alpha": log.alpha,
            "sigma": log.sigma,
            "noise": log.noise,
            "norm": log.norm,
            "origins": dict(log.origins),
            "data_sha256": log.header.data_sha256 if log.header is not None else None,
            "exit_status": self.exit_status,
            "findings": [finding.to_dict() for finding in self.findings],
            "metrics": self.metrics.to_dict(),
        }


def audit(log: CertificationLog) -> Audit:
    r"""Checks a certification log against itself and against what smoothing can give, and computes its metrics.

    Faults, with their kinds: "truncated", "duplicate", "order", "missing" (images), "label", "prediction",
    "cumulative-correct", "correct" (contradicts predict == label), "correct-value", "abstained-correct",
    "abstained-radius", "nan", "infinite", "negative", "above-maximum", "parameters" (n, alpha or sigma are others, by
    the radii that pile up at the maximum ``sigma·Φ⁻¹(alpha^(1/n))`` or by those that no number of votes gives),
    "unattainable", and for runs "above-votes". All else is a note.

    Metrics are computed on the first row of each image and count what is right by predict == label; rows without a
    finite radius of at least 0 count as abstentions. Where n, alpha or sigma are unknown or in doubt, the metrics of
    votes are left out.

    Args:
        log: from `read_certification_log`.

    Returns:
        Audit.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from pyrobust.evaluation import read_certification_log
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "sigma0.25.tsv"
    ...     _ = file.write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\t0.377\t1\n1\t8\t8\t1.5\t1\n")
    ...     found = audit(read_certification_log(file))
    >>> found.exit_status, found.faults[0].message
    (1, 'radius up to 1.5, above the 0.952864 that n 100,000, alpha 0.001 and sigma 0.25 can prove: 1 row (line 3)')
    """
    counted = countable(log)
    findings = [
        *log.findings,
        *check_indices(log),
        *check_classes(log),
        *check_numbers(log),
        *check_correct(log),
        *check_certificates(log),
    ]
    doubt = any(finding.kind == "parameters" for finding in findings)
    if doubt:
        counted = replace(counted, n=None, alpha=None)
    metrics = certification_metrics(counted)
    findings += [*_about_votes(log, metrics, doubt), *_about_subset(counted, metrics)]
    findings.sort(key=lambda finding: finding.severity == "note")
    faults = tuple(finding for finding in findings if finding.severity == "fault")
    return Audit(log, replace(counted, findings=faults), tuple(findings), metrics)


def _about_votes(log: CertificationLog, metrics: CertificationMetrics, doubt: bool) -> Iterator[Finding]:
    if metrics.survival is None:
        why = "n, alpha or sigma are in doubt"
        if log.kind == "verify":
            why = "bound propagation has radii and no votes"
        elif log.header is not None and log.header.layout == "sequential":
            why = "each image has as many samples as its votes asked for"
        elif not doubt:
            unknown = [name for name in ("n", "alpha", "sigma") if getattr(log, name) is None]
            why = f"{', '.join(unknown)} not known"
        yield Finding("no-votes", "note", f"the metrics of votes (survival of p_A) are left out: {why}")
    elif metrics.votes is not None:
        least, most = metrics.votes
        how = "exact" if log.votes is not None else "from the printed radii"
        yield Finding("votes", "note", f"certified images have n_A from {least:,} to {most:,} of n {log.n:,}, {how}")


def _about_subset(log: CertificationLog, metrics: CertificationMetrics) -> Iterator[Finding]:
    """How far the figures of all images may be from those of the ones that are there."""
    whole, name = covered(distinct_indices(log)), ""
    if log.header is not None:
        whole = int(log.header.parameters["images"])
    elif whole not in KNOWN_SIZES:
        larger = [size for size in KNOWN_SIZES if size > whole]
        if whole == len(log) and larger:
            whole, name = larger[0], f"; of a larger data set, such as {KNOWN_SIZES[larger[0]]}, these are a part"
    if len(log) > _WHOLE * whole:
        return
    rate = metrics.accuracy
    what = f"{len(log):,} images{name}" if name else f"{len(log):,} of {whole:,} images"
    yield Finding(
        "subset",
        "note",
        f"{what}: the share of right ones, {100 * rate.value:.1f} % here, is {100 * rate.lower:.1f} to "
        f"{100 * rate.upper:.1f} % of all (95 %), if these are like a random choice",
    )
