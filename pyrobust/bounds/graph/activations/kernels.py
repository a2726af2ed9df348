"""Curves with native kernels for bounds: both engines use them on the CPU; other devices use torch operations."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust import _C
from pyrobust.bounds.graph.activations import parametric, powers, smooth  # noqa: F401 - the rows that this changes
from pyrobust.bounds.graph.activations.table import (
    ACTIVATIONS,
    ActivationRow,
    LinearRelaxation,
    RelaxationRule,
    Rounding,
    required,
)
from pyrobust.bounds.graph.nodes import Activation

_Doubles = npt.NDArray[np.float64]

#: The functions that the kernels know, by the same names, and their rows in torch operations.
KERNELS = {
    name: ACTIVATIONS[name]
    for name in (
        *("sigmoid", "tanh", "gelu", "tanh_gelu", "silu", "mish", "softplus"),
        *("exp", "square", "reciprocal", "sqrt", "rsqrt", "log"),
    )
}


def _ends(lower: Tensor, upper: Tensor) -> tuple[_Doubles, _Doubles]:
    return lower.detach().flatten().numpy(), upper.detach().flatten().numpy()


def _interval(node: Activation, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    low, high = _C.curve_interval(node.function, node.parameters, *_ends(lower, upper))
    return torch.from_numpy(low).view_as(lower), torch.from_numpy(high).view_as(lower)


def _relaxation(node: Activation, lower: Tensor, upper: Tensor) -> LinearRelaxation:
    parts = _C.curve_relaxation(node.function, node.parameters, *_ends(lower, upper))
    return LinearRelaxation(*(torch.from_numpy(array).view_as(lower) for array in parts[:4]))


def _with_kernels(row: ActivationRow, name: str) -> ActivationRow:
    """Replace the torch operations of a curve's row by native kernels on the host."""

    def interval(node: Activation, lower: Tensor, upper: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
        if lower.device.type == "cpu":
            return _interval(node, lower, upper)
        return required(row.interval, node, "interval", "the torch engine")(node, lower, upper, rounding)

    def relaxation(node: Activation, lower: Tensor, upper: Tensor, rounding: Rounding) -> LinearRelaxation:
        if lower.device.type == "cpu":
            return _relaxation(node, lower, upper)
        return required(row.relaxation, node, "linear relaxation", "the torch engine")(node, lower, upper, rounding)

    def rule(node: Activation) -> RelaxationRule:
        return lambda l, u: _C.curve_relaxation(node.function, node.parameters, l, u)  # noqa: E741 - the field's names

    return dataclasses.replace(row, native_code=name, interval=interval, relaxation=relaxation, rule=rule)


ACTIVATIONS.update({name: _with_kernels(row, name) for name, row in KERNELS.items()})
