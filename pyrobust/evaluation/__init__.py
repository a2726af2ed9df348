"""Evaluate whole data sets: resumable sweeps, their runs, logs and summaries.

>>> from pyrobust.evaluation import certify_dataset, format_log
>>> from pyrobust.smoothing import RandomizedSmoothing
>>> from pyrobust.zoo import load_data, load_model
>>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), num_classes=10, sigma=0.25)
>>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=10)
>>> format_log(run).splitlines()[0].split()
['idx', 'label', 'predict', 'radius', 'correct', 'time']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrobust.late import import_lazily

if TYPE_CHECKING:
    from pyrobust.auditing.audit import (
        Audit as Audit,
        audit as audit,
    )
    from pyrobust.auditing.certification_log import (
        CertificationLog as CertificationLog,
        read_certification_log as read_certification_log,
    )
    from pyrobust.evaluation.attack import attack_dataset as attack_dataset
    from pyrobust.evaluation.certify import (
        certify_dataset as certify_dataset,
        predict_dataset as predict_dataset,
    )
    from pyrobust.evaluation.empirical import calculate_empirical_robustness as calculate_empirical_robustness
    from pyrobust.evaluation.ibp_accuracy import certified_accuracy_ibp as certified_accuracy_ibp
    from pyrobust.evaluation.minimum_norm_curve import (
        confirm_curve as confirm_curve,
        minimum_norm_curve as minimum_norm_curve,
    )
    from pyrobust.evaluation.robustness_curve import (
        Confirmation as Confirmation,
        RobustnessCurve as RobustnessCurve,
        compute_robustness_curve as compute_robustness_curve,
        robustness_curve as robustness_curve,
    )
    from pyrobust.evaluation.run_images import save_run_images as save_run_images
    from pyrobust.evaluation.sandwich import (
        Crossing as Crossing,
        Sandwich as Sandwich,
        sandwich as sandwich,
        sandwich_dataset as sandwich_dataset,
    )
    from pyrobust.evaluation.smoothed_accuracy import compute_certified_accuracy as compute_certified_accuracy
    from pyrobust.evaluation.verify import verify_dataset as verify_dataset
    from pyrobust.evaluation.watch import (
        RunState as RunState,
        RunWatcher as RunWatcher,
        WatchedRate as WatchedRate,
        snapshot as snapshot,
    )
    from pyrobust.runs.log import (
        format_log as format_log,
        read_log as read_log,
        write_log as write_log,
    )
    from pyrobust.runs.merge import merge_runs as merge_runs
    from pyrobust.runs.progress import SweepProgress as SweepProgress
    from pyrobust.runs.run import Run as Run
    from pyrobust.runs.settings import SweepSettings as SweepSettings
    from pyrobust.workers.executors import RayCluster as RayCluster

__all__ = import_lazily(
    __name__,
    {
        "pyrobust.auditing.audit": "Audit audit",
        "pyrobust.auditing.certification_log": "CertificationLog read_certification_log",
        "pyrobust.evaluation.attack": "attack_dataset",
        "pyrobust.evaluation.certify": "certify_dataset predict_dataset",
        "pyrobust.evaluation.empirical": "calculate_empirical_robustness",
        "pyrobust.evaluation.ibp_accuracy": "certified_accuracy_ibp",
        "pyrobust.evaluation.minimum_norm_curve": "confirm_curve minimum_norm_curve",
        "pyrobust.evaluation.robustness_curve": """
            Confirmation RobustnessCurve compute_robustness_curve robustness_curve
        """,
        "pyrobust.evaluation.run_images": "save_run_images",
        "pyrobust.evaluation.sandwich": "Crossing Sandwich sandwich sandwich_dataset",
        "pyrobust.evaluation.smoothed_accuracy": "compute_certified_accuracy",
        "pyrobust.evaluation.verify": "verify_dataset",
        "pyrobust.evaluation.watch": "RunState RunWatcher WatchedRate snapshot",
        "pyrobust.runs.log": "format_log read_log write_log",
        "pyrobust.runs.merge": "merge_runs",
        "pyrobust.runs.progress": "SweepProgress",
        "pyrobust.runs.run": "Run",
        "pyrobust.runs.settings": "SweepSettings",
        "pyrobust.workers.executors": "RayCluster",
    },
)
