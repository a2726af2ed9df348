"""Randomized smoothing: certificates for the smoothed classifier that hold with probability 1 - alpha."""

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

# By assignment: the reference pages take what stands below one, not below an import.
ABSTAIN: Final = certificates.ABSTAIN
"""The prediction where no class could be certified: -1."""
