"""Options of ``attack``, and the attack and model that they describe."""

from __future__ import annotations

import ast
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrobust.cli.options import PERTURBATION_PANEL, RUN_PANEL, DType, completing
from pyrobust.cli.own_attack import load_own_attack
from pyrobust.cli.parsing import parse_epsilon, parse_epsilons, whole_number
from pyrobust.errors import InputError

if TYPE_CHECKING:
    from fractions import Fraction

    from torch import nn

    from pyrobust.attacks import AdversarialAttack
    from pyrobust.zoo import LabelledImages


def _catalogued() -> list[str]:
    """The names of the catalogue, read from its source: help and completion need no torch."""
    source = Path(__file__).parents[1] / "attacks" / "catalogue.py"
    for statement in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Dict):
            return [str(ast.literal_eval(key)) for key in statement.value.keys if key is not None]
    raise AssertionError(f"{source}: no catalogue")


if TYPE_CHECKING:

    class AttackName(str, Enum):
        """Attacks."""

        autoattack = "autoattack"

else:
    AttackName = Enum("AttackName", {name.replace("-", "_"): name for name in _catalogued()}, type=str, module=__name__)


class AttackNormName(str, Enum):
    """Norms of an attack."""

    linf = "linf"
    l2 = "l2"
    l1 = "l1"
    l0 = "l0"


class VersionName(str, Enum):
    """Versions of AutoAttack."""

    standard = "standard"
    plus = "plus"
    rand = "rand"


_ATTACK_PANEL = "Attack"
_CURVE_PANEL = "Accuracy curve, in place of --epsilon"


def attack_name(text: str | AttackName) -> AttackName | str:
    """Parse the name of an attack, or ``module:callable``, which is returned as it is; a default passes.

    >>> attack_name("pgd"), attack_name("my_attacks:Mine")
    (<AttackName.pgd: 'pgd'>, 'my_attacks:Mine')
    """
    if text in [name.value for name in AttackName]:
        return AttackName(text)
    if ":" in text:
        return str(text)
    raise typer.BadParameter(f"expected one of {', '.join(AttackName)} or module:callable, got {text!r}")


Attack = Annotated[
    str | None,
    typer.Option(
        "--attack",
        parser=attack_name,
        autocompletion=completing(*(name.value for name in AttackName)),
        metavar="NAME",
        help=f"Attack to run: {', '.join(name.value for name in AttackName)}; or module:callable, your own or another "
        "library's. Default: autoattack; with --minimum, an ensemble for the norm.",
        show_default=False,
        rich_help_panel=_ATTACK_PANEL,
    ),
]
Norm = Annotated[
    AttackNormName,
    typer.Option(
        "--norm",
        help="Norm of the perturbation; l0 counts changed values.",
        case_sensitive=False,
        rich_help_panel=PERTURBATION_PANEL,
    ),
]
Minimum = Annotated[
    bool,
    typer.Option(
        "--minimum",
        help="Find the nearest adversarial examples: robust accuracy at every epsilon from one run.",
        rich_help_panel=_CURVE_PANEL,
    ),
]
Confirm = Annotated[
    str | None,
    typer.Option(
        metavar="E[,E...]",
        help="With --minimum: epsilons at which AutoAttack tries what the run left unbroken.",
        rich_help_panel=_CURVE_PANEL,
    ),
]
Epsilon = Annotated[
    str | None,
    typer.Option(
        metavar="E",
        help="Perturbation radius, in the unit of the pixels: 0.1 or 8/255.",
        rich_help_panel=PERTURBATION_PANEL,
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="N",
        help="Number of steps; for square, of queries. Default: the attack's own.",
        rich_help_panel=_ATTACK_PANEL,
    ),
]
Restarts = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="N",
        help="Number of starts. Default: the attack's own.",
        rich_help_panel=_ATTACK_PANEL,
    ),
]
Version = Annotated[
    VersionName | None,
    typer.Option(
        "--version",
        help="Version of autoattack; rand is for random models and draws 20 times per step (EOT). Default: standard.",
        rich_help_panel=_ATTACK_PANEL,
    ),
]
CertifyFirst = Annotated[
    bool,
    typer.Option(
        "--certify-first",
        help="Leave out of autoattack what bounds prove robust at epsilon, in the arithmetic that it would run: the "
        "same result, sooner. With --minimum, for --confirm.",
        rich_help_panel=_ATTACK_PANEL,
    ),
]
Clip = Annotated[
    str,
    typer.Option(metavar="LOW:HIGH", help="Range of valid pixel values.", rich_help_panel=PERTURBATION_PANEL),
]
Grid = Annotated[
    str | None,
    typer.Option(
        metavar="STEP",
        help="Step of the values that an image file holds, such as 1/255: attack with images on this grid only, which "
        "stay adversarial when they are saved. auto: find it in the data. Default: any float.",
        rich_help_panel=PERTURBATION_PANEL,
    ),
]
SaveImages = Annotated[
    Path | None,
    typer.Option(
        "--save-images",
        metavar="DIR",
        help="Save the attacked images as PNG files in a folder with a table, as they come, or at the end in a file "
        "that ends in .npz; needs --grid 1/255.",
        rich_help_panel=RUN_PANEL,
    ),
]
NoExamples = Annotated[
    bool,
    typer.Option("--no-examples", help="Leave the adversarial examples out of the run.", rich_help_panel=_ATTACK_PANEL),
]
Curve = Annotated[
    str | None,
    typer.Option(
        metavar="START:STOP:POINTS",
        help="Evenly spaced epsilons, such as 0:8/255:9. Robust accuracy at each is printed, and no run is saved.",
        rich_help_panel=_CURVE_PANEL,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw the curve (.png, .pdf or .svg).", rich_help_panel=_CURVE_PANEL),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write a summary, with --curve the curve, as JSON; - for standard output.",
        rich_help_panel=RUN_PANEL,
    ),
]
Replace = Annotated[
    bool,
    typer.Option(
        "--replace", help="Overwrite existing files of --plot and --json; never inputs.", rich_help_panel=RUN_PANEL
    ),
]

_MOST_POINTS = 10_000
# Draws per step of the rand version, unless the model sets its own (Croce and Hein, 2020).
_DRAWS = 20


def parse_curve(text: str) -> list[float]:
    """Parse evenly spaced epsilons, both ends included.

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


def parse_grid(text: str | None) -> Fraction | str | None:
    """Parse the step of a grid, or "auto"; None without a grid.

    >>> parse_grid("1/255"), parse_grid("none")
    (Fraction(1, 255), None)
    """
    from pyrobust.grid import read_grid

    try:
        return read_grid(None if text == "none" else text)
    except InputError:
        raise InputError(
            f"--grid: expected a positive fraction of integers below 2**24, such as 1/255, or auto or none, got "
            f"{str(text)[:40]!r}"
        ) from None


def check_save_images(
    path: Path, step: Fraction | str | None, images: LabelledImages, no_examples: bool, inputs: list[Path]
) -> None:
    """Raise InputError unless the attacked images can be saved there, before any work is done."""
    from pyrobust.evaluation.run_images import BYTES
    from pyrobust.zoo.saved_images import check_image_path

    if no_examples:
        raise InputError("--save-images: expected none with --no-examples, which leaves out the images; leave one out")
    found = images.grid if step == "auto" else step
    if found != BYTES:
        raise InputError(
            f"--save-images: expected --grid 1/255, the grid of image files, got {found or 'none'}; other images would "
            "change when they are saved"
        )
    for read in inputs:
        if Path(read).resolve() in (path.resolve(), *path.resolve().parents):
            raise InputError(f"--save-images: expected a place outside the inputs, got {str(path)!r}; name another")
    check_image_path(path, images.shape[0], "--save-images")


def choose_attack(
    name: AttackName | str, norm: AttackNormName, steps: int | None, restarts: int | None, version: VersionName | None
) -> tuple[Callable[..., AdversarialAttack], dict[str, Any]]:
    """Return the class of an attack, or the function that makes a user's own, and its settings.

    >>> choose_attack(AttackName.square, AttackNormName.l2, 100, None, None)[1]
    {'norm': 'l2', 'n_queries': 100}
    """
    from pyrobust.attacks import AdversarialAttack, MinimumNormAttack
    from pyrobust.attacks.catalogue import CATALOGUE

    if not isinstance(name, AttackName):
        for option, given in (("--steps", steps), ("--restarts", restarts), ("--version", version)):
            if given is not None:
                raise InputError(f"{option}: expected none with --attack {name}, got {given}; set it in your code")
        return load_own_attack(name), {"norm": norm.value}
    entry = CATALOGUE[name.value]
    attack_class = entry.attack
    if norm.value not in attack_class.norms:
        alike = MinimumNormAttack if issubclass(attack_class, MinimumNormAttack) else AdversarialAttack
        others = [
            other
            for other, known in CATALOGUE.items()
            if issubclass(known.attack, alike) and norm.value in known.attack.norms
        ]
        raise InputError(
            f"--norm: expected {', '.join(attack_class.norms)} with --attack {name.value}, got {norm.value}; for "
            f"{norm.value} use --attack {', '.join(others)}"
        )
    settings = {"norm": norm.value, **entry.settings}
    if norm is AttackNormName.l1 and attack_class.__name__ == "APGD":
        settings["multi_epsilon"] = True  # as AutoAttack runs it
    for option, value, keyword in (("--steps", steps, entry.steps), ("--restarts", restarts, entry.restarts)):
        if value is not None and keyword is None:
            raise InputError(f"{option}: expected none with --attack {name.value}, got {value}; leave it out")
        if value is not None and keyword is not None:
            settings[keyword] = value
    if name is AttackName.autoattack:
        settings["version"] = (version or VersionName.standard).value
    elif version is not None:
        raise InputError(
            f"--version: expected none with --attack {name.value}, got {version.value}; only autoattack has versions"
        )
    return attack_class, settings


def choose_minimum(
    name: AttackName | str | None,
    norm: AttackNormName,
    steps: int | None,
    restarts: int | None,
    version: VersionName | None,
) -> tuple[Callable[..., AdversarialAttack], dict[str, Any]]:
    """Return the class of a minimum-norm attack, or the function that makes the ensemble, and its settings.

    >>> choose_minimum(AttackName.fab_t, AttackNormName.l2, 20, None, None)[1]
    {'norm': 'l2', 'steps': 20}
    """
    from pyrobust.attacks import MinimumNormAttack
    from pyrobust.attacks.catalogue import CATALOGUE

    if name is None:
        for option, value in (("--steps", steps), ("--version", version)):
            if value is not None:
                given = getattr(value, "value", value)
                raise InputError(
                    f"{option}: expected none without --attack, got {given}; name an attack or leave it out"
                )
        return partial(_ensemble, restarts), {"norm": norm.value}
    attack_class, settings = choose_attack(name, norm, steps, restarts, version)
    if isinstance(attack_class, type) and not issubclass(attack_class, MinimumNormAttack):
        known = [known for known, entry in CATALOGUE.items() if issubclass(entry.attack, MinimumNormAttack)]
        given = getattr(name, "value", name)
        raise InputError(f"--attack: expected a minimum-norm attack with --minimum, {', '.join(known)}; got {given}")
    return attack_class, settings


def _ensemble(restarts: int | None, *arguments: Any, **options: Any) -> AdversarialAttack:
    """Make the ensemble of minimum-norm attacks; ``restarts`` multiplies the starts of those that have several."""
    from pyrobust.attacks import MinimumNormEnsemble
    from pyrobust.checks import count

    attack = MinimumNormEnsemble(*arguments, **options)
    for part in attack.attacks.values():
        if restarts is not None and hasattr(part, "restarts"):
            part.restarts *= count("restarts", restarts)
    return attack


def parse_confirm(text: str | None) -> list[float]:
    """Parse epsilons to confirm; rising, each once.

    >>> parse_confirm("0.2,0.1,0.2")
    [0.1, 0.2]
    """
    epsilons = [] if text is None else sorted(set(parse_epsilons("--confirm", text)))
    if epsilons and not epsilons[0] > 0:
        raise InputError(f"--confirm: expected epsilons above 0, got {text!r}; at 0 the clean accuracy is known")
    return epsilons


def load_target(
    *,
    model: str,
    weights: Path | None,
    data: str,
    most: int | None,
    device: str | None,
    dtype: DType | None,
    version: VersionName | None,
) -> tuple[nn.Module, LabelledImages, dict[str, Any]]:
    """Load the model, the images, and the attack arguments that say how the model runs."""
    import torch

    from pyrobust.attacks import EOT
    from pyrobust.zoo import load_data, load_model

    images = load_data(data, most)
    net = load_model(model, weights)
    if version is VersionName.rand:
        net = EOT(net, _DRAWS)
    settings: dict[str, Any] = {"device": device}
    if dtype is not None:
        settings["dtype"] = getattr(torch, dtype.value)
    return net, images, settings
