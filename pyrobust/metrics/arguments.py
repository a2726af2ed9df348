"""Checks of the tensors, arrays and lists that metrics take as arguments."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import Numbers, as_tensor, first_wrong, kind, label_hint, shape_text
from pyrobust.errors import InputError, InputTypeError

_Scalar = TypeVar("_Scalar", bound=np.generic)


def aligned_classes(**named: Numbers) -> tuple[Tensor, ...]:
    """Check class numbers [N] of equal length N ≥ 1; return them as int64 on the CPU.

    Labels and targets are at least 0; predictions are at least -1, which stands for no class.
    """
    checked: list[Tensor] = []
    for name, value in named.items():
        value = _tensor(name, value)
        if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
            hint = "pass predicted_classes(logits)" if value.dim() == 2 else ""
            raise InputTypeError(name, "integers", value.dtype, hint)
        if value.dim() != 1:
            raise InputError(name, "shape (N,)", shape_text(value.shape))
        if len(value) == 0:
            raise InputError(name, "at least one example", "none")
        if checked and len(value) != len(checked[0]):
            raise InputError(name, f"one for each of the {len(checked[0])} examples", len(value))
        classes = value.detach().cpu().to(torch.int64)
        least = 0 if name in ("labels", "targets") or not value.dtype.is_signed else -1  # 2**64 - 1 wraps to -1
        wrong = classes < least
        if bool(wrong.any()):
            raise InputError(name, f"classes of at least {least}", first_wrong(classes, wrong))
        checked.append(classes)
    return tuple(checked)


def _tensor(name: str, value: Any) -> Tensor:
    """Return a tensor, an array or a list as a tensor; floats in lists become float64."""
    tensor = as_tensor(value, torch.float64)
    if tensor is None:
        raise InputTypeError(name, "a tensor, an array or a list", kind(value), label_hint(value))
    return tensor


def checked_distances(distances: Numbers, success: Numbers) -> tuple[Tensor, Tensor]:
    """Check distances and successes of equal shape; return them on the CPU, distances as float64."""
    distances, success = _tensor("distances", distances), _tensor("success", success)
    if not distances.dtype.is_floating_point:
        raise InputTypeError("distances", "a float tensor", distances.dtype)
    if success.dtype != torch.bool:
        raise InputTypeError("success", "bool", success.dtype)
    if distances.shape != success.shape:
        raise InputError("success", f"the shape of distances, {tuple(distances.shape)}", tuple(success.shape))
    if distances.numel() == 0:
        raise InputError("distances", "at least one example", f"shape {tuple(distances.shape)}")
    distances, success = distances.detach().cpu().double(), success.detach().cpu()
    wrong = ~(distances >= 0) | (success & distances.isinf())
    if bool(wrong.any()):
        raise InputError(
            "distances", "numbers of at least 0, finite where success is True", first_wrong(distances, wrong)
        )
    return distances, success


def as_array(name: str, value: Tensor | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert a column of numbers [N], N ≥ 1, from a tensor or an array to an array on the CPU."""
    if isinstance(value, np.ndarray):
        column: npt.NDArray[Any] = value
    else:
        tensor = _tensor(name, value).detach().cpu()
        column = (tensor.double() if tensor.dtype.is_floating_point else tensor).numpy()
    if column.ndim != 1:
        raise InputError(name, "shape (N,)", shape_text(column.shape))
    if len(column) == 0:
        raise InputError(name, "at least one example", "none")
    return column


def checked_radii(radius: Tensor | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Check radii [N], finite and at least 0; return them as float64."""
    column = as_array("radius", radius)
    if column.dtype.kind != "f":
        raise InputTypeError("radius", "a float tensor or array", column.dtype)
    column = column.astype(np.float64)
    wrong = ~((column >= 0) & (column < np.inf))
    if wrong.any():
        got = first_wrong(column, wrong)
        raise InputError("radius", "finite numbers of at least 0", got, "use 0 for an abstention")
    return column


def checked_flags(name: str, value: Tensor | npt.NDArray[Any], n_examples: int | None = None) -> npt.NDArray[np.bool_]:
    """Check a bool column [N]."""
    column = as_array(name, value)
    if column.dtype != np.bool_:
        hint = "compare predictions with labels" if name == "correct" else ""
        raise InputTypeError(name, "bool", column.dtype, hint)
    return aligned(name, column, n_examples)


def checked_integers(
    name: str, value: Tensor | npt.NDArray[Any], n_examples: int | None = None
) -> npt.NDArray[np.int64]:
    """Check integers [N] of at least 0; return them as int64."""
    column = as_array(name, value)
    if column.dtype.kind not in "iu":
        raise InputTypeError(name, "integers", column.dtype)
    if int(column.min()) < 0 or int(column.max()) >= 1 << 63:
        raise InputError(name, "numbers of at least 0", f"{column.min()} to {column.max()}")
    return aligned(name, column.astype(np.int64), n_examples)


def aligned(name: str, column: npt.NDArray[_Scalar], n_examples: int | None) -> npt.NDArray[_Scalar]:
    """Check that a column has one number for each example."""
    if n_examples is not None and len(column) != n_examples:
        raise InputError(name, f"one for each of the {n_examples} examples", len(column))
    return column
