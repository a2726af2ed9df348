"""The attacks that the command line knows by name, one row each."""

from __future__ import annotations

from typing import Any, NamedTuple

from .apgd import APGD
from .autoattack import AutoAttack
from .black_box.hop_skip_jump import HopSkipJump
from .black_box.spsa import SPSA
from .black_box.square import Square
from .engine.base import AdversarialAttack
from .fgsm import FGSM
from .minimum.carlini_wagner import CarliniWagner
from .minimum.ddn import DDN
from .minimum.deepfool import DeepFool
from .minimum.ead import EAD
from .minimum.fab import FAB
from .minimum.fmn import FMN
from .minimum.sigma_zero import SigmaZero
from .pgd import BIM, PGD


class Entry(NamedTuple):
    """An attack with a name.

    Attributes:
        attack: its class.
        steps: the keyword that ``--steps`` sets; None for none.
        restarts: the keyword that ``--restarts`` sets; None for none.
        settings: keywords that the name implies.
    """

    attack: type[AdversarialAttack]
    steps: str | None = None
    restarts: str | None = None
    settings: dict[str, Any] = {}  # noqa: RUF012 - read only


#: By the name of ``pyrobust attack --attack``.
CATALOGUE: dict[str, Entry] = {
    "autoattack": Entry(AutoAttack),
    "pgd": Entry(PGD, "steps", "restarts"),
    "fgsm": Entry(FGSM),
    "bim": Entry(BIM, "steps"),
    "apgd-ce": Entry(APGD, "steps", "restarts", {"loss": "ce"}),
    "apgd-dlr": Entry(APGD, "steps", "restarts", {"loss": "dlr"}),
    "apgd-t": Entry(APGD, "steps", "restarts", {"loss": "dlr-targeted"}),
    "fab-t": Entry(FAB, "steps", "restarts"),
    "square": Entry(Square, "n_queries", "restarts"),
    "spsa": Entry(SPSA, "steps"),
    "hop-skip-jump": Entry(HopSkipJump, "steps"),
    "fmn": Entry(FMN, "steps", "restarts"),
    "ddn": Entry(DDN, "steps"),
    "deepfool": Entry(DeepFool, "steps"),
    "cw": Entry(CarliniWagner, "steps"),
    "ead": Entry(EAD, "steps"),
    "sigma-zero": Entry(SigmaZero, "steps"),
}


def name_of(attack: str, loss: str | None) -> str | None:
    """Return the name of a class and its loss on the command line; None for an attack without one.

    >>> name_of("APGD", "dlr"), name_of("FGSM", "ce"), name_of("Mine", None)
    ('apgd-dlr', 'fgsm', None)
    """
    for name, entry in CATALOGUE.items():
        if entry.attack.__name__ == attack and entry.settings.get("loss") in (None, loss):
            return name
    return None
