"""Packing of a graph for the native engine: weights as the engine's floats, with bounds on their rounding errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pyrobust import _C
from pyrobust.bounds.engines.library_products import LibraryProducts
from pyrobust.bounds.engines.work import Work
from pyrobust.bounds.graph.activations import LARGEST, ActivationRow, RelaxationRule, required, row_of
from pyrobust.bounds.graph.analysis import (
    EVERYTHING,
    Analysis,
    Step,
    consumers,
    is_nonlinear,
    is_partial,
    needs_interval_bounds,
    representatives,
)
from pyrobust.bounds.graph.nodes import (
    Activation,
    Conv2d,
    Gather,
    Input,
    Linear,
    MaxPool,
    Node,
    Product,
    Reshape,
    Scale,
    Sort,
    Sum,
    in_order,
)
from pyrobust.bounds.graph.rounded_constants import SCALE_ROUNDINGS, Rounded, bias_of, rounded, weights_of

#: The name of this engine in errors.
ENGINE = "the native engine"

#: Chords of larger slopes may overflow.
_LARGEST_SLOPE = 2.0**64

_Planes = tuple[int, int, int]
_Doubles = npt.NDArray[np.float64]


class Packed(NamedTuple):
    """The engine's network for a graph, with the library products of its layers."""

    network: _C.BoundNetwork32
    products: LibraryProducts
    item: int  # bytes of a number
    work: Work


def native_network(output: Node, dtype: torch.dtype, deployed: float = 0.0) -> Packed:
    """Return the engine's network for a graph, in float32 or float64 arithmetic.

    Args:
        output: the graph.
        dtype: dtype of the arithmetic.
        deployed: the unit roundoff of the forward pass that bounds hold for; 0 for real numbers.

    Raises:
        ModelError: a parameter is not finite, a parameter that is not known exactly rounds to zero (so its relative
            error is undefined), or an activation has neither native code nor a numpy rule for its bounds.
    """
    return _Packing(dtype, deployed).run(output)


class _Packing:
    def __init__(self, dtype: torch.dtype, deployed: float) -> None:
        self.deployed = deployed
        self.network: _C.BoundNetwork32 = _C.BoundNetwork64() if dtype == torch.float64 else _C.BoundNetwork32()
        self.dtype: npt.DTypeLike = np.float64 if dtype == torch.float64 else np.float32
        self.steps: list[Step] = []  # the layers of the network
        self.planes: list[_Planes] = []
        self.number: dict[Node, int] = {}
        self.joined: dict[Scale, Scale] = {}

    def run(self, output: Node) -> Packed:
        order = in_order(output)
        self.joined = _joined_shifts(order, output)
        left_out = set(self.joined.values())
        for node in order:
            if isinstance(node, Reshape) or node in left_out:
                self.number[node] = self.number[node.inputs[0]]
            else:
                self.number[node] = self._add(node)
                if node.known != EVERYTHING:
                    self.network.know(self.number[node], *node.known)
        if len(self.steps) == 1 or self.number[output] != len(self.steps) - 1:  # the engine's output is its last layer
            self._regroup(self.number[output], (output.size, 1, 1))
        analysis = Analysis(self.steps, len(self.steps) - 1)
        needs_intervals = needs_interval_bounds(order)
        if needs_intervals:
            self._relate(analysis)
        self.network.finish(
            [len(readers) for readers in analysis.consumers],
            analysis.fused,
            analysis.affine_in_input,
            analysis.ends_affine_part,
            [analysis.repeats_in_all(i) for i in range(len(self.steps))],
        )
        products = [
            (i, step.node, self.network.weight(i))
            for i, step in enumerate(self.steps)
            if isinstance(step.node, Linear | Conv2d)
        ]
        library = LibraryProducts([] if needs_intervals else products)
        return Packed(self.network, library, np.dtype(self.dtype).itemsize, Work(self.steps))

    def _relate(self, analysis: Analysis) -> None:
        """Tell the network which of the neurons that it may refine are equal or opposite."""
        for i, step in enumerate(self.steps):
            if any(is_nonlinear(self.steps[reader].node) for reader in analysis.consumers[i]):
                representative = representatives(step.node)
                if representative is not None:
                    self.network.relate(i, representative[0].numpy(), representative[1].double().numpy())

    def _record(self, number: int, node: Node, inputs: list[int], planes: _Planes) -> int:
        """Record the layer just added to the network, and return its index."""
        assert number == len(self.steps)
        self.steps.append(Step(node, tuple(inputs)))
        self.planes.append(planes)
        return number

    def _add(self, node: Node) -> int:
        network, inputs = self.network, [self.number[source] for source in node.inputs]
        planes = _planes(node.shape)
        if isinstance(node, Input):
            return self._record(network.input(planes), node, inputs, planes)
        first = inputs[0]
        if isinstance(node, Linear):
            weight, relative = weights_of(node, node.weight, self.dtype)
            bias, error = bias_of(node.bias)
            number = network.linear(first, weight, bias, relative, error)
            return self._record(number, node, inputs, (node.shape[0], 1, 1))
        if isinstance(node, Conv2d):
            inputs = [self._in_planes(first, _planes(node.inputs[0].shape))]
            weight, relative = weights_of(node, node.weight, self.dtype)
            bias, error = bias_of(node.bias)
            sizes = [*node.stride, *node.padding, *node.dilation, node.groups]
            number = network.conv(inputs[0], weight, bias, relative, bias_error=error, sizes=sizes, shape=planes)
            return self._record(number, node, inputs, planes)
        if isinstance(node, Scale):
            scale = rounded(node.scale, node.shape, 1.0, self.dtype)
            shift = rounded(node.shift, node.shape, 0.0, np.float64)
            excess = np.zeros(0)
            if node in self.joined:
                before = rounded(self.joined[node].shift, node.shape, 0.0, np.float64)
                shift, excess = _joined(before, scale, shift)
            parts = [vector.ravel() for vector in (scale.value, shift.value, scale.error, shift.error, excess)]
            number = network.scale(
                first,
                parts[0],
                parts[1],
                parts[2],
                shift_error=parts[3],
                shift_excess=parts[4],
                roundings=SCALE_ROUNDINGS,
            )
            return self._record(number, node, inputs, self.planes[first])
        if isinstance(node, Sum):
            shapes = {self.planes[source] for source in inputs}
            common = shapes.pop() if len(shapes) == 1 else planes
            inputs = [self._in_planes(source, common) for source in inputs]
            number = network.sum(inputs, np.array(node.signs, dtype=np.float64), len(inputs) - 1)
            return self._record(number, node, inputs, common)
        if isinstance(node, Gather):
            index = node.index.numpy().ravel()
            if isinstance(node, Sort):
                number = network.sort(inputs, index, node.pairs.numpy(), node.larger.numpy(), planes)
            else:
                number = network.gather(inputs, index, planes)
            return self._record(number, node, inputs, planes)
        if isinstance(node, MaxPool):
            return self._record(network.max_pool(first, node.windows.numpy(), planes), node, inputs, planes)
        if isinstance(node, Product):
            inputs = [self._in_planes(source, planes) for source in inputs]
            return self._record(network.product(*inputs), node, inputs, planes)
        assert isinstance(node, Activation)
        row = row_of(node, ENGINE)
        slopes = _slopes_below(node, row)
        native = row.native_code if row.slopes_below is None or slopes is not None else None
        rule = None if native else required(row.rule, node, "native code and no rule", ENGINE)(node)
        error, largest = 0.0, math.inf
        if self.deployed and has_offset(node):
            error = 2 * self.deployed * row.roundings(node) * row.offset(node)
            largest = float(np.finfo(self.dtype).max) * LARGEST
            rule = rule and _widened(rule, error, largest)
        number = network.activation(
            first,
            native or node.function,
            node.slope,
            node.lower,
            high=node.upper,
            roundings=row.roundings(node),
            rule=rule,
            parameters=node.parameters,
            error=error,
            largest=largest,
            slopes=slopes or (np.zeros(0), np.zeros(0)),
            partial=is_partial(node),
        )
        return self._record(number, node, inputs, self.planes[first])

    def _in_planes(self, number: int, planes: _Planes) -> int:
        """Return a layer with the same elements in other planes, or the layer itself if the planes are equal."""
        return number if self.planes[number] == planes else self._regroup(number, planes)

    def _regroup(self, number: int, planes: _Planes) -> int:
        """Add a layer with the same elements in planes of another shape."""
        source, index = self.steps[number].node, torch.arange(math.prod(planes), device="cpu")
        node = Gather(name=source.name, shape=planes, inputs=(source,), index=index)
        return self._record(self.network.gather([number], index.numpy(), planes), node, [number], planes)


def has_offset(node: Node) -> bool:
    """Whether a deployed forward pass has errors at a node that are not relative to the node's value."""
    return isinstance(node, Activation) and row_of(node, ENGINE).offset(node) > 0


def _slopes_below(node: Activation, row: ActivationRow) -> tuple[_Doubles, _Doubles] | None:
    """Return each element's least and largest slope for z < 0; None if there are none, or if slopes nearly overflow."""
    if row.slopes_below is None:
        return None
    least, most = (slopes.expand(1, *node.shape).flatten().numpy() for slopes in row.slopes_below(node))
    return (least, most) if node.size and max(most.max(), -least.min()) < _LARGEST_SLOPE else None


def _widened(rule: RelaxationRule, error: float, largest: float) -> RelaxationRule:
    """Return a rule with intercepts and values widened by an error, and unknown where values exceed ``largest``."""

    def apply(l: _Doubles, u: _Doubles) -> tuple[_Doubles, ...]:  # noqa: E741 - the field's names
        lower_slope, lower, upper_slope, upper, low, high = rule(l, u)
        errors = np.where(np.maximum(-low, high) > largest, np.inf, error)
        slopes = (np.where(errors < np.inf, slope, 0.0) for slope in (lower_slope, upper_slope))
        return next(slopes), lower - errors, next(slopes), upper + errors, low - errors, high + errors

    return apply


def _joined_shifts(order: list[Node], output: Node) -> dict[Scale, Scale]:
    """Map each scale to the shift just before it, if nothing else reads the shift; one layer does both (batch norm)."""
    readers = consumers(order, [output])
    joined: dict[Scale, Scale] = {}
    for node in order:
        before = node.inputs[0] if node.inputs else None
        if not isinstance(node, Scale) or not isinstance(before, Scale) or before in joined:
            continue
        if before.scale is None and before is not output and readers[before] == [node]:
            joined[node] = before
    return joined


def _joined(before: Rounded, scale: Rounded, shift: Rounded) -> tuple[Rounded, npt.NDArray[np.float64]]:
    """Return the constant c of scale·(z + before) + shift, and by how much the sum of its |terms| exceeds |c|."""
    product = scale.value * before.value
    value = product + shift.value
    size = np.abs(product) + np.abs(shift.value)
    error = scale.error * (np.abs(before.value) + before.error) + np.abs(scale.value) * before.error + shift.error
    error = (error + 2.0**-51 * size) * (1 + 2.0**-48) + 2.0**-1060
    return Rounded(value, error), np.maximum(0.0, (size - np.abs(value)) + 2.0**-50 * size)


def _planes(shape: tuple[int, ...]) -> _Planes:
    """Return a shape as the engine stores it, [C, H, W] or flat."""
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (math.prod(shape), 1, 1)
