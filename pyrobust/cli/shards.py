"""``pyrobust missing``, ``pyrobust merge`` and ``pyrobust log``: the shards of a sweep in files and folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyrobust.cli.options import Replace
from pyrobust.cli.shell import describe_path, note, reports_errors
from pyrobust.cli.sweep import check_json, named_file, write_json
from pyrobust.errors import InputError

_Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run, all shards of one, or the folder that holds them.")
]


@reports_errors
def missing(
    runs: _Runs,
    running: Annotated[bool, typer.Option("--running", help="Print shards that are being written now, too.")] = False,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write what every shard holds as JSON; - for standard output."),
    ] = None,
) -> None:
    """Print the numbers of the shards that lack images, for sbatch --array; nothing if all are complete.

    Standard error says what each of these shards lacks. Shards that a process is writing now are named only on standard
    error, because they may still be completed, and because a second process cannot write them.

    For a run that is not divided into shards, prints the numbers of the missing chunks; the first chunk of a run has
    number 1.

    Example: pyrobust missing runs/
    """
    from pyrobust.runs.shards import array_expression, survey_runs

    survey = survey_runs(runs)
    # The file may lie in the folder of the runs.
    check_json(json_file, [shard.path for shard in survey.parts], json_begins=b'{\n "shards": ')
    for shard in survey.parts:
        if shard.state == "complete":
            continue
        name = "run" if survey.shards is None else f"shard {shard.number}/{survey.shards}"
        held = "being written" if shard.done is None else f"{shard.done} of {shard.total} images"
        note(f"{name}: no file" if shard.path is None else f"{name}: {held} in {describe_path(shard.path)}")
        if shard.set_aside:
            note(
                f"{name}: {len(shard.set_aside)} chunks set aside, tried again when it is resumed: {shard.set_aside[0]}"
            )
    if all(shard.state == "complete" for shard in survey.parts):
        note("complete" if survey.shards is None else f"complete: {survey.shards} of {survey.shards} shards")
    if json_file is not None:
        write_json(survey.to_dict(), json_file)
    if json_file != "-" and (numbers := survey.missing(running=running)):
        typer.echo(array_expression(numbers))


@reports_errors
def merge(
    runs: _Runs,
    out: Annotated[str, typer.Option(metavar="FILE", help="Run file to write, which must not exist.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Merge what there is of unfinished and missing shards.")
    ] = False,
) -> None:
    """Merge the shards of a sweep into one run, with the results that a single process would have given.

    Nothing is overwritten, and the file is written whole or not at all. With --partial, the merged run can be read but
    not resumed; instead, resume its shards and merge again.

    Example: pyrobust merge runs/ --out all.db
    """
    from pyrobust.runs.merged_file import write_merged
    from pyrobust.runs.shards import array_expression, find_runs, survey_runs
    from pyrobust.zoo.files import check_output

    file = named_file(out)
    if file is None:
        raise InputError("--out", "a file", f"the folder {out!r}", "name a file")
    files = find_runs(runs)
    check_output("--out", file, inputs=files)
    survey = survey_runs(files)
    if survey.shards is None:
        raise InputError("RUN", "the shards of a sweep", f"{describe_path(files[0])}, which is a whole run")
    lacking = array_expression(survey.missing(running=True))
    if lacking and not partial:
        raise InputError(
            "RUN",
            f"complete shards, but of {survey.shards} these lack images: {lacking}",
            hint="pyrobust missing says how many; complete them, or pass --partial",
        )
    run = write_merged(files, file, partial=partial)
    note(f"run: {describe_path(file)}, {len(run)} of {len(run.expected)} images")


@reports_errors
def log(
    runs: _Runs,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write. Default: standard output.")] = None,
    replace: Replace = False,
) -> None:
    """Export a run as a tab-separated log, and merge its shards.

    Columns of certify and verify: idx, label, predict (-1 if abstained), radius (rounded down; at given epsilons, the
    largest verified epsilon), correct, time. Those of predict are the same without radius.

    Columns of attack: idx, label, predict, adversarial, distance, broken_by, correct, robust, time. Distance and
    broken_by are empty for images that withstood the attack. Columns of sandwich: idx, label, predict, lower, lower_by,
    upper, upper_by, adversarial, correct, time.

    An existing log of the same kind of run is overwritten. Other files are overwritten only with --replace; a run is
    never overwritten.

    Example: pyrobust log part1.db part2.db --out all.tsv
    """
    from pyrobust.evaluation import format_log, merge_runs, write_log
    from pyrobust.runs.log import check_log_output
    from pyrobust.runs.shards import find_runs

    run = merge_runs(find_runs(runs))
    if out is not None:
        check_log_output("--out", run, out, replace=replace)
    if not run.complete:
        note(f"unfinished run: {len(run)} of {len(run.expected)} images")
    if out is None:
        typer.echo(format_log(run), nl=False)
    else:
        write_log(run, out, replace=True)
        note(f"log: {describe_path(out)}")
