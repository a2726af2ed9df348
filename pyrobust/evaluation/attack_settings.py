"""What an attack was told to do, as the parameters of a run keep it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from pyrobust.attacks import EOT, PGD, AdversarialAttack, AutoAttack, BatchAttack
from pyrobust.errors import InputError
from pyrobust.zoo import model_hash

# Attributes that have parameters of their own, or that the results do not depend on.
_ELSEWHERE = frozenset(
    {"model", "runner", "norm", "_norm", "epsilon", "clip_min", "clip_max", "progress", "callback", "forwards"}
)


def attack_settings(attack: AdversarialAttack) -> tuple[int | None, dict[str, Any]]:
    """The seed of an attack, and its other settings: the attributes of the object, by name.

    Of an ``AutoAttack`` also those of its attacks, as "attack.setting"; of this package's attacks only the public ones.
    A default that goes by epsilon, such as the step size of ``PGD``, is a formula; ``draws`` is how often an ``EOT``
    model is drawn in a step.
    Lists, tuples and dictionaries are spread out; values that are no numbers, strings, bool or None are hashed as
    `model_hash` does it.

    Args:
        attack: any attack.

    Returns:
        The seed, None where there is none of this package's, or several; and numbers, strings, bool and None by name.

    Raises:
        InputError: epsilon is not one number.

    >>> from pyrobust.attacks import FGSM
    >>> attack_settings(FGSM(lambda x: x, seed=3))
    (3, {'loss': 'ce'})
    """
    if isinstance(attack.epsilon, Tensor):
        raise InputError(f"attack: expected one epsilon for the run, got a tensor of {len(attack.epsilon)}")
    own = type(attack).__module__.startswith("pyrobust.")
    elsewhere = _ELSEWHERE
    if isinstance(attack, AutoAttack):
        elsewhere = elsewhere | {"attacks", "after_attack", "result"}
    elif isinstance(attack, BatchAttack):
        elsewhere = elsewhere | {"seed"}
    settings = _spread(
        {
            name: value
            for name, value in vars(attack).items()
            if name not in elsewhere and not (own and name.startswith("_"))
        }
    )
    if isinstance(attack, PGD) and attack.step_size is None:
        settings["step_size"] = "2.5 epsilon / steps"
    if isinstance(attack.runner.model, EOT):
        settings["draws"] = attack.runner.model.samples
    parts = attack.attacks if isinstance(attack, AutoAttack) else {"": attack}
    if isinstance(attack, AutoAttack):
        settings["attacks"] = ", ".join(parts)
        for name, part in parts.items():
            settings |= {f"{name}.{key}": value for key, value in attack_settings(part)[1].items()}
    seeds = {f"{name}.seed": part.seed for name, part in parts.items() if isinstance(part, BatchAttack)}
    if len(set(seeds.values())) > 1:
        return None, settings | seeds
    return next(iter(seeds.values()), None), settings


def _spread(value: Any) -> dict[str, Any]:
    """The plain values inside of nested containers, by their path."""
    if isinstance(value, dict) and not value:
        return {}
    if isinstance(value, dict | list | tuple) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {f"{name}.{path}".rstrip("."): plain for name, item in items for path, plain in _spread(item).items()}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return {"": value}
    holder = nn.Module()
    holder.value = value
    return {"": f"sha256 {model_hash(holder)}"}
