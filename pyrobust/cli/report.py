"""``pyrobust report``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyrobust.cli.attack_options import parse_epsilon
from pyrobust.cli.shell import describe_path, note, reports_errors
from pyrobust.errors import InputError, MissingExtraError, StoreError

if TYPE_CHECKING:
    from pyrobust.auditing.certification_log import CertificationLog
    from pyrobust.report.formats import TableForm

_FIGURES = ("png", "pdf", "svg")
_TABLES: tuple[TableForm, ...] = ("md", "tex", "csv", "json")


@reports_errors
def report(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG...", help="Runs of certify, or tab-separated logs of this or another program."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for figures and tables.")],
    formats: Annotated[
        str | None, typer.Option(metavar="F[,F...]", help="Of png, pdf, svg, md, tex, csv, json. Default: all.")
    ] = None,
    radii: Annotated[
        str | None, typer.Option(metavar="R[,R...]", help="Of the table. Default: steps up to the largest.")
    ] = None,
    n: Annotated[int | None, typer.Option("--n", metavar="N", help="Samples an image, of logs as text.")] = None,
    alpha: Annotated[
        float | None, typer.Option(metavar="A", help="Probability that a certificate is wrong, of logs as text.")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(metavar="S", help="Of logs as text. Default: what the file's name says.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--replace", help="Replace files of these names.")] = False,
) -> None:
    """Compare certifications: a table and figures, for the terminal, a paper or a program.

    How sure each classifier is of the right class (p_A) comes first and ranks them, then certified accuracy, last the
    average certified radius. Writes certified_accuracy and survival (png, pdf, svg) and table (md, tex, csv, json).

    Example: pyrobust report cohen_sigma0.25.tsv run.db --out comparison
    """
    wanted = _parse_formats(formats)
    at = None if radii is None else [parse_epsilon("--radii", part) for part in radii.split(",")]
    from rich.console import Console

    from pyrobust.evaluation import read_certification_log
    from pyrobust.report import comparison_table, format_table, rich_table

    read = [_examined(read_certification_log(path, n=n, alpha=alpha, sigma=sigma)) for path in logs]
    table = comparison_table(read, at)
    files = {f"table.{form}": format_table(table, form).encode() for form in _TABLES if form in wanted}
    try:
        files |= _figures(read, [form for form in _FIGURES if form in wanted])
    except MissingExtraError as error:
        if formats is not None:
            raise
        note(f"no figures: {error}")
    _write(out, files, overwrite)
    Console().print(rich_table(table))
    for log in read:
        if log.findings:
            count = "1 fault" if len(log.findings) == 1 else f"{len(log.findings)} faults"
            note(f"{describe_path(log.path)}: {count}; see pyrobust audit")
    for name in files:
        note(f"{name.partition('.')[0].replace('_', ' ')}: {describe_path(out / name)}")


def _parse_formats(text: str | None) -> list[str]:
    """Endings of files.

    >>> _parse_formats("png,tex")
    ['png', 'tex']
    """
    known = [*_FIGURES, *_TABLES]
    formats = known if text is None else [part.strip().lower() for part in text.split(",")]
    for form in formats:
        if form not in known:
            raise InputError(f"--formats: expected some of {','.join(known)}, got {form!r}")
    return formats


def _examined(log: CertificationLog) -> CertificationLog:
    """The log with its faults as findings, which the table's notes repeat; without n and alpha that it contradicts."""
    from pyrobust.evaluation import audit

    found = audit(log)
    return replace(log, findings=tuple(found.faults), n=found.counted.n, alpha=found.counted.alpha)


def _figures(logs: list[CertificationLog], forms: list[str]) -> dict[str, bytes]:
    from pyrobust.auditing.votes import survival_of
    from pyrobust.report.figures import certified_accuracy_frame, survival_frame

    if not forms:
        return {}
    frames = {"certified_accuracy": certified_accuracy_frame(logs)}
    voted = [log for log in logs if survival_of(log) is not None]
    if voted:
        frames["survival"] = survival_frame(voted)
    if len(voted) < len(logs):
        note(f"survival: {len(voted)} of {len(logs)} logs; the others tell no votes (the table's notes say why)")
    return {f"{name}.{form}": frame.render(form) for name, frame in frames.items() for form in forms}


def _write(out: Path, files: dict[str, bytes], overwrite: bool) -> None:
    """All files or none; refused before the first."""
    from pyrobust.zoo.files import write_together

    there = [name for name in files if (out / name).exists()]
    if there and not overwrite:
        raise StoreError(f"--out: {out}: {there[0]} is there already; name another folder, or give --replace")
    write_together(out, files)
