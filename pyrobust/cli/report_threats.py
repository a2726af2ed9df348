"""``pyrobust report`` on logs of verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrobust.cli.shell import describe_path, note
from pyrobust.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from pyrobust.threats import ThreatVerdicts

#: How labels were drawn, as ``--labels`` has it and as Python has it.
_DRAWN = {"random": "at random", "verdict": "by verdict"}


def read_threats(files: Sequence[Path], *, threshold: float | None, invert: bool, judge: str | None) -> ThreatVerdicts:
    """Read and join files of verdicts; each has to be named once."""
    from pyrobust.threats import join_verdicts, read_verdicts
    from pyrobust.threats.units import judge_named, judges_of

    real = [path.resolve() for path in files]
    again = next((path for place, path in enumerate(files) if real[place] in real[:place]), None)
    if again is not None:
        raise InputError(f"VERDICTS: expected each file once, got {str(again)!r} twice")
    verdicts = join_verdicts([read_verdicts(path, threshold=threshold, invert=invert) for path in files])
    if judge is not None:
        judge_named(judge, judges_of(verdicts), "--judge")
    return verdicts


def table_options(
    by: str | None, judge: str | None, k: int | None, budget: int | None, labels: str | None
) -> dict[str, Any]:
    """Arguments of `threat_tables` from the options."""
    from pyrobust.threats.verdicts import COLUMNS

    names = None if by is None else [name.strip() for name in by.split(",")]
    for name in names or ():
        if name not in COLUMNS:
            raise InputError(f"--by: expected columns from {', '.join(COLUMNS)}, got {name!r}")
    if labels is not None and labels not in _DRAWN:
        raise InputError(f"--labels: expected random or verdict, got {labels!r}")
    drawn = _DRAWN[labels or "random"]
    return {"by": names, "judge": judge, "k": k, "budget": budget, "drawn": drawn}


def compare_threats(
    verdicts: ThreatVerdicts, options: dict[str, Any], endings: Sequence[str], *, figures_needed: bool
) -> dict[str, bytes]:
    """Print the tables of verdicts, and return them and the figure of the rates as files."""
    from rich.console import Console

    from pyrobust.cli.report import FIGURES, TABLES
    from pyrobust.report import format_table, threat_tables
    from pyrobust.report.threat_figure import success_frame

    tables = threat_tables(verdicts, **options)
    files = {
        f"{name}.{form}": format_table(table, form).encode()
        for name, table in tables.items()
        for form in TABLES
        if form in endings
    }
    drawn = [form for form in FIGURES if form in endings]
    try:
        frame = success_frame(tables["threats"]) if drawn else None
    except MissingExtraError as error:
        if figures_needed:
            raise
        note(f"no figures: {error}")
    else:
        files |= {f"success_rate.{form}": frame.render(form) for form in drawn if frame is not None}
    for table in tables.values():
        Console().print(table)
    return files


def write_threat_page(html: Path, verdicts: ThreatVerdicts, options: dict[str, Any]) -> None:
    """Write the page of verdicts."""
    from pyrobust.report.page import threat_page_html
    from pyrobust.zoo.files import write_atomically

    write_atomically(html, threat_page_html(verdicts, **options).encode())
    note(f"page: {describe_path(html)}")
