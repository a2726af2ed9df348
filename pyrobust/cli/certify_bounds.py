"""``pyrobust certify --method crown`` and the like: the options of bound propagation, and what is made of them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrobust.cli.attack_options import NormName, parse_clip, parse_epsilon
from pyrobust.cli.options import run_name
from pyrobust.cli.shell import show_progress
from pyrobust.cli.sweep import resumable, show_run
from pyrobust.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from pyrobust.zoo import ImageSet


class MethodName(str, Enum):
    """Smoothing's ways of sampling; methods of bound propagation, cascade is these in turn; the Lipschitz constant."""

    fixed = "fixed"
    sequential = "sequential"
    ibp = "ibp"
    crown_ibp = "crown-ibp"
    crown = "crown"
    cascade = "cascade"
    lipschitz = "lipschitz"


class CheckName(str, Enum):
    """Attacks that look for counterexamples."""

    pgd = "pgd"


class SemanticsName(str, Enum):
    """What bounds are about."""

    real = "real"
    float32 = "float32"


_BOUNDS = "Bound propagation, in place of smoothing"

#: Those that are smoothing's.
SMOOTHING = (MethodName.fixed, MethodName.sequential)

Method = Annotated[
    MethodName,
    typer.Option(
        "--method",
        help="Smoothing: fixed, n samples an image; sequential, until --radii are decided. Bound propagation: the "
        "others; cascade: ibp, crown-ibp, crown in turn.",
        rich_help_panel="Model and method",
    ),
]
Norm = Annotated[NormName, typer.Option("--norm", help="Of the perturbation.", rich_help_panel=_BOUNDS)]
Epsilon = Annotated[
    str | None,
    typer.Option(
        metavar="E[,E...]", help="Verify at these, in the input's unit: 0.1 or 2/255,8/255.", rich_help_panel=_BOUNDS
    ),
]
Radius = Annotated[bool, typer.Option("--radius", help="Search for certified radii instead.", rich_help_panel=_BOUNDS)]
Largest = Annotated[
    str, typer.Option("--largest", metavar="R", help="No larger radius is tried.", rich_help_panel=_BOUNDS)
]
Clip = Annotated[
    str,
    typer.Option(metavar="LOW:HIGH", help="The range of a valid pixel; none for no limits.", rich_help_panel=_BOUNDS),
]
Check = Annotated[
    CheckName | None,
    typer.Option("--attack", help="Also look for counterexamples, at each epsilon.", rich_help_panel=_BOUNDS),
]
Semantics = Annotated[
    SemanticsName,
    typer.Option(
        "--semantics", help="The network in exact arithmetic, or as it runs in float32.", rich_help_panel=_BOUNDS
    ),
]
Unsound = Annotated[
    bool,
    typer.Option("--unsound", help="Plain floating-point bounds, which prove nothing.", rich_help_panel=_BOUNDS),
]


def parse_epsilons(text: str, name: str = "--epsilon") -> list[float]:
    """Numbers of at least 0, separated by commas.

    >>> parse_epsilons("0.1,51/255")
    [0.1, 0.2]
    """
    return [parse_epsilon(name, part) for part in text.split(",")]


def certify_by_bounds(
    net: nn.Module,
    images: ImageSet,
    *,
    method: MethodName,
    norm: NormName,
    epsilon: str | None,
    radius: bool,
    largest: str,
    clip: str,
    attack: CheckName | None,
    semantics: SemanticsName,
    unsound: bool,
    model: str,
    data: str,
    part: tuple[int, int] | None,
    out: Path | None,
    **work: Any,
) -> None:
    """Verifies the images and prints the table.

    Args:
        net: the model.
        images: the data set.
        method: and so the others: as the options.
        norm: of the perturbation.
        epsilon: numbers.
        radius: instead of epsilon.
        largest: of the radii.
        clip: a range, or "none".
        attack: for counterexamples.
        semantics: of the bounds.
        unsound: whether plain floating-point bounds will do.
        model: its name.
        data: its name.
        part: the shard.
        out: the file; default: named after the arguments.
        work: further arguments of ``verify_dataset``.

    Raises:
        InputError: options that do not fit together.
    """
    if (epsilon is None) != radius:
        raise InputError(f"--epsilon: expected either --epsilon or --radius with --method {method.value}")
    limits = None if clip == "none" else parse_clip(clip)
    if attack is not None and (radius or limits is None):
        raise InputError(f"--attack: expected none with {'--radius' if radius else '--clip none'}, got {attack.value}")
    sizes = None if epsilon is None else parse_epsilons(epsilon)
    end = parse_epsilon("--largest", largest)
    from pyrobust.evaluation import verify_dataset

    budget = ["radius"] if sizes is None else [f"eps{','.join(f'{size:g}' for size in sizes)}"]
    out = out or run_name(["certify", method.value, model], data, [norm.value, *budget], part)
    with resumable(out):
        run = verify_dataset(
            net,
            images,
            out=out,
            epsilons=sizes,
            radius=radius,
            largest=end,
            method=method.value,
            norm=norm.value,
            clip=limits,
            attack=None if attack is None else attack.value,
            sound=not unsound,
            semantics=semantics.value,
            shard=part,
            model_name=model,
            progress=show_progress(),
            **work,
        )
    show_run(run)
