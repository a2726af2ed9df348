"""``pyrobust verify``."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from pyrobust.cli import options
from pyrobust.cli.options import PERTURBATION_PANEL, NormName
from pyrobust.cli.parsing import images_to_read, input_paths, parse_clip, parse_epsilon, parse_epsilons, parse_shard
from pyrobust.cli.shell import reports_errors
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
from pyrobust.errors import InputError


class MethodName(str, Enum):
    """Methods of verification."""

    cascade = "cascade"
    ibp = "ibp"
    crown_ibp = "crown-ibp"
    crown = "crown"
    alpha_crown = "alpha-crown"
    lipschitz = "lipschitz"


class SemanticsName(str, Enum):
    """Networks that bounds can hold for."""

    real = "real"
    float32 = "float32"


class VerifyAttackName(str, Enum):
    """Attacks that look for counterexamples."""

    pgd = "pgd"


_BOUNDS_PANEL = "Bounds"

Epsilons = Annotated[
    str | None,
    typer.Option(
        "--epsilon",
        metavar="E[,E...]",
        help="Perturbation radii to verify, in the unit of the pixels: 0.1 or 2/255,8/255.",
        rich_help_panel=PERTURBATION_PANEL,
    ),
]
Radius = Annotated[
    bool,
    typer.Option(
        "--radius",
        help="Search for the certified radius of each image, in place of --epsilon.",
        rich_help_panel=PERTURBATION_PANEL,
    ),
]
Largest = Annotated[
    str | None,
    typer.Option(
        "--largest",
        metavar="R",
        help="Largest radius that --radius tries. Default: 1.",
        rich_help_panel=PERTURBATION_PANEL,
    ),
]
Clip = Annotated[
    str,
    typer.Option(
        metavar="LOW:HIGH",
        help="Range of valid pixel values; none for no limits.",
        rich_help_panel=PERTURBATION_PANEL,
    ),
]
Method = Annotated[
    MethodName,
    typer.Option(
        "--method",
        help="Proof method: ibp, crown-ibp, crown or alpha-crown, each tighter and slower; cascade, the first three in "
        "turn; lipschitz, a Lipschitz constant.",
        rich_help_panel=_BOUNDS_PANEL,
    ),
]
Semantics = Annotated[
    SemanticsName,
    typer.Option(
        "--semantics",
        help="Network that the bounds hold for: in exact arithmetic (real), or as it runs in floating point (float32).",
        rich_help_panel=_BOUNDS_PANEL,
    ),
]
Unsound = Annotated[
    bool,
    typer.Option(
        "--unsound", help="Compute plain floating-point bounds, which prove nothing.", rich_help_panel=_BOUNDS_PANEL
    ),
]
VerifyAttack = Annotated[
    VerifyAttackName | None,
    typer.Option(
        "--attack",
        help="Attack to look for counterexamples at each epsilon, for verified images too.",
        rich_help_panel="Counterexamples",
    ),
]


@reports_errors
def verify(
    model: options.Model,
    data: options.Data,
    weights: options.Weights = None,
    norm: options.Norm = NormName.linf,
    epsilon: Epsilons = None,
    radius: Radius = False,
    largest: Largest = None,
    clip: Clip = "0:1",
    method: Method = MethodName.cascade,
    semantics: Semantics = SemanticsName.real,
    unsound: Unsound = False,
    attack: VerifyAttack = None,
    skip: options.Skip = 1,
    max: options.Max = None,
    shard: options.Shard = None,
    order: options.Order = options.OrderName.data,
    seed: options.Seed = 0,
    batch_size: options.ChunkSize = None,
    device: options.Device = None,
    on: options.On = None,
    devices: options.Devices = None,
    threads: options.Threads = None,
    allow_changed_code: options.AllowChangedCode = False,
    json_file: options.Json = None,
    out: options.Out = None,
) -> None:
    """Verify a classifier on a data set by bound propagation.

    Decides for each image whether any perturbation can change its class (verified, falsified or unknown), or searches
    for its certified radius. The proofs hold for the network itself, without randomness. Results are saved as they
    come: after a crash or Ctrl-C, run the same command again to resume.

    Example: pyrobust verify --model zoo:digits-smooth-0.25 --data digits --epsilon 0.02,0.05 --attack pgd

    Example: pyrobust verify --model zoo:digits-smooth-0.25 --data digits --radius --method crown --norm l2
    """
    executor, device = executor_of(on, devices, device)
    part = parse_shard(shard)
    check_json(json_file, [*input_paths(data, weights), named_file(out)])
    if (epsilon is None) != radius:
        raise InputError(f"--epsilon: expected either --epsilon or --radius, got {'both' if radius else 'neither'}")
    limits = None if clip == "none" else parse_clip(clip)
    if attack is not None and radius:
        raise InputError(f"--attack: expected none with --radius, got {attack.value}; attacks run at --epsilon")
    if attack is not None and limits is None:
        raise InputError(f"--attack: expected none with --clip none, got {attack.value}; attacks need a clip range")
    epsilons = None if epsilon is None else parse_epsilons("--epsilon", epsilon)
    if largest is not None and not radius:
        raise InputError(f"--largest: expected none without --radius, got {largest}; leave it out")
    end = parse_epsilon("--largest", largest or "1")
    from pyrobust.bounds import BoundOptions
    from pyrobust.evaluation import verify_dataset
    from pyrobust.zoo import load_data, load_model

    bound_options = BoundOptions(
        norm=norm.value, method=method.value, clip=limits, sound=not unsound, semantics=semantics.value
    )
    images = load_data(data, images_to_read(skip, max))
    net = load_model(model, weights)
    radii = "radius" if epsilons is None else f"eps{','.join(f'{size:g}' for size in epsilons)}"
    path = run_file(out, run_name(["verify", method.value, model], weights, data, [norm.value, radii], part))
    with resumable(path, shard, out) as progress:
        run = verify_dataset(
            net,
            images,
            out=path,
            epsilons=epsilons,
            radius=radius,
            largest=end,
            attack=None if attack is None else attack.value,
            seed=seed,
            skip=skip,
            max_images=max,
            shard=part,
            order=order.value,
            batch_size=batch_size,
            device=device,
            model_name=model_name(model, weights),
            allow_changed_code=allow_changed_code,
            executor=executor,
            threads=threads,
            progress=progress,
            options=bound_options,
        )
    show_run(run, json_file)
    note_guessing(run, model, weights)
