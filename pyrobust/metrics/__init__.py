"""Metrics of attacked and certified classifiers: pure functions of tensors and numbers, with confidence intervals.

>>> import torch
>>> from pyrobust.metrics import predicted_classes, robust_accuracy
>>> clean = predicted_classes(torch.tensor([[2.0, 1.0], [0.0, 1.0]]))
>>> rate = robust_accuracy(clean, torch.tensor([0, 0]), labels=torch.tensor([0, 1]))
>>> rate.value, rate.successes, rate.n
(0.5, 1, 2)
"""

from __future__ import annotations

from pyrobust.metrics.accuracy import (
    clean_accuracy,
    predicted_classes,
    robust_accuracy,
    robust_risk,
    standard_risk,
)
from pyrobust.metrics.certified import (
    CertifiedAccuracyBound,
    average_certified_radius,
    average_radius,
    certification_gap,
    certified_accuracy,
    certified_accuracy_with_confidence,
)
from pyrobust.metrics.crossings import CrossingRule, crossing_rule, union_bound
from pyrobust.metrics.distance import (
    distances,
    distances_above,
    mean_distance,
    minimum_perturbation,
    perturbation_quantiles,
)
from pyrobust.metrics.estimate import Estimate
from pyrobust.metrics.lipschitz import (
    BinaryProvableAvgRobustness,
    BinaryProvableRobustAccuracy,
    CategoricalProvableAvgRobustness,
    CategoricalProvableRobustAccuracy,
)
from pyrobust.metrics.margins import binary_margins, categorical_margins
from pyrobust.metrics.paired import PairedComparison, RadiusComparisons, compare_at_radii, paired_test
from pyrobust.metrics.rate import Rate, estimate_rate
from pyrobust.metrics.shares import (
    GroupShares,
    RobustnessShares,
    confidence_bins,
    robustness_shares,
    robustness_shares_by_group,
)
from pyrobust.metrics.subsets import subset_accuracy, subset_average_certified_radius
from pyrobust.metrics.success import (
    attack_success_rate,
    success_rate_on_correct,
    targeted_success_rate,
)
from pyrobust.metrics.survival import ClassSummary, SurvivalCurve, rank_by_survival, survival_curve
from pyrobust.metrics.sweep_time import SweepTime, makespan, sweep_time
from pyrobust.metrics.votes import (
    attainable_radii,
    is_attainable,
    maximum_radius,
    significant_decimals,
    votes_for_radius,
)

__all__ = [
    "BinaryProvableAvgRobustness",
    "BinaryProvableRobustAccuracy",
    "CategoricalProvableAvgRobustness",
    "CategoricalProvableRobustAccuracy",
    "CertifiedAccuracyBound",
    "ClassSummary",
    "CrossingRule",
    "Estimate",
    "GroupShares",
    "PairedComparison",
    "RadiusComparisons",
    "Rate",
    "RobustnessShares",
    "SurvivalCurve",
    "SweepTime",
    "attack_success_rate",
    "attainable_radii",
    "average_certified_radius",
    "average_radius",
    "binary_margins",
    "categorical_margins",
    "certification_gap",
    "certified_accuracy",
    "certified_accuracy_with_confidence",
    "clean_accuracy",
    "compare_at_radii",
    "confidence_bins",
    "crossing_rule",
    "distances",
    "distances_above",
    "estimate_rate",
    "is_attainable",
    "makespan",
    "maximum_radius",
    "mean_distance",
    "minimum_perturbation",
    "paired_test",
    "perturbation_quantiles",
    "predicted_classes",
    "rank_by_survival",
    "robust_accuracy",
    "robust_risk",
    "robustness_shares",
    "robustness_shares_by_group",
    "significant_decimals",
    "standard_risk",
    "subset_accuracy",
    "subset_average_certified_radius",
    "success_rate_on_correct",
    "survival_curve",
    "sweep_time",
    "targeted_success_rate",
    "union_bound",
    "votes_for_radius",
]
