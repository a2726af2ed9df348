"""Intervals through a graph in torch operations, differentiable by the constants and by the box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.errors import ModelError

from .differentiable_lanes import Move, affine_intervals, has_lanes, relu_ranges
from .forward import activate, affine, like
from .graph import Activation, Conv2d, Gather, Input, Linear, MaxPool, Node, Reshape, Scale, Sum


class Range(NamedTuple):
    """What each element of a node stays within: center [B, *shape]; radius the same, or with 1 in place of B."""

    center: Tensor
    radius: Tensor

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor) -> Range:
        """The range with these ends."""
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
    """Raises ModelError for a node that only the native engine bounds."""
    for node in order:
        if isinstance(node, Activation) and node.function not in ("leaky_relu", "clamp"):
            raise ModelError(
                f"model: {node.name} has no differentiable bounds: {node.function}; expected ReLU, leaky ReLU or clamp"
            )


def intervals(order: Sequence[Node], box: Range) -> dict[Node, Range]:
    """The range of every node for inputs in a box, in their dtype (Gowal et al., 2018).

    Args:
        order: all nodes, each after its inputs.
        box: of the input.
    """
    ranges: dict[Node, Range] = {}
    for node in order:
        ranges[node] = box if isinstance(node, Input) else _range(node, [ranges[one] for one in node.inputs])
    return ranges


def _range(node: Node, inputs: list[Range]) -> Range:
    first = inputs[0]
    if isinstance(node, Linear | Conv2d):
        return _affine(node, first)
    if isinstance(node, Scale):
        center = affine(node, [first.center])
        return Range(center, first.radius if node.scale is None else first.radius * like(node.scale, center).abs())
    if isinstance(node, Gather | Reshape):
        return Range(affine(node, [one.center for one in inputs]), affine(node, _radii(inputs)))
    if isinstance(node, Sum):
        centers = [one.center if sign > 0 else -one.center for sign, one in zip(node.signs, inputs, strict=True)]
        return Range(sum_of(centers), sum_of([one.radius for one in inputs]))
    if isinstance(node, Activation):  # all of them grow
        if node.function == "leaky_relu" and has_lanes(first.center):
            return Range(*relu_ranges(first.center, first.radius, node.slope))
        return Range.between(activate(node, first.lower), activate(node, first.upper))
    assert isinstance(node, MaxPool)
    shape = (-1, *node.shape)
    return Range.between(*(windows(node, end, -torch.inf).amax(2).view(shape) for end in (first.lower, first.upper)))


def _affine(node: Linear | Conv2d, z: Range) -> Range:
    """Center and radius of an affine map's values: W times the one, |W| times the other."""
    weight = like(node.weight, z.center)
    if has_lanes(z.center):
        bias = None if node.bias is None else like(node.bias, z.center)
        return Range(*affine_intervals(*z, weight, bias, move_of(node) if isinstance(node, Conv2d) else None))
    center = affine(node, [z.center])
    if isinstance(node, Linear):
        return Range(center, functional.linear(z.radius, weight.abs()))
    move = (node.stride, node.padding, node.dilation, node.groups)
    return Range(center, functional.conv2d(z.radius, weight.abs(), None, *move))


def move_of(node: Conv2d) -> Move:
    """How a convolution moves over its input."""
    height, width = node.inputs[0].shape[1:]
    return Move((height, width), node.stride, node.padding, node.dilation, node.groups)


def _radii(inputs: list[Range]) -> list[Tensor]:
    """All radii, of one batch: shared by all examples only where every one is."""
    batch = max(len(one.radius) for one in inputs)
    return [one.radius.expand(batch, *one.radius.shape[1:]) for one in inputs]


def windows(node: MaxPool, z: Tensor, outside: float) -> Tensor:
    """The elements of each window [B, size, K], ``outside`` where it hangs over the border."""
    flat = z.flatten(1)
    padded = torch.cat([flat, flat.new_full((len(flat), 1), outside)], 1)
    return padded[:, node.windows.to(z.device)]  # -1 is the last


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """The sum of at least one tensor."""
    total = parts[0]
    for one in parts[1:]:
        total = total + one
    return total
