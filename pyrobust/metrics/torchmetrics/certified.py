"""Metrics of certified radii; for an abstention, ``radius`` is 0 and ``correct`` is false."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from pyrobust.checks import non_negative
from pyrobust.metrics.arguments import checked_flags, checked_radii
from pyrobust.metrics.certified import certified_accuracy
from pyrobust.metrics.torchmetrics.base import CountedMetric, MeanMetric, check_total


class CertifiedAccuracy(CountedMetric):
    """``certified_accuracy`` of all batches at one radius.

    Args:
        at: radius, finite, at least 0.
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: a radius out of range.

    >>> metric = CertifiedAccuracy(0.25)
    >>> float(metric(torch.tensor([0.5, 0.25, 0.9, 0.0]), torch.tensor([True, True, False, False])))
    0.5
    """

    def __init__(self, at: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at = non_negative("at", at)

    def update(self, radius: Tensor, correct: Tensor) -> None:
        """Count a batch; arguments and errors as for ``certified_accuracy``."""
        rate = certified_accuracy(radius, correct, [self.at])[0]
        self._add(rate.successes, rate.n)


class CertificationGap(Metric):
    """``certification_gap`` of all batches at one radius: robust accuracy under attack minus certified accuracy.

    Args:
        at: radius, equal to the attack's epsilon, finite, at least 0.
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: a radius out of range.

    >>> metric = CertificationGap(0.25)
    >>> robust, correct = torch.tensor([True, True, True, False]), torch.tensor([True, True, True, True])
    >>> float(metric(robust, torch.tensor([0.5, 0.25, 0.1, 0.0]), correct))
    0.25
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    robust: Tensor
    certified: Tensor
    total: Tensor

    def __init__(self, at: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.at = non_negative("at", at)
        for name in ("robust", "certified", "total"):
            self.add_state(name, torch.tensor(0, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, robust: Tensor, radius: Tensor, correct: Tensor) -> None:
        """Count a batch.

        Args:
            robust: [N], bool, whether the example and its adversarial example are classified correctly.
            radius: [N], float, finite, at least 0.
            correct: [N], bool.
        """
        rate = certified_accuracy(radius, correct, [self.at])[0]
        self.robust += int(checked_flags("robust", robust, rate.n).sum())
        self.certified += rate.successes
        self.total += rate.n

    def compute(self) -> Tensor:
        """Compute the gap, a float64 scalar.

        Raises:
            InputError: no examples.
        """
        check_total(self.total)
        total = self.total.double()
        return self.robust.double() / total - self.certified.double() / total


class AverageRadius(MeanMetric):
    """``average_radius`` of all batches.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> float(AverageRadius()(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False])))
    1.5
    """

    def update(self, radius: Tensor, correct: Tensor) -> None:
        """Add a batch; arguments and errors as for ``average_radius``."""
        certified = checked_radii(radius)
        is_correct = checked_flags("correct", correct, len(certified))
        self._add(float(certified[is_correct].sum()), int(is_correct.sum()))


class AverageCertifiedRadius(MeanMetric):
    """``average_certified_radius`` of all batches, without an interval; see the warning in that function's description.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> metric = AverageCertifiedRadius()
    >>> float(metric(torch.tensor([0.5, 1.0, 0.75, 0.0]), torch.tensor([True, True, False, False])))
    0.375
    """

    def update(self, radius: Tensor, correct: Tensor) -> None:
        """Add a batch; arguments and errors as for ``average_certified_radius``."""
        certified = checked_radii(radius)
        is_correct = checked_flags("correct", correct, len(certified))
        self._add(float(certified[is_correct].sum()), len(is_correct))
