"""Lowering rules of affine operators: linear layers, convolutions, normalisation, arithmetic with constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.layout import broadcast, moved, reshaped
from pyrobust.bounds.graph.lowering.registry import Lowering, Value, lowers, number, pair
from pyrobust.bounds.graph.nodes import Conv2d, Linear, Node, Scale, Sum

aten = torch.ops.aten


@lowers(aten.linear.default)
def linear(lowering: Lowering, z: Node, weight: Value, bias: Constant | None = None) -> Node:
    """Lower z·Wᵀ + b on the last dimension; further dimensions make it a 1x1 convolution over them."""
    if not isinstance(weight, Constant):
        raise lowering.unsupported("its weight depends on the input")
    if len(z.shape) == 1:
        return Linear(name=lowering.name, shape=lowering.out_shape(), inputs=(z,), weight=weight, bias=bias)
    features = z.shape[-1]
    count = z.size // features
    columns = moved(lowering, z, lambda t: t.reshape(t.shape[0], count, features).mT.unsqueeze(2))  # [N, 1, P]
    convolved = Conv2d(
        name=lowering.name,
        shape=(lowering.out_shape()[-1], 1, count),
        inputs=(columns,),
        weight=weight.moved(lambda w: w[:, :, None, None]),
        bias=bias,
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
        groups=1,
    )
    out = lowering.out_shape()
    return moved(lowering, convolved, lambda t: t.squeeze(2).mT.reshape(t.shape[0], *out))


@lowers(aten.matmul.default, aten.mm.default)
def matmul(lowering: Lowering, a: Value, b: Value) -> Node:
    """Lower a product with a constant matrix on either side."""
    if isinstance(a, Node) and isinstance(b, Constant):
        weight = matrix(lowering, b)
        return linear(lowering, a, weight.moved(lambda w: w.mT))
    if isinstance(b, Node) and isinstance(a, Constant) and len(b.shape) >= 2:
        turned = moved(lowering, b, lambda t: t.mT)
        out = lowering.shape
        lowering.shape = (*out[:-2], out[-1], out[-2]) if out else None
        product = linear(lowering, turned, matrix(lowering, a))
        lowering.shape = out
        return moved(lowering, product, lambda t: t.mT)
    raise lowering.unsupported("expected one factor that is a constant matrix")


@lowers(aten.addmm.default)
def addmm(lowering: Lowering, bias: Constant, z: Node, weight: Value, *, beta: float = 1, alpha: float = 1) -> Node:
    """Lower bias + z·W."""
    if beta != 1 or alpha != 1 or not isinstance(weight, Constant) or not isinstance(bias, Constant):
        raise lowering.unsupported("expected a constant matrix and bias, with beta = alpha = 1")
    return linear(lowering, z, weight.moved(lambda w: w.mT), bias)


def matrix(lowering: Lowering, constant: Constant) -> Constant:
    """The constant, if it is a matrix."""
    if constant.value().dim() != 2:
        raise lowering.unsupported("expected a constant matrix")
    return constant


@lowers(aten.conv2d.default, aten.conv1d.default)
def convolution(
    lowering: Lowering,
    z: Node,
    weight: Value,
    bias: Constant | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Node:
    """Lower a convolution; a one-dimensional one gets height 1."""
    if not isinstance(weight, Constant):
        raise lowering.unsupported("its weight depends on the input")
    flat = len(z.shape) == 2
    out = lowering.out_shape()
    if flat:
        z = reshaped(lowering, z, (z.shape[0], 1, z.shape[1]))
        weight = weight.moved(lambda w: w.unsqueeze(2))
    node = Conv2d(
        name=lowering.name,
        shape=(out[0], 1, out[1]) if flat else out,
        inputs=(z,),
        weight=weight,
        bias=bias,
        stride=pair(stride, 1, flat=flat),
        padding=pair(padding, 0, flat=flat),
        dilation=pair(dilation, 1, flat=flat),
        groups=groups,
    )
    return reshaped(lowering, node, out)


@lowers(aten.conv2d.padding, aten.conv1d.padding)
def padded_convolution(
    lowering: Lowering,
    z: Node,
    weight: Constant,
    bias: Constant | None = None,
    stride: int | Sequence[int] = 1,
    padding: str = "valid",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Node:
    """A convolution whose padding is "same" or "valid"."""
    dimensions = len(z.shape) - 1
    kernel = weight.value().shape[2:]
    steps = [dilation] * dimensions if isinstance(dilation, int) else list(dilation) * (dimensions // len(dilation))
    total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(steps, kernel, strict=True)]
    if any(t % 2 for t in total):  # more padding on the right, which Conv2d does not support
        sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
        z = moved(lowering, z, lambda t: torch.nn.functional.pad(t, sides))
        total = [0] * dimensions
    return convolution(lowering, z, weight, bias, stride, [t // 2 for t in total], dilation, groups)


@lowers(aten.convolution.default)
def general_convolution(
    lowering: Lowering,
    z: Node,
    weight: Constant,
    bias: Constant | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Node:
    """Lower the operator behind all convolutions."""
    if transposed or len(z.shape) not in (2, 3):
        raise lowering.unsupported("transposed and three-dimensional convolutions have no bound rule")
    return convolution(lowering, z, weight, bias, stride, padding, dilation, groups)


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm(
    lowering: Lowering,
    z: Node,
    weight: Constant | None,
    bias: Constant | None,
    mean: Constant,
    variance: Constant,
    momentum: float,
    epsilon: float,
) -> tuple[Node]:
    """γ·(z − mean)/√(variance + ε) + β with the running statistics, as the first of several results."""

    def along(constant: Constant) -> Constant:
        return constant.moved(lambda t: t.view(-1, *[1] * (len(z.shape) - 1)))

    scale = number(1.0) / (variance + number(epsilon)).sqrt()
    if weight is not None:
        scale = weight * scale
    # Two steps: γ·mean/σ and β may nearly cancel, and the rounding error of their deployed sum grows with their size.
    centered = Scale(name=lowering.name, shape=z.shape, inputs=(z,), scale=None, shift=along(-mean))
    shift = None if bias is None else along(bias)
    out = Scale(name=lowering.name, shape=z.shape, inputs=(centered,), scale=along(scale), shift=shift)
    return (out,)


@lowers(aten.add.Tensor)
def add(lowering: Lowering, a: Value | float, b: Value | float, *, alpha: float = 1) -> Node:
    """Lower the sum a + alpha·b."""
    return _combined(lowering, a, b, alpha)


@lowers(aten.sub.Tensor)
def subtract(lowering: Lowering, a: Value | float, b: Value | float, *, alpha: float = 1) -> Node:
    """Lower the difference a − alpha·b."""
    return _combined(lowering, a, b, -alpha)


@lowers(aten.rsub.Scalar, aten.rsub.Tensor)
def reverse_subtract(lowering: Lowering, a: Value, b: Value | float, alpha: float = 1) -> Node:
    """Lower the reversed difference b − alpha·a."""
    return _combined(lowering, b, a, -alpha)


@lowers(aten.neg.default)
def negative(lowering: Lowering, z: Node) -> Node:
    """Lower the negation −z."""
    return scaled(lowering, z, number(-1.0), None)


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def multiply(lowering: Lowering, a: Value | float, b: Value | float) -> Node:
    """Lower a product with a constant."""
    if isinstance(a, Node) and isinstance(b, Node):
        raise lowering.unsupported("a product of two tensors that depend on the input is not affine")
    z, factor = (a, b) if isinstance(a, Node) else (b, a)
    assert isinstance(z, Node)
    return scaled(lowering, z, as_constant(factor), None)


@lowers(aten.div.Tensor, aten.div.Scalar)
def divide(lowering: Lowering, a: Value | float, b: Value | float) -> Node:
    """Lower a quotient by a constant."""
    if not isinstance(a, Node) or isinstance(b, Node):
        raise lowering.unsupported("a division by a tensor that depends on the input is not affine")
    return scaled(lowering, a, number(1.0) / as_constant(b), None)


def as_constant(value: Any) -> Constant:
    """Convert a number to a constant; return a constant unchanged."""
    return value if isinstance(value, Constant) else number(value)


def scaled(lowering: Lowering, z: Node, scale: Constant | None, shift: Constant | None) -> Node:
    """scale·z + shift, after broadcasting."""
    z = broadcast(lowering, z, lowering.out_shape())

    def of_example(constant: Constant | None) -> Constant | None:
        return None if constant is None else per_example(lowering, constant, z.shape)

    return Scale(name=lowering.name, shape=z.shape, inputs=(z,), scale=of_example(scale), shift=of_example(shift))


def per_example(lowering: Lowering, constant: Constant, shape: tuple[int, ...]) -> Constant:
    """A constant that broadcasts to one example; one with a batch dimension must have equal rows."""
    value = constant.value()
    if value.dim() <= len(shape):
        return constant
    if value.dim() == len(shape) + 1 and bool((value == value[:1]).all()):
        return constant.moved(lambda t: t[0])
    raise lowering.unsupported("a constant of it differs between the examples of a batch")


def _combined(lowering: Lowering, a: Value | float, b: Value | float, factor: float) -> Node:
    """Add a and factor·b."""
    if isinstance(a, Node) and isinstance(b, Node):
        shape = lowering.out_shape()
        if abs(factor) != 1:
            b = scaled(lowering, b, number(factor), None)
        a, b = broadcast(lowering, a, shape), broadcast(lowering, b, shape)
        signs = (1, -1 if factor == -1 else 1)
        return Sum(name=lowering.name, shape=shape, inputs=(a, b), signs=signs)
    if isinstance(a, Node):
        shift = as_constant(b) if factor == 1 else as_constant(b) * number(factor)
        return scaled(lowering, a, None, shift)
    assert isinstance(b, Node)
    return scaled(lowering, b, None if factor == 1 else number(factor), as_constant(a))
