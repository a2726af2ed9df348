"""``pyrobust audit``."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrobust.cli.options import LogReader, Replace, load_reader
from pyrobust.cli.parsing import real_number, whole_number
from pyrobust.cli.shell import ERROR_STATUS, check_outputs, describe_path, note, reports_errors
from pyrobust.errors import FileFormatError, InputError, StoreError

if TYPE_CHECKING:
    from rich.console import Console

    from pyrobust.evaluation import CertificationLog
    from pyrobust.report import ReportTable


class FormName(str, Enum):
    """Formats of the table, named by their file endings."""

    md = "md"
    tex = "tex"
    csv = "csv"
    json = "json"


_TABLES = tuple(form.value for form in FormName)
_FIGURES = ("png", "pdf", "svg")
# The JSON of one audit may be overwritten by that of another.
_JSON_BEGINS = b'{\n "exit_status": '


@reports_errors
def audit(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG...", help="Tab-separated logs of any program, or runs."),
    ],
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            parser=whole_number,
            metavar="N",
            help="Samples per image. Default: 100000, unless saturated radii contradict.",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            parser=real_number,
            metavar="A",
            help="Highest probability that a certificate is wrong. Default: 0.001, unless saturated radii contradict.",
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            parser=real_number, metavar="S", help="Standard deviation of the noise. Default: from the file name."
        ),
    ] = None,
    form: Annotated[
        FormName | None,
        typer.Option("--format", help="Print the table in this format, and findings on standard error."),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Write the table (.md, .tex, .csv, .json) or its figure (.png, .pdf, .svg); repeatable.",
        ),
    ] = None,
    json_out: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write findings and all metrics as JSON; - for standard output."),
    ] = None,
    reader: LogReader = None,
    overwrite: Replace = False,
) -> None:
    """Check certification logs for faults, and compare them.

    Finds rows that are cut off, missing or duplicated; radii that n samples at alpha cannot prove; and a column
    "correct" that contradicts the predictions. For a run, recomputes the values that follow from its votes or verdicts,
    and finds those that differ. Prints for each classifier the probability of the correct class under noise (p_A),
    certified accuracy and the average certified radius. A row counts as correct if its predict column equals its label
    column.

    Without --replace, no existing file is overwritten, except the JSON file of an earlier audit.

    Exit status: 0 without faults (notes allowed), 1 with faults, 2 with an unreadable file.

    Example: pyrobust audit cohen_sigma0.25.tsv run.db
    """
    files = out or []
    _check_files(logs, files, json_out, form, overwrite)
    from rich.console import Console

    counted, results, status = _audit(logs, n, alpha, sigma, load_reader(reader))
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

        # The findings are printed above the table already.
        for table in _tables([replace(log, findings=()) for log in counted]):
            console.print(table)
    _write(contents, json_out, {"exit_status": status, "logs": results})
    if status:
        raise typer.Exit(status)


def _check_files(logs: list[Path], out: list[Path], json_out: str | None, form: FormName | None, replace: bool) -> None:
    for path in out:
        if path.suffix.removeprefix(".").lower() not in (*_TABLES, *_FIGURES):
            endings = ", ".join(f".{ending}" for ending in (*_TABLES, *_FIGURES))
            raise InputError("--out", f"a file name that ends in one of {endings}", repr(path.name))
    if json_out == "-" and form is not None:
        raise InputError("--format", "none with --json -, as both print", hint="write the JSON to a file")
    written = [*(("--out", path) for path in out), ("--json", None if json_out in (None, "-") else Path(json_out))]
    check_outputs(written, inputs=logs, replace=replace, begins={"--json": _JSON_BEGINS})


def _audit(
    logs: list[Path],
    n: int | None,
    alpha: float | None,
    sigma: float | None,
    reader: Callable[..., Any] | None,
) -> tuple[list[CertificationLog], list[dict[str, Any]], int]:
    """Return the usable rows of each readable log with radii, JSON entries of all logs, and the worst exit status."""
    from pyrobust.auditing.audit import audit_run
    from pyrobust.auditing.certification_log import read_shards
    from pyrobust.auditing.version_promises import version_notes
    from pyrobust.evaluation import audit as examine
    from pyrobust.runs.merge import group_shards, merge_shards
    from pyrobust.runs.reader import OlderFileError, is_run

    counted: list[CertificationLog] = []
    results: list[dict[str, Any]] = []
    status = 0
    for paths in group_shards(logs):
        name = ", ".join(map(str, paths))
        try:
            if is_run(paths[0]) and (run := merge_shards(paths)).header.type.certified != "radius":
                results.append(audit_run(run) | {"path": name})
                status = max(status, results[-1]["exit_status"])
                continue
            result = examine(read_shards(paths, n=n, alpha=alpha, sigma=sigma, reader=reader))
        except (FileFormatError, StoreError) as error:
            text = " ".join(str(error).split())
            note(f"error: {text}")
            results.append({"path": name, "exit_status": ERROR_STATUS, "error": text})
            if isinstance(error, OlderFileError):
                findings = list(version_notes(error.header))
                results[-1]["findings"] = [finding.to_dict() for finding in findings]
                for finding in findings:
                    note(f"{name}: {finding.message}")
            status = ERROR_STATUS
        else:
            # The audit itself is not kept, because its curve has more numbers than the log.
            results.append(result.to_dict() | {"path": name})
            counted.append(result.counted)
            status = max(status, result.exit_status)
            del result
    return counted, results, status


def _show_findings(console: Console, result: dict[str, Any]) -> None:
    """Print one line for the log and one for each finding, in colour on a terminal."""
    from rich.text import Text

    from pyrobust.report.formats import plain_text

    def count(number: int, noun: str) -> str:
        return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

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
    """Return a table for each norm, since radii in different norms are not comparable; no table without radii."""
    from pyrobust.report import comparison_table

    norms = dict.fromkeys(log.norm for log in logs)
    return [comparison_table([log for log in logs if log.norm == norm]) for norm in norms]


def _render(files: list[Path], logs: list[CertificationLog]) -> dict[Path, bytes]:
    """Return the contents of each file."""
    from pyrobust.auditing.votes import survival_of
    from pyrobust.report import format_table
    from pyrobust.report.figures import certified_accuracy_frame, survival_frame

    contents: dict[Path, bytes] = {}
    if files and not logs:
        note("no readable log with radii; no files written")
        return contents
    for path in files:
        ending = path.suffix.removeprefix(".").lower()
        if ending in _FIGURES:
            voted = [log for log in logs if survival_of(log) is not None]
            if voted and len(voted) < len(logs):
                note(f"{path.name}: {len(voted)} of {len(logs)} logs; no votes follow from the others")
            frame = survival_frame(voted) if voted else certified_accuracy_frame(logs)
            contents[path] = frame.render(ending)
        else:
            tables = _tables(logs)
            if len(tables) > 1:
                raise InputError(
                    "--out", "logs with radii in one norm", "several", "audit the logs of each norm separately"
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
