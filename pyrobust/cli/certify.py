"""``pyrobust certify``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from pyrobust.cli import options, smoothing_options
from pyrobust.cli.parsing import images_to_read, input_paths, parse_epsilons, parse_shard
from pyrobust.cli.shell import ERROR_STATUS, note, reports_errors
from pyrobust.cli.smoothing_options import Noise, SamplingName
from pyrobust.cli.sweep import (
    check_json,
    executor_of,
    model_name,
    named_file,
    note_guessing,
    resumable,
    run_file,
    run_name,
    show_run,
)
from pyrobust.cli.verify import MethodName
from pyrobust.errors import InputError


class CertifyCommand(TyperCommand):
    """``certify``, which answers options of ``verify`` with the command line of ``verify``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, unless they ask for bound propagation."""
        parent = ctx.parent
        verify = getattr(parent.command, "commands", {}).get("verify") if parent is not None else None
        if parent is not None and verify is not None and not {"-h", "--help"} & set(args):
            refusal = _refuse_bounds(args, self, verify)
            if refusal is not None:
                problem, command = refusal
                debug = ["--debug"] if _typed(parent, "debug") else []
                note(f"error: {problem}: {shlex.join(['pyrobust', *debug, 'verify', *command])}")
                raise typer.Exit(ERROR_STATUS)
        return super().parse_args(ctx, args)


@reports_errors
def certify(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    sigma: smoothing_options.Sigma,
    weights: options.Weights = None,
    num_classes: smoothing_options.NumClasses = None,
    normalize: smoothing_options.Normalize = None,
    noise: smoothing_options.NoiseName = Noise.gaussian,
    grid: smoothing_options.Grid = "auto",
    method: smoothing_options.Sampling = SamplingName.fixed,
    n0: smoothing_options.Selection = 100,
    n: smoothing_options.Samples = 100_000,
    alpha: smoothing_options.Alpha = 0.001,
    radii: smoothing_options.Radii = None,
    hybrid: smoothing_options.Hybrid = None,
    two_class: smoothing_options.TwoClass = False,
    skip: options.Skip = 1,
    max: options.Max = None,
    shard: options.Shard = None,
    order: options.Order = options.OrderName.data,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    on: options.On = None,
    devices: options.Devices = None,
    threads: options.Threads = None,
    dtype: options.DTypeName = None,
    allow_changed_code: options.AllowChangedCode = False,
    json_file: options.Json = None,
    out: options.Out = None,
) -> None:
    """Certify a classifier on a data set by randomized smoothing.

    The certificates hold for the smoothed classifier; to certify the network itself, use pyrobust verify. Results are
    saved as they come: after a crash or Ctrl-C, run the same command again to resume.

    Example: pyrobust certify --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --n 10000

    Example: pyrobust certify --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --method sequential --radii 0.25
    """
    executor, device = executor_of(on, devices, device)
    part = parse_shard(shard)
    check_json(json_file, [*input_paths(data, weights), named_file(out)])
    if method is not SamplingName.sequential:
        for name in ("radii", "hybrid", "two_class"):
            if _typed(context, name):
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option}: expected none with --method fixed; add --method sequential")
    elif radii is None:
        raise InputError("--radii: expected radii to decide with --method sequential, such as 0.25,0.5, got none")
    targets = None if radii is None else parse_epsilons("--radii", radii)
    smoother, images = smoothing_options.load_smoother(
        model=model,
        weights=weights,
        data=data,
        most=images_to_read(skip, max),
        num_classes=num_classes,
        normalize=normalize,
        sigma=sigma,
        noise=noise,
        grid=grid,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    from pyrobust.evaluation import certify_dataset

    sampling = [*_sequential_name(targets, hybrid, two_class), f"n{n}"]
    path = run_file(out, run_name(["certify", model], weights, data, [f"sigma{sigma:g}", *sampling], part))
    with resumable(path, shard, out) as progress:
        run = certify_dataset(
            smoother,
            images,
            out=path,
            n0=n0,
            n=n,
            alpha=alpha,
            method=method.value,
            radii=targets,
            hybrid=hybrid,
            two_class=two_class,
            skip=skip,
            max_images=max,
            shard=part,
            order=order.value,
            batch_size=batch_size,
            model_name=model_name(model, weights),
            allow_changed_code=allow_changed_code,
            executor=executor,
            threads=threads,
            progress=progress,
        )
    show_run(run, json_file)
    note_guessing(run, model, weights)


def _typed(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _sequential_name(radii: list[float] | None, hybrid: float | None, two_class: bool) -> list[str]:
    """Return the parts of a run's name that describe its sequential sampling."""
    if radii is None:
        return []
    name = ["sequential", f"r{','.join(f'{radius:g}' for radius in radii)}"]
    return name + ([] if hybrid is None else [f"hybrid{hybrid:g}"]) + (["two-class"] if two_class else [])


def _refuse_bounds(args: Sequence[str], certify: TyperCommand, verify: TyperCommand) -> tuple[str, list[str]] | None:
    """Return the problem and the arguments for ``verify`` where some ask for bound propagation, else None.

    Options of smoothing, which ``verify`` lacks, are left out of the arguments.
    """
    known = {name: option for command in (certify, verify) for option in command.params for name in option.opts}
    ours, theirs = ({name for option in command.params for name in option.opts} for command in (certify, verify))
    methods = [method.value for method in MethodName]
    problem = ""
    kept: list[str] = []
    dropped: list[str] = []
    rest = list(args)
    while rest:
        tokens = [rest.pop(0)]
        name, equals, value = tokens[0].partition("=")
        if name in known and not equals and not getattr(known[name], "is_flag", False) and rest:
            value = rest.pop(0)
            tokens.append(value)
        if name == "--method" and value in methods:
            problem = f"--method: expected fixed or sequential, got {value}, which is a method of verify"
        elif name in theirs - ours:
            problem = problem or f"{name}: expected none, as it is an option of verify"
        elif name in ours - theirs or name == "--method":
            dropped.append(f"--method {value}" if name == "--method" else name)
            continue
        kept += tokens
    if not problem:
        return None
    without = f" without {', '.join(dict.fromkeys(dropped))}" if dropped else ""
    return f"{problem}; run{without}", kept
