"""``pyrobust report``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrobust.cli.options import LogReader, Replace, load_reader
from pyrobust.cli.parsing import parse_epsilons, real_number, whole_number
from pyrobust.cli.shell import check_outputs, describe_path, note, reports_errors
from pyrobust.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from pyrobust.auditing.certification_log import CertificationLog
    from pyrobust.evaluation import Run
    from pyrobust.report.formats import TableForm
    from pyrobust.threats import ThreatVerdicts

FIGURES = ("png", "pdf", "svg")
TABLES: tuple[TableForm, ...] = ("md", "tex", "csv", "json")
_VERDICTS = "Verdicts on threats"


@reports_errors
def report(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG...", help="Runs of any kind and text logs of any program; or files of verdicts on threats."
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for figures and tables.")] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write one page that needs no network, with figures, examples and audit."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="With --html: data set of the pictures. Default: loaded again if a run names bundled data or files.",
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(metavar="F[,F...]", help="Formats to write: png, pdf, svg, md, tex, csv, json. Default: all."),
    ] = None,
    radii: Annotated[
        str | None,
        typer.Option(metavar="R[,R...]", help="Radii in the tables; the page begins with the first. Default: chosen."),
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
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COL[,COL]",
            help="Columns to group by: model, category, group, judge, or one of a CSV file. Default: model.",
            rich_help_panel=_VERDICTS,
        ),
    ] = None,
    behaviour: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field of the log that names the behaviour, the sample of all intervals. Default: by the format.",
            rich_help_panel=_VERDICTS,
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Judge whose verdicts count. Default: all.", rich_help_panel=_VERDICTS),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k",
            parser=whole_number,
            metavar="K",
            help="Attempts of success at k. Default: the fewest at a prompt.",
            rich_help_panel=_VERDICTS,
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="Q",
            help="Query budget, chosen beforehand. Default: the largest number of queries.",
            rich_help_panel=_VERDICTS,
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            parser=real_number,
            metavar="S",
            help="Least score that counts as success, for garak and inspect-ai. Default: the report's, else 0.5.",
            rich_help_panel=_VERDICTS,
        ),
    ] = None,
    invert: Annotated[
        bool,
        typer.Option(
            "--invert", help="A success in the log means that the model withstood.", rich_help_panel=_VERDICTS
        ),
    ] = False,
    reader: LogReader = None,
    overwrite: Replace = False,
) -> None:
    """Compare certifications and attacks in tables and figures, for the terminal, a paper or a program.

    Ranks the classifiers by the probability of the correct class under noise (p_A); also shows certified accuracy and
    the average certified radius. Writes the figures certified_accuracy and survival (png, pdf, svg), where survival
    shows the survival curves of p_A, and a table named table (md, tex, csv, json).

    Robust accuracy is bounded from above by runs of attack, and from below by runs of verify. If there is a run of
    attack, writes these bounds as the figure robust_accuracy (png, pdf, svg) and the table robustness (md, tex, csv,
    json). Runs of sandwich and predict have tables named after their kind.

    Verdicts on threats may come from this library, JailbreakBench, TextAttack, garak, inspect-ai, promptfoo or a CSV
    file. For them, writes the figure success_rate (png, pdf, svg), which shows the success rates, and the tables
    threats, judges, agreement, models and attacks (md, tex, csv, json).

    With --html, writes one page for a browser: curves with bands, worst and best examples, a table of all examples, the
    audit, and how to repeat the runs. An earlier page is overwritten, any other file only with --replace.

    Example: pyrobust report cohen_sigma0.25.tsv run.db --out comparison

    Example: pyrobust report verify.db attack.db --html page.html

    Example: pyrobust report verdicts.jsonl --by category --out comparison --html page.html
    """
    if out is None and html is None:
        raise InputError(
            "--out", problem="expected a folder for tables and figures, or --html with a file for a page; got neither"
        )
    if out is None and formats is not None:
        raise InputError("--formats", "none without --out", repr(formats), "leave it out")
    if html is not None and (str(html) == "-" or html == out):
        what = "standard output" if str(html) == "-" else "the folder of --out"
        raise InputError("--html", "a file for the page", what, "name another")
    if data is not None and html is None:
        raise InputError("--data", "none without --html", repr(data), "leave it out")
    endings = _parse_formats(formats)
    columns = None if radii is None else parse_epsilons("--radii", radii)
    if html is not None:
        from pyrobust.cli.parsing import input_paths
        from pyrobust.report.page.render import BEGINS

        inputs = [*logs, *([] if data is None else input_paths(data, None))]
        # In a folder that is yet to be created for the tables, no page can exist.
        if out is None or out.exists() or html.parent.resolve() != out.resolve():
            check_outputs([("--html", html)], inputs=inputs, replace=overwrite, begins={"--html": BEGINS})
    from pyrobust.threats import is_verdicts

    judged = [path for path in logs if reader is None and is_verdicts(path)]
    if judged and len(judged) < len(logs):
        other = next(path for path in logs if path not in judged)
        raise InputError(
            "LOG",
            "files of one kind",
            f"{str(judged[0])!r} with verdicts on threats and {str(other)!r} without",
            "report them in two calls",
        )
    exclusive = {
        "--by": by,
        "--behaviour": behaviour,
        "--judge": judge,
        "--k": k,
        "--budget": budget,
        "--threshold": threshold,
    }
    sweeps = {"--radii": radii, "--n": n, "--alpha": alpha, "--sigma": sigma, "--data": data}
    for name, value in (sweeps if judged else exclusive | {"--invert": invert or None}).items():
        if value is not None:
            wanted = "none with verdicts on threats" if judged else "none without verdicts on threats"
            raise InputError(name, wanted, repr(value), "leave it out")
    if judged:
        verdicts = _read_threats(logs, threshold=threshold, invert=invert, judge=judge, behaviour=behaviour)
        options = _table_options(verdicts, by, judge, k, budget)
        if out is not None:
            files = _compare_threats(verdicts, options, endings, figures_needed=formats is not None)
            _write(out, files, logs, overwrite)
            _name_files(out, files)
        if html is not None:
            _write_threat_page(html, verdicts, options)
        return
    from pyrobust.report.robustness_table import bounds_robustness
    from pyrobust.runs.merge import group_shards, merge_shards
    from pyrobust.runs.reader import is_run

    groups, own_reader = group_shards(logs), load_reader(reader)
    runs = {i: merge_shards(paths) for i, paths in enumerate(groups) if is_run(paths[0])}

    def read(i: int) -> CertificationLog:
        return read_shards(groups[i], n=n, alpha=alpha, sigma=sigma, reader=own_reader)

    from pyrobust.auditing.certification_log import read_shards

    if out is not None:
        kinds = {i: run.header.type for i, run in runs.items()}
        sandwiches = [i for i, kind in kinds.items() if kind.certified == "lower"]
        attacks = [i for i, kind in kinds.items() if kind.attacked and i not in sandwiches]
        # Verifications are also compared with attacks.
        bounds = [run for run in runs.values() if attacks and bounds_robustness(run)]
        others = [i for i, kind in kinds.items() if not kind.certified and not kind.attacked]
        shown = (*attacks, *sandwiches, *others)
        certified = [_examined(read(i)) for i in range(len(groups)) if i not in shown]
        both = [runs[i] for i in sandwiches]
        _compare(
            certified,
            bounds,
            both,
            [runs[i] for i in others],
            columns,
            out=out,
            endings=endings,
            logs=logs,
            overwrite=overwrite,
            figures_needed=formats is not None,
        )
    if html is not None:
        from pyrobust.report.page import page_html
        from pyrobust.zoo import load_data
        from pyrobust.zoo.files import write_atomically

        as_runs = [i for i, run in runs.items() if run.header.type.certified != "radius"]
        results = [runs[i] if i in as_runs else read(i) for i in range(len(groups))]
        images = None if data is None else load_data(data)
        write_atomically(html, page_html(results, data=images, radii=columns or ()).encode())
        note(f"page: {describe_path(html)}")


def _compare(
    certified: list[CertificationLog],
    bounds: list[Run],
    sandwiches: list[Run],
    others: list[Run],
    columns: list[float] | None,
    *,
    out: Path,
    endings: list[str],
    logs: list[Path],
    overwrite: bool,
    figures_needed: bool,
) -> None:
    """Print tables of certifications and of runs that bound robust accuracy; write these tables and their figures."""
    from rich.console import Console

    from pyrobust.report import comparison_table, format_table, robustness_table, sandwich_table
    from pyrobust.report.table import table_of

    norms = list(dict.fromkeys(log.norm for log in certified))
    # Radii of different norms are not comparable: each norm has its table and figures.
    suffixes = {norm: f"_{_in_names(norm)}" if len(norms) > 1 else "" for norm in norms}
    tables = {
        f"table{suffix}": comparison_table([log for log in certified if log.norm == norm], columns)
        for norm, suffix in suffixes.items()
    }
    if bounds:
        tables["robustness"] = robustness_table(bounds)
    for number, run in enumerate(sandwiches, 1):
        tables[f"sandwich_{number}" if len(sandwiches) > 1 else "sandwich"] = sandwich_table(run, columns)
    for number, run in enumerate(others, 1):
        tables[f"{run.kind}_{number}" if len(others) > 1 else run.kind] = table_of(run)
    files = {
        f"{name}.{form}": format_table(table, form).encode()
        for name, table in tables.items()
        for form in TABLES
        if form in endings
    }
    try:
        files |= _figures(certified, suffixes, bounds, [form for form in FIGURES if form in endings])
    except MissingExtraError as error:
        if figures_needed:
            raise
        note(f"no figures: {error}")
    _write(out, files, logs, overwrite)
    for table in tables.values():
        Console().print(table)
    for log in certified:
        if log.findings:
            count = "1 fault" if len(log.findings) == 1 else f"{len(log.findings)} faults"
            note(f"{describe_path(log.path)}: {count}; run pyrobust audit for details")
    _name_files(out, files)


def _in_names(norm: str) -> str:
    """Return a norm as text for a file name."""
    return re.sub(r"[^\w.]+", "-", norm).strip("-")


def _name_files(out: Path, files: Iterable[str]) -> None:
    for name in files:
        note(f"{name.partition('.')[0].replace('_', ' ')}: {describe_path(out / name)}")


def _parse_formats(text: str | None) -> list[str]:
    """Parse file endings, separated by commas.

    >>> _parse_formats("png,tex")
    ['png', 'tex']
    """
    choices = [*FIGURES, *TABLES]
    formats = choices if text is None else [piece.strip().lower() for piece in text.split(",")]
    for form in formats:
        if form not in choices:
            raise InputError("--formats", f"formats from {','.join(choices)}", repr(form))
    return formats


def _examined(log: CertificationLog) -> CertificationLog:
    """Return the log with the faults that an audit finds, and without an n or alpha that the audit doubts."""
    from pyrobust.evaluation import audit

    result = audit(log)
    return replace(log, findings=tuple(result.faults), n=result.counted.n, alpha=result.counted.alpha)


def _figures(
    logs: list[CertificationLog], suffixes: dict[str, str], bounds: list[Run], forms: list[str]
) -> dict[str, bytes]:
    from pyrobust.auditing.votes import survival_of
    from pyrobust.report.axes import LineStyles
    from pyrobust.report.figures import certified_accuracy_frame, robust_accuracy_frame, survival_frame

    if not forms:
        return {}
    styles = LineStyles()
    frames = {}
    for norm, suffix in suffixes.items():
        chosen = [log for log in logs if log.norm == norm]
        frames[f"certified_accuracy{suffix}"] = certified_accuracy_frame(chosen, styles=styles)
        voted = [log for log in chosen if survival_of(log) is not None]
        if voted:
            frames[f"survival{suffix}"] = survival_frame(voted, styles=styles)
    voted = [log for log in logs if survival_of(log) is not None]
    if len(voted) < len(logs):
        note(f"survival: {len(voted)} of {len(logs)} logs; no votes follow from the others (see the table's notes)")
    from pyrobust.runs.kinds.words import norm_of

    attacked = dict.fromkeys(norm_of(run.parameters) for run in bounds)
    for norm in attacked:
        name = f"robust_accuracy_{_in_names(norm)}" if len(attacked) > 1 else "robust_accuracy"
        frames[name] = robust_accuracy_frame([run for run in bounds if norm_of(run.parameters) == norm], styles=styles)
    return {f"{name}.{form}": frame.render(form) for name, frame in frames.items() for form in forms}


def _write(out: Path, files: dict[str, bytes], logs: list[Path], overwrite: bool) -> None:
    """Write all files, or none if one cannot be written."""
    from pyrobust.zoo.files import check_output, write_together

    for name in files:
        check_output("--out", out / name, inputs=logs, replace=overwrite)
    write_together(out, files)


def _read_threats(
    files: Sequence[Path], *, threshold: float | None, invert: bool, judge: str | None, behaviour: str | None
) -> ThreatVerdicts:
    """Read files of verdicts and join them; a file may be named only once."""
    from pyrobust.threats import join_verdicts, read_verdicts
    from pyrobust.threats.units import judge_named, judges_of

    real = [path.resolve() for path in files]
    again = next((path for i, path in enumerate(files) if real[i] in real[:i]), None)
    if again is not None:
        raise InputError("VERDICTS", "each file once", f"{str(again)!r} twice")
    options: dict[str, Any] = {"threshold": threshold, "invert": invert, "behaviour": behaviour}
    verdicts = join_verdicts([read_verdicts(path, **options) for path in files])
    if judge is not None:
        judge_named(judge, judges_of(verdicts), "--judge")
    return verdicts


def _table_options(
    verdicts: ThreatVerdicts, by: str | None, judge: str | None, k: int | None, budget: int | None
) -> dict[str, Any]:
    """Return the keyword arguments of `threat_tables` that the command's options set."""
    names = None if by is None else [name.strip() for name in by.split(",")]
    for name in names or ():
        if name not in verdicts.names:
            raise InputError("--by", f"columns from {', '.join(verdicts.names)}", repr(name))
    return {"by": names, "judge": judge, "k": k, "budget": budget}


def _compare_threats(
    verdicts: ThreatVerdicts, options: dict[str, Any], endings: Sequence[str], *, figures_needed: bool
) -> dict[str, bytes]:
    """Print the tables of verdicts; return the tables and the figure of the rates as files."""
    from rich.console import Console

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


def _write_threat_page(html: Path, verdicts: ThreatVerdicts, options: dict[str, Any]) -> None:
    """Write the page of verdicts."""
    from pyrobust.report.page import threat_page_html
    from pyrobust.zoo.files import write_atomically

    write_atomically(html, threat_page_html(verdicts, **options).encode())
    note(f"page: {describe_path(html)}")
