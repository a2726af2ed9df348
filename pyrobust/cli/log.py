"""``pyrobust log``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyrobust.cli.shell import describe_path, note, reports_errors


@reports_errors
def log(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="A run, or all shards of one.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: standard output.")] = None,
) -> None:
    """Export a run as a tab-separated log, shards merged.

    Columns idx, label, predict (-1: abstained), radius (rounded down; of a verification at given epsilons the largest
    verified one), correct, time; of an attack idx, label, predict,
    adversarial, distance, broken_by, correct, robust, time, with distance and broken_by empty where it was withstood.
    """
    from pyrobust.evaluation import format_log, merge_runs, write_log

    run = merge_runs(runs)
    if not run.complete:
        note(f"not finished: {len(run)} of {len(run.expected)} images")
    if out is None:
        typer.echo(format_log(run), nl=False)
    else:
        write_log(run, out)
        note(f"log: {describe_path(out)}")
