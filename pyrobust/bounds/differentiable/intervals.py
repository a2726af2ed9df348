"""Interval bound propagation through a graph, differentiable with respect to the constants and the box."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.differentiable.cpu_kernels import Move, affine_intervals, relu_ranges, uses_batch_last
from pyrobust.bounds.graph.activations import ACTIVATIONS, Differentiable, row_of
from pyrobust.bounds.graph.analysis import consumers
from pyrobust.bounds.graph.evaluate import affine, flattened, like
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
)
from pyrobust.errors import ModelError

#: The name of these bounds in errors.
ENGINE = "differentiable bounds"


class CenteredRange(NamedTuple):
    """The range of each element of a node: center [B, *shape]; radius [B, *shape] or [1, *shape]."""

    center: Tensor
    radius: Tensor

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor) -> CenteredRange:
        """Return the range with these ends."""
        return cls((lower + upper) / 2, (upper - lower) / 2)

    @property
    def lower(self) -> Tensor:
        """The lower end, [B, *shape]."""
        return self.center - self.radius

    @property
    def upper(self) -> Tensor:
        """The upper end, [B, *shape]."""
        return self.center + self.radius


def check_differentiable(order: Sequence[Node]) -> None:
    """Raise ModelError for a product of two nodes, or an activation without differentiable bounds."""
    for node in order:
        if isinstance(node, Product):
            raise ModelError(f"model: {node.name} has no differentiable bounds: it multiplies two tensors")
        if isinstance(node, Activation):
            differentiable_of(node)


def differentiable_of(node: Activation) -> Differentiable:
    """Return the differentiable bounds of an activation; raise ModelError if it has none."""
    bounds = row_of(node, ENGINE).differentiable
    if bounds is None:
        supported = ", ".join(name for name, row in ACTIVATIONS.items() if row.differentiable is not None)
        raise ModelError(f"model: {node.name} has no differentiable bounds: {node.function}; expected {supported}")
    return bounds


def intervals(order: Sequence[Node], box: CenteredRange, wanted: Collection[Node]) -> dict[Node, CenteredRange]:
    """Return the ranges of nodes for inputs in a box, in the box's dtype (Gowal et al., 2018).

    Args:
        order: all nodes, each after its inputs.
        box: range of the input.
        wanted: the nodes to return; of the other nodes, only those that a wanted node needs get a range.
    """
    readers = consumers(order, wanted)
    ranges: dict[Node, CenteredRange] = {}
    for node in order:
        if isinstance(node, Input):
            ranges[node] = box
        elif node in readers and not (
            node not in wanted and uses_batch_last(box.center) and _only_relu(node, readers[node])
        ):
            ranges[node] = _range(node, ranges)
    return ranges


def _only_relu(node: Node, readers: list[Node]) -> bool:
    """Whether a node is an affine map that only a leaky ReLU reads, so that the two are fused."""
    reads = len(readers) == 1 and isinstance(readers[0], Activation) and differentiable_of(readers[0]).kernels
    return reads and isinstance(node, Linear | Conv2d)


def _range(node: Node, ranges: Mapping[Node, CenteredRange]) -> CenteredRange:
    if isinstance(node, Activation) and node.inputs[0] not in ranges:
        before = node.inputs[0]
        assert isinstance(before, Linear | Conv2d)
        return _affine(before, ranges[before.inputs[0]], node.slope)
    inputs = [ranges[source] for source in node.inputs]
    first = inputs[0]
    if isinstance(node, Linear | Conv2d):
        return _affine(node, first)
    if isinstance(node, Scale):
        center = affine(node, [first.center])
        return CenteredRange(
            center, first.radius if node.scale is None else first.radius * like(node.scale, center).abs()
        )
    if isinstance(node, Sort):
        pairs, larger = node.pairs.to(first.center.device), node.larger.to(first.center.device)
        ends = [flattened(bound)[:, pairs] for bound in (inputs[-1].lower, inputs[-1].upper)]
        return CenteredRange.between(*(torch.where(larger, e.amax(2), e.amin(2)).view(-1, *node.shape) for e in ends))
    if isinstance(node, Gather | Reshape):
        return CenteredRange(affine(node, [z.center for z in inputs]), affine(node, _radii(inputs)))
    if isinstance(node, Sum):
        centers = [z.center if sign > 0 else -z.center for sign, z in zip(node.signs, inputs, strict=True)]
        return CenteredRange(sum_of(centers), sum_of([z.radius for z in inputs]))
    if isinstance(node, Activation):
        differentiable = differentiable_of(node)
        if differentiable.kernels and uses_batch_last(first.center):
            return CenteredRange(*relu_ranges(first.center, first.radius, node.slope))
        return CenteredRange.between(*differentiable.interval(node, first.lower, first.upper))
    assert isinstance(node, MaxPool)
    shape = (-1, *node.shape)
    return CenteredRange.between(
        *(windows(node, bound, -torch.inf).amax(2).view(shape) for bound in (first.lower, first.upper))
    )


def _affine(node: Linear | Conv2d, z: CenteredRange, slope: float | None = None) -> CenteredRange:
    """Return center and radius of an affine map, W·center and |W|·radius; with a slope, those of its leaky ReLU."""
    weight = like(node.weight, z.center)
    if uses_batch_last(z.center):
        bias = None if node.bias is None else like(node.bias, z.center)
        return CenteredRange(
            *affine_intervals(*z, weight, bias, move_of(node) if isinstance(node, Conv2d) else None, slope)
        )
    assert slope is None
    center = affine(node, [z.center])
    if isinstance(node, Linear):
        return CenteredRange(center, functional.linear(z.radius, weight.abs()))
    move = (node.stride, node.padding, node.dilation, node.groups)
    return CenteredRange(center, functional.conv2d(z.radius, weight.abs(), None, *move))


def move_of(node: Conv2d) -> Move:
    """Return the input size and the settings of a convolution."""
    height, width = node.inputs[0].shape[1:]
    return Move((height, width), node.stride, node.padding, node.dilation, node.groups)


def _radii(inputs: list[CenteredRange]) -> list[Tensor]:
    """Return the radii with one batch size, which is 1 if all examples share each radius."""
    batch = max(len(z.radius) for z in inputs)
    return [z.radius.expand(batch, *z.radius.shape[1:]) for z in inputs]


def windows(node: MaxPool, z: Tensor, outside: float) -> Tensor:
    """Return the elements of each window [B, size, K], with ``outside`` where a window exceeds the border."""
    flat = flattened(z)
    padded = torch.cat([flat, flat.new_full((len(flat), 1), outside)], 1)
    return padded[:, node.windows.to(z.device)]  # -1 is the last


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of one or more tensors."""
    total = parts[0]
    for operand in parts[1:]:
        total = total + operand
    return total
