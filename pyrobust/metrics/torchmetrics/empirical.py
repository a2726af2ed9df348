"""Metrics of attacked classifiers; predictions are class numbers [N] or logits [N, K]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from pyrobust.metrics.accuracy import clean_accuracy, robust_accuracy, robust_risk, standard_risk
from pyrobust.metrics.arguments import checked_distances
from pyrobust.metrics.distance import perturbation_quantiles
from pyrobust.metrics.success import attack_success_rate, targeted_success_rate
from pyrobust.metrics.torchmetrics.base import CountedMetric, MeanMetric, as_classes, check_total


class CleanAccuracy(CountedMetric):
    """``clean_accuracy`` of all batches.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> metric = CleanAccuracy()
    >>> float(metric(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0])))
    0.5
    """

    def update(self, clean: Tensor, labels: Tensor) -> None:
        """Count a batch of predictions or logits; arguments and errors are as for ``clean_accuracy``."""
        rate = clean_accuracy(as_classes(clean), labels)
        self._add(rate.successes, rate.n)


class StandardRisk(CountedMetric):
    """``standard_risk`` of all batches.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> float(StandardRisk()(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2])))
    0.25
    """

    higher_is_better = False

    def update(self, clean: Tensor, labels: Tensor) -> None:
        """Count a batch of predictions or logits; arguments and errors are as for ``standard_risk``."""
        rate = standard_risk(as_classes(clean), labels)
        self._add(rate.successes, rate.n)


class RobustAccuracy(CountedMetric):
    """``robust_accuracy`` of all batches.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> float(RobustAccuracy()(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 1])))
    0.5
    """

    def update(self, clean: Tensor, adversarial: Tensor, labels: Tensor) -> None:
        """Count a batch of predictions or logits; arguments and errors are as for ``robust_accuracy``."""
        rate = robust_accuracy(as_classes(clean), as_classes(adversarial), labels)
        self._add(rate.successes, rate.n)


class RobustRisk(CountedMetric):
    """``robust_risk`` of all batches.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> float(RobustRisk()(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 1])))
    0.5
    """

    higher_is_better = False

    def update(self, clean: Tensor, adversarial: Tensor, labels: Tensor) -> None:
        """Count a batch of predictions or logits; arguments and errors are as for ``robust_risk``."""
        rate = robust_risk(as_classes(clean), as_classes(adversarial), labels)
        self._add(rate.successes, rate.n)


class AttackSuccessRate(CountedMetric):
    """``attack_success_rate`` of all batches, ``1 - robust_accuracy``.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> metric = AttackSuccessRate()
    >>> float(metric(torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 0, 0])))
    0.5
    """

    higher_is_better = None

    def update(self, clean: Tensor, adversarial: Tensor, labels: Tensor) -> None:
        """Count a batch of predictions or logits; arguments and errors are as for ``attack_success_rate``."""
        rate = attack_success_rate(as_classes(clean), as_classes(adversarial), labels)
        self._add(rate.successes, rate.n)


class SuccessRateOnCorrect(CountedMetric):
    """``success_rate_on_correct`` of all batches; a batch without correctly classified examples is allowed.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> metric = SuccessRateOnCorrect()
    >>> float(metric(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0])))
    0.5
    """

    higher_is_better = None

    def update(self, clean: Tensor, adversarial: Tensor, labels: Tensor) -> None:
        """Count a batch of predictions or logits; arguments and errors are as for ``success_rate_on_correct``."""
        clean = as_classes(clean)
        robust = robust_accuracy(clean, as_classes(adversarial), labels).successes
        correct = clean_accuracy(clean, labels).successes
        self._add(correct - robust, correct)


class TargetedSuccessRate(CountedMetric):
    """``targeted_success_rate`` of all batches.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> float(TargetedSuccessRate()(torch.tensor([3, 1]), torch.tensor([3, 2])))
    0.5
    """

    higher_is_better = None

    def update(self, adversarial: Tensor, targets: Tensor) -> None:
        """Count a batch of predictions or logits; arguments and errors are as for ``targeted_success_rate``."""
        rate = targeted_success_rate(as_classes(adversarial), targets)
        self._add(rate.successes, rate.n)


class MeanDistance(MeanMetric):
    """``mean_distance`` of all batches.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> float(MeanDistance()(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False])))
    1.5
    """

    def update(self, distances: Tensor, success: Tensor) -> None:
        """Add a batch; arguments and errors as for ``mean_distance``."""
        values, chosen = checked_distances(distances, success)
        self._add(float(values[chosen].sum()), int(chosen.sum()))


class PerturbationQuantile(Metric):
    """A single quantile of ``perturbation_quantiles``, over all batches; the state holds one number per example.

    Args:
        q: share, in [0, 1]; 0.5 is the median.
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: a share out of range.

    >>> metric = PerturbationQuantile(0.5)
    >>> metric.update(torch.tensor([0.25, 0.5]))
    >>> metric.update(torch.tensor([float("inf")]))
    >>> float(metric.compute())
    0.5
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    minimum: list[Tensor]

    def __init__(self, q: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        perturbation_quantiles(torch.zeros(1), [q])
        self.q = q
        self.add_state("minimum", [], dist_reduce_fx="cat")
        self.set_dtype(torch.float64)  # also the dtype that a process without examples sends

    def update(self, minimum: Tensor) -> None:
        """Keep a batch; arguments and errors as for ``perturbation_quantiles``."""
        perturbation_quantiles(minimum, [self.q])
        self.minimum.append(minimum.detach().double())

    def compute(self) -> Tensor:
        """Compute the quantile, a float64 scalar.

        Raises:
            InputError: no examples.
        """
        # Once gathered over processes, the state is one tensor instead of a list.
        batches = [self.minimum] if isinstance(self.minimum, Tensor) else self.minimum
        check_total(torch.tensor(sum(map(len, batches))))
        minimum = torch.cat(batches)
        return torch.tensor(perturbation_quantiles(minimum, [self.q])[0], dtype=torch.float64, device=minimum.device)
