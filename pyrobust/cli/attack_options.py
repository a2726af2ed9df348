"""Options of ``attack`` and ``curve``, and the attack that they describe."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyrobust.errors import InputError
from pyrobust.option import Option

if TYPE_CHECKING:
    from torch import nn

    from pyrobust.attacks import AdversarialAttack
    from pyrobust.cli.sweep_command import Call


def _catalogued() -> list[str]:
    """Return the names of the catalogue, read from its source so that help and completion need no torch."""
    source = Path(__file__).parents[1] / "attacks" / "catalogue.py"
    for statement in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Dict):
            return [str(ast.literal_eval(key)) for key in statement.value.keys if key is not None]
    raise AssertionError(f"{source}: no catalogue")


ATTACK_PANEL = "Attack"
NAMES = tuple(_catalogued())
#: Keys: the options that the settings of attacks name (`pyrobust.attacks.engine.settings`).
SETTINGS = {
    "steps": Option(
        "Number of steps; for square, of queries. Default: the attack's own.", "N", "integer", ATTACK_PANEL
    ),
    "restarts": Option("Number of starts. Default: the attack's own.", "N", "integer", ATTACK_PANEL),
    "version": Option(
        "Version of autoattack; rand is for random models and draws 20 times per step (EOT). Default: standard.",
        form="choice",
        panel=ATTACK_PANEL,
        choices=("standard", "plus", "rand"),
    ),
}
ATTACK = Option(
    f"Attack to run: {', '.join(NAMES)}; or module:callable, your own or another library's. Default: autoattack.",
    "NAME",
    "name",
    ATTACK_PANEL,
    choices=NAMES,
)
CERTIFY_FIRST = Option(
    "Leave out of autoattack what bounds prove robust at epsilon, in the arithmetic that it would run: the same "
    "result, sooner.",
    form="flag",
    panel=ATTACK_PANEL,
    default=False,
)
REPLACE = Option("Overwrite existing files of --plot and --json; never inputs.", form="flag", default=False)

_PLOTS = (".png", ".pdf", ".svg")
# Draws per step of the rand version, unless the model sets its own (Croce and Hein, 2020).
_DRAWS = 20
_DEFAULT = "autoattack"


def choose_attack(
    name: str, norm: str, values: Mapping[str, Any]
) -> tuple[Callable[..., AdversarialAttack], dict[str, Any]]:
    """Return the class of an attack (for a user's own attack, the function that makes it) and the attack's settings.

    >>> choose_attack("square", "l2", {"steps": 100, "version": None})[1]
    {'norm': 'l2', 'n_queries': 100}
    """
    from pyrobust.attacks import AdversarialAttack, MinimumNormAttack
    from pyrobust.attacks.catalogue import CATALOGUE
    from pyrobust.attacks.engine.settings import option_settings

    entry = CATALOGUE.get(name)
    settable = {} if entry is None else option_settings(entry.attack)
    for option, value in values.items():
        if value is not None and option not in settable:
            what = "set it in your code" if entry is None else "leave it out"
            raise InputError(f"--{option}", f"none with --attack {name}", value, what)
    if entry is None:
        from pyrobust.cli.own_attack import load_own_attack

        return load_own_attack(name), {"norm": norm}
    attack_class = entry.attack
    if norm not in attack_class.norms:
        alike = MinimumNormAttack if issubclass(attack_class, MinimumNormAttack) else AdversarialAttack
        others = [
            other
            for other, candidate in CATALOGUE.items()
            if issubclass(candidate.attack, alike) and norm in candidate.attack.norms
        ]
        raise InputError(
            "--norm",
            f"{', '.join(attack_class.norms)} with --attack {name}",
            norm,
            f"for {norm} use --attack {', '.join(others)}",
        )
    settings = {"norm": norm, **entry.settings}
    if norm == "l1" and attack_class.__name__ == "APGD":
        settings["multi_epsilon"] = True  # as AutoAttack runs it
    return attack_class, settings | {settable[option]: value for option, value in values.items() if value is not None}


def choose_minimum(
    name: str | None, norm: str, values: Mapping[str, Any]
) -> tuple[Callable[..., AdversarialAttack], dict[str, Any]]:
    """Return the class of a minimum-norm attack (for the ensemble, the function that makes it) and its settings.

    >>> choose_minimum("fab-t", "l2", {"steps": 20})[1]
    {'norm': 'l2', 'steps': 20}
    """
    from pyrobust.attacks import MinimumNormAttack
    from pyrobust.attacks.catalogue import CATALOGUE

    if name is None:
        for option, value in values.items():
            if value is not None and option != "restarts":
                raise InputError(f"--{option}", "none without --attack", value, "name an attack or leave it out")
        return partial(_ensemble, values.get("restarts")), {"norm": norm}
    attack_class, settings = choose_attack(name, norm, values)
    if isinstance(attack_class, type) and not issubclass(attack_class, MinimumNormAttack):
        choices = [other for other, entry in CATALOGUE.items() if issubclass(entry.attack, MinimumNormAttack)]
        raise InputError(
            "--attack", problem=f"expected a minimum-norm attack with --minimum, {', '.join(choices)}; got {name}"
        )
    return attack_class, settings


def _ensemble(restarts: int | None, model: nn.Module, epsilon: float, **options: Any) -> AdversarialAttack:
    """Make the ensemble of minimum-norm attacks; attacks that make restarts make ``restarts`` times as many."""
    from pyrobust.attacks import MinimumNormEnsemble
    from pyrobust.checks import count

    attack = MinimumNormEnsemble(model, epsilon, **options)
    for member in attack.attacks.values():
        if restarts is not None and hasattr(member, "restarts"):
            member.restarts *= count("restarts", restarts)
    return attack


def chosen_attack(call: Call, *, minimum: bool = False) -> tuple[Callable[..., AdversarialAttack], dict[str, Any]]:
    """Return a class or function that makes the attack described by the options, and the attack's settings.

    Refuses ``--certify-first`` with an attack that does not support it.
    """
    name, values = call["attack"], call.chosen(*SETTINGS)
    if not minimum and name not in (None, _DEFAULT):
        call.refuse("certify_first", why="with another attack than autoattack")
    if minimum:
        return choose_minimum(name, call["norm"], values)
    attack_class, settings = choose_attack(name or _DEFAULT, call["norm"], values)
    return attack_class, settings | ({"certify_first": True} if call["certify_first"] else {})


def work_settings(call: Call) -> dict[str, Any]:
    """Return the settings that all attacks of a call share."""
    import torch

    clip = call["clip"]
    ends = {"clip": None} if clip is None else {"clip_min": clip[0], "clip_max": clip[1]}
    settings = {"device": call.device, **ends, **call.chosen("seed", "batch_size")}
    if call["dtype"] is not None:
        settings["dtype"] = getattr(torch, call["dtype"])
    if call["grid"] is not None:
        settings["grid"] = call["grid"]
    return settings


def load_attacked(call: Call) -> Any:
    """Load the model; for the rand version of AutoAttack, wrap the model in ``EOT``, which averages over draws."""
    from pyrobust.attacks import EOT

    net = call.load_model()
    return EOT(net, _DRAWS) if call["version"] == "rand" else net


def check_plot(call: Call) -> None:
    """Raise InputError for a plot of an unknown format, and for ``--replace`` without a file that it could replace."""
    if call["plot"] is None and call["json"] in (None, "-"):
        call.refuse("replace", why="without --plot or --json")
    if call["plot"] is not None and call["plot"].suffix.lower() not in _PLOTS:
        raise InputError("--plot", f"a file name that ends in {', '.join(_PLOTS)}", repr(str(call["plot"])))
