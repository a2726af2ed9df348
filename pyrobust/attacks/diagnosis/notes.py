"""The findings of a diagnosis as they accumulate, and the checks that could not be decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .catalogue import make_finding
from .finding import Finding, Severity, share_severity

# Fewest examples for which a share can be shown to exceed 10 %.
_LEAST_SHARE = 3


class Notes:
    """Collects findings.

    >>> notes = Notes()
    >>> notes.share("flat-loss", 1, 1, "1 of 1 example", {})
    >>> notes.undecided
    {'flat-loss': '1 of 1 example; deciding takes at least 3 examples'}
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.undecided: dict[str, str] = {}

    def add(
        self, name: str, severity: Severity, text: str, evidence: Mapping[str, Any], cause: str | None = None
    ) -> None:
        """Add a finding from the catalogue."""
        self.findings.append(make_finding(name, severity, text, evidence, cause))

    def share(
        self,
        name: str,
        count: int,
        n: int,
        text: str,
        evidence: Mapping[str, Any],
        cause: str | None = None,
        worst: Severity = "masked",
    ) -> None:
        """Add a finding if, with confidence 99 %, more than 10 % of examples show its sign (``share_severity``)."""
        severity = share_severity(count, n)
        if severity is not None:
            severity = "suspicious" if worst == "suspicious" else severity
            self.add(name, severity, text, {"count": count, "examples": n, **evidence}, cause)
        elif count and n < _LEAST_SHARE:
            self.undecided[name] = f"{text}; deciding takes at least {_LEAST_SHARE} examples"

    def reduce_to_note(self, name: str, evidence: Mapping[str, Any]) -> None:
        """Reduce a finding to a note because other evidence explains it."""
        self.findings = [
            replace(finding, severity="note", evidence={**finding.evidence, **evidence})
            if finding.name == name
            else finding
            for finding in self.findings
        ]

    def __contains__(self, name: str) -> bool:
        return any(finding.name == name for finding in self.findings)
