"""The options of `attack`, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrobust.cli.options import DType
from pyrobust.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from pyrobust.attacks import AdversarialAttack
    from pyrobust.zoo import ImageSet


class AttackName(str, Enum):
    """Attacks."""

    autoattack = "autoattack"
    pgd = "pgd"
    fgsm = "fgsm"
    bim = "bim"
    apgd_ce = "apgd-ce"
    apgd_dlr = "apgd-dlr"
    apgd_t = "apgd-t"
    fab_t = "fab-t"
    square = "square"


class NormName(str, Enum):
    """Norms of the perturbation."""

    linf = "linf"
    l2 = "l2"
    l1 = "l1"


class VersionName(str, Enum):
    """Versions of AutoAttack."""

    standard = "standard"
    plus = "plus"
    rand = "rand"


_ATTACK, _CURVE = "Attack", "Curve, in place of one epsilon"

Attack = Annotated[AttackName, typer.Option("--attack", rich_help_panel=_ATTACK)]
Norm = Annotated[NormName, typer.Option("--norm", help="Of the perturbation.", rich_help_panel=_ATTACK)]
Epsilon = Annotated[
    str | None,
    typer.Option(metavar="E", help="Its largest size, in the input's unit: 0.1 or 8/255.", rich_help_panel=_ATTACK),
]
Steps = Annotated[
    int | None,
    typer.Option(metavar="N", help="Steps; of square, queries. Default: the attack's.", rich_help_panel=_ATTACK),
]
Restarts = Annotated[
    int | None, typer.Option(metavar="N", help="Starts. Default: the attack's.", rich_help_panel=_ATTACK)
]
Version = Annotated[
    VersionName | None,
    typer.Option(
        "--version",
        help="Of autoattack. Default: standard; rand, for random models, draws 20 times a step (EOT).",
        rich_help_panel=_ATTACK,
    ),
]
Clip = Annotated[str, typer.Option(metavar="LOW:HIGH", help="The range of a valid pixel.", rich_help_panel=_ATTACK)]
NoExamples = Annotated[
    bool,
    typer.Option("--no-examples", help="Do not keep the adversarial examples in the run.", rich_help_panel=_ATTACK),
]
Curve = Annotated[
    str | None,
    typer.Option(
        metavar="START:STOP:POINTS",
        help="Robust accuracy at epsilons from START to STOP, such as 0:8/255:9. Printed, not kept in a run.",
        rich_help_panel=_CURVE,
    ),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .pdf or .svg.", rich_help_panel=_CURVE)]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write it as JSON.", rich_help_panel=_CURVE)]

_MOST_POINTS = 10_000
# Draws a step of the rand version, where the model does not say (Croce and Hein, 2020).
_DRAWS = 20


def parse_number(name: str, text: str) -> float:
    """A finite number, which may be a fraction.

    >>> parse_number("--epsilon", "8/255") == 8 / 255
    True
    """
    above, slash, below = text.partition("/")
    try:
        value = float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name}: expected a finite number such as 0.1 or 8/255, got {text!r}")
    return value


def parse_epsilon(name: str, text: str) -> float:
    """A number of at least 0.

    >>> parse_epsilon("--epsilon", "0.1")
    0.1
    """
    value = parse_number(name, text)
    if value < 0:
        raise InputError(f"{name}: expected at least 0, got {text!r}")
    return value


def parse_clip(text: str) -> tuple[float, float]:
    """The ends of a range.

    >>> parse_clip("-1:1")
    (-1.0, 1.0)
    """
    parts = text.split(":")
    if len(parts) != 2:
        raise InputError(f"--clip: expected LOW:HIGH, such as 0:1, got {text!r}")
    low, high = (parse_number("--clip", part) for part in parts)
    if not low < high:
        raise InputError(f"--clip: expected LOW:HIGH with LOW below HIGH, got {text!r}")
    return low, high


def parse_curve(text: str) -> list[float]:
    """Evenly spaced epsilons, both ends among them.

    >>> parse_curve("0:0.5:3")
    [0.0, 0.25, 0.5]
    """
    import numpy as np

    parts = text.split(":")
    points = int(parts[2]) if len(parts) == 3 and parts[2].isascii() and parts[2].isdigit() else 0
    if not 2 <= points <= _MOST_POINTS:
        raise InputError(
            f"--curve: expected START:STOP:POINTS with 2 to {_MOST_POINTS} points, such as 0:0.1:20, got {text!r}"
        )
    start, stop = (parse_epsilon("--curve", part) for part in parts[:2])
    if not start < stop:
        raise InputError(f"--curve: expected START:STOP:POINTS with START below STOP, got {text!r}")
    return [float(epsilon) for epsilon in np.linspace(start, stop, points)]


def choose_attack(
    name: AttackName, norm: NormName, steps: int | None, restarts: int | None, version: VersionName | None
) -> tuple[Callable[..., AdversarialAttack], dict[str, Any]]:
    """The class of an attack and its settings.

    Raises:
        InputError: a setting that the attack does not have.

    >>> choose_attack(AttackName.square, NormName.l2, 100, None, None)[1]
    {'norm': 'l2', 'n_queries': 100}
    """
    from pyrobust.attacks import APGD, BIM, FAB, FGSM, PGD, AutoAttack, Square

    # The l1 form of APGD that AutoAttack runs.
    phases = {"multi_epsilon": True} if norm is NormName.l1 else {}
    # The class, its settings, and what it calls its steps and restarts.
    table: dict[AttackName, tuple[Callable[..., AdversarialAttack], dict[str, Any], str | None, str | None]] = {
        AttackName.autoattack: (AutoAttack, {}, None, None),
        AttackName.pgd: (PGD, {}, "steps", "restarts"),
        AttackName.fgsm: (FGSM, {}, None, None),
        AttackName.bim: (BIM, {}, "steps", None),
        AttackName.apgd_ce: (APGD, {"loss": "ce", **phases}, "steps", "restarts"),
        AttackName.apgd_dlr: (APGD, {"loss": "dlr", **phases}, "steps", "restarts"),
        AttackName.apgd_t: (APGD, {"loss": "dlr-targeted", **phases}, "steps", "restarts"),
        AttackName.fab_t: (FAB, {}, "steps", "restarts"),
        AttackName.square: (Square, {}, "n_queries", "restarts"),
    }
    found, settings, steps_name, restarts_name = table[name]
    settings = {"norm": norm.value, **settings}
    for option, value, keyword in (("--steps", steps, steps_name), ("--restarts", restarts, restarts_name)):
        if value is not None and keyword is None:
            raise InputError(f"{option}: expected none with --attack {name.value}, which does not have it, got {value}")
        if value is not None and keyword is not None:
            settings[keyword] = value
    if name is AttackName.autoattack:
        settings["version"] = (version or VersionName.standard).value
    elif version is not None:
        raise InputError(f"--version: expected none with --attack {name.value}, got {version.value}")
    return found, settings


def load(
    *, model: str, weights: Path | None, data: str, device: str | None, dtype: DType | None, version: VersionName | None
) -> tuple[nn.Module, ImageSet, dict[str, Any]]:
    """The model, the images, and how the model runs, as arguments of an attack.

    Raises:
        PyrobustError: an option has a wrong value, or a file cannot be read.
    """
    import torch

    from pyrobust.attacks import EOT
    from pyrobust.zoo import load_data, load_model

    images = load_data(data)
    net = load_model(model, weights)
    if version is VersionName.rand:
        net = EOT(net, _DRAWS)
    options: dict[str, Any] = {"device": device}
    if dtype is not None:
        options["dtype"] = getattr(torch, dtype.value)
    return net, images, options
