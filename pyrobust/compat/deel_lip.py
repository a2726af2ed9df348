"""Drop-in replacements for the certificate metrics of deel-lip (Serrurier et al., 2021), for PyTorch.

Change ``from deel.lip.metrics import ...`` to ``from pyrobust.compat.deel_lip import ...``. The metrics are those of
``pyrobust.metrics``, called with (y_true, y_pred). Differences from deel-lip:

- labels and predictions are tensors; labels may also be class numbers [N], and predictions [N, 1] go with labels [N];
- arithmetic is in float64, so a margin close to epsilon may fall on the other side than in float32;
- labels must be one-hot rows, rows of ±1, or binary labels in {0, 1} or {-1, 1}; label smoothing and several binary
  outputs are an error;
- NaN and infinite predictions prove nothing, where deel-lip may return NaN;
- with reduction "none" binary metrics return [N], where deel-lip returns [N, 1].

In every metric ``lip_const`` is the Lipschitz constant, ``reduction`` is "auto", "sum_over_batch_size" or "mean" (each
of them the mean), "sum" or "none", and ``name`` defaults to the name of the class.
"""

from __future__ import annotations

from torch import Tensor

from pyrobust.metrics import lipschitz

__all__ = [
    "BinaryProvableAvgRobustness",
    "BinaryProvableRobustAccuracy",
    "CategoricalProvableAvgRobustness",
    "CategoricalProvableRobustAccuracy",
]


class _KerasMetric(lipschitz.ProvableMetric):
    """Calls a metric with Keras's order of arguments and accepts Keras's names of the mean."""

    MEANS = ("auto", "sum_over_batch_size", "mean")

    def __call__(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Compute the metric of labels and predictions."""
        return super().__call__(y_pred, y_true)


class BinaryProvableAvgRobustness(_KerasMetric, lipschitz.BinaryProvableAvgRobustness):
    """``pyrobust.metrics.BinaryProvableAvgRobustness``, called with labels and predictions, [N] or [N, 1] each.

    Args:
        lip_const: Lipschitz constant.
        negative_robustness: whether a misclassified example counts as minus its distance, rather than 0.
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
        disjoint_neurons: whether it is that of each logit, rather than of all logits together.
        negative_robustness: whether a misclassified example counts as minus its distance, rather than 0.
        reduction: see the module.
        name: see the module.

    >>> import torch
    >>> y_true, y_pred = torch.tensor([[1, 0], [0, 1]]), torch.tensor([[3.0, 1.0], [3.0, 1.0]])
    >>> float(CategoricalProvableAvgRobustness()(y_true, y_pred))
    0.5
    """


class CategoricalProvableRobustAccuracy(_KerasMetric, lipschitz.CategoricalProvableRobustAccuracy):
    """``pyrobust.metrics.CategoricalProvableRobustAccuracy``, called with labels [N] or [N, K] and predictions [N, K].

    Args:
        epsilon: radius.
        lip_const: Lipschitz constant.
        disjoint_neurons: whether it is that of each logit, rather than of all logits together.
        reduction: see the module.
        name: see the module.

    >>> import torch
    >>> y_true, y_pred = torch.tensor([[1, -1], [-1, 1]]), torch.tensor([[3.0, 1.0], [3.0, 1.0]])
    >>> float(CategoricalProvableRobustAccuracy(epsilon=0.25)(y_true, y_pred))
    0.5
    """
