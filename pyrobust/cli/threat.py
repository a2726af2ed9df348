"""``pyrobust threat``."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrobust.cli.options import Devices, Json, On, Replace
from pyrobust.cli.parsing import positive_number, real_number, whole_number
from pyrobust.cli.shell import INTERRUPTED_STATUS, check_outputs, describe_path, note, reports_errors, show_progress
from pyrobust.cli.sweep import announcing_resumption, check_json, executor_of, naming_executor, run_name, write_json
from pyrobust.errors import FileFormatError, InputError, ModelError

if TYPE_CHECKING:
    from pyrobust.threats import ThreatVerdicts
    from pyrobust.threats.running.evaluate import Report
    from pyrobust.threats.running.judges import Judge

_MODEL_PANEL = "Model and prompts"
_JUDGE_PANEL = "Judge"
_BUDGET_PANEL = "Budget and rates"
_RUN_PANEL = "Run"
_SECONDS = {"s": 1, "min": 60, "h": 3600}
_RULES = ("contains", "regex", "refusal", "exact", "match")


@reports_errors
def threat(
    judge: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Judge: refusal, contains[:TEXT], regex:PATTERN, exact or match (of the column target); your own "
            "FILE.py:function of prompt and answer; or a model, as in --model, with --judge-template.",
            rich_help_panel=_JUDGE_PANEL,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Model: endpoint:NAME@URL (OpenAI-compatible), transformers:FOLDER, or your own FILE.py:function. "
            "Without it, the judge judges the answers of the run again.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prompts: CSV or JSON Lines with a column prompt and, if wanted, id, behaviour, group, category, "
            "target and threat.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = None,
    threat: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Kind of threat of prompts that name none: jailbreak, prompt-injection, factuality, refusal, targeted "
            "or another. Default: jailbreak.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = None,
    attempts: Annotated[
        int,
        typer.Option(
            parser=positive_number, metavar="K", help="Attempts at each prompt.", rich_help_panel=_MODEL_PANEL
        ),
    ] = 1,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System prompt.", rich_help_panel=_MODEL_PANEL)
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            parser=real_number, metavar="T", help="Sampling temperature. Default: 0.", rich_help_panel=_MODEL_PANEL
        ),
    ] = None,
    answer_tokens: Annotated[
        int | None,
        typer.Option(
            parser=positive_number,
            metavar="N",
            help="Most tokens of an answer. Default: 256.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Seed of the sampling, where the model takes one.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            parser=real_number,
            metavar="S",
            help="Seconds until a call of an endpoint is given up. Default: 120.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = None,
    judge_template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Question to a judging model, with {answer} and, if wanted, {prompt}, {behaviour} and {target}.",
            rich_help_panel=_JUDGE_PANEL,
        ),
    ] = None,
    judge_words: Annotated[
        str,
        typer.Option(
            metavar="YES,NO",
            help="Replies of a judging model if the threat succeeded, and if it failed; others are unparsable.",
            rich_help_panel=_JUDGE_PANEL,
        ),
    ] = "yes,no",
    max_calls: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Most calls of the run, over all its starts, those of a judging model and retries included.",
            rich_help_panel=_BUDGET_PANEL,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Most tokens of the run, over all its starts; lost calls count with the most that they could take.",
            rich_help_panel=_BUDGET_PANEL,
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(parser=positive_number, metavar="N", help="Calls at once.", rich_help_panel=_BUDGET_PANEL),
    ] = 8,
    rate: Annotated[
        str | None,
        typer.Option(metavar="N/min", help="Calls per s, min or h at most.", rich_help_panel=_BUDGET_PANEL),
    ] = None,
    token_rate: Annotated[
        str | None,
        typer.Option(metavar="N/min", help="Tokens per s, min or h at most.", rich_help_panel=_BUDGET_PANEL),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Further tries of a call whose error may pass.",
            rich_help_panel=_BUDGET_PANEL,
        ),
    ] = 5,
    retry_errors: Annotated[
        bool,
        typer.Option("--retry-errors", help="Try again what failed in earlier starts.", rich_help_panel=_BUDGET_PANEL),
    ] = False,
    on: On = None,
    devices: Devices = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of answers that several runs share.", rich_help_panel=_RUN_PANEL),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what the run may cost; send nothing.", rich_help_panel=_RUN_PANEL),
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COL[,COL]",
            help="Columns to group the rates by: group, category, ... Default: group.",
            rich_help_panel=_RUN_PANEL,
        ),
    ] = None,
    verdicts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Export the verdicts: .jsonl, or .parquet.", rich_help_panel=_RUN_PANEL),
    ] = None,
    json_file: Json = None,
    replace: Replace = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Run file; an existing run is resumed. Default: named after model and prompts.",
            rich_help_panel=_RUN_PANEL,
        ),
    ] = None,
) -> None:
    """Send prompts to a model, judge its answers, and print success rates with their intervals.

    Every call is in the run before it is sent, and every answer is kept: after a crash, a kill or Ctrl-C, run the same
    command again to resume. Nothing answered is asked again, and the budget holds over all starts.

    With --judge and --out alone, another judge judges the answers of a run.

    --on and --devices are for transformers models and functions: each worker holds its own. Endpoints compute on their
    servers; --concurrency says how many calls they get at once.

    Example: pyrobust threat --model endpoint:llama3@http://localhost:8000/v1 --prompts prompts.csv --judge refusal
    """
    from pyrobust.threats import CallLimits, Threat, evaluate_threat, rejudge_threat
    from pyrobust.threats.files import BEGIN
    from pyrobust.threats.models import text_model
    from pyrobust.threats.running import threat_cost
    from pyrobust.threats.verdicts import COLUMNS

    if (model is None) != (prompts is None) or (model is None and out is None):
        given = [name for name, value in (("--model", model), ("--prompts", prompts), ("--out", out)) if value]
        raise InputError(
            f"--model: expected --model and --prompts, or --out RUN without both to judge its answers again, got "
            f"{' and '.join(given) or 'none of them'}"
        )
    columns = None if by is None else [name.strip() for name in by.split(",")]
    for name in columns or ():
        if name not in COLUMNS:
            raise InputError(f"--by: expected columns from {', '.join(COLUMNS)}, got {name!r}")
    limits = CallLimits(
        max_calls=max_calls,
        max_tokens=max_tokens,
        concurrency=concurrency,
        calls_per_minute=parse_rate("--rate", rate),
        tokens_per_minute=parse_rate("--token-rate", token_rate),
        retries=retries,
    )
    inputs = [path for path in (prompts, judge_template, cache) if path is not None]
    judging = load_judge(judge, judge_template, judge_words, timeout)
    executor, _ = executor_of(on, devices, None)
    options: dict[str, Any] = {"cache": cache, "limits": limits, "retry_errors": retry_errors, "executor": executor}
    if model is None or prompts is None:
        settings = {"--threat": threat, "--system": system, "--temperature": temperature, "--seed": seed}
        settings |= {"--attempts": None if attempts == 1 else attempts, "--answer-tokens": answer_tokens}
        for name, value in (settings | {"--dry-run": dry_run or None}).items():
            if value is not None:
                raise InputError(f"{name}: expected none without --model, got {value!r}; leave it out")
        assert out is not None
        path = out
    else:
        asked = text_model(
            model,
            system=system,
            temperature=temperature,
            max_tokens=answer_tokens,
            seed=seed,
            timeout=timeout if model.startswith("endpoint:") else None,
        )
        content = Threat.read(prompts, attempts, threat=threat)
        if content.duplicates:
            again = "1 prompt repeats an earlier one"
            again = again if content.duplicates == 1 else f"{content.duplicates:,} prompts repeat earlier ones"
            note(f"{describe_path(prompts)}: {again} word for word, and counts as further attempts at it")
        if dry_run:
            cost = threat_cost(asked, content, judging)
            typer.echo(f"model: {cost.calls:,} calls, at most {cost.tokens:,} tokens")
            if cost.judge_calls:
                typer.echo(
                    f"judge: {cost.judge_calls:,} calls, at most {cost.judge_tokens:,} tokens and those of the answers"
                )
            typer.echo("retries: each counts as a further call")
            return
        path = out or run_name(["threat", model.partition("@")[0]], None, prompts.stem, [f"k{attempts}"], None)
    check_outputs([("--verdicts", verdicts)], inputs=[*inputs, path], replace=replace, begins={"--verdicts": BEGIN})
    check_json(json_file, [*inputs, path, verdicts], replace)
    with naming_executor(on), _resumable(path) as report:
        if model is None:
            found = rejudge_threat(path, judging, progress=report, **options)
        else:
            found = evaluate_threat(asked, content, judging, out=path, progress=report, **options)
    _show(found, path, columns, json_file)
    if verdicts is not None:
        from pyrobust.threats import write_verdicts

        write_verdicts(found, verdicts, replace=True)
        note(f"verdicts: {describe_path(verdicts)}")


def parse_rate(option: str, text: str | None) -> float | None:
    """Parse a rate, in units per minute.

    >>> parse_rate("--rate", "2/s"), parse_rate("--rate", "90/min")
    (120.0, 90.0)
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)/(s|min|h)", text)
    if match is None or not float(match[1]):
        raise InputError(f"{option}: expected a number per s, min or h, such as 60/min, got {text!r}")
    return float(match[1]) * 60 / _SECONDS[match[2]]


def load_judge(spec: str, template: Path | None, words: str, timeout: float | None) -> Judge:
    """Return the judge that ``--judge`` names: a rule, a function, or a model with its template.

    >>> load_judge("refusal", None, "yes,no", None).name.split()[0]
    'refusal'
    """
    from pyrobust.threats import ModelJudge, rule_judge
    from pyrobust.threats.models import TextModel, text_model
    from pyrobust.threats.models.spec import user_object
    from pyrobust.threats.readers.untrusted import read_bytes
    from pyrobust.threats.running.judges import as_judge

    kind = spec.partition(":")[0]
    if template is not None:
        pair = tuple(word.strip() for word in words.split(","))
        if len(pair) != 2:
            raise InputError(f"--judge-words: expected two words separated by a comma, got {words!r}")
        try:
            text = read_bytes(template).decode()
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{template}: expected text in UTF-8 ({error})") from error
        return ModelJudge(text_model(spec, timeout=timeout if kind == "endpoint" else None), text, (pair[0], pair[1]))
    if kind in _RULES or ":" not in spec:
        return rule_judge(spec)
    found = None if kind in ("endpoint", "transformers") else user_object(spec, "judge")
    if found is None or isinstance(found, TextModel):
        raise InputError(f"--judge: expected a question for the model {spec}, got none; pass --judge-template FILE")
    return as_judge(found)


@contextlib.contextmanager
def _resumable(out: Path) -> Iterator[Report]:
    """Yield the function for the progress; say how to resume when it is interrupted, and exit."""
    from pyrobust.threats.running.evaluate import reporting

    try:
        with reporting(show_progress()) as report:
            yield announcing_resumption(report, describe_path(out))
    except KeyboardInterrupt:
        if not out.is_file():
            note("interrupted before the first call; nothing was saved")
        else:
            from pyrobust.threats import read_threat_run

            run = read_threat_run(out)
            judged = sum(map(len, run.rows[:1]))
            note(f"interrupted; {judged} of {len(run.threat)} verdicts are saved in {describe_path(out)}")
            note(f"resume with: {shlex.join(['pyrobust', *sys.argv[1:]])}")
        raise typer.Exit(INTERRUPTED_STATUS) from None


def _show(verdicts: ThreatVerdicts, path: Path, by: list[str] | None, json_file: str | None) -> None:
    """Print the rates of a run, and write them as JSON."""
    from rich.console import Console

    from pyrobust.report.verdict_tables import grouping, threat_table
    from pyrobust.threats import read_threat_run, threat_success_rate

    names = by or ["group" if len(set(verdicts.column("group"))) > 1 else "threat"]
    run = read_threat_run(path)
    if set(verdicts.column("status")) == {"error"}:
        raise ModelError(
            f"threat: no attempt of {len(verdicts):,} has a verdict; the last error: {run.last_error() or 'unknown'}; "
            "pass --retry-errors to try again"
        )
    Console(stderr=json_file == "-").print(threat_table(verdicts, names))
    note(f"model: {run.header.model}")
    lost = f", {run.ledger.lost:,} of them lost" if run.ledger.lost else ""
    note(f"spent: {run.ledger.calls:,} calls{lost}, {run.ledger.tokens:,} tokens")
    failed = verdicts.column("status").count("error")
    if failed:
        missing = f"{failed:,} of {len(verdicts):,} verdicts"
        note(f"{missing} missing, failed or not judged yet; --retry-errors tries what failed again")
        reason = run.last_error()
        if reason:
            note(f"the last error: {reason}")
    if json_file is not None:
        about = {"kind": "threat", "parameters": run.header.parameters, "model": run.header.model}
        about |= {"data": run.header.data, "data_sha256": run.header.data_sha256, "judges": list(run.judges)}
        spent = {"calls": run.ledger.calls, "tokens": run.ledger.tokens, "lost": run.ledger.lost}
        rates = threat_success_rate(verdicts, grouping(verdicts, names)).to_dict()
        for rate in rates["rates"]:  # NaN where a group has no verdict
            rate |= {name: None for name in ("value", "judged_only") if rate[name] != rate[name]}
        write_json(about | {"spent": spent} | rates, json_file)
    shown = describe_path(path)
    note(f"run: {shown} (report it: {shlex.join(['pyrobust', 'report', shown, '--html', 'page.html'])})")
