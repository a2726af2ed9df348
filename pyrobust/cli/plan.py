"""``pyrobust plan``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyrobust.cli.parsing import parse_epsilons, real_number, whole_number
from pyrobust.cli.shell import describe_path, note, reports_errors
from pyrobust.errors import InputError

if TYPE_CHECKING:
    from pyrobust.evaluation import CertificationLog


@reports_errors
def plan(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG...", help="Runs of certify, such as a small pilot, its shards, or logs of any program."
        ),
    ],
    radii: Annotated[
        str | None, typer.Option(metavar="R[,R...]", help="Radii to certify. Default: quarters up to the largest.")
    ] = None,
    n_max: Annotated[
        int, typer.Option("--n-max", parser=whole_number, metavar="N", help="Maximum samples per image.")
    ] = 100_000,
    n0: Annotated[
        int, typer.Option("--n0", parser=whole_number, metavar="N", help="Samples per image to select the class.")
    ] = 100,
    alpha: Annotated[
        float, typer.Option(parser=real_number, metavar="A", help="Highest probability that a certificate is wrong.")
    ] = 0.001,
    hybrid: Annotated[
        float,
        typer.Option(
            parser=real_number, metavar="SHARE", help="Share of alpha for the hybrid's bound at the last sample."
        ),
    ] = 0.5,
    budget: Annotated[
        float | None,
        typer.Option(
            parser=real_number, metavar="SAMPLES", help="Total samples: print how many images they suffice for."
        ),
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", metavar="N", help="Samples per image in text logs. Default: 100000.")
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            parser=real_number,
            metavar="S",
            help="Standard deviation of the noise of a text log. Default: from the file name.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Estimate the cost and the yield of a certification before running it.

    Recovers the probabilities behind a pilot's radii and simulates three sampling methods: a fixed n, a confidence
    sequence, and the hybrid of both. Prints samples, certified and undecided shares and the exact error, and
    recommends a method. Several logs give a plan each, the shards of one sweep a single one.

    Example: pyrobust plan cohen_sigma0.25.tsv --radii 0.25,0.5
    """
    from rich.console import Console

    from pyrobust.auditing.certification_log import read_certification_logs
    from pyrobust.auditing.votes import votes_of
    from pyrobust.report import plan_table
    from pyrobust.smoothing import pilot_probabilities
    from pyrobust.smoothing import plan as compare

    plans = []
    for pilot in read_certification_logs(logs, n=n, sigma=sigma):
        read = _with_votes(pilot, {"n": n, "sigma": sigma})
        votes = votes_of(read)
        if votes is None or read.n is None or read.sigma is None:
            option = "--n" if read.sigma is not None and read.n is None else "--sigma"
            raise InputError(
                f"{describe_path(read.path)}: expected a log from which votes follow; pass {option}, or a run of "
                "certify with a fixed n"
            )
        comparison = compare(
            pilot_probabilities(votes[0], read.n),
            read.sigma,
            _radii(radii, read),
            n_max=n_max,
            n0=n0,
            alpha=alpha,
            hybrid=hybrid,
            noise=read.noise,
            norm=read.norm,
            pilot_n=read.n,
        )
        if read.header is not None:
            note(
                f"the pilot drew the noise of seed {read.header.parameters['seed']}: certify with another --seed, "
                "because samples that chose the method cannot also prove with it"
            )
        plans.append((read, comparison, plan_table(comparison, budget)))
    if as_json:
        entries = []
        for read, comparison, _ in plans:
            images = {} if budget is None else {"budget": budget, "images_for_budget": comparison.images_for(budget)}
            entries.append(({"path": str(read.path)} if len(plans) > 1 else {}) | comparison.to_dict() | images)
        typer.echo(json.dumps(entries[0] if len(entries) == 1 else entries, indent=1, allow_nan=False))
        return
    for read, _, table in plans:
        if len(plans) > 1:
            table = replace(table, title=f"{read.name}: {table.title}")
        Console().print(table)


def _with_votes(log: CertificationLog, given: dict[str, float | None]) -> CertificationLog:
    """Return a log with the n, alpha and sigma that its radii were made with; refuse those that give no votes."""
    if log.header is not None and log.header.parameters.get("method") == "sequential":
        raise InputError(
            f"{describe_path(log.path)}: expected a run with a fixed n, got a sequential one, whose sampling stops "
            "once its radii are decided; certify a few hundred images with --method fixed"
        )
    for name, value in given.items():
        if value is not None and log.header is not None and value != getattr(log, name):
            raise InputError(
                f"--{name}: expected none for {describe_path(log.path)}, which states {getattr(log, name):,}, got "
                f"{value:,}; leave it out"
            )
    if log.judgement is None or log.judgement.better is None:
        return log
    better = log.judgement.better
    note(f"{describe_path(log.path)}: made with {better}, not {log.judgement.assumed}; the plan uses these")
    return replace(log, n=better.n, alpha=better.alpha, sigma=better.sigma)


def _radii(text: str | None, log: CertificationLog) -> list[float]:
    from pyrobust.metrics.radii import usual_radii

    if text is not None:
        return parse_epsilons("--radii", text)
    # Radius 0 decides abstention alone, which the samples of the other radii show.
    radii = [radius for radius in usual_radii(float(log.radius.max())) if radius > 0]
    if not radii:
        raise InputError(f"{describe_path(log.path)}: expected a certified radius above 0, got none; pass --radii")
    return radii
