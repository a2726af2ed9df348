"""Metrics of attacked and certified classifiers: pure functions of tensors and numbers, with confidence intervals.

>>> import torch
>>> from pyrobust.metrics import predicted_classes, robust_accuracy
>>> clean = predicted_classes(torch.tensor([[2.0, 1.0], [0.0, 1.0]]))
>>> rate = robust_accuracy(clean, torch.tensor([0, 0]), labels=torch.tensor([0, 1]))
>>> rate.value, rate.successes, rate.n
(0.5, 1, 2)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrobust.late import import_lazily

if TYPE_CHECKING:
    from pyrobust.metrics.accuracy import (
        clean_accuracy as clean_accuracy,
        predicted_classes as predicted_classes,
        robust_accuracy as robust_accuracy,
        robust_risk as robust_risk,
        standard_risk as standard_risk,
    )
    from pyrobust.metrics.certified import (
        CertifiedAccuracyBound as CertifiedAccuracyBound,
        average_certified_radius as average_certified_radius,
        average_radius as average_radius,
        certification_gap as certification_gap,
        certified_accuracy as certified_accuracy,
        certified_accuracy_with_confidence as certified_accuracy_with_confidence,
    )
    from pyrobust.metrics.crossings import (
        CrossingRule as CrossingRule,
        crossing_rule as crossing_rule,
        union_bound as union_bound,
    )
    from pyrobust.metrics.distance import (
        distances as distances,
        distances_above as distances_above,
        mean_distance as mean_distance,
        minimum_perturbation as minimum_perturbation,
        perturbation_quantiles as perturbation_quantiles,
    )
    from pyrobust.metrics.estimate import Estimate as Estimate
    from pyrobust.metrics.lipschitz import (
        BinaryProvableAvgRobustness as BinaryProvableAvgRobustness,
        BinaryProvableRobustAccuracy as BinaryProvableRobustAccuracy,
        CategoricalProvableAvgRobustness as CategoricalProvableAvgRobustness,
        CategoricalProvableRobustAccuracy as CategoricalProvableRobustAccuracy,
    )
    from pyrobust.metrics.margins import (
        binary_margins as binary_margins,
        categorical_margins as categorical_margins,
    )
    from pyrobust.metrics.paired import (
        PairedComparison as PairedComparison,
        RadiusComparisons as RadiusComparisons,
        compare_at_radii as compare_at_radii,
        paired_test as paired_test,
    )
    from pyrobust.metrics.rate import (
        Rate as Rate,
        estimate_rate as estimate_rate,
    )
    from pyrobust.metrics.shares import (
        GroupShares as GroupShares,
        RobustnessShares as RobustnessShares,
        confidence_bins as confidence_bins,
        robustness_shares as robustness_shares,
        robustness_shares_by_group as robustness_shares_by_group,
    )
    from pyrobust.metrics.subsets import (
        subset_accuracy as subset_accuracy,
        subset_average_certified_radius as subset_average_certified_radius,
    )
    from pyrobust.metrics.success import (
        attack_success_rate as attack_success_rate,
        success_rate_on_correct as success_rate_on_correct,
        targeted_success_rate as targeted_success_rate,
    )
    from pyrobust.metrics.survival import (
        ClassSummary as ClassSummary,
        SurvivalCurve as SurvivalCurve,
        rank_by_survival as rank_by_survival,
        survival_curve as survival_curve,
    )
    from pyrobust.metrics.sweep_time import (
        SweepTime as SweepTime,
        sweep_time as sweep_time,
    )
    from pyrobust.metrics.votes import (
        attainable_radii as attainable_radii,
        is_attainable as is_attainable,
        maximum_radius as maximum_radius,
        significant_decimals as significant_decimals,
        votes_for_radius as votes_for_radius,
    )

__all__ = import_lazily(
    __name__,
    {
        "pyrobust.metrics.accuracy": "clean_accuracy predicted_classes robust_accuracy robust_risk standard_risk",
        "pyrobust.metrics.certified": """
            CertifiedAccuracyBound average_certified_radius average_radius certification_gap certified_accuracy
            certified_accuracy_with_confidence
        """,
        "pyrobust.metrics.crossings": "CrossingRule crossing_rule union_bound",
        "pyrobust.metrics.distance": """
            distances distances_above mean_distance minimum_perturbation perturbation_quantiles
        """,
        "pyrobust.metrics.estimate": "Estimate",
        "pyrobust.metrics.lipschitz": """
            BinaryProvableAvgRobustness BinaryProvableRobustAccuracy CategoricalProvableAvgRobustness
            CategoricalProvableRobustAccuracy
        """,
        "pyrobust.metrics.margins": "binary_margins categorical_margins",
        "pyrobust.metrics.paired": "PairedComparison RadiusComparisons compare_at_radii paired_test",
        "pyrobust.metrics.rate": "Rate estimate_rate",
        "pyrobust.metrics.shares": """
            GroupShares RobustnessShares confidence_bins robustness_shares robustness_shares_by_group
        """,
        "pyrobust.metrics.subsets": "subset_accuracy subset_average_certified_radius",
        "pyrobust.metrics.success": "attack_success_rate success_rate_on_correct targeted_success_rate",
        "pyrobust.metrics.survival": "ClassSummary SurvivalCurve rank_by_survival survival_curve",
        "pyrobust.metrics.sweep_time": "SweepTime sweep_time",
        "pyrobust.metrics.votes": "attainable_radii is_attainable maximum_radius significant_decimals votes_for_radius",
    },
)
