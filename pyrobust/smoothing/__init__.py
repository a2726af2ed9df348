"""Randomized smoothing: certificates of the smoothed classifier that hold with probability at least 1 - alpha."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyrobust.late import import_lazily
from pyrobust.smoothing import certificates

if TYPE_CHECKING:
    from pyrobust.smoothing.certificates import (
        Certificates as Certificates,
        Predictions as Predictions,
    )
    from pyrobust.smoothing.plan import (
        Plan as Plan,
        PlannedMethod as PlannedMethod,
        pilot_probabilities as pilot_probabilities,
        plan as plan,
    )
    from pyrobust.smoothing.radius import (
        certified_radius as certified_radius,
        required_probability as required_probability,
        two_class_radius as two_class_radius,
    )
    from pyrobust.smoothing.smoother import RandomizedSmoothing as RandomizedSmoothing

__all__ = import_lazily(
    __name__,
    {
        "pyrobust.smoothing.certificates": "Certificates Predictions",
        "pyrobust.smoothing.plan": "Plan PlannedMethod pilot_probabilities plan",
        "pyrobust.smoothing.radius": "certified_radius required_probability two_class_radius",
        "pyrobust.smoothing.smoother": "RandomizedSmoothing",
    },
    "ABSTAIN",
)

# Assigned here because the reference pages read docstrings below assignments, not below imports.
ABSTAIN: Final = certificates.ABSTAIN
"""Prediction (-1) of an example for which no class could be certified."""
