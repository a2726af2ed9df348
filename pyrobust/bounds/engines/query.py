"""Settings of one call of an engine."""

from __future__ import annotations

import dataclasses

from pyrobust.bounds.methods import METHODS, Method


@dataclasses.dataclass(frozen=True)
class Query:
    """How bounds are computed; most fields are those of ``BoundOptions``.

    Attributes:
        deadline: time of ``time.monotonic`` at which a search for slopes ends.
        decides: whether a row need not be improved once its lower bound is positive.
    """

    method: str
    sound: bool
    semantics: str
    memory_limit: int | None
    iterations: int = 20
    deadline: float | None = None
    decides: bool = False

    @property
    def bounding(self) -> Method:
        """The method, as engines know it."""
        return METHODS[self.method]
