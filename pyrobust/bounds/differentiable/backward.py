"""Linear bounds from rows of outputs back to the input in torch operations, differentiable as the intervals are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyrobust.bounds.differentiable.cpu_kernels import (
    has_lanes,
    least_value,
    relaxed,
    through_convolution_lanes,
    through_linear,
)
from pyrobust.bounds.differentiable.intervals import ENGINE, Range, differentiable_of, move_of, windows
from pyrobust.bounds.differentiable_leaves import Shape, least, through_convolution
from pyrobust.bounds.graph.activations import LinearRelaxation, required
from pyrobust.bounds.graph.evaluate import like
from pyrobust.bounds.graph.nodes import Activation, Conv2d, Gather, Input, Linear, MaxPool, Node, Reshape, Scale, Sum
from pyrobust.ops.relaxation import relax_coefficients


def lower_bounds(order: Sequence[Node], ranges: Mapping[Node, Range], rows: Tensor, *, stop: bool) -> Tensor:
    """Lower bounds [B, S] of rows [B or 1, S, K] times the output.

    The rows become coefficients [B, S, *shape] of one node after the other, from the output to the input: an affine
    node is put in for its value, a function is replaced by a line that stays below coefficient times function. What is
    left is minimised over the input's box.

    Args:
        order: all nodes, each after its inputs; the last is the output.
        ranges: of the nodes that are ``asked`` for.
        rows: the coefficients of the output.
        stop: whether to minimise over the ranges of functions already, where coefficients first meet them: interval
            bounds of the rows, without the loss of bounding the affine nodes on top of them one by one.
    """
    coefficients = {order[-1]: rows}
    total = rows.new_zeros(())
    for node in reversed(order):
        if node not in coefficients:
            continue
        a = coefficients.pop(node)
        if _ends(node, stop):
            total = total + _least(a, ranges[node])
            continue
        constant, parts = _step(node, a, ranges)
        if constant is not None:
            total = total + constant
        for one, part in zip(node.inputs, parts, strict=True):
            coefficients[one] = coefficients[one] + part if one in coefficients else part
    return total


def asked(order: Sequence[Node], *, stop: bool) -> set[Node]:
    """The nodes whose ranges ``lower_bounds`` reads, with the same arguments."""
    reached, read = {order[-1]}, set()
    for node in reversed(order):
        if node not in reached:
            continue
        if _ends(node, stop):
            read.add(node)
            continue
        if isinstance(node, Activation | MaxPool):
            read.add(node.inputs[0])
        reached.update(node.inputs)
    return read


def _ends(node: Node, stop: bool) -> bool:
    return isinstance(node, Input) or (stop and isinstance(node, Activation | MaxPool))


def _least(a: Tensor, box: Range) -> Tensor:
    """The least value of a·z over a box: [B, S]."""
    if has_lanes(a):
        return least_value(a, *box)
    return least(a.flatten(2), box.center.flatten(1), box.radius.expand_as(box.center).flatten(1))


def _times(a: Tensor, z: Tensor) -> Tensor:
    """Σ a z over each example: a [B or 1, S, n], z [B, ...]."""
    return (a @ z.flatten(1).unsqueeze(2)).squeeze(2)


def _step(node: Node, a: Tensor, ranges: Mapping[Node, Range]) -> tuple[Tensor | None, list[Tensor]]:
    """From the coefficients of a node to (the constant [B, S] that comes out, the coefficients of its inputs)."""
    if isinstance(node, Linear):
        bias = None if node.bias is None else like(node.bias, a)
        if has_lanes(a):
            out, constant = through_linear(a, like(node.weight, a), bias)
            return constant, [out]
        return None if bias is None else a @ bias, [a @ like(node.weight, a)]
    if isinstance(node, Conv2d):
        out, contribution = _through(node, a)
        return contribution, [out]
    if isinstance(node, Scale):
        constant = None if node.shift is None else (a * like(node.shift, a)).flatten(2).sum(2)
        return constant, [a if node.scale is None else a * like(node.scale, a)]
    if isinstance(node, Reshape):
        return None, [a.reshape(*a.shape[:2], *node.inputs[0].shape)]
    if isinstance(node, Sum):
        return None, [a if sign > 0 else -a for sign in node.signs]
    if isinstance(node, Gather):
        return None, _returned(node, a)
    if isinstance(node, MaxPool):
        return _through_maximum(node, a, ranges[node.inputs[0]])
    assert isinstance(node, Activation)
    z = ranges[node.inputs[0]]
    differentiable = differentiable_of(node)
    if not differentiable.kernels:
        relax = required(differentiable.relaxation, node, "differentiable linear relaxation", ENGINE)
        return _relaxed(a, relax(node, z.lower, z.upper))
    if has_lanes(a):
        out, constant = relaxed(a, *z, node.slope)
        return constant, [out]
    batch = len(z.center)
    out, constant = relax_coefficients(
        a.flatten(2).expand(batch, -1, -1), z.lower.flatten(1), z.upper.flatten(1), node.slope
    )
    return constant, [out.view(batch, *a.shape[1:])]


def _through(node: Conv2d, a: Tensor) -> tuple[Tensor, Tensor]:
    planes = node.inputs[0].shape
    weight = like(node.weight, a)
    bias = weight.new_zeros(len(weight)) if node.bias is None else like(node.bias, a)
    if has_lanes(a):
        return through_convolution_lanes(a, weight, bias, move_of(node))
    rest = [
        planes[i + 1]
        + 2 * node.padding[i]
        - node.dilation[i] * (weight.shape[i + 2] - 1)
        - 1
        - node.stride[i] * (node.shape[i + 1] - 1)
        for i in (0, 1)
    ]
    shape = Shape((rest[0], rest[1]), node.stride, node.padding, node.dilation, node.groups)
    return through_convolution(a, weight, bias, shape)


def _returned(node: Gather, a: Tensor) -> list[Tensor]:
    """Coefficients of gathered elements, back where the elements came from."""
    sizes = [one.size for one in node.inputs]
    index = node.index.to(a.device).flatten()
    index = torch.where(index < 0, sum(sizes), index)  # the number 0 takes what nobody reads
    flat = a.new_zeros(*a.shape[:2], sum(sizes) + 1).index_add(2, index, a.flatten(2))
    parts = torch.split(flat[:, :, :-1], sizes, 2)
    return [part.reshape(*a.shape[:2], *one.shape) for part, one in zip(parts, node.inputs, strict=True)]


def _relaxed(a: Tensor, line: LinearRelaxation) -> tuple[Tensor, list[Tensor]]:
    """Each coefficient takes the line of its sign."""
    above, below = a.clamp(max=0), a.clamp(min=0)
    constant = _times(below.flatten(2), line.lower_intercept) + _times(above.flatten(2), line.upper_intercept)
    return constant, [below * line.lower_slope.unsqueeze(1) + above * line.upper_slope.unsqueeze(1)]


def _through_maximum(node: MaxPool, a: Tensor, z: Range) -> tuple[Tensor, list[Tensor]]:
    """Below, the element with the largest lower bound; above, the same where no other can exceed it, else a number."""
    low, high = windows(node, z.lower, -torch.inf), windows(node, z.upper, -torch.inf)
    best = low.argmax(2, keepdim=True)
    others = high.scatter(2, best, -torch.inf).amax(2)
    settled = others <= low.amax(2)
    index = node.windows.to(a.device).expand(len(low), -1, -1).gather(2, best).squeeze(2)  # [B, size]
    flat = a.flatten(2)
    above, below = flat.clamp(max=0), flat.clamp(min=0)
    constant = _times(above, torch.where(settled, 0, high.amax(2)))
    kept = below + above * settled.to(a.dtype).unsqueeze(1)
    first = node.inputs[0]
    out = a.new_zeros(*kept.shape[:2], first.size).scatter_add(2, index.unsqueeze(1).expand_as(kept), kept)
    return constant, [out.view(*kept.shape[:2], *first.shape)]
