"""The certificate metrics of deel-lip (Serrurier et al., 2021), called with (y_true, y_pred), for PyTorch.

Change ``from deel.lip.metrics import ...`` to ``from pyrobust.compat.deel_lip import ...``. What differs:

- labels and predictions are tensors; labels may also be class numbers [N], and predictions [N, 1] go with labels [N];
- arithmetic is in float64, so that a margin next to epsilon may fall on the other side than in float32;
- other labels than one-hot rows, rows of ±1 and binary ones of {0, 1} or {-1, 1} are an error, as are label smoothing
  and several binary outputs;
- NaN and infinite predictions prove nothing, where deel-lip may return NaN;
- with reduction "none" binary metrics return [N], where deel-lip returns [N, 1].
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

# Keras' names of the mean.
_MEANS = ("auto", "sum_over_batch_size", "mean")


def _reduction(name: str) -> str:
    return "mean" if name in _MEANS else name


class BinaryProvableAvgRobustness(lipschitz.BinaryProvableAvgRobustness):
    """As of ``pyrobust.metrics``, called with (y_true, y_pred).

    Args:
        lip_const: the Lipschitz constant.
        negative_robustness: whether what is classified wrong counts as minus its distance.
        reduction: "auto" or "sum_over_batch_size" (the mean), "sum" or "none".
        name: default: the name of the class.

    >>> import torch
    >>> float(BinaryProvableAvgRobustness(2.0)(torch.tensor([[1], [-1]]), torch.tensor([[3.0], [1.0]])))
    0.75
    """

    def __init__(
        self,
        lip_const: float = 1.0,
        negative_robustness: bool = False,
        reduction: str = "auto",
        name: str | None = None,
    ) -> None:
        super().__init__(lip_const, negative_robustness, _reduction(reduction), name)

    def __call__(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The metric of labels and predictions, [N] or [N, 1] each."""
        return super().__call__(y_pred, y_true)


class BinaryProvableRobustAccuracy(lipschitz.BinaryProvableRobustAccuracy):
    """As of ``pyrobust.metrics``, called with (y_true, y_pred).

    Args:
        epsilon: the radius.
        lip_const: the Lipschitz constant.
        reduction: "auto" or "sum_over_batch_size" (the mean), "sum" or "none".
        name: default: the name of the class.

    >>> import torch
    >>> float(BinaryProvableRobustAccuracy(0.5)(torch.tensor([1, 0]), torch.tensor([[3.0], [1.0]])))
    0.5
    """

    def __init__(
        self, epsilon: float = 36 / 255, lip_const: float = 1.0, reduction: str = "auto", name: str | None = None
    ) -> None:
        super().__init__(epsilon, lip_const, _reduction(reduction), name)

    def __call__(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The metric of labels and predictions, [N] or [N, 1] each."""
        return super().__call__(y_pred, y_true)


class CategoricalProvableAvgRobustness(lipschitz.CategoricalProvableAvgRobustness):
    """As of ``pyrobust.metrics``, called with (y_true, y_pred).

    Args:
        lip_const: the Lipschitz constant.
        disjoint_neurons: whether it is that of each logit, rather than of all of them together.
        negative_robustness: whether what is classified wrong counts as minus its distance.
        reduction: "auto" or "sum_over_batch_size" (the mean), "sum" or "none".
        name: default: the name of the class.

    >>> import torch
    >>> y_true, y_pred = torch.tensor([[1, 0], [0, 1]]), torch.tensor([[3.0, 1.0], [3.0, 1.0]])
    >>> float(CategoricalProvableAvgRobustness()(y_true, y_pred))
    0.5
    """

    def __init__(
        self,
        lip_const: float = 1.0,
        disjoint_neurons: bool = True,
        negative_robustness: bool = False,
        reduction: str = "auto",
        name: str | None = None,
    ) -> None:
        super().__init__(lip_const, disjoint_neurons, negative_robustness, _reduction(reduction), name)

    def __call__(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The metric of labels [N] or [N, K] and predictions [N, K]."""
        return super().__call__(y_pred, y_true)


class CategoricalProvableRobustAccuracy(lipschitz.CategoricalProvableRobustAccuracy):
    """As of ``pyrobust.metrics``, called with (y_true, y_pred).

    Args:
        epsilon: the radius.
        lip_const: the Lipschitz constant.
        disjoint_neurons: whether it is that of each logit, rather than of all of them together.
        reduction: "auto" or "sum_over_batch_size" (the mean), "sum" or "none".
        name: default: the name of the class.

    >>> import torch
    >>> y_true, y_pred = torch.tensor([[1, -1], [-1, 1]]), torch.tensor([[3.0, 1.0], [3.0, 1.0]])
    >>> float(CategoricalProvableRobustAccuracy(epsilon=0.25)(y_true, y_pred))
    0.5
    """

    def __init__(
        self,
        epsilon: float = 36 / 255,
        lip_const: float = 1.0,
        disjoint_neurons: bool = True,
        reduction: str = "auto",
        name: str | None = None,
    ) -> None:
        super().__init__(epsilon, lip_const, disjoint_neurons, _reduction(reduction), name)

    def __call__(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The metric of labels [N] or [N, K] and predictions [N, K]."""
        return super().__call__(y_pred, y_true)
