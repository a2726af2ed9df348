"""The bar that shows the progress of a run on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyrobust.notebook import Show, in_notebook, notebook_bar


@contextlib.contextmanager
def progress_bar(unit: str) -> Iterator[Show]:
    """Show a progress bar on standard error or below a notebook's cell; ``unit`` names the items that it counts.

    >>> with progress_bar("images") as show:
    ...     show(0.5, 0, 2, "")
    """
    if in_notebook():
        with notebook_bar(unit) as show_below:
            yield show_below
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.2f}/s")

    class Time(TimeRemainingColumn):
        """Shows the time left or, after the end of the sweep, the time that it took."""

        def render(self, task: Task) -> Text:
            return Text("took " if task.finished else "ETA ").append_text(super().render(task))

    # Fits one line of 80 columns even for 50,000 images: the bar takes the space that the numbers leave.
    columns = (
        BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=24)),
        TextColumn("{task.fields[done]}/{task.total:.0f} " + unit, table_column=Column(no_wrap=True)),
        Rate(table_column=Column(no_wrap=True)),
        Time(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[summary]}", table_column=Column(no_wrap=True)),
    )
    # Speed over the last minute, so that the estimate follows a machine that slows down.
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=60.0) as bar:
        task = None

        def show(completed: float, done: int, total: int, summary: str) -> None:
            nonlocal task
            if task is None:
                # Images done before this start must not count towards the speed.
                task = bar.add_task("", total=total, completed=done, done=done, summary="")
            bar.update(task, completed=completed, done=done, summary=summary)

        yield show
