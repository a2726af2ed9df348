"""Drop-in replacements for the certificate metrics of deel-lip (Serrurier et al., 2021), for PyTorch.

Change ``from deel.lip.metrics import ...`` to ``from pyrobust.compat.deel_lip import ...``. The metrics are those of
``pyrobust.metrics``, called with (y_true, y_pred). Differences from deel-lip:

- labels and predictions are tensors or NumPy arrays, and the result is a tensor; labels may also be class numbers [N],
  and predictions [N, 1] may be combined with labels [N];
- arithmetic is in float64, so a margin close to epsilon may fall on a different side than in float32;
- labels must be one-hot rows, rows of ±1, or binary labels in {0, 1} or {-1, 1}; smoothed labels are an error, because
  they have no single true class whose margin could be certified; several binary outputs are an error, too;
- NaN and infinite predictions prove nothing (an error with negative_robustness), while deel-lip may return NaN;
- with reduction "none", binary metrics return [N], where deel-lip returns [N, 1].

In every metric, ``lip_const`` is the Lipschitz constant, and ``name`` defaults to the name of the class. ``reduction``
is "mean", "sum" or "none", in upper or lower case; "auto" and "sum_over_batch_size" are accepted for "mean", and None
for "none". Metrics are called like Keras's losses, ``metric(y_true, y_pred, sample_weight=None)``;
``metric.call(y_true, y_pred)`` returns the values [N] before weighting and reduction.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import finite_values, shape_text, shown
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import lipschitz
from pyrobust.metrics.margins import ArrayLike, are_swapped, as_tensor

__all__ = [
    "BinaryProvableAvgRobustness",
    "BinaryProvableRobustAccuracy",
    "CategoricalProvableAvgRobustness",
    "CategoricalProvableRobustAccuracy",
]


class _KerasMetric(lipschitz.ProvableMetric):
    """A metric called with Keras's order of arguments, optionally with weights."""

    def __call__(self, y_true: ArrayLike, y_pred: ArrayLike, sample_weight: Any = None) -> Tensor:
        """Compute the metric; a weight, or weights [N], multiply the examples' values before the reduction.

        The mean divides by N, not by the sum of the weights.
        """
        values = self.call(y_true, y_pred)
        return self._reduced(values if sample_weight is None else values * _weights(sample_weight, values))

    def call(self, y_true: ArrayLike, y_pred: ArrayLike) -> Tensor:
        """Compute the value of each example, float64 [N]."""
        true, pred = as_tensor("y_true", y_true), as_tensor("y_pred", y_pred)
        if are_swapped(pred, true):
            raise InputTypeError(
                "y_true",
                "labels and then predictions, Keras's order (y_true, y_pred)",
                "predictions first",
                "swap the arguments, or use pyrobust.metrics, whose metrics take (logits, labels)",
            )
        return self.values(pred, true)


def _weights(weights: Any, values: Tensor) -> Tensor:
    """Return weights (a number, [N] or [N, 1]) in float64 on the device of the values [N]."""
    try:
        result = torch.as_tensor(weights, dtype=torch.float64, device=values.device)
    except (TypeError, ValueError, RuntimeError):
        raise InputTypeError("sample_weight", "numbers", shown(weights)) from None
    count = len(values)
    if tuple(result.shape) not in ((), (count,), (count, 1)):
        raise InputError("sample_weight", f"one weight, or shape ({count},)", shape_text(result.shape))
    finite_values("sample_weight", result)
    return result.reshape(-1) if result.dim() else result


class BinaryProvableAvgRobustness(_KerasMetric, lipschitz.BinaryProvableAvgRobustness):
    """``pyrobust.metrics.BinaryProvableAvgRobustness``, called with labels and predictions, [N] or [N, 1] each.

    Args:
        lip_const: Lipschitz constant.
        negative_robustness: whether a misclassified example counts with a negative radius, rather than 0.
        reduction: see the module.
        name: see the module.

    >>> import torch
    >>> float(BinaryProvableAvgRobustness(2.0)(torch.tensor([[1], [-1]]), torch.tensor([[3.0], [1.0]])))
    0.75
    """


class BinaryProvableRobustAccuracy(_KerasMetric, lipschitz.BinaryProvableRobustAccuracy):
    """``pyrobust.metrics.BinaryProvableRobustAccuracy``, called with labels and predictions, [N] or [N, 1] each.

    Args:
        epsilon: radius.
        lip_const: Lipschitz constant.
        reduction: see the module.
        name: see the module.

    >>> import torch
    >>> float(BinaryProvableRobustAccuracy(0.5)(torch.tensor([1, 0]), torch.tensor([[3.0], [1.0]])))
    0.5
    """


class CategoricalProvableAvgRobustness(_KerasMetric, lipschitz.CategoricalProvableAvgRobustness):
    """``pyrobust.metrics.CategoricalProvableAvgRobustness``, called with labels [N] or [N, K] and predictions [N, K].

    Args:
        lip_const: Lipschitz constant.
        disjoint_neurons: whether ``lip_const`` is the constant of each logit, rather than of all logits together.
        negative_robustness: whether a misclassified example counts with a negative radius, rather than 0.
        reduction: see the module.
        name: see the module.

    >>> import torch
    >>> y_true, y_pred = torch.tensor([[1, 0], [0, 1]]), torch.tensor([[3.0, 1.0], [3.0, 1.0]])
    >>> float(CategoricalProvableAvgRobustness()(y_true, y_pred))
    0.5
    >>> float(CategoricalProvableAvgRobustness()(y_true, y_pred, sample_weight=[2.0, 1.0]))
    1.0
    """


class CategoricalProvableRobustAccuracy(_KerasMetric, lipschitz.CategoricalProvableRobustAccuracy):
    """``pyrobust.metrics.CategoricalProvableRobustAccuracy``, called with labels [N] or [N, K] and predictions [N, K].

    Args:
        epsilon: radius.
        lip_const: Lipschitz constant.
        disjoint_neurons: whether ``lip_const`` is the constant of each logit, rather than of all logits together.
        reduction: see the module.
        name: see the module.

    >>> import torch
    >>> y_true, y_pred = torch.tensor([[1, -1], [-1, 1]]), torch.tensor([[3.0, 1.0], [3.0, 1.0]])
    >>> float(CategoricalProvableRobustAccuracy(epsilon=0.25)(y_true, y_pred))
    0.5
    """
