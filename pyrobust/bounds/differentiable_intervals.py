"""Intervals through a graph in torch operations, differentiable by the constants and by the box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.errors import ModelError

from .forward import activate, affine, like
from .graph import Activation, Conv2d, Gather, Input, Linear, MaxPool, Node, Reshape, Scale, Sum


class Range(NamedTuple):
    """What each element of a node stays between: [B, *shape] each."""

    lower: Tensor
    upper: Tensor

    def center(self) -> Tensor:
        """The middle."""
        return (self.lower + self.upper) / 2

    def radius(self) -> Tensor:
        """Half of the width."""
        return (self.upper - self.lower) / 2


def check_differentiable(order: Sequence[Node]) -> None:
    """Raises ModelError for a node that only the native engine bounds."""
    for node in order:
        if isinstance(node, Activation) and node.function not in ("leaky_relu", "clamp"):
            raise ModelError(
                f"model: {node.name} has no differentiable bounds: {node.function}; expected ReLU, leaky ReLU or clamp"
            )


def intervals(order: Sequence[Node], lower: Tensor, upper: Tensor) -> dict[Node, Range]:
    """The range of every node for inputs between lower and upper [B, ...], in their dtype (Gowal et al., 2018).

    Args:
        order: all nodes, each after its inputs.
        lower: [B, ...].
        upper: [B, ...].
    """
    ranges: dict[Node, Range] = {}
    for node in order:
        if isinstance(node, Input):
            ranges[node] = Range(lower, upper)
        else:
            ranges[node] = _range(node, [ranges[one] for one in node.inputs])
    return ranges


def _range(node: Node, inputs: list[Range]) -> Range:
    first = inputs[0]
    if isinstance(node, Linear | Conv2d):
        center = affine(node, [first.center()])
        radius = _spread(node, first.radius())
        return Range(center - radius, center + radius)
    if isinstance(node, Scale):
        low, high = affine(node, [first.lower]), affine(node, [first.upper])
        if node.scale is None:
            return Range(low, high)
        grows = like(node.scale, low) >= 0
        return Range(torch.where(grows, low, high), torch.where(grows, high, low))
    if isinstance(node, Gather | Reshape):
        return Range(affine(node, [one.lower for one in inputs]), affine(node, [one.upper for one in inputs]))
    if isinstance(node, Sum):
        ends = [
            one if sign > 0 else Range(-one.upper, -one.lower) for sign, one in zip(node.signs, inputs, strict=True)
        ]
        return Range(sum_of([one.lower for one in ends]), sum_of([one.upper for one in ends]))
    if isinstance(node, Activation):  # all of them grow
        return Range(activate(node, first.lower), activate(node, first.upper))
    assert isinstance(node, MaxPool)
    shape = (-1, *node.shape)
    return Range(*(windows(node, end, -torch.inf).amax(2).view(shape) for end in first))


def _spread(node: Linear | Conv2d, radius: Tensor) -> Tensor:
    """The radius of an affine map's values: |W| times that of its input."""
    weight = like(node.weight, radius).abs()
    if isinstance(node, Linear):
        return functional.linear(radius, weight)
    return functional.conv2d(radius, weight, None, node.stride, node.padding, node.dilation, node.groups)


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
