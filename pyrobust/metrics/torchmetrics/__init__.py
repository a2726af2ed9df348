"""The scalar metrics as ``torchmetrics.Metric``: updated batch by batch, on any device, reduced over processes.

This module needs the extra: ``pip install "pyrobust[torchmetrics]"``. A metric has the value that the function or class
of the same name in ``pyrobust.metrics`` gives for the examples of all batches and processes together. States are counts
and sums, except for ``PerturbationQuantile``.

>>> import torch
>>> from pyrobust.metrics.torchmetrics import RobustAccuracy
>>> metric = RobustAccuracy()
>>> metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 1]))
>>> metric.update(torch.tensor([1, 1]), torch.tensor([1, 1]), torch.tensor([1, 1]))
>>> float(metric.compute()), metric.rate().n
(0.75, 4)
"""

from __future__ import annotations

from pyrobust.metrics.torchmetrics.base import CountedMetric, MeanMetric
from pyrobust.metrics.torchmetrics.certified import (
    AverageCertifiedRadius,
    AverageRadius,
    CertificationGap,
    CertifiedAccuracy,
)
from pyrobust.metrics.torchmetrics.empirical import (
    AttackSuccessRate,
    CleanAccuracy,
    MeanDistance,
    PerturbationQuantile,
    RobustAccuracy,
    RobustRisk,
    StandardRisk,
    SuccessRateOnCorrect,
    TargetedSuccessRate,
)
from pyrobust.metrics.torchmetrics.lipschitz import (
    BinaryProvableAvgRobustness,
    BinaryProvableRobustAccuracy,
    CategoricalProvableAvgRobustness,
    CategoricalProvableRobustAccuracy,
)
from pyrobust.metrics.torchmetrics.survival import HardShare, ShareBelowHalf, SurvivalArea, SurvivalQuantile

__all__ = [
    "AttackSuccessRate",
    "AverageCertifiedRadius",
    "AverageRadius",
    "BinaryProvableAvgRobustness",
    "BinaryProvableRobustAccuracy",
    "CategoricalProvableAvgRobustness",
    "CategoricalProvableRobustAccuracy",
    "CertificationGap",
    "CertifiedAccuracy",
    "CleanAccuracy",
    "CountedMetric",
    "HardShare",
    "MeanDistance",
    "MeanMetric",
    "PerturbationQuantile",
    "RobustAccuracy",
    "RobustRisk",
    "ShareBelowHalf",
    "StandardRisk",
    "SuccessRateOnCorrect",
    "SurvivalArea",
    "SurvivalQuantile",
    "TargetedSuccessRate",
]
