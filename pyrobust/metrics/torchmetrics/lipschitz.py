"""Certificate metrics of classifiers with a known Lipschitz constant: means over all batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torchmetrics import Metric

from pyrobust.metrics import lipschitz
from pyrobust.metrics.torchmetrics.base import CountedMetric, MeanMetric


class _Twin(Metric):
    """Base class of metrics that add up the values of the metric of the same name in ``pyrobust.metrics``."""

    _add: Callable[[float, int], None]

    def __init__(self, metric: lipschitz.ProvableMetric, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.metric = metric

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch; arguments and errors as for the metric of the same name in ``pyrobust.metrics``."""
        values = self.metric.values(logits.detach() if isinstance(logits, Tensor) else logits, labels)
        self._add(float(values.sum()), len(values))


class BinaryProvableRobustAccuracy(_Twin, CountedMetric):
    """``pyrobust.metrics.BinaryProvableRobustAccuracy`` of all batches.

    Args:
        epsilon: radius.
        lip_const: Lipschitz constant.
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: a value out of range.

    >>> import torch
    >>> float(BinaryProvableRobustAccuracy(0.5)(torch.tensor([[1.5], [-4.0]]), torch.tensor([1, 1])))
    0.5
    """

    def __init__(self, epsilon: float = 36 / 255, lip_const: float = 1.0, **kwargs: Any) -> None:
        super().__init__(lipschitz.BinaryProvableRobustAccuracy(epsilon, lip_const), **kwargs)


class BinaryProvableAvgRobustness(_Twin, MeanMetric):
    """``pyrobust.metrics.BinaryProvableAvgRobustness`` of all batches.

    Args:
        lip_const: Lipschitz constant.
        negative_robustness: whether a misclassified example counts with a negative radius, rather than 0.
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: a value out of range.

    >>> import torch
    >>> float(BinaryProvableAvgRobustness(2.0)(torch.tensor([[3.0], [-4.0]]), torch.tensor([1, 1])))
    0.75
    """

    def __init__(self, lip_const: float = 1.0, negative_robustness: bool = False, **kwargs: Any) -> None:
        super().__init__(lipschitz.BinaryProvableAvgRobustness(lip_const, negative_robustness), **kwargs)


class CategoricalProvableRobustAccuracy(_Twin, CountedMetric):
    """``pyrobust.metrics.CategoricalProvableRobustAccuracy`` of all batches.

    Args:
        epsilon: radius.
        lip_const: Lipschitz constant.
        disjoint_neurons: whether ``lip_const`` is the constant of each logit, rather than of all logits together.
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: a value out of range.

    >>> import torch
    >>> metric = CategoricalProvableRobustAccuracy(0.25)
    >>> metric.update(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    >>> metric.update(torch.tensor([[1.0, 0.75]]), torch.tensor([0]))
    >>> float(metric.compute())
    0.5
    """

    def __init__(
        self, epsilon: float = 36 / 255, lip_const: float = 1.0, disjoint_neurons: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(lipschitz.CategoricalProvableRobustAccuracy(epsilon, lip_const, disjoint_neurons), **kwargs)


class CategoricalProvableAvgRobustness(_Twin, MeanMetric):
    """``pyrobust.metrics.CategoricalProvableAvgRobustness`` of all batches.

    Args:
        lip_const: Lipschitz constant.
        disjoint_neurons: whether ``lip_const`` is the constant of each logit, rather than of all logits together.
        negative_robustness: whether a misclassified example counts with a negative radius, rather than 0.
        kwargs: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        InputError: a value out of range.

    >>> import torch
    >>> float(CategoricalProvableAvgRobustness()(torch.tensor([[3.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 1])))
    1.25
    """

    def __init__(
        self,
        lip_const: float = 1.0,
        disjoint_neurons: bool = True,
        negative_robustness: bool = False,
        **kwargs: Any,
    ) -> None:
        metric = lipschitz.CategoricalProvableAvgRobustness(lip_const, disjoint_neurons, negative_robustness)
        super().__init__(metric, **kwargs)
