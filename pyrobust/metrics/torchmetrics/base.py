"""Base classes of the metrics, whose states are sums over batches and processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrobust.errors import InputError, MissingExtraError
from pyrobust.metrics.accuracy import predicted_classes
from pyrobust.metrics.rate import Rate, estimate_rate

try:
    from torchmetrics import Metric
except ImportError as error:
    raise MissingExtraError(
        'pyrobust.metrics.torchmetrics: torchmetrics is missing; run pip install "pyrobust[torchmetrics]"'
    ) from error


class CountedMetric(Metric):
    """A share of examples; the ``update`` of a subclass passes the numbers of successes and of examples to ``_add``.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> class Evens(CountedMetric):
    ...     def update(self, numbers):
    ...         self._add(int((numbers % 2 == 0).sum()), len(numbers))
    >>> metric = Evens()
    >>> metric.update(torch.tensor([1, 2, 4]))
    >>> round(float(metric.compute()), 3)
    0.667
    """

    is_differentiable = False
    higher_is_better: bool | None = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    successes: Tensor
    total: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("successes", "total"):
            self.add_state(name, torch.tensor(0, dtype=torch.int64), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """Compute the share, a float64 scalar.

        Raises:
            InputError: no examples.
        """
        check_total(self.total)
        return self.successes.double() / self.total.double()

    def rate(self, alpha: float = 0.05) -> Rate:
        """Compute the share with its confidence interval, over all processes; every process must call this method.

        Args:
            alpha: error probability of the interval, in (0, 1).

        Raises:
            InputError: no examples, or alpha out of range.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, process_group=self.process_group):
            check_total(self.total)
            return estimate_rate(int(self.successes), int(self.total), alpha)

    def _add(self, successes: float, total: int) -> None:
        self.successes += int(successes)
        self.total += total


class MeanMetric(Metric):
    """A mean of numbers; the ``update`` of a subclass passes the sum and the count of the numbers to ``_add``.

    Args:
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    >>> class MeanSquare(MeanMetric):
    ...     def update(self, numbers):
    ...         self._add(float(numbers.double().square().sum()), len(numbers))
    >>> metric = MeanSquare()
    >>> metric.update(torch.tensor([1.0, 2.0]))
    >>> metric.update(torch.tensor([3.0, 2.0]))
    >>> float(metric.compute())
    4.5
    """

    is_differentiable = False
    higher_is_better: bool | None = True
    full_state_update = False

    sum: Tensor
    total: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("sum", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0, dtype=torch.int64), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """Compute the mean, a float64 scalar; NaN if there are no numbers."""
        return self.sum / self.total.double()

    def _add(self, total: float, count: int) -> None:
        self.sum += total
        self.total += count


def check_total(total: Tensor) -> None:
    """Raise InputError for a total of 0."""
    if not int(total):
        raise InputError("compute", "at least one example", "none", "call update first")


def as_classes(predictions: Tensor) -> Tensor:
    """Convert logits [N, K] to classes [N]; return classes unchanged."""
    logits = isinstance(predictions, Tensor) and predictions.dim() == 2 and predictions.dtype.is_floating_point
    return predicted_classes(predictions) if logits else predictions
