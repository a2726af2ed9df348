"""Metrics of tensors on a GPU, or with labels on another device, are the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from torch import Tensor

import pyrobust
from pyrobust import metrics
from pyrobust.metrics import torchmetrics as twins

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [1.0, 0.0, 3.0], [0.3, 0.2, 0.1]])
ATTACKED = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 0.5], [1.0, 4.0, 3.0], [0.3, 0.2, 0.1]])
LABELS = torch.tensor([0, 1, 2, 2])
RADIUS = torch.tensor([0.5, 0.25, 0.1, 0.0], dtype=torch.float64)

PURE: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "clean accuracy": lambda logits, _, labels, __: metrics.clean_accuracy(metrics.predicted_classes(logits), labels),
    "robust accuracy": lambda logits, attacked, labels, _: metrics.robust_accuracy(
        metrics.predicted_classes(logits), metrics.predicted_classes(attacked), labels
    ),
    "success": lambda logits, attacked, labels, _: metrics.attack_success_rate(
        metrics.predicted_classes(logits), metrics.predicted_classes(attacked), labels
    ),
    "success on correct": lambda logits, attacked, labels, _: metrics.success_rate_on_correct(
        metrics.predicted_classes(logits), metrics.predicted_classes(attacked), labels
    ),
    "targeted": lambda _, attacked, labels, __: metrics.targeted_success_rate(
        metrics.predicted_classes(attacked), labels
    ),
    "distances": lambda logits, attacked, *_: metrics.distances(attacked, logits, "l2").sum(),
    "mean distance": lambda logits, attacked, labels, radius: metrics.mean_distance(radius, labels == 2),
    "certified": lambda *given: sum(map(float, metrics.certified_accuracy(given[3], given[2] < 2, [0.0, 0.2]))),
    "average radius": lambda *given: metrics.average_radius(given[3], given[2] < 2),
    "lipschitz": lambda logits, _, labels, __: pyrobust.CategoricalProvableAvgRobustness()(logits, labels),
    "accuracy by lipschitz": lambda logits, _, labels, __: pyrobust.CategoricalProvableRobustAccuracy(0.2)(
        logits, labels
    ),
}


@pytest.mark.parametrize("name", PURE)
@pytest.mark.parametrize("place", ["cuda:0", "cuda:1"])
def test_functions(fake_cuda: FakeCuda, name: str, place: str) -> None:
    given = LOGITS, ATTACKED, LABELS, RADIUS
    expected = float(PURE[name](*given))
    assert float(PURE[name](*(value.to(place) for value in given))) == expected


TWINS: dict[str, tuple[Callable[[], Any], Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]]] = {
    "robust accuracy": (
        twins.RobustAccuracy,
        lambda logits, attacked, labels: (logits, attacked, labels),
    ),
    "lipschitz": (twins.CategoricalProvableAvgRobustness, lambda logits, _, labels: (logits, labels)),
}


@pytest.mark.parametrize("name", TWINS)
def test_torchmetrics(fake_cuda: FakeCuda, name: str) -> None:
    make, choose = TWINS[name]
    values = []
    for place in ("cpu", "cuda:1"):
        metric = make().to(place)
        metric.update(*(value.to(place) for value in choose(LOGITS, ATTACKED, LABELS)))
        values.append(float(metric.compute()))
    assert values[0] == values[1]
