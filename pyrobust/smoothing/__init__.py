"""Randomized smoothing: certificates of the smoothed classifier that hold with probability at least 1 - alpha."""

from __future__ import annotations

from typing import Final

from . import certificates
from .certificates import Certificates, Predictions
from .plan import Plan, PlannedMethod, pilot_probabilities, plan
from .radius import certified_radius, required_probability, two_class_radius
from .smoother import RandomizedSmoothing

__all__ = [
    "ABSTAIN",
    "Certificates",
    "Plan",
    "PlannedMethod",
    "Predictions",
    "RandomizedSmoothing",
    "certified_radius",
    "pilot_probabilities",
    "plan",
    "required_probability",
    "two_class_radius",
]

# Assigned here because the reference pages read docstrings below assignments, not below imports.
ABSTAIN: Final = certificates.ABSTAIN
"""Prediction (-1) of an example for which no class could be certified."""
