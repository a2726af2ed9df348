"""What `certify`, `predict` and `attack` share: the end of a sweep, and its interruption."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pyrobust.cli.shell import INTERRUPTED_STATUS, describe_path, note

if TYPE_CHECKING:
    from pyrobust.evaluation import Run


@contextlib.contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Says how to go on when the sweep is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        from pyrobust.evaluation import Run

        if not out.is_file():
            note("interrupted before the first results; nothing was kept")
        else:
            run = Run(out)
            note(f"interrupted; {len(run)} of {len(run.expected)} images are kept in {describe_path(out)}")
            note(f"go on with: {shlex.join(['pyrobust', *sys.argv[1:]])}")
        raise typer.Exit(INTERRUPTED_STATUS) from None


def show_run(run: Run) -> None:
    """Prints the table of a run, and on standard error where it is."""
    from rich.console import Console

    from pyrobust.report import attack_table, certified_accuracy_table, prediction_table, verification_table

    tables = {
        "certify": certified_accuracy_table,
        "predict": prediction_table,
        "attack": attack_table,
        "verify": verification_table,
    }
    if len(run):
        Console().print(tables[run.kind](run))
    else:
        note("no image: the shard is empty")
    if run.path is not None:
        path = describe_path(run.path)
        note(f"run: {path} (its log: {shlex.join(['pyrobust', 'log', path])})")
