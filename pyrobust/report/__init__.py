"""Tables and plots of runs, logs, curves and verdicts; every rate has its method, budget, confidence and data."""

from __future__ import annotations

from pyrobust.report.caption import describe_run
from pyrobust.report.certification_table import comparison_table
from pyrobust.report.curve import plot_curve
from pyrobust.report.figures import plot_certified_accuracy, plot_survival
from pyrobust.report.formats import Column, Quantity, ReportTable, format_table, rich_table
from pyrobust.report.plan_table import plan_table, time_table
from pyrobust.report.robustness_table import robustness_table
from pyrobust.report.sandwich_table import sandwich_table
from pyrobust.report.summary import run_summary
from pyrobust.report.table import (
    attack_table,
    certified_accuracy_table,
    curve_table,
    default_radii,
    prediction_table,
    verification_table,
)
from pyrobust.report.verdict_tables import (
    agreement_table,
    attack_comparison_table,
    judge_table,
    model_table,
    threat_table,
    threat_tables,
)

__all__ = [
    "Column",
    "Quantity",
    "ReportTable",
    "agreement_table",
    "attack_comparison_table",
    "attack_table",
    "certified_accuracy_table",
    "comparison_table",
    "curve_table",
    "default_radii",
    "describe_run",
    "format_table",
    "judge_table",
    "model_table",
    "plan_table",
    "plot_certified_accuracy",
    "plot_curve",
    "plot_survival",
    "prediction_table",
    "rich_table",
    "robustness_table",
    "run_summary",
    "sandwich_table",
    "threat_table",
    "threat_tables",
    "time_table",
    "verification_table",
]
