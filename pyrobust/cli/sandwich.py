"""``pyrobust sandwich``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pyrobust.cli import options, smoothing_options
from pyrobust.cli.options import PERTURBATION_PANEL, NormName
from pyrobust.cli.parsing import (
    images_to_read,
    input_paths,
    parse_clip,
    parse_epsilons,
    parse_shard,
    real_number,
    whole_number,
)
from pyrobust.cli.shell import reports_errors
from pyrobust.cli.smoothing_options import Noise
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
from pyrobust.cli.verify import MethodName, SemanticsName
from pyrobust.errors import InputError

_BASE_PANEL = "Base classifier"
_SMOOTHED_PANEL = "Smoothed classifier"

Norm = Annotated[
    NormName | None,
    typer.Option(
        "--norm",
        help="Norm of the distances. Default: linf; with --sigma, that of the noise.",
        case_sensitive=False,
        rich_help_panel=PERTURBATION_PANEL,
    ),
]
Epsilons = Annotated[
    str | None,
    typer.Option(
        "--epsilon",
        metavar="E[,E...]",
        help="Radii at which AutoAttack runs on the images that are undecided there.",
        rich_help_panel=_BASE_PANEL,
    ),
]
Clip = Annotated[
    str, typer.Option(metavar="LOW:HIGH", help="Range of valid pixel values.", rich_help_panel=PERTURBATION_PANEL)
]
Method = Annotated[
    MethodName | None,
    typer.Option(
        "--method",
        help="Proof method. Default: cascade, the largest radius of ibp, crown-ibp and crown.",
        rich_help_panel=_BASE_PANEL,
    ),
]
Semantics = Annotated[
    SemanticsName | None,
    typer.Option(
        "--semantics",
        help="Network that the certificates hold for. Default: float32, as it runs and is attacked.",
        rich_help_panel=_BASE_PANEL,
    ),
]
Sigma = Annotated[
    float | None,
    typer.Option(
        parser=real_number,
        metavar="S",
        help="Bound the smoothed classifier, with noise of this standard deviation in every pixel.",
        rich_help_panel=_SMOOTHED_PANEL,
    ),
]


def _samples(name: str, help: str) -> Any:
    return typer.Option(name, parser=whole_number, metavar="N", help=help, rich_help_panel=_SMOOTHED_PANEL)


@reports_errors
def sandwich(
    model: options.Model,
    data: options.Data,
    weights: options.Weights = None,
    norm: Norm = None,
    clip: Clip = "0:1",
    epsilon: Epsilons = None,
    method: Method = None,
    semantics: Semantics = None,
    sigma: Sigma = None,
    noise: smoothing_options.NoiseName = Noise.gaussian,
    grid: smoothing_options.Grid = "auto",
    num_classes: smoothing_options.NumClasses = None,
    normalize: smoothing_options.Normalize = None,
    n0: Annotated[int | None, _samples("--n0", "Samples per image to select the class. Default: 100.")] = None,
    n: Annotated[int | None, _samples("--n", "Samples per image for its certificate. Default: 10,000.")] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            parser=real_number,
            metavar="A",
            help="Highest probability that a certificate is wrong. Default: 0.001.",
            rich_help_panel=_SMOOTHED_PANEL,
        ),
    ] = None,
    n_attack: Annotated[
        int | None, _samples("--n-attack", "Samples of the test at an adversarial example. Default: 10,000.")
    ] = None,
    alpha_attack: Annotated[
        float | None,
        typer.Option(
            parser=real_number,
            metavar="A",
            help="Highest probability that such a test is wrong. Default: 0.001.",
            rich_help_panel=_SMOOTHED_PANEL,
        ),
    ] = None,
    steps: Annotated[int | None, _samples("--steps", "Steps of the attack. Default: 50.")] = None,
    draws: Annotated[int | None, _samples("--draws", "Samples that its gradients average over. Default: 32.")] = None,
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
    """Bound each image's distance to misclassification from both sides: certified below, attacked above.

    What is proved is what an attack cannot reach; what lies between is not known. A crossing, an adversarial example
    inside a certified ball, says that a certificate is false: it is named, and the command fails with status 1. Results
    are saved as they come: after a crash or Ctrl-C, run the same command again to resume.

    Example: pyrobust sandwich --model zoo:digits-ibp-0.10 --data digits

    Example: pyrobust sandwich --model zoo:digits-smooth-0.25 --data digits --sigma 0.25
    """
    limits = parse_clip(clip)
    executor, device = executor_of(on, devices, device)
    part = parse_shard(shard)
    check_json(json_file, [*input_paths(data, weights), named_file(out)])
    sampling = {
        "n0": n0,
        "n": n,
        "alpha": alpha,
        "n_attack": n_attack,
        "alpha_attack": alpha_attack,
        "steps": steps,
        "draws": draws,
    }
    bounding = {
        "norm": None if norm is None else norm.value,
        "epsilons": None if epsilon is None else parse_epsilons("--epsilon", epsilon),
        "method": None if method is None else method.value,
        "semantics": None if semantics is None else semantics.value,
    }
    _refuse_others(sampling, bounding, sigma, noise, grid, num_classes, normalize, dtype)
    from pyrobust.errors import CrossingError
    from pyrobust.evaluation import sandwich_dataset
    from pyrobust.zoo import load_data, load_model

    classifier: Any
    if sigma is None:
        images, classifier = load_data(data, images_to_read(skip, max)), load_model(model, weights)
        arguments: dict[str, Any] = bounding | {"device": device, "seed": seed}
        names = ["linf" if norm is None else norm.value]
    else:
        classifier, images = smoothing_options.load_smoother(
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
        arguments, names = dict(sampling), [f"sigma{sigma:g}"]
    path = run_file(out, run_name(["sandwich", model], weights, data, names, part))
    with resumable(path, shard, out) as progress:
        both = sandwich_dataset(
            classifier,
            images,
            out=path,
            clip=limits,
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
            **arguments,
        )
    show_run(both.run, json_file)
    note_guessing(both.run, model, weights)
    try:
        both.check()
    except CrossingError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _refuse_others(
    sampling: dict[str, Any],
    bounding: dict[str, Any],
    sigma: float | None,
    noise: Noise,
    grid: str,
    num_classes: int | None,
    normalize: str | None,
    dtype: object,
) -> None:
    """Raise InputError for an option of the other kind of classifier."""
    if sigma is not None:
        others, why = bounding, "with --sigma"
    else:
        of_noise = {
            "noise": None if noise is Noise.gaussian else noise.value,
            "grid": None if grid == "auto" else grid,
            "num_classes": num_classes,
            "normalize": normalize,
            "dtype": dtype,
        }
        others, why = sampling | of_noise, "without --sigma"
    for name, value in others.items():
        if value is not None:
            option = "--" + {"epsilons": "epsilon"}.get(name, name).replace("_", "-")
            raise InputError(f"{option}: expected none {why}; leave it out")
