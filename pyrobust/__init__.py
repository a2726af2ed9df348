"""Certified and empirical robustness of PyTorch classifiers, with native kernels.

The names below are the public API; ``pyrobust.ops`` has the kernels, ``pyrobust.compat`` the faces of other libraries.
"""

from __future__ import annotations

from importlib.metadata import version

from pyrobust.errors import PyrobustError
from pyrobust.evaluation import Run, certify_dataset, compute_certified_accuracy, predict_dataset
from pyrobust.smoothing import ABSTAIN, Certificates, Predictions, RandomizedSmoothing, certified_radius

__version__ = version("pyrobust")

__all__ = [
    "ABSTAIN",
    "Certificates",
    "Predictions",
    "PyrobustError",
    "RandomizedSmoothing",
    "Run",
    "__version__",
    "certified_radius",
    "certify_dataset",
    "compute_certified_accuracy",
    "predict_dataset",
]
