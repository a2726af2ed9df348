"""Descriptions of attacks, norms and clip ranges for captions and pages."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from pyrobust.checks import number_text
from pyrobust.late import numpy as np

#: What the intervals of a curve under attack mean.
POINTWISE = "Intervals are pointwise, of the accuracy under this attack, and no lower bound of robustness"
#: What an attack proves.
ATTACKED = "Attacked accuracy is an upper bound of robust accuracy: what one attack did not break, another may."
#: What a distance is.
EXACT = "Each distance is that of an adversarial example that was found, computed exactly and rounded up."
# Names of norms with radii of elements.
_BOX = "box "
#: What a radius r in each norm allows.
NORMS = {
    "linf": "every value changes by at most",
    "l2": "the l2 norm is at most",
    "l1": "the l1 norm is at most",
    "l0": "the number of changed values is at most",
}
#: Number of radii or epsilons listed in a caption; the table has all of them.
MOST = 12


def norm_of(parameters: dict[str, Any]) -> str:
    """Name the unit of a run's radii; two runs share this name only if their radii are comparable.

    >>> norm_of({"norm": "linf"}), norm_of({"norm": "linf", "box": [0.1, 0.0, 0.3]})
    ('linf', 'box d9cbf726')
    """
    box = parameters.get("box")
    return str(parameters["norm"]) if box is None else box_norm(box)


def box_norm(box: Any) -> str:
    """Return a name for the norm max |δᵢ| / boxᵢ of a perturbation δ; it contains a hash of the nested list ``box``.

    >>> box_norm([0.1, 0.0, 0.3])
    'box d9cbf726'
    """
    radii = np.asarray(box, dtype="<f8")
    digest = hashlib.sha256(f"{radii.shape}".encode() + radii.tobytes()).hexdigest()[:8]
    return _BOX + digest


def unit_of(norm: str) -> str:
    """Describe the unit of radii in a norm; ``norm`` is the norm's name from `norm_of`.

    >>> unit_of("l2")
    'in the unit of the input'
    """
    return "in multiples of each feature's epsilon" if norm.startswith(_BOX) else "in the unit of the input"


def unit_text(parameters: dict[str, Any]) -> str:
    """Describe the unit of distances: the norm, or multiples of the per-feature radii of a box.

    >>> unit_text({"norm": "linf", "box": [0.1, 0.0, 0.3]})
    'multiples of the per-feature epsilon, 0 to 0.3, median 0.1 (box d9cbf726)'
    """
    box = parameters.get("box")
    return str(parameters["norm"]) if box is None else f"multiples of the {box_text(box)}"


def ball_text(parameters: dict[str, Any]) -> str:
    """Return the words for a ball that come before the value of epsilon, such as "l2 epsilon".

    >>> ball_text({"norm": "l2"}), ball_text({"norm": "linf", "box": [0.1, 0.0, 0.3]})
    ('l2 epsilon', 'per-feature epsilon, 0 to 0.3, median 0.1 (box d9cbf726), times')
    """
    box = parameters.get("box")
    return f"{parameters['norm']} epsilon" if box is None else f"{box_text(box)}, times"


def change_text(parameters: dict[str, Any]) -> str:
    """Describe the changes that a radius r allows, as a clause."""
    if "box" in parameters:
        return f"each value changes by at most r times its own epsilon ({box_text(parameters['box'])})"
    return f"{NORMS[parameters['norm']]} r"


def box_text(box: Any, *, named: bool = True) -> str:
    """Describe the per-feature radii of a box; if ``named`` is True, add the name of the box (``box_norm``).

    >>> box_text([0.1, 0.0, 0.3]), box_text([[0.5, 0.5]])
    ('per-feature epsilon, 0 to 0.3, median 0.1 (box d9cbf726)', 'per-feature epsilon, 0.5 (box 9ae723c8)')
    """
    radii = np.asarray(box, dtype=np.float64)
    low, high, middle = (f"{float(value):.3g}" for value in (radii.min(), radii.max(), np.median(radii)))
    spread = low if low == high else f"{low} to {high}, median {middle}"
    return f"per-feature epsilon, {spread}" + (f" ({box_norm(box)})" if named else "")


def describe_attack(
    name: str, norm: str, clip: Sequence[Any] | None, settings: dict[str, Any], seed: int | None
) -> str:
    """Describe an attack in one line: norm, clip range, seed and budget.

    The settings of an ``AutoAttack``'s attacks are named "attack.setting".

    >>> describe_attack("FGSM", "l2", [0.0, 1.0], {"loss": "ce"}, 0)
    'FGSM in l2 and [0, 1], seed 0; loss ce'
    """
    attacks = planned_attacks(name, settings)
    if attacks != [name]:
        names = ", ".join(_component(attack, settings) for attack in attacks)
        budget = [f"{describe_budget(name, settings)}: {names}".removeprefix(": ")]
    else:
        budget = [f"{key} {value}" for key, value in settings.items() if value is not None]
    begin = f"{name} in {norm} and {range_text(clip)}" + ("" if seed is None else f", seed {seed}")
    return "; ".join([begin, ", ".join(budget)]) if budget else begin


def attack_of(parameters: dict[str, Any]) -> str:
    """Describe the attack of a run in one line."""
    return describe_attack(*(parameters[name] for name in ("attack", "norm", "clip", "settings", "seed")))


def planned_attacks(name: str, settings: dict[str, Any]) -> list[str]:
    """List the attacks that an ensemble runs, in order; for any other attack, list only its own name.

    >>> planned_attacks("AutoAttack", {"attacks": "apgd-ce, square"})
    ['apgd-ce', 'square']
    """
    attacks = settings.get("attacks")
    return attacks.split(", ") if isinstance(attacks, str) else [name]


def attacks_of(parameters: dict[str, Any]) -> list[str]:
    """List the attacks of a run, in order."""
    return planned_attacks(parameters["attack"], parameters["settings"])


def describe_budget(name: str, settings: dict[str, Any]) -> str:
    """Describe the budget of an attack by its settings: version, steps, queries, draws and starts, if it has them.

    >>> describe_budget("PGD", {"steps": 40, "restarts": 5, "loss": "ce"})
    '40 steps from 5 starts'
    >>> describe_budget("APGD", {"steps": 100, "draws": 20})
    '100 steps of 20 draws'
    """
    if planned_attacks(name, settings) != [name]:
        return f"version {settings['version']}" if "version" in settings else ""
    words = {"steps": "steps", "n_queries": "queries"}
    budget = [f"{settings[key]} {word}" for key, word in words.items() if key in settings]
    draws = f" of {settings['draws']} draws" if "draws" in settings else ""
    return (
        ", ".join(budget) + draws + (f" from {settings['restarts']} starts" if settings.get("restarts", 1) != 1 else "")
    )


def attack_and_budget(parameters: dict[str, Any]) -> str:
    """Name the attack of a run with its budget."""
    budget = describe_budget(parameters["attack"], parameters["settings"])
    return f"{parameters['attack']}{budget and f', {budget}'}"


def range_text(clip: Sequence[Any] | None) -> str:
    """Return a clip range as text.

    >>> range_text([0.0, 1.0]), range_text(None)
    ('[0, 1]', 'no clip range')
    """
    if clip is not None and any(isinstance(side, list | tuple) for side in clip):
        return "the range of each element"
    return "no clip range" if clip is None else f"[{number_text(clip[0])}, {number_text(clip[1])}]"


def _component(attack: str, settings: dict[str, Any]) -> str:
    """Describe one attack of an ensemble with its budget."""
    prefix = f"{attack}."
    member_settings = {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}
    return f"{attack} {describe_budget(attack, member_settings)}".rstrip()
