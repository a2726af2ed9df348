"""Findings of an audit: faults and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

_MAX_NAMED, _MAX_LINES = 5, 100
_PLURALS = {"line": "lines", "index": "indices"}


@dataclass(frozen=True)
class AuditFinding:
    """A fault of a log, or a note for people who use its figures.

    Attributes:
        kind: name of the kind, for use by programs, such as "duplicate".
        severity: "fault" if the log cannot be what it claims to be, else "note".
        message: one line for people.
        lines: the first hundred affected line numbers (for a run, data-set indices); empty if the finding names no
            rows.

    >>> AuditFinding("truncated", "fault", "the last line is incomplete").severity
    'fault'
    """

    kind: str
    severity: Literal["fault", "note"]
    message: str
    lines: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name."""
        return vars(self) | {"lines": list(self.lines)}


def list_numbers(numbers: Sequence[int], count: int, noun: str = "line") -> str:
    """List the first of ``count`` line numbers or indices in words.

    >>> list_numbers(range(2, 10), 8), list_numbers([3], 1)
    ('lines 2, 3, 4, 5, 6 and 3 more', 'line 3')
    """
    named = numbers[:_MAX_NAMED]
    text = ", ".join(map(str, named))
    more = f" and {count - len(named):,} more" if count > len(named) else ""
    return f"{noun if count == 1 else _PLURALS[noun]} {text}{more}"


def format_rows(count: int) -> str:
    """Format a row count.

    >>> format_rows(1), format_rows(2000)
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def rows_fault(
    kind: str, numbers: npt.NDArray[np.int64], problem: str, noun: str, consequence: str = ""
) -> AuditFinding:
    """Return the fault of rows with these line numbers or indices.

    >>> rows_fault("nan", np.array([7]), "NaN radius", "line").message
    'NaN radius: 1 row (line 7)'
    """
    lines = tuple(numbers[:_MAX_LINES].tolist())
    message = f"{problem}: {format_rows(len(numbers))} ({list_numbers(lines, len(numbers), noun)})"
    return AuditFinding(kind, "fault", f"{message}; {consequence}" if consequence else message, lines)
