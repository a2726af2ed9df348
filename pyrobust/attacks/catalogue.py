"""The attacks that the command line offers by name, one row each."""

from __future__ import annotations

from typing import Any, NamedTuple

from .apgd import APGD
from .autoattack import AutoAttack
from .black_box.hop_skip_jump import HopSkipJump
from .black_box.spsa import SPSA
from .black_box.square import Square
from .engine.base import AdversarialAttack
from .engine.settings import option_settings
from .fgsm import FGSM
from .minimum.carlini_wagner import CarliniWagner
from .minimum.ddn import DDN
from .minimum.deepfool import DeepFool
from .minimum.ead import EAD
from .minimum.fab import FAB
from .minimum.fmn import FMN
from .minimum.sigma_zero import SigmaZero
from .minimum.super_deepfool import SuperDeepFool
from .pgd import BIM, PGD


class Entry(NamedTuple):
    """The attack and the settings that a name on the command line stands for.

    Attributes:
        attack: the attack's class.
        settings: keyword arguments that the name stands for.
    """

    attack: type[AdversarialAttack]
    settings: dict[str, Any] = {}  # noqa: RUF012 - read only

    @property
    def steps(self) -> str | None:
        """The setting that ``--steps`` sets; None if the attack has no such setting."""
        return option_settings(self.attack).get("steps")

    @property
    def restarts(self) -> str | None:
        """The setting that ``--restarts`` sets; None if the attack has no such setting."""
        return option_settings(self.attack).get("restarts")


#: The attacks by their names in ``pyrobust attack --attack``, which reads the names here without importing anything.
CATALOGUE: dict[str, Entry] = {
    "autoattack": Entry(AutoAttack),
    "pgd": Entry(PGD),
    "fgsm": Entry(FGSM),
    "bim": Entry(BIM),
    "apgd-ce": Entry(APGD, {"loss": "ce"}),
    "apgd-dlr": Entry(APGD, {"loss": "dlr"}),
    "apgd-t": Entry(APGD, {"loss": "dlr-targeted"}),
    "fab-t": Entry(FAB),
    "square": Entry(Square),
    "spsa": Entry(SPSA),
    "hop-skip-jump": Entry(HopSkipJump),
    "fmn": Entry(FMN),
    "ddn": Entry(DDN),
    "deepfool": Entry(DeepFool),
    "super-deepfool": Entry(SuperDeepFool),
    "cw": Entry(CarliniWagner),
    "ead": Entry(EAD),
    "sigma-zero": Entry(SigmaZero),
}
