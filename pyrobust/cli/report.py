"""``pyrobust report``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyrobust.cli.options import Replace
from pyrobust.cli.parsing import parse_epsilons, real_number, whole_number
from pyrobust.cli.shell import describe_path, note, reports_errors
from pyrobust.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from pyrobust.auditing.certification_log import CertificationLog
    from pyrobust.evaluation import Run
    from pyrobust.report.formats import TableForm

_FIGURES = ("png", "pdf", "svg")
_TABLES: tuple[TableForm, ...] = ("md", "tex", "csv", "json")


@reports_errors
def report(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG...", help="Runs of certify, verify or attack, or text logs of any program."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for figures and tables.")],
    formats: Annotated[
        str | None,
        typer.Option(metavar="F[,F...]", help="Formats to write: png, pdf, svg, md, tex, csv, json. Default: all."),
    ] = None,
    radii: Annotated[
        str | None, typer.Option(metavar="R[,R...]", help="Radii in the table. Default: steps up to the largest.")
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", parser=whole_number, metavar="N", help="Samples per image in text logs.")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            parser=real_number, metavar="A", help="Highest probability that a certificate of a text log is wrong."
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            parser=real_number,
            metavar="S",
            help="Standard deviation of the noise of text logs. Default: from the file name.",
        ),
    ] = None,
    overwrite: Replace = False,
) -> None:
    """Compare certifications and attacks in tables and figures, for the terminal, a paper or a program.

    Ranks the classifiers by the probability of the right class under noise (p_A); also shows certified accuracy and
    the average certified radius. Writes certified_accuracy and survival (png, pdf, svg) and table (md, tex, csv, json).

    Runs of attack, with those of verify beside them, bound robust accuracy from above and below: robust_accuracy (png,
    pdf, svg) and robustness (md, tex, csv, json).

    Example: pyrobust report cohen_sigma0.25.tsv run.db --out comparison
    """
    endings = _parse_formats(formats)
    columns = None if radii is None else parse_epsilons("--radii", radii)
    from rich.console import Console

    from pyrobust.auditing.certification_log import read_shards
    from pyrobust.report import comparison_table, format_table, robustness_table
    from pyrobust.runs.merge import group_shards, merge_shards
    from pyrobust.runs.reader import is_run

    groups = group_shards(logs)
    runs = {i: merge_shards(paths) for i, paths in enumerate(groups) if is_run(paths[0])}
    attacked = any(run.kind == "attack" for run in runs.values())
    # Verifications stand beside attacks, too.
    bounds = [run for run in runs.values() if run.kind == "attack" or (attacked and run.parameters.get("epsilons"))]
    certified = [paths for i, paths in enumerate(groups) if i not in runs or runs[i].kind != "attack"]
    read = [_examined(read_shards(paths, n=n, alpha=alpha, sigma=sigma)) for paths in certified]
    norms = list(dict.fromkeys(log.norm for log in read))
    # Radii of different norms do not compare: a table and figures each.
    ends = {norm: f"_{norm}" if len(norms) > 1 else "" for norm in norms}
    tables = {
        f"table{end}": comparison_table([log for log in read if log.norm == norm], columns)
        for norm, end in ends.items()
    }
    if bounds:
        tables["robustness"] = robustness_table(bounds)
    files = {
        f"{name}.{form}": format_table(table, form).encode()
        for name, table in tables.items()
        for form in _TABLES
        if form in endings
    }
    try:
        files |= _figures(read, ends, bounds, [form for form in _FIGURES if form in endings])
    except MissingExtraError as error:
        if formats is not None:
            raise
        note(f"no figures: {error}")
    _write(out, files, logs, overwrite)
    for table in tables.values():
        Console().print(table)
    for log in read:
        if log.findings:
            count = "1 fault" if len(log.findings) == 1 else f"{len(log.findings)} faults"
            note(f"{describe_path(log.path)}: {count}; run pyrobust audit for details")
    for name in files:
        note(f"{name.partition('.')[0].replace('_', ' ')}: {describe_path(out / name)}")


def _parse_formats(text: str | None) -> list[str]:
    """Parse file endings, separated by commas.

    >>> _parse_formats("png,tex")
    ['png', 'tex']
    """
    known = [*_FIGURES, *_TABLES]
    formats = known if text is None else [part.strip().lower() for part in text.split(",")]
    for form in formats:
        if form not in known:
            raise InputError(f"--formats: expected formats from {','.join(known)}, got {form!r}")
    return formats


def _examined(log: CertificationLog) -> CertificationLog:
    """Return the log with its faults as findings, for the table's notes, and without an n or alpha it contradicts."""
    from pyrobust.evaluation import audit

    result = audit(log)
    return replace(log, findings=tuple(result.faults), n=result.counted.n, alpha=result.counted.alpha)


def _figures(
    logs: list[CertificationLog], ends: dict[str, str], bounds: list[Run], forms: list[str]
) -> dict[str, bytes]:
    from pyrobust.auditing.votes import survival_of
    from pyrobust.report.axes import LineStyles
    from pyrobust.report.figures import certified_accuracy_frame, robust_accuracy_frame, survival_frame

    if not forms:
        return {}
    styles = LineStyles()
    frames = {}
    for norm, end in ends.items():
        chosen = [log for log in logs if log.norm == norm]
        frames[f"certified_accuracy{end}"] = certified_accuracy_frame(chosen, styles=styles)
        voted = [log for log in chosen if survival_of(log) is not None]
        if voted:
            frames[f"survival{end}"] = survival_frame(voted, styles)
    voted = [log for log in logs if survival_of(log) is not None]
    if len(voted) < len(logs):
        note(f"survival: {len(voted)} of {len(logs)} logs; no votes follow from the others (see the table's notes)")
    attacked = dict.fromkeys(run.parameters["norm"] for run in bounds)
    for norm in attacked:
        name = f"robust_accuracy_{norm}" if len(attacked) > 1 else "robust_accuracy"
        frames[name] = robust_accuracy_frame([run for run in bounds if run.parameters["norm"] == norm], styles=styles)
    return {f"{name}.{form}": frame.render(form) for name, frame in frames.items() for form in forms}


def _write(out: Path, files: dict[str, bytes], logs: list[Path], overwrite: bool) -> None:
    """Write all files or none."""
    from pyrobust.zoo.files import check_output, write_together

    for name in files:
        check_output("--out", out / name, inputs=logs, replace=overwrite)
    write_together(out, files)
