"""Findings: signs that attacks fail for a reason other than robustness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pyrobust.checks import summary
from pyrobust.frames import Tabular, columns_of, plain_fields
from pyrobust.stats import clopper_pearson_lower

#: Level of every decision; for comparisons of attacks, the level of all together.
ALPHA = 0.01
# An observation is "suspicious" or "masked" if its share of the examples exceeds these with confidence 1 - ALPHA.
_SUSPICIOUS, _MASKED = 0.1, 0.5

Severity: TypeAlias = Literal["note", "suspicious", "masked"]
#: A diagnosis's conclusion: the worst severity of its findings, or why there is none.
Verdict: TypeAlias = Literal["nothing found", "undecided", "suspicious", "masked"]
# Checks without which the absence of findings says nothing: of the gradient, and of gradients against queries.
_NECESSARY = frozenset({"gradient", "attacks", "black-box"})


@dataclass(frozen=True)
class Finding:
    """A sign that attacks on the model fail for a reason other than its robustness.

    Attributes:
        name: code for programs, such as "zero-gradient".
        severity: "masked" if gradient-based attacks measure the failure of the gradient instead of robustness,
            "note" if attacks showed that the sign does not mislead them, else "suspicious".
        observation: the evidence in words.
        evidence: the counts, p-values and attacks behind the observation; only numbers, strings and lists of them.
        meaning: the cause.
        remedy: what to do.
        source: where the sign and the remedy are described.
    """

    name: str
    severity: Severity
    observation: str
    evidence: Mapping[str, Any]
    meaning: str
    remedy: str
    source: str

    to_dict = plain_fields


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """The result of ``diagnose``: whether the failure of attacks on a model means that the model is robust.

    "nothing found" does not prove robustness: it says that the gradients are the model's own, and that no other attack
    tried here fools significantly more examples than the gradient-based attacks. "undecided" says less: there are no
    findings, but the gradient could not be tested or attacks could not be compared; ``undecided`` has the reasons.

    Attributes:
        verdict: the worst severity of the findings, "suspicious" or "masked". If there are no findings, or only notes,
            the verdict is "undecided" if a necessary check could not be made, else "nothing found".
        findings: in the order of the checks.
        undecided: check → why it could not be decided.
        fooled: attack → number of examples fooled among those classified correctly; if the model has no gradient, 0 for
            the gradient-based attacks, which are not run.
        examples: number of examples given.
        correct: number of examples classified correctly.
        epsilon: radius of the ball.
        norm: norm of the ball.
    """

    findings: tuple[Finding, ...]
    undecided: Mapping[str, str]
    fooled: Mapping[str, int]
    examples: int
    correct: int
    epsilon: float
    norm: str

    @property
    def verdict(self) -> Verdict:
        """The worst severity of the findings; if no finding is suspicious or masked, "nothing found" or "undecided"."""
        severities = {finding.severity for finding in self.findings} - {"note"}
        if severities:
            return "masked" if "masked" in severities else "suspicious"
        return "nothing found" if _NECESSARY.isdisjoint(self.undecided) else "undecided"

    def __repr__(self) -> str:
        return summary(
            self,
            verdict=self.verdict,
            findings=tuple(finding.name for finding in self.findings),
            undecided=tuple(self.undecided) or None,
        )

    def _columns(self) -> dict[str, Any]:
        """Return the columns of a table that has one row for each finding."""
        return columns_of(self.findings, ("name", "severity", "observation", "meaning", "remedy", "source"))

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_dict().items() if name != "findings"}

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary of plain Python objects.

        >>> Diagnosis((), {}, {"pgd": 3}, 10, 9, 0.1, "linf").to_dict()["verdict"]
        'nothing found'
        """
        values = plain_fields(self)
        return {"verdict": self.verdict} | values | {"findings": list(values["findings"])}


def share_severity(count: int, n: int) -> Severity | None:
    """Return the severity of a sign that ``count`` of n examples show, by an exact lower confidence bound of the share.

    A model without masked gradients may show a sign at individual examples, so the share has to exceed 10 %
    ("suspicious") or 50 % ("masked") with confidence 99 %.

    >>> share_severity(1, 1), share_severity(3, 3), share_severity(7, 7), share_severity(2, 60)
    (None, 'suspicious', 'masked', None)
    """
    lower = float(clopper_pearson_lower(count, n, ALPHA)) if n else 0.0
    return "masked" if lower > _MASKED else "suspicious" if lower > _SUSPICIOUS else None
