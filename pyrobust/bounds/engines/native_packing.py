"""From the graph to the native engine: weights in the engine's floats, with how far they are from the exact ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from pyrobust import _C
from pyrobust.bounds.graph.activations import required, row_of
from pyrobust.bounds.graph.nodes import (
    Activation,
    Conv2d,
    Gather,
    Input,
    Linear,
    MaxPool,
    Node,
    Reshape,
    Scale,
    Sum,
    in_order,
)
from pyrobust.bounds.graph.rounded_constants import SCALE_ROUNDINGS, bias_of, rounded, weights_of

#: The name of this engine in errors.
ENGINE = "the native engine"


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
            weight, relative = weights_of(node, node.weight, self.dtype)
            bias, error = bias_of(node.bias)
            return self.network.linear(number, weight, bias, relative, error), (node.shape[0], 1, 1)
        if isinstance(node, Conv2d):
            return self._conv(node), _planes(node.shape)
        if isinstance(node, Scale):
            scale = rounded(node.scale, node.shape, 1.0, self.dtype)
            shift = rounded(node.shift, node.shape, 0.0, np.float64)
            value, offset = scale.value.ravel(), shift.value.ravel()
            errors = scale.error.ravel(), shift.error.ravel()
            return self.network.scale(number, value, offset, *errors, SCALE_ROUNDINGS), shape
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
        row = row_of(node, ENGINE)
        rule = None if row.native_code else required(row.rule, node, "native code and no rule", ENGINE)
        code = row.native_code or node.function
        return self.network.activation(number, code, node.slope, node.lower, node.upper, rule), shape

    def _conv(self, node: Conv2d) -> int:
        first = node.inputs[0]
        number, planes = self.number[first], _planes(first.shape)
        if self.shape[first] != planes:  # the same elements, seen as other planes
            number = self.network.gather([number], np.arange(first.size), planes)
        weight, relative = weights_of(node, node.weight, self.dtype)
        bias, error = bias_of(node.bias)
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


def _planes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """A shape as the engine has it: [C, H, W], or flat."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    size = 1
    for one in shape:
        size *= one
    return size, 1, 1
