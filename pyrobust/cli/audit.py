"""``pyrobust audit``."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrobust.cli.shell import ERROR_STATUS, describe_path, note, reports_errors
from pyrobust.errors import FileFormatError, InputError, StoreError

if TYPE_CHECKING:
    from rich.console import Console

    from pyrobust.evaluation import CertificationLog
    from pyrobust.report import ReportTable


class FormName(str, Enum):
    """Forms of the table, by the ending of their files."""

    md = "md"
    tex = "tex"
    csv = "csv"
    json = "json"


_TABLES = tuple(form.value for form in FormName)
_FIGURES = ("png", "pdf", "svg")


@reports_errors
def audit(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG...", help="Tab-separated logs of any program, or runs of certify."),
    ],
    n: Annotated[
        int | None,
        typer.Option(
            "--n", metavar="N", help="Samples an image. Default: 100000, if saturated radii do not contradict."
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(metavar="A", help="Probability that a certificate is wrong. Default: 0.001, likewise."),
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(metavar="S", help="Of the noise. Default: what the file's name says.")
    ] = None,
    form: Annotated[
        FormName | None, typer.Option("--format", help="Print the table so; findings on standard error.")
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Write the table (.md, .tex, .csv, .json) or its figure (.png, .pdf, .svg); may be repeated.",
        ),
    ] = None,
    json_out: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Findings and all metrics; - for standard output.")
    ] = None,
) -> None:
    """Check certification logs, and compare what they say.

    Finds what cannot be true: rows cut off, missing or twice, radii that n samples at alpha cannot give, a correct that
    contradicts the predictions. Prints how sure each classifier is of the right class (p_A), what it certifies, and
    last its average certified radius, on what is right by predict == label.

    Exit status: 0 clean, perhaps with notes; 1 faults; 2 a file that cannot be read.

    Example: pyrobust audit cohen_sigma0.25.tsv run.db
    """
    files = out or []
    _check_files(logs, files, json_out, form)
    from rich.console import Console

    counted, results, status = _audit(logs, n, alpha, sigma)
    contents = _render(files, counted)
    quiet = form is not None or json_out == "-"
    console = Console(stderr=quiet)
    for result in results:
        if "error" not in result:
            _show_findings(console, result)
    if form is not None:
        from pyrobust.report import format_table

        for table in _tables(counted):
            typer.echo(format_table(table, form.value), nl=False)
    elif json_out != "-":
        from dataclasses import replace

        from pyrobust.report import rich_table

        # The findings stand above the table already.
        for table in _tables([replace(log, findings=()) for log in counted]):
            console.print(rich_table(table))
    _write(contents, json_out, {"exit_status": status, "logs": results})
    if status:
        raise typer.Exit(status)


def _check_files(logs: list[Path], out: list[Path], json_out: str | None, form: FormName | None) -> None:
    for path in out:
        if path.suffix.removeprefix(".").lower() not in (*_TABLES, *_FIGURES):
            endings = ", ".join(f".{ending}" for ending in (*_TABLES, *_FIGURES))
            raise InputError(f"--out: expected a file that ends with one of {endings}, got {path.name!r}")
    if json_out == "-" and form is not None:
        raise InputError("--format: expected none with --json -, which takes standard output for itself")
    written = [*out, *([Path(json_out)] if json_out not in (None, "-") else [])]
    places = [path.absolute() for path in written]
    for path, place in zip(written, places, strict=True):
        if place in [log.absolute() for log in logs] or places.count(place) > 1:
            raise InputError(f"--out: expected files of their own, got {path} twice")


def _audit(
    logs: list[Path], n: int | None, alpha: float | None, sigma: float | None
) -> tuple[list[CertificationLog], list[dict[str, Any]], int]:
    """What counts of the logs that can be read, what JSON says of all, and the worst exit status."""
    from pyrobust.evaluation import audit as examine
    from pyrobust.evaluation import read_certification_log

    counted: list[CertificationLog] = []
    results: list[dict[str, Any]] = []
    status = 0
    for path in logs:
        try:
            found = examine(read_certification_log(path, n=n, alpha=alpha, sigma=sigma))
        except (FileFormatError, StoreError) as error:
            text = " ".join(str(error).split())
            note(f"error: {text}")
            results.append({"path": str(path), "exit_status": ERROR_STATUS, "error": text})
            status = ERROR_STATUS
        else:
            # Not the audit itself: its curve has more numbers than the log.
            results.append(found.to_dict())
            counted.append(found.counted)
            status = max(status, found.exit_status)
            del found
    return counted, results, status


def _show_findings(console: Console, result: dict[str, Any]) -> None:
    """A line for the log and one for each finding; colours where they can be seen."""
    from rich.text import Text

    from pyrobust.report.formats import plain_text

    def count(number: int, what: str) -> str:
        return f"{number} {what}" if number == 1 else f"{number} {what}s"

    findings = result["findings"]
    faults = sum(finding["severity"] == "fault" for finding in findings)
    verdict = Text(count(faults, "fault"), "bold red") if faults else Text("no fault", "green")
    head = Text.assemble((plain_text(describe_path(result["path"])), "bold"), f": {result['rows']:,} rows, ", verdict)
    if len(findings) > faults:
        head.append(f", {count(len(findings) - faults, 'note')}")
    console.print(head, soft_wrap=True)
    for finding in findings:
        style = "red" if finding["severity"] == "fault" else "dim"
        line = Text.assemble("  ", (f"{finding['severity']:<5}", style), "  ", plain_text(finding["message"]))
        console.print(line, soft_wrap=True)


def _tables(logs: list[CertificationLog]) -> list[ReportTable]:
    """A table for each norm: radii of two norms do not compare."""
    from pyrobust.report import comparison_table

    norms = dict.fromkeys(log.norm for log in logs)
    return [comparison_table([log for log in logs if log.norm == norm]) for norm in norms]


def _render(files: list[Path], logs: list[CertificationLog]) -> dict[Path, bytes]:
    """What each file is to hold."""
    from pyrobust.auditing.votes import survival_of
    from pyrobust.report import format_table
    from pyrobust.report.figures import certified_accuracy_frame, survival_frame

    contents: dict[Path, bytes] = {}
    if files and not logs:
        note("no log could be read; nothing is written")
        return contents
    for path in files:
        ending = path.suffix.removeprefix(".").lower()
        if ending in _FIGURES:
            voted = [log for log in logs if survival_of(log) is not None]
            if voted and len(voted) < len(logs):
                note(f"{path.name}: {len(voted)} of {len(logs)} logs; the others tell no votes")
            frame = survival_frame(voted) if voted else certified_accuracy_frame(logs)
            contents[path] = frame.render(ending)
        else:
            tables = _tables(logs)
            if len(tables) > 1:
                raise InputError(
                    "--out: expected radii of one norm for one table; audit the logs of each by themselves"
                )
            contents[path] = format_table(tables[0], FormName(ending).value).encode()
    return contents


def _write(contents: dict[Path, bytes], json_out: str | None, results: dict[str, Any]) -> None:
    from pyrobust.zoo.files import write_atomically

    for path, content in contents.items():
        write_atomically(path, content)
        note(f"written: {describe_path(path)}")
    if json_out is None:
        return
    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    if json_out == "-":
        typer.echo(text, nl=False)
    else:
        write_atomically(json_out, text.encode())
        note(f"written: {describe_path(json_out)}")
