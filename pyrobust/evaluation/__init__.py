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

from pyrobust.auditing.audit import Audit, audit
from pyrobust.auditing.certification_log import CertificationLog, read_certification_log
from pyrobust.evaluation.attack import attack_dataset
from pyrobust.evaluation.certify import certify_dataset, predict_dataset
from pyrobust.evaluation.empirical import calculate_empirical_robustness
from pyrobust.evaluation.ibp_accuracy import certified_accuracy_ibp
from pyrobust.evaluation.minimum_norm_curve import confirm_curve, minimum_norm_curve
from pyrobust.evaluation.robustness_curve import (
    Confirmation,
    RobustnessCurve,
    compute_robustness_curve,
    robustness_curve,
)
from pyrobust.evaluation.run_images import save_run_images
from pyrobust.evaluation.sandwich import Crossing, Sandwich, sandwich, sandwich_dataset
from pyrobust.evaluation.smoothed_accuracy import compute_certified_accuracy
from pyrobust.evaluation.verify import verify_dataset
from pyrobust.evaluation.watch import RunState, RunWatcher, WatchedRate, snapshot
from pyrobust.runs.log import format_log, read_log, write_log
from pyrobust.runs.merge import merge_runs
from pyrobust.runs.progress import SweepProgress
from pyrobust.runs.run import Run
from pyrobust.runs.settings import SweepSettings
from pyrobust.workers.executors import RayCluster

__all__ = [
    "Audit",
    "CertificationLog",
    "Confirmation",
    "Crossing",
    "RayCluster",
    "RobustnessCurve",
    "Run",
    "RunState",
    "RunWatcher",
    "Sandwich",
    "SweepProgress",
    "SweepSettings",
    "WatchedRate",
    "attack_dataset",
    "audit",
    "calculate_empirical_robustness",
    "certified_accuracy_ibp",
    "certify_dataset",
    "compute_certified_accuracy",
    "compute_robustness_curve",
    "confirm_curve",
    "format_log",
    "merge_runs",
    "minimum_norm_curve",
    "predict_dataset",
    "read_certification_log",
    "read_log",
    "robustness_curve",
    "sandwich",
    "sandwich_dataset",
    "save_run_images",
    "snapshot",
    "verify_dataset",
    "write_log",
]
