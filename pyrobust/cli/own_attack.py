"""Attacks named ``module:callable``: users' own, and those of other libraries."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyrobust.errors import InputError

if TYPE_CHECKING:
    from pyrobust.attacks import AdversarialAttack


def load_own_attack(spec: str) -> Callable[..., AdversarialAttack]:
    """Import the attack of a spec, and return a function (model, epsilon, norm=, clip_min=, …) that makes it.

    The spec names one of:

    - a class of attacks, or a function that returns an attack; both may come from pyrobust or from another library. The
      class or function is called with those of the arguments model, epsilon (or eps), norm, clip_min, clip_max, grid,
      seed, batch_size, device and dtype that it accepts by name. If values have no limits, clip=None replaces clip_min
      and clip_max;
    - a function (model, x, y) → x_adv, such as a function of adversarial-lib; or
    - an attack object of another library that is made without a model, such as an attack of foolbox.

    ``AdaptedAttack`` runs all of these except pyrobust's own attacks.

    >>> from pyrobust.zoo import load_model
    >>> load_own_attack("pyrobust.attacks:FGSM")(load_model("zoo:digits-smooth-0.25"), 0.1, norm="l2").norm
    'l2'
    """
    from pyrobust.zoo.user_code import find_object, working_directory_importable

    with working_directory_importable():
        factory = find_object(spec, "--attack")

    def make(model: Any, epsilon: Any, **options: Any) -> AdversarialAttack:
        with working_directory_importable():  # it may import modules while it runs
            return _make(spec, factory, model, epsilon, **options)

    make.__name__ = spec.partition(":")[2]
    return make


def _make(spec: str, factory: Any, model: Any, epsilon: Any, **options: Any) -> AdversarialAttack:
    """Make the attack, and check that it has the ball and the clip range of the options."""
    from pyrobust.attacks import AdaptedAttack, AdversarialAttack

    named = {name: value for name, value in options.items() if value is not None or name == "clip"}
    offered = {"model": model, "epsilon": epsilon, **named}
    attack: Any = factory
    if inspect.isclass(factory) or inspect.isroutine(factory):
        taken, missing = _arguments(factory, offered)
        if not missing:
            attack = _made(spec, factory, taken)
        elif inspect.isclass(factory):
            raise InputError(
                "--attack",
                f"a class that takes no more than {', '.join(offered)}",
                f"one that needs {', '.join(missing)}",
                "name a function that makes the attack",
                where=spec,
            )
    if not isinstance(attack, AdversarialAttack):
        attack = AdaptedAttack(attack=attack, **offered)
    no_limit = {"clip_min": -math.inf, "clip_max": math.inf} if "clip" in offered else {}
    expected = offered | no_limit
    checked = {"epsilon": "epsilon", "norm": "norm", "clip_min": "clip", "clip_max": "clip", "grid": "grid"}
    for name, option in checked.items():
        if name in expected and getattr(attack, name) != expected[name]:
            raise InputError(
                "--attack",
                f"an attack with {name} {expected[name]!r}, as in --{option}",
                repr(getattr(attack, name)),
                f"take {'clip' if name in no_limit else name} as an argument",
                where=spec,
            )
    result: AdversarialAttack = attack
    return result


def _made(spec: str, factory: Callable[..., Any], taken: dict[str, Any]) -> Any:
    """Make the attack; raise InputError if its constructor passes on options that its base classes do not take."""
    from pyrobust.zoo.user_code import refusing_exit

    try:
        with refusing_exit(spec, "--attack", "called"):
            return factory(**taken)
    except TypeError as error:
        raise InputError(
            "--attack",
            f"to take {', '.join(taken)}",
            error,
            "name the arguments that it takes in place of **options",
            where=spec,
        ) from error


def _arguments(factory: Callable[..., Any], offered: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the offered arguments that a class or function takes, and the names of others that it requires."""
    parameters = inspect.signature(factory).parameters.values()
    named = {parameter.name for parameter in parameters}
    everything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    taken = {name: value for name, value in offered.items() if everything or name in named}
    if "eps" in named:
        taken["eps"] = offered["epsilon"]
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    return taken, [name for name in needed if name not in taken]
