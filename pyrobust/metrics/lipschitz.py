"""Robustness proved from the Lipschitz constant of a classifier.

If the input of a network with l2 Lipschitz constant L changes by δ, its logits change by at most L·‖δ‖₂. The margin
between two logits can therefore shrink only at a limited rate. The margin, divided by its largest change per unit of
distance, is a radius within which the prediction is constant (Tsuzuku, Sato and Sugiyama, 2018; Serrurier et al.,
2021). The four metrics, their names and their defaults are taken from deel-lip. They take logits and labels, in this
order, like PyTorch's losses; ``pyrobust.compat.deel_lip`` has the metrics with Keras's order of arguments.
``reduction`` may also be spelled as in Keras, in upper or lower case; "auto" and "sum_over_batch_size" are the mean,
and None is "none".

The metrics neither check ``lip_const`` nor account for the rounding of the logits. ``pyrobust.lipschitz_bound`` proves
a constant; ``BoundedModel.certified_radius(method="lipschitz")`` gives certificates that account for all rounding.
"""

from __future__ import annotations

import abc
import math
from typing import Any, Final

from torch import Tensor

from pyrobust.checks import flag, non_negative, positive
from pyrobust.errors import InputError, InputTypeError

from .margins import ArrayLike, binary_margins, categorical_margins

#: Spellings of each reduction, in lower case: PyTorch's, and Keras's constants, because deel-lip's metrics are Keras
#: losses.
_REDUCTIONS: Final = {
    "mean": ("mean", "auto", "sum_over_batch_size"),
    "sum": ("sum",),
    "none": ("none",),
}


class ProvableMetric(abc.ABC):
    """A metric that computes one number per example, and reduces these numbers over the batch."""

    def __init__(self, factor: float, lip_const: float, reduction: str | None, name: str | None) -> None:
        self.lip_const = positive("lip_const", lip_const)
        self.reduction = _reduction(reduction)
        if name is not None and not isinstance(name, str):
            raise InputTypeError("name", "a string or None", type(name).__name__)
        self.certificate_factor = factor * self.lip_const  # the divisor of margins
        self._name = name

    @property
    def name(self) -> str:
        """The given name, or the class's name."""
        return type(self).__name__ if self._name is None else self._name

    @abc.abstractmethod
    def values(self, logits: ArrayLike, labels: ArrayLike) -> Tensor:
        """Return each example's number before the reduction, float64 [N]; takes the same arguments as a call."""

    def __call__(self, logits: ArrayLike, labels: ArrayLike) -> Tensor:
        """Compute the metric of a batch from its logits and labels (tensors or arrays), in this order."""
        return self._reduced(self.values(logits, labels))

    def _reduced(self, values: Tensor) -> Tensor:
        if self.reduction == "none":
            return values
        return values.sum() if self.reduction == "sum" else values.mean()


class _RobustAccuracy(ProvableMetric):
    def __init__(
        self, factor: float, epsilon: float, lip_const: float, reduction: str | None, name: str | None
    ) -> None:
        super().__init__(factor, lip_const, reduction, name)
        self.epsilon = non_negative("epsilon", epsilon)

    def _proved(self, margins: Tensor) -> Tensor:
        return (margins.detach() / self.certificate_factor > self.epsilon).double()


class _AvgRobustness(ProvableMetric):
    def __init__(
        self, factor: float, lip_const: float, negative_robustness: bool, reduction: str | None, name: str | None
    ) -> None:
        super().__init__(factor, lip_const, reduction, name)
        self.negative_robustness = flag("negative_robustness", negative_robustness)

    def _radii(self, margins: Tensor) -> Tensor:
        if self.negative_robustness and bool(margins.isinf().any()):
            row = int(margins.isinf().nonzero()[0])
            raise InputError(
                "logits",
                "finite numbers with negative_robustness=True",
                f"NaN or an infinity in row {row}",
                "use negative_robustness=False to count such an example as 0",
            )
        return self.delta_correction(margins) / self.certificate_factor

    def delta_correction(self, delta: Tensor) -> Tensor:
        """Return φ(t) for each margin t: t itself with ``negative_robustness``, else max(t, 0)."""
        return delta if self.negative_robustness else delta.clamp(min=0)


class BinaryProvableRobustAccuracy(_RobustAccuracy):
    """Share of examples whose prediction is proved to be the label within epsilon, ``(1/N)·Σ 1[s·f(x)/L > ε]``.

    f is a real-valued function with l2 Lipschitz constant L. The sign of f is the class, and s is the sign of the
    label. The inequality is strict. A NaN or infinite logit proves nothing. The metric has no gradient.

    Args:
        epsilon: radius ε, finite, at least 0.
        lip_const: L, positive and finite.
        reduction: "mean", "sum", or "none" for one value, 0 or 1, per example.
        name: name of the metric; default: the name of the class.

    Raises:
        InputError: a value out of range, or an unknown reduction of any type. Calls raise the errors of
            ``binary_margins``.
        InputTypeError: an argument of the wrong type.

    >>> import torch
    >>> metric = BinaryProvableRobustAccuracy(epsilon=0.5, lip_const=2.0)
    >>> logits, labels = torch.tensor([[1.5], [1.0], [-4.0], [-4.0]]), torch.tensor([1, 1, 0, 1])
    >>> float(metric(logits, labels)), metric.name
    (0.5, 'BinaryProvableRobustAccuracy')
    """

    def __init__(
        self, epsilon: float = 36 / 255, lip_const: float = 1.0, reduction: str | None = "mean", name: str | None = None
    ) -> None:
        super().__init__(1.0, epsilon, lip_const, reduction, name)

    def values(self, logits: ArrayLike, labels: ArrayLike) -> Tensor:
        """Return float64 [N], 1 where robustness is proved, else 0; arguments as for ``binary_margins``."""
        return self._proved(binary_margins(logits, labels))


class BinaryProvableAvgRobustness(_AvgRobustness):
    """Mean proved radius, ``(1/N)·Σ φ(s·f(x)/L)``; see ``BinaryProvableRobustAccuracy`` for f, s and L.

    φ(t) = max(t, 0), so a misclassified example counts as 0 but stays in the mean. With ``negative_robustness``, φ is
    the identity. The metric is differentiable with respect to the logits.

    Args:
        lip_const: L, positive and finite.
        negative_robustness: whether a misclassified example counts with a negative radius, rather than 0.
        reduction: "mean", "sum", or "none" for one number per example.
        name: name of the metric; default: the name of the class.

    Raises:
        InputError: a value out of range, or an unknown reduction of any type. Calls raise the errors of
            ``binary_margins``. A NaN or infinite logit counts as 0; with negative_robustness, it raises InputError
            instead.
        InputTypeError: an argument of the wrong type.

    >>> import torch
    >>> logits, labels = torch.tensor([3.0, -1.0]), torch.tensor([1, 1])
    >>> float(BinaryProvableAvgRobustness()(logits, labels))
    1.5
    >>> float(BinaryProvableAvgRobustness(negative_robustness=True)(logits, labels))
    1.0
    """

    def __init__(
        self,
        lip_const: float = 1.0,
        negative_robustness: bool = False,
        reduction: str | None = "mean",
        name: str | None = None,
    ) -> None:
        super().__init__(1.0, lip_const, negative_robustness, reduction, name)

    def values(self, logits: ArrayLike, labels: ArrayLike) -> Tensor:
        """Radius of each example, float64 [N]; arguments as for ``binary_margins``."""
        return self._radii(binary_margins(logits, labels))


class CategoricalProvableRobustAccuracy(_RobustAccuracy):
    """Share of examples whose prediction is proved to be the label within epsilon, ``(1/N)·Σ 1[M(x)/c > ε]``.

    For label l, the margin is ``M(x) = f_l(x) − max_{i ≠ l} f_i(x)``. The number c bounds the l2 Lipschitz constant of
    a difference of two logits. With ``disjoint_neurons``, L is the l2 Lipschitz constant of each single logit (the last
    layer's rows are normalized one by one), so c = 2·L. Otherwise, L is the constant of the whole vector of logits, so
    c = √2·L. The inequality is strict. A row with NaN or inf proves nothing. The metric has no gradient.

    Args:
        epsilon: radius ε, finite, at least 0.
        lip_const: L, positive and finite.
        disjoint_neurons: whether L is the constant of each logit, rather than of all logits together.
        reduction: "mean", "sum", or "none" for one value, 0 or 1, per example.
        name: name of the metric; default: the name of the class.

    Raises:
        InputError: a value out of range, or an unknown reduction of any type. Calls raise the errors of
            ``categorical_margins``.
        InputTypeError: an argument of the wrong type.

    >>> import torch
    >>> logits, labels = torch.tensor([[1.0, 0.0], [0.0, 0.1]]), torch.tensor([0, 1])
    >>> float(CategoricalProvableRobustAccuracy(epsilon=0.25)(logits, labels))
    0.5
    """

    def __init__(
        self,
        epsilon: float = 36 / 255,
        lip_const: float = 1.0,
        disjoint_neurons: bool = True,
        reduction: str | None = "mean",
        name: str | None = None,
    ) -> None:
        self.disjoint_neurons = flag("disjoint_neurons", disjoint_neurons)
        super().__init__(_factor(disjoint_neurons), epsilon, lip_const, reduction, name)

    def values(self, logits: ArrayLike, labels: ArrayLike) -> Tensor:
        """Return float64 [N], 1 where robustness is proved, else 0; arguments as for ``categorical_margins``."""
        return self._proved(categorical_margins(logits, labels))


class CategoricalProvableAvgRobustness(_AvgRobustness):
    """Mean proved radius, ``(1/N)·Σ φ(M(x)/c)``; see ``CategoricalProvableRobustAccuracy`` for M and c.

    φ(t) = max(t, 0), so a misclassified example counts as 0 but stays in the mean. With ``negative_robustness``, φ is
    the identity. The metric is differentiable with respect to the logits, but a NaN logit may make the gradient NaN.

    Args:
        lip_const: L, positive and finite.
        disjoint_neurons: whether L is the constant of each logit, rather than of all logits together.
        negative_robustness: whether a misclassified example counts with a negative radius, rather than 0.
        reduction: "mean", "sum", or "none" for one number per example.
        name: name of the metric; default: the name of the class.

    Raises:
        InputError: a value out of range, or an unknown reduction of any type. Calls raise the errors of
            ``categorical_margins``. A row with NaN or inf counts as 0; with negative_robustness, it raises InputError
            instead.
        InputTypeError: an argument of the wrong type.

    >>> import torch
    >>> logits, labels = torch.tensor([[3.0, 1.0], [3.0, 1.0]]), torch.tensor([0, 1])
    >>> CategoricalProvableAvgRobustness(reduction="none")(logits, labels).tolist()
    [1.0, 0.0]
    """

    def __init__(
        self,
        lip_const: float = 1.0,
        disjoint_neurons: bool = True,
        negative_robustness: bool = False,
        reduction: str | None = "mean",
        name: str | None = None,
    ) -> None:
        self.disjoint_neurons = flag("disjoint_neurons", disjoint_neurons)
        super().__init__(_factor(disjoint_neurons), lip_const, negative_robustness, reduction, name)

    def values(self, logits: ArrayLike, labels: ArrayLike) -> Tensor:
        """Radius of each example, float64 [N]; arguments as for ``categorical_margins``."""
        return self._radii(categorical_margins(logits, labels))


def _reduction(value: Any) -> str:
    spelled = "none" if value is None else value.lower() if isinstance(value, str) else ""
    for reduction, spellings in _REDUCTIONS.items():
        if spelled in spellings:
            return reduction
    raise InputError("reduction", '"mean" ("auto", "sum_over_batch_size"), "sum" or "none" (None)', repr(value))


def _factor(disjoint_neurons: bool) -> float:
    return 2.0 if disjoint_neurons else math.sqrt(2.0)
