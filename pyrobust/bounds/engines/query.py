"""Settings of one call of an engine."""

from __future__ import annotations

import dataclasses

from pyrobust.bounds.engines.watch import Watch
from pyrobust.bounds.methods import METHODS, Method


@dataclasses.dataclass(frozen=True)
class Query:
    """How bounds are to be computed; most fields are those of ``BoundOptions``.

    Attributes:
        decides: whether a row is finished once its lower bound is positive.
        watch: watch of the call, or None.
    """

    method: str
    sound: bool
    semantics: str
    memory_limit: int | None
    iterations: int = 20
    decides: bool = False
    watch: Watch | None = None

    @property
    def bounding(self) -> Method:
        """The entry of the method in ``METHODS``."""
        return METHODS[self.method]

    @property
    def deadline(self) -> float | None:
        """Time, on the clock of ``time.monotonic``, at which the work ends."""
        return None if self.watch is None else self.watch.deadline

    @property
    def ended(self) -> bool:
        """Whether there is no time for more work."""
        return self.watch is not None and not self.watch.goes_on()


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchedQuery(Query):
    """A ``Query`` that always has a ``Watch``, which can end the call and receives its progress."""

    watch: Watch
