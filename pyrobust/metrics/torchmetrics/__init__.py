"""The scalar metrics as subclasses of ``torchmetrics.Metric``, for batches, any device and several processes.

This module needs an extra, installed by ``pip install "pyrobust[torchmetrics]"``. Each metric corresponds to the
function or class of the same name in ``pyrobust.metrics``. Its value is the value that this function or class gives for
the examples of all batches and processes together. The metrics of the survival curve correspond to members of
``SurvivalCurve``, and ``PerturbationQuantile`` to ``perturbation_quantiles``. States are counts and sums, except for
the state of ``PerturbationQuantile``.

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
