"""``pyrobust watch``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyrobust.cli.options import Replace
from pyrobust.cli.parsing import real_number
from pyrobust.cli.shell import INTERRUPTED_STATUS, check_outputs, describe_path, note, reports_errors
from pyrobust.cli.sweep import check_json, write_json
from pyrobust.errors import FileFormatError, InputError, PyrobustError, StoreError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pyrobust.evaluation import Run, RunState, RunWatcher

# Reading the run takes at most 1/_READING_SHARE of a core, writing the page 1/_PAGE_SHARE: the sweep may need it.
_READING_SHARE = 20
_PAGE_SHARE = 5
_PAGE_S = 5.0
_WAITING = "{}: waiting for the run"


@reports_errors
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run file; it may not exist yet.")],
    once: Annotated[bool, typer.Option("--once", help="Print the state once and end.")] = False,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the state once as JSON and end; - for standard output."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write the report's page, again and again until the run is done."
        ),
    ] = None,
    interval: Annotated[float, typer.Option(parser=real_number, metavar="S", help="Seconds between two looks.")] = 1.0,
    replace: Replace = False,
) -> None:
    """Follow a run while a sweep writes it: progress, time left, abstentions, failures and rates so far.

    Only reads the run, so the sweep never waits. The sweep may run on another terminal, and may be killed and resumed.
    For a sweep with --order random, each rate comes with bounds on its value for the complete run. With probability
    0.95, the bounds of a rate are correct at all moments of the run at once, so it is sound to stop early because of
    them. For a sweep in the order of the data, there are no bounds.

    Ends when the run is done, or with Ctrl-C. Where the output is not a terminal, prints a line for every change.

    Example: pyrobust watch run.db

    Example: pyrobust watch run.db --html page.html
    """
    if not 0 < interval <= 3600:
        raise InputError("--interval", "seconds above 0, at most 3600", f"{interval:g}")
    if html is not None:
        from pyrobust.report.page.render import BEGINS

        check_outputs([("--html", html)], inputs=[run], replace=replace, begins={"--html": BEGINS})
    check_json(json_file, [run, html], replace, json_begins=b'{\n "path": ')
    from pyrobust.evaluation.watch import RunWatcher

    watcher = RunWatcher(run)
    try:
        if once or json_file is not None:
            _look_once(watcher, json_file, once, html)
        else:
            _follow(watcher, html, interval)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED_STATUS) from None


def _look_once(watcher: RunWatcher, json_file: str | None, once: bool, html: Path | None) -> None:
    state = watcher.state()
    if state is None:
        raise FileFormatError(f"{watcher.path}: file not found or empty; expected a run of pyrobust")
    if json_file is not None:
        write_json(state.to_dict(), json_file)
    if once:
        typer.echo("\n".join(describe_state(state)), err=json_file == "-")
    if html is not None:
        page = _Page(html, watcher.path)
        page.update(state)
        page.finish()


def _follow(watcher: RunWatcher, html: Path | None, interval: float) -> None:
    """Show the state repeatedly until the run is done."""
    page = None if html is None else _Page(html, watcher.path)
    begun = False
    try:
        with _display(str(watcher.path)) as show:
            while True:
                begin = time.monotonic()
                state = watcher.state()
                took = time.monotonic() - begin
                if state is None and begun:
                    raise StoreError(f"{watcher.path}: removed while it was watched; nothing is left to show")
                begun = state is not None
                if state is not None and state.done and page is not None:
                    page.wanted = state  # an interrupt may come while the state is shown
                show(state)
                if state is not None and page is not None:
                    page.update(state)
                if state is not None and state.state == "done":
                    break
                time.sleep(max(interval, _READING_SHARE * took))
    finally:
        if page is not None:
            page.finish()


class _Page:
    """The report page of a run; it is written again when enough time has passed since it was last written."""

    def __init__(self, html: Path, path: Path) -> None:
        self.html, self.path = html, path
        self._next = 0.0
        self.wanted: RunState | None = None
        self._written: tuple[RunState, Run] | None = None

    def update(self, state: RunState) -> None:
        """Write the page if it is due."""
        if state.done:
            self.wanted = state
            before = None if self._written is None else self._written[0]
            changed = before is None or (before.done, before.state) != (state.done, state.state)
            if state.state == "done" or (changed and time.monotonic() >= self._next):
                self._write(reload=True)

    def finish(self) -> None:
        """Write the page for the last time; the final page does not reload itself."""
        if self.wanted is None:
            note("no page: no image of the run is done yet")
            return
        if self._written is None or self._written[0].state != "done":
            self._write(reload=False)
        note(f"page: {describe_path(self.html)}")

    def _write(self, *, reload: bool) -> None:
        from pyrobust.evaluation.watch import snapshot
        from pyrobust.report.page.render import Live, page_html
        from pyrobust.zoo.files import write_atomically

        state, begin = self.wanted, time.monotonic()
        assert state is not None
        try:
            run = snapshot(self.path)
        except PyrobustError:
            if self._written is None or reload:
                raise
            state, run = self._written  # the file is gone: keep what was read last
        live = None
        if state.state != "done":
            mark = "In progress." if state.state == "running" and reload else "Not finished."
            single = "The intervals below hold for a single look at images in random order"
            single += ", those in brackets at all moments." if _is_bounded(state) else "."
            text = f"{describe_state(state)[0]}. {single}"
            live = Live(mark, text, round(_PAGE_S) if reload else None)
        write_atomically(self.html, page_html(run, live=live).encode())
        self._written = state, run
        self._next = time.monotonic() + max(_PAGE_S, _PAGE_SHARE * (time.monotonic() - begin))


@contextlib.contextmanager
def _display(path: str) -> Iterator[Callable[[RunState | None], None]]:
    """Yield a function that shows a state: in place on a terminal, else as one line per change."""
    from rich.console import Console

    from pyrobust.report.formats import plain_text

    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        shown: list[object] = []

        def line(state: RunState | None) -> None:
            key = None if state is None else (state.done, state.state, list(state.set_aside))
            if [key] != shown:
                shown[:] = [key]
                typer.echo(_WAITING.format(plain_text(path)) if state is None else describe_state(state)[0])

        yield line
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield lambda state: live.update(_drawn(path, state), refresh=True)


def describe_state(state: RunState) -> list[str]:
    """Return the state as lines of text: progress, then a note on the bounds.

    >>> from pyrobust.evaluation.watch import RunState, WatchedRate
    >>> correct = WatchedRate("correct", None, 9, 10, 0.9, 0.5, 0.98)
    >>> state = RunState("run.db", "attack", "net", "digits", "running", 10, 40, 2.0, 15.0, 0.1, 0, 0, "random", 10,
    ...                  0.05, (correct,))
    >>> print(describe_state(state)[0])
    run.db: running, 10 of 40 images, 2.00/s, 15 s left, 0 abstained, 0 failed; correct 90.0 % [50.0, 98.0]
    """
    from pyrobust.report.caption import describe_chunks
    from pyrobust.report.formats import plain_text

    speed = "" if state.images_per_second is None else f", {_speed(state)}"
    remaining = "" if state.seconds_left is None or state.state == "done" else f", {_time_left(state)}"
    counts = f"{state.abstained} abstained, {state.failed} failed"
    rates = ", ".join(
        f"{rate.title} {100 * rate.value:.1f} %"
        + (f" [{100 * (rate.lower or 0):.1f}, {100 * (rate.upper or 0):.1f}]" if _is_bounded(state) else "")
        for rate in state.rates
    )
    first = (
        f"{plain_text(state.path)}: {_status(state)}, {state.done} of {state.total} images{speed}{remaining}, {counts}"
    )
    chunks = "".join(f"; {line}" for line in describe_chunks(state.machines, state.set_aside))
    return [first + (f"; {rates}" if rates else "") + chunks, _about_bounds(state)]


def _drawn(path: str, state: RunState | None) -> RenderableType:
    """Return the state as an object that the package rich draws on a terminal."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from pyrobust.report.caption import describe_chunks

    if state is None:
        return Text(f"{path}: waiting for the run")
    head = Text(f"{state.path}  ", style="bold").append(f"{state.kind}, {state.model}, {state.data}", style="not bold")
    progress = Table.grid(padding=(0, 2))
    speed = "" if state.images_per_second is None else _speed(state)
    remaining = "" if state.seconds_left is None or state.state == "done" else _time_left(state)
    bar = ProgressBar(total=state.total, completed=state.done, width=30)
    progress.add_row(bar, f"{state.done} of {state.total} images", speed, remaining, Text(_status(state), style="bold"))
    rates = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("", "so far", "complete run"):
        rates.add_column(name, justify="left" if not name else "right")
    for rate in state.rates:
        bounds = (
            "" if rate.lower is None or rate.upper is None else f"{100 * rate.lower:.1f} to {100 * rate.upper:.1f} %"
        )
        rates.add_row(rate.title, f"{100 * rate.value:.1f} %", bounds)
    counts = f"{state.abstained} abstained, {state.failed} failed"
    lines = [Text(line) for line in (counts, *describe_chunks(state.machines, state.set_aside))]
    return Group(head, progress, *([rates] if state.rates else []), *lines, Text(_about_bounds(state), style="dim"))


def _is_bounded(state: RunState) -> bool:
    """Whether there are bounds that say more than the rates; in a complete run, the bounds equal the rates."""
    return state.bounded > 0 and state.state != "done"


def _about_bounds(state: RunState) -> str:
    """Describe the bounds, or the reason for which there are none."""
    if state.state == "done":
        return "complete: the rates are those of all images of the run"
    if state.order != "random":
        return "no bounds on the final rates: the images come in the order of the data; --order random gives bounds"
    if not state.bounded:
        return "no bounds on the final rates yet"
    return (
        f"bounds on each rate of the complete run, from the first {state.bounded} images in random order: they hold "
        f"with probability {1 - state.alpha:g} at all moments together"
    )


def _status(state: RunState) -> str:
    if state.state == "stopped":
        return "stopped (no process of this machine writes it; the same command resumes it)"
    return "finishing" if state.state == "running" and state.done == state.total else state.state


def _speed(state: RunState) -> str:
    return f"{state.images_per_second:.2f}/s"


def _time_left(state: RunState) -> str:
    """Return the time left as text, in at most two units."""
    seconds = round(state.seconds_left or 0.0)
    for unit, name, divisor, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit:
            return f"{seconds // unit} {name} {seconds % unit // divisor} {small} left"
    return f"{seconds} s left"
