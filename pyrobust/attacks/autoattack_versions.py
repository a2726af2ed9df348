"""AutoAttack's published versions: their attacks and budgets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from torch import Tensor

from pyrobust.checks import AttackNormName, choice, items
from pyrobust.errors import InputError
from pyrobust.runner import Classifier

from .apgd import APGD
from .black_box.square import Square
from .engine.batches import BatchAttack
from .eot import EOT
from .minimum.fab import FAB

#: The published versions, and "custom" for attacks named by the user.
Version: TypeAlias = Literal["standard", "plus", "rand", "custom"]
#: The attacks of each version, in order (Croce and Hein, 2020).
VERSIONS: dict[str, tuple[str, ...]] = {
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "plus": ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"),
    "rand": ("apgd-ce", "apgd-dlr"),
}
_NAMES = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
_EOT_SAMPLES = 20


def checked_names(names: Iterable[str]) -> tuple[str, ...]:
    """Check names of attacks; raises InputError for an unknown or repeated name, or an empty list.

    >>> checked_names(["apgd-ce", "square"])
    ('apgd-ce', 'square')
    """
    chosen = (names,) if isinstance(names, str) else tuple(items("attacks_to_run", names, "names of attacks"))
    checked = tuple(choice("attacks_to_run", name, _NAMES) for name in chosen)
    if not checked or len(set(checked)) < len(checked):
        raise InputError("attacks_to_run", "one or more distinct attacks", ", ".join(checked) or "none")
    return checked


def attack_names(version: str, attacks_to_run: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of the attacks to run; raise InputError for an unknown version, or "custom" without attacks.

    >>> attack_names("rand", None), attack_names("custom", ["square"])
    (('apgd-ce', 'apgd-dlr'), ('square',))
    """
    choice("version", version, (*VERSIONS, "custom"))
    if attacks_to_run is not None:
        return checked_names(attacks_to_run)
    if version == "custom":
        raise InputError("attacks_to_run", f'one or more of {", ".join(_NAMES)} with version="custom"', "None")
    return VERSIONS[version]


def published_attack(
    name: str, model: Classifier, epsilon: float | Tensor, norm: AttackNormName, version: str, options: dict[str, Any]
) -> BatchAttack:
    """Make an attack by name, with the version's budget; ``options`` are other arguments of ``BatchAttack``.

    >>> published_attack("apgd-t", lambda x: x, 0.1, "l1", "standard", {}).targets
    5
    """
    if version == "rand" and not isinstance(model, EOT):
        model = EOT(model, _EOT_SAMPLES)
    l1 = norm == "l1"
    if name == "square":
        return Square(model, epsilon, norm, rescale_schedule=False, **options)
    if name == "fab":
        restarts = 1 if version == "standard" else 5
        return FAB(model, epsilon, norm, targets=None, restarts=restarts, nearest=False, **options)
    if name == "fab-t":
        return FAB(model, epsilon, norm, targets=9, nearest=False, **options)
    if name == "apgd-t":
        targets = 5 if l1 and version == "standard" else 9
        return APGD(model, epsilon, norm, loss="dlr-targeted", targets=targets, multi_epsilon=l1, **options)
    restarts = {"standard": 5 if l1 else 1, "plus": 5, "custom": 5, "rand": 1}[version]
    return APGD(
        model, epsilon, norm, loss="ce" if name == "apgd-ce" else "dlr", restarts=restarts, multi_epsilon=l1, **options
    )


def least_rows(attack: BatchAttack, classes: int) -> int:
    """Return the least number of forward passes of an example that withstands the attack; FAB may run a few more.

    >>> least_rows(Square(lambda x: x), 10)
    5002
    """
    others = classes - 1
    if isinstance(attack, Square):
        return 1 + attack.restarts * (1 + attack.n_queries)
    if isinstance(attack, FAB):
        turns = 1 if attack.targets is None else min(attack.targets, others)
        return 3 + turns * attack.restarts * 2 * attack.steps
    if not isinstance(attack, APGD):  # a user's own attack, whose passes are not known
        return 0
    targeted = attack.loss == "dlr-targeted"
    runs = attack.restarts * (min(attack.targets, others) if targeted else 1)
    return 1 + targeted + runs * sum(1 + steps for _, steps in attack._schedule())
