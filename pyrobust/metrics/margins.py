"""Margins: by how much the logit of an example's label exceeds those of other classes."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust import checks
from pyrobust.checks import first_wrong, shape_text
from pyrobust.errors import InputError, InputTypeError

#: Types that the metrics accept as logits and labels.
ArrayLike: TypeAlias = Tensor | npt.NDArray[Any]

_LARGEST = torch.finfo(torch.float64).max


def binary_margins(logits: ArrayLike, labels: ArrayLike) -> Tensor:
    """Margin ``s·f(x)`` of each example, with s = 1 for the positive label and -1 for the negative one.

    Args:
        logits: [N] or [N, 1], a tensor, an array or a list of floats.
        labels: [N] or [N, 1], of any dtype; all in {0, 1} or all in {-1, 1}.

    Returns:
        [N], float64, on the logits' device, differentiable with respect to them; -inf where a logit is not finite.

    Raises:
        InputError: wrong shapes, no examples, or other label values.
        InputTypeError: arguments that are not tensors, arrays or lists of numbers, logits that are not float, or labels
            in the place of logits.

    >>> binary_margins(torch.tensor([[2.0], [3.0]]), torch.tensor([1, 0])).tolist()
    [2.0, -3.0]
    """
    logits, labels = _tensors(logits, labels)
    if logits.dim() not in (1, 2) or logits.shape[1:] not in ((), (1,)):
        raise InputError("logits", "[N] or [N, 1]", shape_text(logits.shape))
    if len(logits) == 0:
        raise InputError("logits", "at least one example", "none")
    count = len(logits)
    if tuple(labels.shape) not in ((count,), (count, 1)):
        raise InputError("labels", f"shape ({count},) or ({count}, 1)", shape_text(labels.shape))
    positive = _positive(labels.detach().reshape(count)).to(logits.device)
    values = logits.reshape(count).double()
    return _only_finite(torch.where(positive, values, -values), values.detach().isfinite())


def categorical_margins(logits: ArrayLike, labels: ArrayLike) -> Tensor:
    """Margin ``f_l(x) − max_{i ≠ l} f_i(x)`` of each example with label l.

    Args:
        logits: [N, K], a tensor, an array or a list of floats, K ≥ 2.
        labels: integer classes [N]; or rows [N, K] of any dtype, with values all in {0, 1} or all in {-1, 1}, and
            exactly one 1 in each row.

    Returns:
        [N], float64, on the logits' device, differentiable with respect to them; -inf where a logit is NaN or infinite.
        In a row with NaN, the gradient may be NaN.

    Raises:
        InputError: wrong shapes, no examples, or other label values.
        InputTypeError: arguments that are not tensors, arrays or lists of numbers, logits that are not float, classes
            that are not integers, or labels in the place of logits.

    >>> logits = torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]])
    >>> categorical_margins(logits, torch.tensor([0, 2])).tolist()
    [2.0, -3.0]
    >>> categorical_margins(logits, torch.tensor([[1, -1, -1], [-1, 1, -1]])).tolist()
    [2.0, -2.0]
    """
    logits, labels = _tensors(logits, labels)
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise InputError("logits", "[N, K] with K >= 2", shape_text(logits.shape))
    if len(logits) == 0:
        raise InputError("logits", "at least one example", "none")
    label_mask = _own_class(labels.detach(), *logits.shape).to(logits.device)
    values = logits.double()
    best = values.masked_fill(label_mask, -math.inf).amax(dim=1)
    return _only_finite(values[label_mask] - best, values.detach().isfinite().all(1))


def as_tensor(name: str, value: Any) -> Tensor:
    """Return a tensor as it is, an array as a new tensor, and a list as a tensor, with Python's floats as float64."""
    if isinstance(value, list | tuple) and (tensor := checks.as_tensor(value, torch.float64)) is not None:
        return tensor
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))
    if not isinstance(value, Tensor):
        raise InputTypeError(name, "a tensor, an array or a list", _kind(value))
    return value


def are_swapped(logits: Tensor, labels: Tensor) -> bool:
    """Whether the first argument can only be labels, and the second only logits."""
    return labels.is_floating_point() and not _may_be_labels(labels) and _may_be_labels(logits)


def _may_be_labels(values: Tensor) -> bool:
    if not values.is_floating_point():
        return True
    ones = values == 1
    if not bool((ones | (values == 0)).all() or (ones | (values == -1)).all()):
        return False
    return values.dim() != 2 or values.shape[1] == 1 or bool((ones.sum(1) == 1).all())


def _kind(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__


def _tensors(logits: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    logits, labels = as_tensor("logits", logits), as_tensor("labels", labels)
    if are_swapped(logits, labels):
        raise InputTypeError(
            "logits",
            "logits and then labels, PyTorch's order (input, target)",
            "labels first",
            "swap the arguments, or use pyrobust.compat.deel_lip, whose metrics take (y_true, y_pred)",
        )
    if not logits.dtype.is_floating_point:
        raise InputTypeError("logits", "a float tensor", logits.dtype)
    return logits, labels


def _positive(labels: Tensor) -> Tensor:
    """Return a mask of the labels that are 1; the labels must be all in {0, 1} or all in {-1, 1}."""
    positive = labels == 1
    # torch compares -1 with unsigned numbers modulo 2**bits, so 255 would count as -1.
    minus = labels == -1 if labels.dtype.is_signed else torch.zeros_like(positive)
    if bool((positive | (labels == 0)).all()) or bool((positive | minus).all()):
        return positive
    wrong = ~(positive | (labels == 0) | minus)
    if bool(wrong.any()):
        got = first_wrong(labels, wrong)
        if labels.is_floating_point() and bool(((labels >= -1) & (labels <= 1)).all()):
            got += "; smoothed labels have no single true class, whose margin could be certified: pass hard labels"
    else:
        got = f"both {first_wrong(labels, labels == 0)} and {first_wrong(labels, labels == -1)}"
    raise InputError("labels", "all values in {0, 1}, or all in {-1, 1}", got)


def _own_class(labels: Tensor, count: int, classes: int) -> Tensor:
    """Return a mask, bool [N, K], that is true at the label of each row."""
    if tuple(labels.shape) == (count, classes):
        positive = _positive(labels)
        ones = positive.sum(1)
        if not bool((ones == 1).all()):
            raise InputError("labels", "exactly one 1 in each row", _in_row(ones))
        return positive
    if tuple(labels.shape) != (count,):
        raise InputError("labels", f"shape ({count},) or ({count}, {classes})", shape_text(labels.shape))
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise InputTypeError("labels", "integer classes [N] or one-hot rows [N, K]", f"[N] of {labels.dtype}")
    index = labels.to(torch.int64)
    wrong = (index < 0) | (index >= classes)
    if bool(wrong.any()):
        raise InputError("labels", f"classes 0 to {classes - 1}", first_wrong(index, wrong))
    return torch.nn.functional.one_hot(index, classes).bool()


def _in_row(ones: Tensor) -> str:
    row = int((ones != 1).nonzero()[0])
    return f"{int(ones[row]) or 'none'} in row {row}"


def _only_finite(margins: Tensor, usable: Tensor) -> Tensor:
    """Return the margins, clamped to ± the largest float64, with -inf where ``usable`` is false."""
    return torch.where(usable, margins.clamp(-_LARGEST, _LARGEST), -math.inf)
