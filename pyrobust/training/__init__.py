"""Training recipes of the bundled nets."""

from __future__ import annotations

from pyrobust.training.digits_smooth import TrainResult, train_digits_smooth

__all__ = ["TrainResult", "train_digits_smooth"]
