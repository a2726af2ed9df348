"""``pyrobust plan``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyrobust.cli.attack_options import parse_epsilon
from pyrobust.cli.shell import describe_path, note, reports_errors
from pyrobust.errors import InputError

if TYPE_CHECKING:
    from pyrobust.evaluation import CertificationLog


@reports_errors
def plan(
    log: Annotated[
        Path,
        typer.Argument(metavar="LOG", help="A run of certify, a small pilot for instance, or any program's log."),
    ],
    radii: Annotated[
        str | None, typer.Option(metavar="R[,R...]", help="To be certified. Default: quarters up to the largest.")
    ] = None,
    n_max: Annotated[int, typer.Option("--n-max", metavar="N", help="Most samples of an image.")] = 100_000,
    n0: Annotated[int, typer.Option("--n0", metavar="N", help="Samples that select its class.")] = 100,
    alpha: Annotated[float, typer.Option(metavar="A", help="Probability that a certificate is wrong.")] = 0.001,
    hybrid: Annotated[
        float, typer.Option(metavar="SHARE", help="Of alpha, for the hybrid's bound at the last sample.")
    ] = 0.5,
    budget: Annotated[
        float | None, typer.Option(metavar="SAMPLES", help="In all; says how many images they pay for.")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(metavar="S", help="Of a log as text. Default: what the file's name says.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Say what a certification will cost and find, before it is run.

    Takes the probabilities behind a pilot's radii and simulates three ways of sampling: a fixed n, a confidence
    sequence, and the hybrid of both. Prints samples, certified and undecided shares and the exact error, and
    recommends one.

    Example: pyrobust plan cohen_sigma0.25.tsv --radii 0.25,0.5
    """
    from rich.console import Console

    from pyrobust.auditing.votes import votes_of
    from pyrobust.evaluation import read_certification_log
    from pyrobust.report import plan_table, rich_table
    from pyrobust.smoothing import pilot_probabilities
    from pyrobust.smoothing import plan as compare

    read = read_certification_log(log, sigma=sigma)
    if read.header is not None and read.header.parameters.get("method") == "sequential":
        raise InputError(
            f"{describe_path(log)}: expected a run with a fixed n, got a sequential one, whose samples end where its "
            "radii are decided; make a pilot without --method, of a few hundred images"
        )
    votes = votes_of(read)
    if votes is None or read.n is None or read.sigma is None:
        raise InputError(
            f"{describe_path(log)}: expected a log that tells votes; give --sigma, or a run of certify with a fixed n"
        )
    if sigma is not None and sigma != read.sigma:
        raise InputError(
            f"--sigma: expected none, for {describe_path(log)} says its own, {read.sigma:g}; got {sigma:g}"
        )
    made = compare(
        pilot_probabilities(votes[0], read.n),
        read.sigma,
        _radii(radii, read),
        n_max=n_max,
        n0=n0,
        alpha=alpha,
        hybrid=hybrid,
        noise=read.noise,
        norm=read.norm,
    )
    if read.header is not None:
        note(
            f"the pilot drew the noise of seed {read.header.parameters['seed']}: certify with another --seed, for "
            "samples that chose the method cannot prove by it"
        )
    table = plan_table(made, budget)
    if as_json:
        images = {} if budget is None else {"budget": budget, "images_for_budget": made.images_for(budget)}
        typer.echo(json.dumps(made.to_dict() | images, indent=1, allow_nan=False))
    else:
        Console().print(rich_table(table))


def _radii(text: str | None, log: CertificationLog) -> list[float]:
    from pyrobust.metrics.radii import usual_radii

    if text is not None:
        return [parse_epsilon("--radii", part) for part in text.split(",")]
    # At radius 0 nothing is decided but whether it abstains, which the samples of the other radii tell.
    found = [radius for radius in usual_radii(float(log.radius.max())) if radius > 0]
    if not found:
        raise InputError(f"{describe_path(log.path)}: it certifies no radius above 0; give --radii")
    return found
