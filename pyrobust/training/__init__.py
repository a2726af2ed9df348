"""Losses for certified training, and the training recipes of the bundled nets."""

from __future__ import annotations

from pyrobust.training.digits_ibp import CertifiedTrainResult, train_digits_ibp
from pyrobust.training.digits_smooth import TrainResult, train_digits_smooth
from pyrobust.training.losses import choices_ibp_loss, crown_ibp_loss, ibp_loss, ramp

__all__ = [
    "CertifiedTrainResult",
    "TrainResult",
    "choices_ibp_loss",
    "crown_ibp_loss",
    "ibp_loss",
    "ramp",
    "train_digits_ibp",
    "train_digits_smooth",
]
