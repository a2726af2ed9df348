"""Tables and plots of runs; every rate comes with what it depends on."""

from __future__ import annotations

from pyrobust.report.caption import describe_run
from pyrobust.report.plot import plot_certified_accuracy
from pyrobust.report.table import certified_accuracy_table, default_radii, prediction_table

__all__ = [
    "certified_accuracy_table",
    "default_radii",
    "describe_run",
    "plot_certified_accuracy",
    "prediction_table",
]
