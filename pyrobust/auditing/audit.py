"""Audit a certification log: find its faults and compute its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.check_abstentions import check_abstentions
from pyrobust.auditing.check_copies import check_copies
from pyrobust.auditing.check_radii import check_certificates, check_numbers, usable_rows
from pyrobust.auditing.check_rows import (
    KNOWN_SIZES,
    check_classes,
    check_correct,
    check_coverage,
    check_indices,
    check_numbering,
    distinct_indices,
    minimum_size,
)
from pyrobust.auditing.check_run import check_run
from pyrobust.auditing.findings import AuditFinding
from pyrobust.auditing.metrics import CertificationMetrics, certification_metrics
from pyrobust.auditing.version_promises import version_notes
from pyrobust.checks import summary
from pyrobust.frames import Tabular, columns_of
from pyrobust.runs.run import Run

# A log of more than this share of a data set is taken as covering the whole.
_WHOLE = 0.99


@dataclass(frozen=True, eq=False)
class Audit(Tabular):
    """The findings of an audit and the metrics of the log.

    Attributes:
        log: the log as read.
        counted: the log that metrics are computed on: the first row of each image, with abstentions in place of rows
            with an invalid radius, prediction or label (negative labels become 0), and with None in place of an n or
            alpha that is in doubt. ``counted.findings`` holds only the faults.
        findings: all findings, faults first.
        metrics: metrics of ``counted``.
    """

    log: CertificationLog
    counted: CertificationLog
    findings: tuple[AuditFinding, ...]
    metrics: CertificationMetrics

    def __repr__(self) -> str:
        path, counted = str(self.log.path), self.metrics.images
        return summary(self, path=path, images=counted, faults=len(self.faults), notes=len(self.notes))

    def _columns(self) -> dict[str, Any]:
        """One row for each finding."""
        columns = columns_of(self.findings, AuditFinding.__dataclass_fields__)
        return columns | {"lines": [list(lines) for lines in columns["lines"]]}

    def _attributes(self) -> dict[str, Any]:
        return {"path": str(self.log.path), "exit_status": self.exit_status}

    @property
    def faults(self) -> list[AuditFinding]:
        """Findings that show that the log cannot be what it claims to be."""
        return [finding for finding in self.findings if finding.severity == "fault"]

    @property
    def notes(self) -> list[AuditFinding]:
        """Findings that are not faults, but matter to people who use the log's figures."""
        return [finding for finding in self.findings if finding.severity == "note"]

    @property
    def exit_status(self) -> int:
        """Exit status of ``pyrobust audit``: 1 for a log with faults, else 0."""
        return 1 if self.faults else 0

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the rows as JSON values."""
        log = self.log
        return {
            "path": str(log.path),
            "kind": log.kind,
            "rows": len(log),
            **{name: getattr(log, name) for name in ("n", "alpha", "sigma", "noise", "norm")},
            "origins": dict(log.origins),
            "data_sha256": log.header.data_sha256 if log.header is not None else None,
            "exit_status": self.exit_status,
            "findings": [finding.to_dict() for finding in self.findings],
            "metrics": self.metrics.to_dict(),
        }


def audit(log: CertificationLog) -> Audit:
    r"""Compute a certification log's metrics, and check it for contradictions and radii that smoothing cannot give.

    Faults of rows have the kinds "truncated", "duplicate", "order", "missing" (images), "copied" and "copied-time".
    Faults of classes are "label", "prediction" and "numbering" (labels from 1, predictions from 0). Faults of the
    column ``correct`` are "correct" (contradicts predict == label), "correct-value" and "cumulative-correct". Faults of
    abstentions are "abstained-correct", "abstained-radius", "abstained-class" (abstentions written as a class) and
    "abstentions" (none although there must be some). Faults of radii are "nan", "infinite", "negative",
    "above-maximum", "unattainable", "pile", "parameters" (wrong n, alpha, sigma or formula, with every explanation that
    fits the radii) and "change" (other parameters in a part of the rows). Only runs have the faults "above-votes" and
    "derived" (columns that do not follow from the stored votes, limits or verdicts). The fault "header" is a file of
    the log's parameters that cannot be used. Findings of all other kinds are notes. Four of these kinds can also be
    notes: "parameters", if unstated parameters may explain the radii, or if the only sign is a pile of equal radii
    below the maximum; "abstained-class" and "abstentions", if the evidence is weak; and "numbering", if the classes are
    only in another order.

    Metrics use the first row of each image, and count the image as correct if predict == label. Rows count as
    abstentions unless their radius is in [0, 1e90] and label and prediction are at least 0. Metrics computed from votes
    are omitted if n, alpha or sigma is unknown or in doubt.

    Args:
        log: a log from `read_certification_log`.

    Returns:
        Audit.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from pyrobust.evaluation import read_certification_log
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "sigma0.25.tsv"
    ...     _ = file.write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\t0.377\t1\n1\t8\t8\t1.5\t1\n")
    ...     result = audit(read_certification_log(file))
    >>> result.exit_status, result.faults[0].message
    (1, 'radius up to 1.5, above the maximum 0.952864 for n 100,000, alpha 0.001 and sigma 0.25: 1 row (line 3)')
    """
    counted = usable_rows(log)
    findings = [
        *log.findings,
        *check_indices(log),
        *check_classes(log),
        *check_numbering(log),
        *check_copies(log),
        *check_numbers(log),
        *check_correct(log),
        *check_abstentions(log),
        *check_certificates(log),
        *(() if log.run is None else (*check_run(log.run), *version_notes(log.run.header))),
    ]
    in_doubt = any(finding.kind in ("parameters", "change") for finding in findings)
    if in_doubt:
        counted = replace(counted, n=None, alpha=None)
    metrics = certification_metrics(counted)
    findings += [*_vote_notes(log, metrics, in_doubt), *_subset_notes(counted, metrics)]
    findings.sort(key=lambda finding: finding.severity == "note")
    faults = tuple(finding for finding in findings if finding.severity == "fault")
    return Audit(log, replace(counted, findings=faults), tuple(findings), metrics)


def audit_run(run: Run) -> dict[str, Any]:
    """Check a run of another kind than certify and verify; return its findings as JSON values, like `Audit.to_dict`.

    >>> from pyrobust.evaluation import predict_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> result = audit_run(predict_dataset(smoother, load_data("digits"), n=100, max_images=4))
    >>> result["kind"], result["rows"], result["exit_status"]
    ('predict', 4, 0)
    """
    findings = [*check_coverage(run.parameters, len(run)), *check_run(run), *version_notes(run.header)]
    findings.sort(key=lambda finding: finding.severity == "note")
    return {
        "path": str(run.path),
        "kind": run.kind,
        "rows": len(run),
        "data_sha256": run.header.data_sha256,
        "exit_status": int(any(finding.severity == "fault" for finding in findings)),
        "findings": [finding.to_dict() for finding in findings],
        "metrics": None,
    }


def _vote_notes(log: CertificationLog, metrics: CertificationMetrics, in_doubt: bool) -> Iterator[AuditFinding]:
    if metrics.survival is None:
        reason = "n, alpha or sigma in doubt"
        if not log.smoothed:
            reason = "bound propagation gives radii without votes"
        elif log.sampled_by_votes:
            reason = "sequential runs draw a different number of samples for each image"
        elif not in_doubt:
            unknown = [name for name in ("n", "alpha", "sigma") if getattr(log, name) is None]
            reason = f"{', '.join(unknown)} unknown"
        yield AuditFinding("no-votes", "note", f"no metrics of votes (survival of p_A): {reason}")
    elif metrics.votes is not None:
        least, most = metrics.votes
        source = "exact" if log.votes is not None else "derived from printed radii"
        yield AuditFinding(
            "votes", "note", f"certified images have n_A from {least:,} to {most:,} of n {log.n:,}, {source}"
        )


def _subset_notes(log: CertificationLog, metrics: CertificationMetrics) -> Iterator[AuditFinding]:
    """For a log of only some of the images, note the confidence interval of the accuracy on all images."""
    whole, name = minimum_size(distinct_indices(log)), ""
    if log.header is not None:
        whole = int(log.header.parameters["images"])
    elif whole not in KNOWN_SIZES:
        larger = [size for size in KNOWN_SIZES if size > whole]
        if whole == len(log) and larger:
            whole, name = larger[0], f", possibly part of a larger data set such as {KNOWN_SIZES[larger[0]]}"
    if len(log) > _WHOLE * whole:
        return
    rate = metrics.accuracy
    images = f"{len(log):,} images{name}" if name else f"{len(log):,} of {whole:,} images"
    yield AuditFinding(
        "subset",
        "note",
        f"{images}: accuracy {100 * rate.value:.1f} %; {100 * rate.lower:.1f} to {100 * rate.upper:.1f} % on all "
        "images (95 % confidence), if these are a random sample",
    )
