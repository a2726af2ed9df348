"""Metrics of attacked classifiers: pure functions of tensors and numbers, each rate with its confidence interval.

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
from pyrobust.metrics.distance import distances, mean_distance, minimum_perturbation, perturbation_quantiles
from pyrobust.metrics.rate import Rate, estimate_rate
from pyrobust.metrics.success import (
    attack_success_rate,
    attack_success_rate_given_correct,
    targeted_success_rate,
)

__all__ = [
    "Rate",
    "attack_success_rate",
    "attack_success_rate_given_correct",
    "clean_accuracy",
    "distances",
    "estimate_rate",
    "mean_distance",
    "minimum_perturbation",
    "perturbation_quantiles",
    "predicted_classes",
    "robust_accuracy",
    "robust_risk",
    "standard_risk",
    "targeted_success_rate",
]
