"""Tables and plots of runs, logs, curves and verdicts; all of them state the method, budget, confidence and data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrobust.late import import_lazily

if TYPE_CHECKING:
    from pyrobust.report.attack_table import (
        attack_table as attack_table,
        curve_table as curve_table,
    )
    from pyrobust.report.caption import describe_run as describe_run
    from pyrobust.report.certification_table import comparison_table as comparison_table
    from pyrobust.report.curve import plot_curve as plot_curve
    from pyrobust.report.figures import (
        plot_certified_accuracy as plot_certified_accuracy,
        plot_survival as plot_survival,
    )
    from pyrobust.report.formats import (
        Column as Column,
        Quantity as Quantity,
        ReportTable as ReportTable,
        format_table as format_table,
        rich_table as rich_table,
    )
    from pyrobust.report.plan_table import (
        plan_table as plan_table,
        time_table as time_table,
    )
    from pyrobust.report.robustness_table import robustness_table as robustness_table
    from pyrobust.report.sandwich_table import sandwich_table as sandwich_table
    from pyrobust.report.summary import run_summary as run_summary
    from pyrobust.report.table import (
        certified_accuracy_table as certified_accuracy_table,
        default_radii as default_radii,
        prediction_table as prediction_table,
        rates_table as rates_table,
        verification_table as verification_table,
    )
    from pyrobust.report.verdict_tables import (
        agreement_table as agreement_table,
        attack_comparison_table as attack_comparison_table,
        judge_table as judge_table,
        model_table as model_table,
        threat_table as threat_table,
        threat_tables as threat_tables,
    )

__all__ = import_lazily(
    __name__,
    {
        "pyrobust.report.attack_table": "attack_table curve_table",
        "pyrobust.report.caption": "describe_run",
        "pyrobust.report.certification_table": "comparison_table",
        "pyrobust.report.curve": "plot_curve",
        "pyrobust.report.figures": "plot_certified_accuracy plot_survival",
        "pyrobust.report.formats": "Column Quantity ReportTable format_table rich_table",
        "pyrobust.report.plan_table": "plan_table time_table",
        "pyrobust.report.robustness_table": "robustness_table",
        "pyrobust.report.sandwich_table": "sandwich_table",
        "pyrobust.report.summary": "run_summary",
        "pyrobust.report.table": """
            certified_accuracy_table default_radii prediction_table rates_table verification_table
        """,
        "pyrobust.report.verdict_tables": """
            agreement_table attack_comparison_table judge_table model_table threat_table threat_tables
        """,
    },
)
