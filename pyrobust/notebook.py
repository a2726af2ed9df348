"""Progress bars in notebooks; they are plain HTML, so they need no widgets, unlike those of the package rich."""

from __future__ import annotations

import contextlib
import html
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

#: Receives the number completed, fractions included, the number done, the total, and a short text.
Show: TypeAlias = Callable[[float, int, int, str], None]

# Seconds between two pictures of a bar.
_INTERVAL = 0.1


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this code."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@dataclass(frozen=True)
class _Picture:
    """A bar that displays as text or as HTML."""

    completed: float
    total: int
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.completed:g}" max="{max(self.total, 1)}"></progress>'
        return f"{bar} {html.escape(self.text)}"


@contextlib.contextmanager
def notebook_bar(unit: str) -> Iterator[Show]:
    """Show a progress bar below the cell; ``unit`` names the items that it counts."""
    from IPython.display import display  # type: ignore[import-not-found]  # a kernel has it

    handle = display(_Picture(0.0, 1, ""), display_id=True)
    begun: tuple[float, float] | None = None  # time, and the number that earlier starts had completed
    drawn, latest = 0.0, _Picture(0.0, 1, "")

    def show(completed: float, done: int, total: int, summary: str) -> None:
        nonlocal begun, drawn, latest
        now = time.monotonic()
        begun = begun or (now, completed)
        spent, new = now - begun[0], completed - begun[1]
        if completed >= total:
            duration = f"took {_clock(spent)}"
        else:
            duration = f"ETA {_clock(spent / new * (total - completed))}" if new > 0 else ""
        latest = _Picture(completed, total, ", ".join(filter(None, (f"{done}/{total} {unit}", duration, summary))))
        if now - drawn >= _INTERVAL:
            drawn = now
            handle.update(latest)

    try:
        yield show
    finally:
        handle.update(latest)


def _clock(seconds: float) -> str:
    """Write a duration as minutes and seconds, preceded by hours if there are any.

    >>> _clock(5), _clock(3725)
    ('0:05', '1:02:05')
    """
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"
