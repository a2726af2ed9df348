"""What an audit finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

#: How many lines a finding names.
NAMED = 5
_PLURALS = {"line": "lines", "index": "indices"}


@dataclass(frozen=True)
class Finding:
    """One thing about a log that is not as it should be, or that a reader of its figures should know.

    Args:
        kind: a word for programs, such as "duplicate".
        severity: "fault" where the log cannot be what it claims to be, "note" for everything else.
        message: for people, one line.
        lines: of the file, the first hundred of them; data-set indices for a run, which has no lines. Empty where it is
            about the whole.

    >>> Finding("truncated", "fault", "the last line has no end").severity
    'fault'
    """

    kind: str
    severity: Literal["fault", "note"]
    message: str
    lines: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self) | {"lines": list(self.lines)}


def name_some(numbers: Sequence[int], count: int, what: str = "line") -> str:
    """The first few of some numbers, and how many more there are.

    Args:
        numbers: the first of them.
        count: of all of them.
        what: they are, "line" or "index".

    >>> name_some(range(2, 10), 8), name_some([3], 1)
    ('lines 2, 3, 4, 5, 6 and 3 more', 'line 3')
    """
    named = numbers[:NAMED]
    text = ", ".join(map(str, named))
    more = f" and {count - len(named):,} more" if count > len(named) else ""
    return f"{what if count == 1 else _PLURALS[what]} {text}{more}"
