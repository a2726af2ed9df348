"""The differentiable backward pass of linear bounds, from rows of the specification to the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.differentiable.cpu_kernels import (
    concretized,
    relaxed,
    through_convolution,
    through_linear,
    uses_batch_last,
)
from pyrobust.bounds.differentiable.intervals import ENGINE, CenteredRange, differentiable_of, move_of, windows
from pyrobust.bounds.graph.activations import LinearRelaxation, required
from pyrobust.bounds.graph.analysis import is_nonlinear
from pyrobust.bounds.graph.evaluate import flattened, like
from pyrobust.bounds.graph.nodes import Activation, Conv2d, Gather, Input, Linear, MaxPool, Node, Reshape, Scale, Sum
from pyrobust.ops.relaxation import relax_coefficients


def lower_bounds(order: Sequence[Node], ranges: Mapping[Node, CenteredRange], rows: Tensor, *, stop: bool) -> Tensor:
    """Return lower bounds [B, S] of the products of rows [B or 1, S, K] and the network's output.

    The rows are rewritten as coefficients [B, S, *shape] of one node after the other, from the output to the input. An
    affine node is replaced by its formula in terms of its inputs. For an activation, the product of its coefficient and
    its value is replaced by a linear lower bound in the activation's input. Finally, the linear function of the
    network's input is minimised over the input's box.

    Args:
        order: all nodes, each after its inputs; the last is the output.
        ranges: ranges of the nodes that ``read_ranges`` lists.
        rows: the coefficients of the output.
        stop: whether to stop at the last activations before the output. If so, the weighted sums of these activations'
            values are bounded from the ranges of the values. The results are then interval bounds of the rows, with one
            difference: the affine nodes after these activations are combined, because bounding them one by one would be
            looser.
    """
    coefficients = {order[-1]: rows}
    total = rows.new_zeros(())
    for node in reversed(order):
        if node not in coefficients:
            continue
        a = coefficients.pop(node)
        if _ends(node, stop):
            total = total + _concretize(a, ranges[node])
            continue
        constant, parts = _step(node, a, ranges)
        if constant is not None:
            total = total + constant
        for source, share in zip(node.inputs, parts, strict=True):
            coefficients[source] = coefficients[source] + share if source in coefficients else share
    return total


def read_ranges(order: Sequence[Node], *, stop: bool) -> set[Node]:
    """Return the nodes whose ranges ``lower_bounds`` reads when it is called with the same arguments."""
    reached, read = {order[-1]}, set()
    for node in reversed(order):
        if node not in reached:
            continue
        if _ends(node, stop):
            read.add(node)
            continue
        if is_nonlinear(node):
            read.add(node.inputs[0])
        reached.update(node.inputs)
    return read


def _ends(node: Node, stop: bool) -> bool:
    return isinstance(node, Input) or (stop and is_nonlinear(node))


def _concretize(a: Tensor, box: CenteredRange) -> Tensor:
    """Return the minimum of a·z over a box, [B, S]."""
    if uses_batch_last(a):
        return concretized(a, *box)
    return _concretized(a.flatten(2), box.center.flatten(1), box.radius.expand_as(box.center).flatten(1))


def _times(a: Tensor, z: Tensor) -> Tensor:
    """Return Σ a·z over the elements of each example: ``a`` is [B or 1, S, n], and ``z`` is [B, ...]."""
    return (a @ flattened(z).unsqueeze(2)).squeeze(2)


def _step(node: Node, a: Tensor, ranges: Mapping[Node, CenteredRange]) -> tuple[Tensor | None, list[Tensor]]:
    """Step back through a node: return the constant [B, S] or None, and the coefficients of the node's inputs."""
    if isinstance(node, Linear):
        bias = None if node.bias is None else like(node.bias, a)
        if uses_batch_last(a):
            out, constant = through_linear(a, like(node.weight, a), bias)
            return constant, [out]
        return None if bias is None else a @ bias, [a @ like(node.weight, a)]
    if isinstance(node, Conv2d):
        out, contribution = _through(node, a)
        return contribution, [out]
    if isinstance(node, Scale):
        constant = None if node.shift is None else flattened(a * like(node.shift, a), 2).sum(2)
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
    if uses_batch_last(a):
        out, constant = relaxed(a, *z, node.slope)
        return constant, [out]
    batch = len(z.center)
    out, constant = relax_coefficients(
        flattened(a, 2).expand(batch, -1, -1), flattened(z.lower), flattened(z.upper), node.slope
    )
    return constant, [out.view(batch, *a.shape[1:])]


def _through(node: Conv2d, a: Tensor) -> tuple[Tensor, Tensor]:
    planes = node.inputs[0].shape
    weight = like(node.weight, a)
    bias = weight.new_zeros(len(weight)) if node.bias is None else like(node.bias, a)
    if uses_batch_last(a):
        return through_convolution(a, weight, bias, move_of(node))
    sides = [
        planes[i + 1]
        + 2 * node.padding[i]
        - node.dilation[i] * (weight.shape[i + 2] - 1)
        - 1
        - node.stride[i] * (node.shape[i + 1] - 1)
        for i in (0, 1)
    ]
    shape = _Shape((sides[0], sides[1]), node.stride, node.padding, node.dilation, node.groups)
    return _through_convolution(a, weight, bias, shape)


def _returned(node: Gather, a: Tensor) -> list[Tensor]:
    """Add the coefficients of gathered elements to those of the elements that they were read from."""
    sizes = [source.size for source in node.inputs]
    index = node.index.to(a.device).flatten()
    index = torch.where(index < 0, sum(sizes), index)  # the constant 0 takes coefficients of padding
    flat = a.new_zeros(*a.shape[:2], sum(sizes) + 1).index_add(2, index, flattened(a, 2))
    parts = torch.split(flat[:, :, :-1], sizes, 2)
    return [share.reshape(*a.shape[:2], *source.shape) for share, source in zip(parts, node.inputs, strict=True)]


def _relaxed(a: Tensor, relaxation: LinearRelaxation) -> tuple[Tensor, list[Tensor]]:
    """Return (constant, input coefficients), by the lower relaxation where ``a`` is positive, else by the upper one."""
    above, below = a.clamp(max=0), a.clamp(min=0)
    constant = _times(flattened(below, 2), relaxation.lower_intercept) + _times(
        flattened(above, 2), relaxation.upper_intercept
    )
    return constant, [below * relaxation.lower_slope.unsqueeze(1) + above * relaxation.upper_slope.unsqueeze(1)]


def _through_maximum(node: MaxPool, a: Tensor, z: CenteredRange) -> tuple[Tensor, list[Tensor]]:
    """Return (constant, coefficients of the input) of a linear lower bound of ``a`` times the maximum."""
    low, high = windows(node, z.lower, -torch.inf), windows(node, z.upper, -torch.inf)
    best = low.argmax(2, keepdim=True)
    others = high.scatter(2, best, -torch.inf).amax(2)
    is_maximum = others <= low.amax(2)
    index = node.windows.to(a.device).expand(len(low), -1, -1).gather(2, best).squeeze(2)  # [B, size]
    flat = flattened(a, 2)
    above, below = flat.clamp(max=0), flat.clamp(min=0)
    constant = _times(above, torch.where(is_maximum, 0, high.amax(2)))
    kept = below + above * is_maximum.to(a.dtype).unsqueeze(1)
    first = node.inputs[0]
    out = a.new_zeros(*kept.shape[:2], first.size).scatter_add(2, index.unsqueeze(1).expand_as(kept), kept)
    return constant, [out.view(*kept.shape[:2], *first.shape)]


# --- devices other than the CPU: gradients in fewer passes than autograd's


class _Shape(NamedTuple):
    """Sizes of a convolution; ``sides`` counts the last rows and columns of its padded input that no window reaches."""

    sides: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


def _concretized(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """Return the minimum of a·z over a box, [B, S]; ``a`` is [B or 1, S, n], ``center`` and ``radius`` are [B, n]."""
    # torch does not annotate this method
    result: Tensor = _Concretize.apply(a, center, radius)  # type: ignore[no-untyped-call]  # torch has no types
    return result


def _through_convolution(a: Tensor, weight: Tensor, bias: Tensor, shape: _Shape) -> tuple[Tensor, Tensor]:
    """Return input coefficients [B, S, C, H, W] and constant [B, S] of a convolution; ``a`` is [B, S, O, h, w]."""
    # torch does not annotate this method
    out, constant = _ThroughConvolution.apply(a, weight, bias, shape)  # type: ignore[no-untyped-call]  # torch has no types
    return out, constant


class _Concretize(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
        return (a * _lowest(a, center, radius)).sum(2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, center, radius = ctx.saved_tensors
        grad_a = grad_center = grad_radius = None
        if ctx.needs_input_grad[0]:
            grad_a = _lowest(a, center, radius).mul_(grad.unsqueeze(2)).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            grad_center = (grad.unsqueeze(1) @ a).squeeze(1)
        if ctx.needs_input_grad[2]:
            grad_radius = -(grad.unsqueeze(1) @ a.abs()).squeeze(1)
        return grad_a, grad_center, grad_radius


def _lowest(a: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """Return the corner of the box that minimises a·z, [B, S, n]."""
    sign = a.sgn()
    if len(sign) != len(radius):
        sign = sign.repeat(len(radius), 1, 1)
    return sign.mul_(-radius.unsqueeze(1)).add_(center.unsqueeze(1))


class _ThroughConvolution(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, weight: Tensor, bias: Tensor, shape: _Shape) -> tuple[Tensor, Tensor]:
        sides, stride, padding, dilation, groups = shape
        out = functional.conv_transpose2d(a.flatten(0, 1), weight, None, stride, padding, sides, groups, dilation)
        return out.view(*a.shape[:2], *out.shape[1:]), a.flatten(3).sum(3) @ bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, _Shape], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.shape = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_constant: Tensor) -> tuple[Tensor | None, ...]:
        a, weight, bias = ctx.saved_tensors
        _, stride, padding, dilation, groups = ctx.shape
        grad = grad.flatten(0, 1)
        grad_a = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            flat = functional.conv2d(grad, weight, None, stride, padding, dilation, groups).view(a.shape)
            grad_a = flat.add_((grad_constant.unsqueeze(2) * bias)[:, :, :, None, None])
        if ctx.needs_input_grad[1]:
            _, grad_weight, _ = torch.ops.aten.convolution_backward(
                a.flatten(0, 1),
                grad,
                weight,
                None,
                stride,
                padding,
                dilation,
                False,
                (0, 0),
                groups,
                (False, True, False),
            )
        if ctx.needs_input_grad[2]:
            grad_bias = grad_constant.flatten() @ a.flatten(3).sum(3).flatten(0, 1)
        return grad_a, grad_weight, grad_bias, None
