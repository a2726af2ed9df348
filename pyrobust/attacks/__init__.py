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

from .adapters import AdaptedAttack, AdaptedResult
from .apgd import APGD
from .autoattack import AutoAttack, AutoAttackResult, Flag
from .black_box.hop_skip_jump import HopSkipJump
from .black_box.spsa import SPSA
from .black_box.square import Square
from .bpda import BPDA
from .diagnosis import Diagnosis, Finding, diagnose
from .engine.base import AdversarialAttack
from .engine.batches import BatchAttack
from .eot import EOT
from .fgsm import FGSM
from .minimum.carlini_wagner import CarliniWagner
from .minimum.ddn import DDN
from .minimum.deepfool import DeepFool
from .minimum.ead import EAD
from .minimum.engine import MinimumNormAttack
from .minimum.ensemble import MinimumNormEnsemble, minimum_norm
from .minimum.fab import FAB
from .minimum.fmn import FMN
from .minimum.result import MinimumNorm
from .minimum.sigma_zero import SigmaZero
from .minimum.super_deepfool import SuperDeepFool
from .patch import AdversarialPatch, Patch
from .pgd import BIM, PGD
from .transfer import TransferAttack
from .universal import UniversalPerturbation, UniversalResult

__all__ = [
    "APGD",
    "BIM",
    "BPDA",
    "DDN",
    "EAD",
    "EOT",
    "FAB",
    "FGSM",
    "FMN",
    "PGD",
    "SPSA",
    "AdaptedAttack",
    "AdaptedResult",
    "AdversarialAttack",
    "AdversarialPatch",
    "AutoAttack",
    "AutoAttackResult",
    "BatchAttack",
    "CarliniWagner",
    "DeepFool",
    "Diagnosis",
    "Finding",
    "Flag",
    "HopSkipJump",
    "MinimumNorm",
    "MinimumNormAttack",
    "MinimumNormEnsemble",
    "Patch",
    "SigmaZero",
    "Square",
    "SuperDeepFool",
    "TransferAttack",
    "UniversalPerturbation",
    "UniversalResult",
    "diagnose",
    "minimum_norm",
]
