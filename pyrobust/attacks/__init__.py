"""Attacks: empirical upper bounds on robustness.

>>> import torch
>>> from pyrobust.attacks import PGD
>>> from pyrobust.zoo import load_data, load_model
>>> digits = load_data("digits")
>>> x, y = digits.x[:50], digits.y[:50]
>>> attack = PGD(load_model("zoo:digits-smooth-0.25"), epsilon=0.1, steps=10)
>>> result = attack.evaluate(x, y, attack.generate(x, y))
>>> result["clean_accuracy"] > result["robust_accuracy"]
True
"""

from __future__ import annotations

from .apgd import APGD
from .autoattack import AutoAttack, AutoAttackResult, Flag
from .base import AdversarialAttack
from .black_box.hop_skip_jump import HopSkipJump
from .black_box.spsa import SPSA
from .black_box.square import Square
from .bpda import BPDA
from .engine import BatchAttack
from .eot import EOT
from .fgsm import FGSM
from .minimum.engine import MinimumNormAttack
from .minimum.fab import FAB
from .minimum.result import MinimumNorm
from .pgd import BIM, PGD
from .transfer import TransferAttack

__all__ = [
    "APGD",
    "BIM",
    "BPDA",
    "EOT",
    "FAB",
    "FGSM",
    "PGD",
    "SPSA",
    "AdversarialAttack",
    "AutoAttack",
    "AutoAttackResult",
    "BatchAttack",
    "Flag",
    "HopSkipJump",
    "MinimumNorm",
    "MinimumNormAttack",
    "Square",
    "TransferAttack",
]
