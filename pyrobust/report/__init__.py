"""Tables and plots of runs and curves; every rate comes with what it depends on."""

from __future__ import annotations

from pyrobust.report.caption import describe_run
from pyrobust.report.curve import plot_curve
from pyrobust.report.plot import plot_certified_accuracy
from pyrobust.report.table import (
    attack_table,
    certified_accuracy_table,
    curve_table,
    default_radii,
    prediction_table,
    verification_table,
)

__all__ = [
    "attack_table",
    "certified_accuracy_table",
    "curve_table",
    "default_radii",
    "describe_run",
    "plot_certified_accuracy",
    "plot_curve",
    "prediction_table",
    "verification_table",
]
