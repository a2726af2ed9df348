"""Control of long calls: an estimate of the time, the progress, and an early end at a time limit or by Ctrl-C."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyrobust.bounds.engines.work import Work

if TYPE_CHECKING:
    from pyrobust.bounds.engines.query import Query

logger = logging.getLogger(__name__)

#: Least seconds between two looks at the clock, and least seconds of work over which a pace is measured.
EVERY, MEASURED = 0.05, 1.0
#: Seconds from which an estimate is logged.
LONG = 10.0
# Share of the work whose pace predicts that of the rest; a smaller share consists of rows of the first layers, which
# differ from others.
_TELLING = 0.01
#: Progress is counted in these shares of the work.
SHARES = 1000


class Watch:
    """Watches the engines of one call: their progress, an estimate of their time, and an early end.

    Engines report how many rows of backward passes are done; ``tell`` and ``add`` return whether to continue. Rows that
    are unfinished when the watch ends the work keep their interval bounds, if they have any.

    Args:
        what: description of the work, for log messages.
        examples: number of input sets in the call.
        deadline: time of ``time.monotonic`` at which the call ends; None for no limit.
        report: receives progress, from 0 to ``SHARES``.
        announced: for each ``what``, the estimate in seconds that was logged last; a new estimate is logged only if it
            is at least twice the last one, or less than a quarter of the last one.
        searches: whether the call first computes bounds and then improves them by a search for slopes.

    Attributes:
        interrupt: the KeyboardInterrupt that ended the work, or None.
    """

    def __init__(
        self,
        what: str,
        examples: int,
        deadline: float | None,
        report: Callable[[int], None],
        announced: dict[str, float],
        *,
        searches: bool,
    ) -> None:
        self.deadline = deadline
        self.interrupt: KeyboardInterrupt | None = None
        self._what, self._examples, self._report, self._announced = what, examples, report, announced
        self._searches = searches
        self._before = 0  # examples that earlier runs have bounded
        self._shown = 0
        self._last = 0.0

    def goes_on(self) -> bool:
        """Whether there is time left for more work."""
        return self.interrupt is None and (self.deadline is None or time.monotonic() < self.deadline)

    def begin(self, work: Work, query: Query, norm: str, examples: int, rows: int, memory: int) -> None:
        """Begin to bound ``rows`` linear functions for each of ``examples`` sets, using ``memory`` bytes at once."""
        self._work, self._query, self._norm, self._size = work, query, norm, examples
        self._count, self._memory = rows, memory
        self._rows: Sequence[int] = []
        self._spared: Sequence[int] = []
        self._done = 0
        self._begun = self._last = time.monotonic()

    def tell(self, rows: Sequence[int], spared: Sequence[int], examples: int) -> bool:
        """Record how many rows of each layer are done or not needed, and how many examples are done."""
        self._rows, self._spared, self._done = rows, spared, examples
        return self._look()

    def add(self, layer: int, *, rows: int = 0, spared: int = 0, examples: int = 0) -> bool:
        """Count further rows of a layer as done or not needed, and further examples as done."""
        if len(self._rows) <= layer:
            self._rows = [*self._rows, *[0] * (layer + 1 - len(self._rows))]
            self._spared = [*self._spared, *[0] * (layer + 1 - len(self._spared))]
        assert isinstance(self._rows, list)
        assert isinstance(self._spared, list)
        self._rows[layer] += rows
        self._spared[layer] += spared
        self._done += examples
        return self._look() if time.monotonic() >= self._last + EVERY else self.goes_on()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """End the block at Ctrl-C; results that the block has stored are kept."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            self.interrupt = interrupt

    def raise_interrupt(self, result: object) -> None:
        """Raise the KeyboardInterrupt that ended the work, with the result of the call as an attribute."""
        if self.interrupt is not None:
            self.interrupt.__dict__["result"] = result
            raise self.interrupt

    def finish(self, examples: int) -> None:
        """Count as done the examples of a run that has ended."""
        self._before += examples
        self._show(self._before / max(1, self._examples))

    def _look(self) -> bool:
        self._last = time.monotonic()
        passed = self._last - self._begun
        work, searches = self._work, self._query.bounding.slope_search is not None
        of = functools.partial(work.of, to_input=self._query.bounding.to_input)
        tries = 1 + 2 * self._query.iterations  # largest number of passes of a row that searches for slopes
        times = tries if searches else 1
        all_rows = times * of(work.rows(self._query.bounding, self._norm, self._count))
        spent = self._done * work.intervals + times * of(self._rows)
        whole = self._size * (work.intervals + all_rows) - times * of(self._spared)
        if self._searches and not searches:  # these are the bounds that a search starts from
            whole *= 1 + tries
        whole = max(whole, spent, 1.0)
        later = max(0, self._examples - self._before - self._size)
        share = (self._before + self._size * spent / whole) / max(1, self._examples)
        self._show(share)
        if spent > 0 and passed >= (MEASURED if spent >= whole * _TELLING else LONG / 2):
            longest = passed * (whole * (1 + later / max(1, self._size))) / spent
            # Later layers may need all of their rows, or the same share of rows that the layers so far have needed.
            rows, spared = of(self._rows), of(self._spared)
            needed = rows / (rows + spared) if self._query.bounding.refines and rows else 1.0
            self._announce(passed + (longest - passed) * needed, longest)
        return self.goes_on()

    def _show(self, share: float) -> None:
        shown = int(SHARES * min(1.0, share))
        if shown > self._shown:
            self._shown = shown
            self._report(shown)

    def _announce(self, seconds: float, longest: float) -> None:
        limit = None if self.deadline is None else self.deadline - self._begun
        earlier = self._announced.get(self._what, 0.0)
        if min(seconds, limit or seconds) < LONG or earlier / 4 <= seconds < 2 * earlier:
            return
        self._announced[self._what] = seconds
        logger.warning(
            "%s of %d %s takes about %s%s, in %s of memory; time_limit= ends it%s with what is proved by then",
            self._what,
            self._examples,
            "example" if self._examples == 1 else "examples",
            duration(seconds),
            f" and at most {duration(longest)}" if longest > 1.5 * seconds else "",
            size(self._memory),
            f" after {duration(limit)}" if limit is not None and limit < seconds else "",
        )


def duration(seconds: float) -> str:
    """Write seconds in a readable unit.

    >>> duration(50), duration(200), duration(10_000), duration(1e6)
    ('50 s', '3 min', '2.8 h', '11.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def size(count: int) -> str:
    """Write bytes in a readable unit.

    >>> size(3_000_000), size(4_200_000_000)
    ('3 MB', '4.2 GB')
    """
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
