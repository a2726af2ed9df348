"""``pyrobust certify``."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from pyrobust.cli import certify_bounds, options
from pyrobust.cli.attack_options import NormName
from pyrobust.cli.certify_bounds import SMOOTHING, MethodName, SemanticsName, parse_epsilons
from pyrobust.cli.shell import reports_errors, show_progress
from pyrobust.cli.sweep import resumable, show_run
from pyrobust.errors import InputError

_SMOOTHING = ("sigma", "num_classes", "normalize", "noise", "grid", "n0", "n", "alpha", "dtype")
_SEQUENTIAL = ("radii", "hybrid", "two_class")
_BOUNDS = ("norm", "epsilon", "radius", "largest", "clip", "attack", "semantics", "unsound")


@reports_errors
def certify(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    sigma: options.OptionalSigma = None,
    method: certify_bounds.Method = MethodName.fixed,
    weights: options.Weights = None,
    num_classes: options.NumClasses = None,
    normalize: options.Normalize = None,
    noise: options.NoiseName = options.Noise.gaussian,
    grid: options.Grid = "auto",
    n0: options.Selection = 100,
    n: options.Samples = 100_000,
    alpha: options.Alpha = 0.001,
    radii: options.Radii = None,
    hybrid: options.Hybrid = None,
    two_class: options.TwoClass = False,
    norm: certify_bounds.Norm = NormName.linf,
    epsilon: certify_bounds.Epsilon = None,
    radius: certify_bounds.Radius = False,
    largest: certify_bounds.Largest = "1",
    clip: certify_bounds.Clip = "0:1",
    attack: certify_bounds.Check = None,
    semantics: certify_bounds.Semantics = SemanticsName.real,
    unsound: certify_bounds.Unsound = False,
    seed: options.Seed = 0,
    skip: options.Skip = 1,
    max: options.Max = None,
    shard: options.Shard = None,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    dtype: options.DTypeName = None,
    out: options.Out = None,
) -> None:
    """Certify a classifier on a data set: smoothed with noise (--sigma), or itself by bound propagation (--method).

    Results are kept as they come; the same command goes on after a crash or Ctrl-C.

    Example: pyrobust certify --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --n 10000

    Example: pyrobust certify --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --method sequential --radii 0.25

    Example: pyrobust certify --model zoo:digits-smooth-0.25 --data digits --method cascade --epsilon 0.05
    """
    part = options.parse_shard(shard)
    bounds = method not in SMOOTHING
    _expect_none(context, method, "smoothing" if bounds else "bound propagation", _SMOOTHING if bounds else _BOUNDS)
    if method is not MethodName.sequential:
        _expect_none(context, method, "--method sequential", _SEQUENTIAL)
    if bounds:
        from pyrobust.zoo import load_data, load_model

        images = load_data(data)
        certify_bounds.certify_by_bounds(
            load_model(model, weights),
            images,
            method=method,
            norm=norm,
            epsilon=epsilon,
            radius=radius,
            largest=largest,
            clip=clip,
            attack=attack,
            semantics=semantics,
            unsound=unsound,
            model=model,
            data=data,
            part=part,
            out=out,
            seed=seed,
            skip=skip,
            max_images=max,
            batch_size=batch_size,
            device=device,
        )
        return
    if sigma is None:
        raise InputError("--sigma: expected a number, for smoothing; or another --method, for bound propagation")
    decided = None if radii is None else parse_epsilons(radii, "--radii")
    if (decided is None) == (method is MethodName.sequential):
        raise InputError("--radii: expected the radii to be decided, with --method sequential")
    smoother, images = options.load(
        model=model,
        weights=weights,
        data=data,
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

    out = out or options.default_out(
        "certify", model, data, sigma, n, part, _sequential_name(decided, hybrid, two_class)
    )
    with resumable(out):
        run = certify_dataset(
            smoother,
            images,
            out=out,
            n0=n0,
            n=n,
            alpha=alpha,
            method=method.value,
            radii=decided,
            hybrid=hybrid,
            two_class=two_class,
            skip=skip,
            max_images=max,
            shard=part,
            batch_size=batch_size,
            model_name=model,
            progress=show_progress(),
        )
    show_run(run)


def _expect_none(context: typer.Context, method: MethodName, what: str, names: Sequence[str]) -> None:
    """Refuses options of another method that were given."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InputError(
                f"--{name.replace('_', '-')}: expected none with --method {method.value}: it is for {what}"
            )


def _sequential_name(radii: list[float] | None, hybrid: float | None, two_class: bool) -> list[str]:
    """What the name of a run says of a sequential method."""
    if radii is None:
        return []
    name = ["sequential", f"r{','.join(f'{radius:g}' for radius in radii)}"]
    return name + ([] if hybrid is None else [f"hybrid{hybrid:g}"]) + (["two-class"] if two_class else [])
