"""``pyrobust plan``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrobust.cli.parsing import parse_counts, parse_epsilons, positive_number, real_number, whole_number
from pyrobust.cli.shell import describe_path, note, reports_errors
from pyrobust.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pyrobust.evaluation import CertificationLog, Run
    from pyrobust.metrics import SweepTime
    from pyrobust.report import ReportTable
    from pyrobust.smoothing import Plan


@dataclass(frozen=True)
class _Pilot:
    """Seconds per image in a pilot: one value for each image, or for each chunk that was timed as a whole."""

    seconds: npt.NDArray[np.float64]
    images: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Sweep:
    """A planned sweep; None stands for the size of the pilot's data set, or for the sweep's default chunk size."""

    workers: list[int]
    images: int | None
    chunk: int | None

    def times(self, seconds: npt.NDArray[np.float64], pilot: _Pilot, chunk: int) -> list[SweepTime]:
        from pyrobust.metrics import sweep_time

        images, chunk = self.images or pilot.images, self.chunk or chunk
        return [sweep_time(seconds, images, workers, chunk) for workers in self.workers]


@reports_errors
def plan(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG...",
            help="Small pilot runs, their shards, or certification logs of any program.",
        ),
    ],
    radii: Annotated[
        str | None,
        typer.Option(
            metavar="R[,R...]",
            help="Radii to certify. Default: quarters up to the largest, round numbers if it is below 0.75.",
        ),
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
    workers: Annotated[
        str | None,
        typer.Option(metavar="N[,N...]", help="Predict the time on N workers. Required for runs without votes."),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(parser=positive_number, metavar="M", help="Images of the sweep. Default: the pilot's data set."),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            parser=positive_number, metavar="C", help="Images in a chunk. Default: the sweep's. Of K shards: M / K."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Estimate the cost, the time and the yield of a sweep before running it.

    From the radii of a certification, recovers the probability of each image's top class, and with these probabilities
    simulates three sampling methods: a fixed n, a confidence sequence, and the hybrid of both. For each method, prints
    the number of samples, the shares of certified and undecided images and the exact error probability; then recommends
    a method. With --workers, also prints the wall time and the worker-hours of the sweep. They are computed from the
    time that the pilot took for its images, and can be computed for runs of every kind. Each log gets its own plan; the
    shards of one sweep get a single plan.

    Example: pyrobust plan cohen_sigma0.25.tsv --radii 0.25,0.5

    Example: pyrobust plan pilot.db --workers 1,8,64 --images 50000
    """
    from rich.console import Console

    from pyrobust.evaluation.certify import default_chunk
    from pyrobust.report import plan_table, time_table
    from pyrobust.runs.merge import group_shards

    sweep = None if workers is None else _Sweep(parse_counts("--workers", workers), images, chunk)
    for name, value in (("images", images), ("chunk", chunk)):
        if value is not None and sweep is None:
            raise InputError(f"--{name}", "together with --workers", f"{value:,}", "pass --workers N")
    entries: list[dict[str, Any]] = []
    tables: list[tuple[str, ReportTable]] = []
    groups = group_shards(logs)
    for paths in groups:
        entry: dict[str, Any] = {"path": str(paths[0])} if len(groups) > 1 else {}
        run = _run_without_votes(paths)
        if run is None:
            read, comparison = _compare(paths, radii, n_max, n0, alpha=alpha, hybrid=hybrid, n=n, sigma=sigma)
            tables.append((read.name, plan_table(comparison, budget)))
            covered = {} if budget is None else {"budget": budget, "images_for_budget": comparison.images_for(budget)}
            entry |= comparison.to_dict() | covered
            name, pilot = read.name, _pilot_of_log(read, paths) if sweep is not None else None
            times = {} if sweep is None or pilot is None else _times_of_methods(sweep, pilot, comparison, read)
        else:
            if sweep is None:
                got = (
                    "a sequential one, whose sampling stops once its radii are decided"
                    if run.kind == "certify"
                    else run.kind
                )
                raise InputError(
                    describe_path(paths[0]),
                    "a run with a fixed n",
                    got,
                    "certify a few hundred images with --method fixed, or pass --workers N to plan the time alone",
                )
            name, pilot = paths[0].stem, _pilot_of_runs(paths)
            entry |= {"kind": run.kind}
            # Sequential runs of earlier versions have no chunks.
            size = run.parameters.get("chunk") or default_chunk(run.parameters["batch_size"], None)
            times = {run.kind: sweep.times(pilot.seconds, pilot, size)}
        if pilot is not None:
            entry["time"] = {method: [time.to_dict() for time in sweeps] for method, sweeps in times.items()}
            entry["pilot"] = list(pilot.notes)
            tables.append((name, time_table(times, pilot.notes)))
        entries.append(entry)
    if as_json:
        typer.echo(json.dumps(entries[0] if len(entries) == 1 else entries, indent=1, allow_nan=False))
        return
    for name, table in tables:
        Console().print(table if len(groups) == 1 else replace(table, title=f"{name}: {table.title}"))


def _compare(
    paths: Sequence[Path],
    radii: str | None,
    n_max: int,
    n0: int,
    alpha: float,
    hybrid: float,
    n: int | None,
    sigma: float | None,
) -> tuple[CertificationLog, Plan]:
    """Read a log, or the shards of one sweep, and compare the sampling methods for the log's probabilities."""
    from pyrobust.auditing.certification_log import read_shards
    from pyrobust.auditing.votes import votes_of
    from pyrobust.smoothing import pilot_probabilities
    from pyrobust.smoothing import plan as compare

    read = _with_votes(read_shards(paths, n=n, sigma=sigma), {"n": n, "sigma": sigma})
    votes = votes_of(read)
    if votes is None or read.n is None or read.sigma is None:
        problem = f"; pass {'--n' if read.sigma is not None and read.n is None else '--sigma'}"
        if read.judgement is not None and not read.judgement.holds:
            problem = f", but its radii contradict {read.judgement.assumed.parameters}: see pyrobust audit"
        raise InputError(
            describe_path(read.path),
            f"a log from which votes follow{problem}, or plan from a run of certify with a fixed n",
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
    return read, comparison


def _run_without_votes(paths: Sequence[Path]) -> Run | None:
    """Return the run of the first file; None for a text log or a run with votes, which can plan the sampling, too."""
    from pyrobust.runs.kinds.certify import Certify
    from pyrobust.runs.reader import is_run
    from pyrobust.runs.run import Run

    run = Run(paths[0]) if is_run(paths[0]) else None
    return None if run is None or type(run.header.type) is Certify else run


def _pilot_of_runs(paths: Sequence[Path]) -> _Pilot:
    """Return the times of a run's shards by chunk; leave out the first chunk of a shard that has several chunks."""
    import numpy as np

    from pyrobust.runs.parameters import processing_order
    from pyrobust.runs.run import Run

    units, warm_up, images = [], [], 0
    for path in paths:
        run = Run(path)
        # A sequential image has its own share of the batches; other images get the mean of their chunk.
        alone = bool(run.header.type.pending)
        timed = 1 if alone else run.parameters["chunk"]
        position = {index: i for i, index in enumerate(processing_order(run.parameters))}
        in_order = np.argsort([position[index] for index in run.table["index"].tolist()])
        means = run.table["seconds"][in_order][::timed]
        if not alone and len(means) > 1:
            warm_up.append(means[0] / max(float(np.median(means[1:])), 1e-12))
            means = means[1:]
        units.append(means)
        images += len(run)
    seconds = np.concatenate(units)
    if not len(seconds):
        raise InputError(describe_path(paths[0]), problem="run is empty", hint="resume it first")
    parameters, identity = run.parameters, run.header.identity
    machine = parameters["device"] if identity is None else identity.machine
    notes = (
        f"Pilot: {images:,} images, {seconds.mean():.3g} s each, on {machine}, batch size {parameters['batch_size']}."
    )
    if len(seconds) == 1:
        notes += " Timed as one chunk, without a standard error; pilot several chunks."
    elif warm_up:
        notes += f" Its first chunk, left out, took {np.mean(warm_up):.2f} times the median of the others."
    return _Pilot(seconds, parameters["images"], (notes,))


def _pilot_of_log(log: CertificationLog, paths: Sequence[Path]) -> _Pilot:
    """Return the times of a certification log's images."""
    if log.run is not None:
        return _pilot_of_runs(paths)
    if log.seconds is None:
        raise InputError(
            "--workers", f"times, but {describe_path(log.path)} has none", hint="give a log with a column time"
        )
    return _Pilot(log.seconds, len(log), (f"Pilot: {len(log):,} images, {log.seconds.mean():.3g} s each.",))


def _times_of_methods(
    sweep: _Sweep, pilot: _Pilot, comparison: Plan, log: CertificationLog
) -> dict[str, list[SweepTime]]:
    """Estimate the time of each sampling method from the pilot's seconds per sample."""
    from pyrobust.evaluation.certify import default_chunk

    assert log.n is not None
    parameters = {} if log.header is None else log.header.parameters
    drawn = log.n + parameters.get("n0", comparison.n0)
    per_sample, batch = pilot.seconds / drawn, parameters.get("batch_size", 1)
    times = {}
    for method in comparison.methods:
        if method.name == "fixed":
            chunk = default_chunk(batch, comparison.n0 + comparison.n_max)
            times["fixed"] = sweep.times(per_sample * method.samples, pilot, chunk)
        else:
            chunk = default_chunk(batch, None)
            times[method.name] = sweep.times(per_sample.mean() * method.simulated.mean(axis=0), pilot, chunk)
    return times


def _with_votes(log: CertificationLog, stored: dict[str, float | None]) -> CertificationLog:
    """Return the log with the n, alpha and sigma that explain its radii; raise InputError for a sequential run."""
    if log.sampled_by_votes:
        raise InputError(
            describe_path(log.path),
            "a run with a fixed n",
            "a sequential one, whose sampling stops once its radii are decided",
            "certify a few hundred images with --method fixed",
        )
    for name, value in stored.items():
        if value is not None and log.header is not None and value != getattr(log, name):
            raise InputError(
                f"--{name}",
                f"none for {describe_path(log.path)}, which states {getattr(log, name):,}",
                f"{value:,}",
                "leave it out",
            )
    if log.judgement is None or log.judgement.holds:
        return log
    fitting = log.judgement.explanations
    usual = [fit.parameters for fit in fitting if not fit.parameters.formula.name]
    if not usual:
        return log  # votes of another formula are unknown
    more = f"; {len(fitting) - 1:,} more fit, which pyrobust audit lists" if len(fitting) > 1 else ""
    assumed = log.judgement.assumed.parameters
    note(f"{describe_path(log.path)}: made with {usual[0]}, not {assumed}; the plan uses these{more}")
    return replace(log, n=usual[0].n, alpha=usual[0].alpha, sigma=usual[0].sigma)


def _radii(text: str | None, log: CertificationLog) -> list[float]:
    from pyrobust.metrics.radii import usual_radii

    if text is not None:
        return parse_epsilons("--radii", text)
    # Radius 0 decides only about abstention, which the samples of the other radii show.
    radii = [radius for radius in usual_radii(float(log.radius.max())) if radius > 0]
    if not radii:
        raise InputError(describe_path(log.path), "a certified radius above 0", "none", "pass --radii")
    return radii
