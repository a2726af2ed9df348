"""``pyrobust log``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyrobust.cli.options import Replace
from pyrobust.cli.shell import describe_path, note, reports_errors


@reports_errors
def log(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run, or all shards of one.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write. Default: standard output.")] = None,
    replace: Replace = False,
) -> None:
    """Export a run as a tab-separated log, and merge its shards.

    Columns of certify, predict and verify: idx, label, predict (-1 if abstained), radius (rounded down; at given
    epsilons, the largest verified one), correct, time.

    Columns of attack: idx, label, predict, adversarial, distance, broken_by, correct, robust, time. Distance and
    broken_by are empty for images that withstood the attack.

    An existing log of the same kind of run is overwritten, any other file only with --replace, and a run never.

    Example: pyrobust log part1.db part2.db --out all.tsv
    """
    from pyrobust.evaluation import format_log, merge_runs, write_log
    from pyrobust.runs.log import check_log_output

    run = merge_runs(runs)
    if out is not None:
        check_log_output("--out", run, out, replace=replace)
    if not run.complete:
        note(f"unfinished run: {len(run)} of {len(run.expected)} images")
    if out is None:
        typer.echo(format_log(run), nl=False)
    else:
        write_log(run, out, replace=True)
        note(f"log: {describe_path(out)}")
