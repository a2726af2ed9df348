"""Constants rounded to the float type of an engine, with their distances from the exact values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import Node
from pyrobust.errors import ModelError

_Doubles = npt.NDArray[np.float64]

#: Roundings of a deployed Scale, in any form: (z − mean)·γ/σ + β takes four, computing γ/σ and mean·γ/σ several more.
SCALE_ROUNDINGS = 8


class Rounded(NamedTuple):
    """A constant rounded to the float type of an engine, and its distance from the exact value."""

    value: _Doubles  # float32 or float64 numbers
    error: _Doubles  # at least |exact - value|


def rounded(constant: Constant | None, shape: tuple[int, ...] | None, default: float, dtype: npt.DTypeLike) -> Rounded:
    """Round a constant to a dtype and broadcast it to a shape; if the constant is None, use ``default`` instead."""
    if constant is None:
        assert shape is not None
        return Rounded(np.full(shape, default), np.zeros(shape))
    lower, upper = (_expanded(bound, shape) for bound in constant.enclosure())
    middle = np.where(lower == upper, lower, lower / 2 + upper / 2)
    with np.errstate(over="ignore"):
        value = middle.astype(dtype).astype(np.float64)
    return Rounded(value, _distance(value, lower, upper))


def weights_of(node: Node, constant: Constant, dtype: npt.DTypeLike) -> tuple[npt.NDArray[Any], float]:
    """Return the weights of a node, rounded to a dtype, and their largest relative error.

    Raises:
        ModelError: the relative error of a weight is not finite: the weight overflows, or rounds to 0 but may not be 0.
    """
    exact = constant.exact()
    floating = torch.float64 if np.dtype(dtype) == np.float64 else torch.float32
    if exact is not None and exact.dtype in (torch.float32, floating):
        return exact.to(floating).contiguous().numpy(), 0.0
    floats = rounded(constant, None, 0.0, dtype)
    if not floats.error.any():
        return floats.value, 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(floats.error > 0, floats.error / np.abs(floats.value), 0.0)
    largest = float(relative.max())
    if not np.isfinite(largest):
        raise ModelError(
            f"model: {node.name}: expected weights with a finite relative error, got one that rounds to zero"
        )
    return floats.value, float(np.nextafter(largest, np.inf))


def bias_of(constant: Constant | None) -> tuple[_Doubles, float]:
    """Return the bias in float64 (empty for None), and its largest error."""
    if constant is None:
        return np.zeros(0), 0.0
    exact = rounded(constant, None, 0.0, np.float64)
    return exact.value, float(exact.error.max(initial=0.0))


def _expanded(bound: Tensor, shape: tuple[int, ...] | None) -> _Doubles:
    array: _Doubles = bound.contiguous().numpy()
    return array if shape is None else np.broadcast_to(array, shape)


def _distance(value: _Doubles, lower: _Doubles, upper: _Doubles) -> _Doubles:
    """Return the largest distance from value to a number in [lower, upper], rounded up; 0 if lower = value = upper."""
    distance = np.maximum(upper - value, value - lower)
    return np.where(distance > 0, np.nextafter(distance, np.inf), 0.0)
