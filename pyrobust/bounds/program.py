"""From the graph to the native engine: weights in the engine's floats, with how far they are from the exact ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust import _C
from pyrobust.errors import ModelError

from .constants import Constant
from .graph import Activation, Conv2d, Gather, Input, Linear, MaxPool, Node, Reshape, Scale, Sum, in_order
from .rules import FUNCTIONS

_Doubles = npt.NDArray[np.float64]


class Rounded(NamedTuple):
    """A constant in the engine's floats, and its distance from the exact one."""

    value: _Doubles  # float32 or float64 numbers
    error: _Doubles  # at least |exact - value|


def native_network(output: Node, dtype: torch.dtype) -> _C.BoundNetwork32:
    """The engine's network for a graph, in float32 or float64 arithmetic.

    Raises:
        ModelError: a parameter is not finite, or has no relative error (it is zero, but not known exactly).
    """
    return _Packing(dtype).run(output)


class _Packing:
    def __init__(self, dtype: torch.dtype) -> None:
        self.network: _C.BoundNetwork32 = _C.BoundNetwork64() if dtype == torch.float64 else _C.BoundNetwork32()
        self.dtype: npt.DTypeLike = np.float64 if dtype == torch.float64 else np.float32
        self.number: dict[Node, int] = {}
        self.shape: dict[Node, tuple[int, int, int]] = {}  # as the engine has it

    def run(self, output: Node) -> _C.BoundNetwork32:
        for node in in_order(output):
            self.number[node], self.shape[node] = self._add(node)
        if self.number[output] in (0, *range(max(self.number.values()))):  # the engine's output is its last layer
            self.network.gather([self.number[output]], np.arange(output.size), (output.size, 1, 1))
        self.network.finish()
        return self.network

    def _add(self, node: Node) -> tuple[int, tuple[int, int, int]]:
        if isinstance(node, Input):
            return self.network.input(_planes(node.shape)), _planes(node.shape)
        first = node.inputs[0]
        number, shape = self.number[first], self.shape[first]
        if isinstance(node, Reshape):
            return number, shape
        if isinstance(node, Linear):
            weight, relative = self._weights(node, node.weight)
            bias, error = self._bias(node.bias)
            return self.network.linear(number, weight, bias, relative, error), (node.shape[0], 1, 1)
        if isinstance(node, Conv2d):
            return self._conv(node), _planes(node.shape)
        if isinstance(node, Scale):
            scale = self._rounded(node.scale, node.shape, 1.0)
            shift = self._exact(node.shift, node.shape)
            value, offset = scale.value.ravel(), shift.value.ravel()
            errors = scale.error.ravel(), shift.error.ravel()
            return self.network.scale(number, value, offset, *errors, _ROUNDINGS), shape
        if isinstance(node, Sum):
            return self._sum(node)
        if isinstance(node, Gather):
            inputs = [self.number[one] for one in node.inputs]
            planes = _planes(node.shape)
            return self.network.gather(inputs, node.index.numpy().ravel(), planes), planes
        if isinstance(node, MaxPool):
            planes = _planes(node.shape)
            return self.network.max_pool(number, node.windows.numpy(), planes), planes
        assert isinstance(node, Activation)
        rule = FUNCTIONS[node.function].rule if node.function in FUNCTIONS else None  # the engine has the others
        activation = self.network.activation(number, node.function, node.slope, node.lower, node.upper, rule)
        return activation, shape

    def _conv(self, node: Conv2d) -> int:
        first = node.inputs[0]
        number, planes = self.number[first], _planes(first.shape)
        if self.shape[first] != planes:  # the same elements, seen as other planes
            number = self.network.gather([number], np.arange(first.size), planes)
        weight, relative = self._weights(node, node.weight)
        bias, error = self._bias(node.bias)
        sizes = [*node.stride, *node.padding, *node.dilation, node.groups]
        return self.network.conv(number, weight, bias, relative, error, sizes, _planes(node.shape))

    def _sum(self, node: Sum) -> tuple[int, tuple[int, int, int]]:
        shapes = {self.shape[one] for one in node.inputs}
        shape = shapes.pop() if len(shapes) == 1 else _planes(node.shape)
        numbers = [
            self.number[one]
            if self.shape[one] == shape
            else self.network.gather([self.number[one]], np.arange(one.size), shape)
            for one in node.inputs
        ]
        return self.network.sum(numbers, np.array(node.signs, dtype=np.float64), len(numbers) - 1), shape

    def _weights(self, node: Node, constant: Constant) -> tuple[_Doubles, float]:
        """The weights, and the largest relative error of one."""
        rounded = self._rounded(constant, None, 0.0)
        if not rounded.error.any():
            return rounded.value, 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(rounded.error > 0, rounded.error / np.abs(rounded.value), 0.0)
        largest = float(relative.max())
        if not np.isfinite(largest):
            raise ModelError(f"model: {node.name} has weights that are not known well enough to bound what they do")
        return rounded.value, float(np.nextafter(largest, np.inf))

    def _bias(self, constant: Constant | None) -> tuple[_Doubles, float]:
        """The bias, and the largest error of one."""
        if constant is None:
            return np.zeros(0), 0.0
        exact = self._exact(constant, None)
        return exact.value, float(exact.error.max(initial=0.0))

    def _exact(self, constant: Constant | None, shape: tuple[int, ...] | None) -> Rounded:
        """In float64, whatever the engine's floats are."""
        if constant is None:
            assert shape is not None
            return Rounded(np.zeros(shape), np.zeros(shape))
        lower, upper = (_expanded(end, shape) for end in constant.enclosure())
        middle = np.where(lower == upper, lower, lower / 2 + upper / 2)
        return Rounded(middle, _distance(middle, lower, upper))

    def _rounded(self, constant: Constant | None, shape: tuple[int, ...] | None, default: float) -> Rounded:
        if constant is None:
            assert shape is not None
            return Rounded(np.full(shape, default), np.zeros(shape))
        lower, upper = (_expanded(end, shape) for end in constant.enclosure())
        middle = np.where(lower == upper, lower, lower / 2 + upper / 2)
        with np.errstate(over="ignore"):
            value = middle.astype(self.dtype).astype(np.float64)
        return Rounded(value, _distance(value, lower, upper))


#: Of a deployed Scale, in whatever way it is written: (z − mean)·γ/σ + β takes four, and γ/σ, mean·γ/σ some more.
_ROUNDINGS = 8


def _planes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """A shape as the engine has it: [C, H, W], or flat."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    size = 1
    for one in shape:
        size *= one
    return size, 1, 1


def _expanded(end: Tensor, shape: tuple[int, ...] | None) -> _Doubles:
    array: _Doubles = end.contiguous().numpy()
    return array if shape is None else np.broadcast_to(array, shape)


def _distance(value: _Doubles, lower: _Doubles, upper: _Doubles) -> _Doubles:
    """At least the distance of any number in [lower, upper] from value; exactly 0 where there is none."""
    distance = np.maximum(upper - value, value - lower)
    return np.where(distance > 0, np.nextafter(distance, np.inf), 0.0)
