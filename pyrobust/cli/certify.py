"""``pyrobust certify``."""

from __future__ import annotations

import typer

from pyrobust.cli import certify_bounds, options
from pyrobust.cli.attack_options import NormName
from pyrobust.cli.certify_bounds import SemanticsName
from pyrobust.cli.shell import reports_errors, show_progress
from pyrobust.cli.sweep import resumable, show_run
from pyrobust.errors import InputError

_SMOOTHING = ("sigma", "num_classes", "normalize", "noise", "n0", "n", "alpha", "dtype")
_BOUNDS = ("norm", "epsilon", "radius", "largest", "clip", "attack", "semantics", "unsound")


@reports_errors
def certify(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    sigma: options.OptionalSigma = None,
    method: certify_bounds.Method = None,
    weights: options.Weights = None,
    num_classes: options.NumClasses = None,
    normalize: options.Normalize = None,
    noise: options.NoiseName = options.Noise.gaussian,
    n0: options.Selection = 100,
    n: options.Samples = 100_000,
    alpha: options.Alpha = 0.001,
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

    Example: pyrobust certify --model zoo:digits-smooth-0.25 --data digits --method cascade --epsilon 0.05
    """
    part = options.parse_shard(shard)
    for name in _BOUNDS if method is None else _SMOOTHING:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            what = (
                "without --method: it is for bound propagation"
                if method is None
                else "with --method: it is for smoothing"
            )
            raise InputError(f"--{name.replace('_', '-')}: expected none {what}")
    if method is not None:
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
        raise InputError("--sigma: expected a number, for smoothing; or --method, for bound propagation")
    smoother, images = options.load(
        model=model,
        weights=weights,
        data=data,
        num_classes=num_classes,
        normalize=normalize,
        sigma=sigma,
        noise=noise,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    from pyrobust.evaluation import certify_dataset

    out = out or options.default_out("certify", model, data, sigma, n, part)
    with resumable(out):
        run = certify_dataset(
            smoother,
            images,
            out=out,
            n0=n0,
            n=n,
            alpha=alpha,
            skip=skip,
            max_images=max,
            shard=part,
            batch_size=batch_size,
            model_name=model,
            progress=show_progress(),
        )
    show_run(run)
