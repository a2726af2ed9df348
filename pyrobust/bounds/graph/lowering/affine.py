"""Lowering rules of affine operators: linear layers, normalisation, arithmetic with constants."""

from __future__ import annotations

import torch

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.contraction import product
from pyrobust.bounds.graph.lowering.layout import broadcast, moved
from pyrobust.bounds.graph.lowering.registry import Lowering, Value, as_constant, lowers, number
from pyrobust.bounds.graph.nodes import Conv2d, Linear, Node, Scale, Sum

aten = torch.ops.aten


@lowers(aten.linear.default)
def linear(lowering: Lowering, z: Node, weight: Value, bias: Constant | None = None) -> Node:
    """Compute z·Wᵀ + b on the last dimension; if z has more dimensions, a 1x1 convolution runs over them."""
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


def matmul(lowering: Lowering, a: Value, b: Value) -> Node:
    """Compute the matrix product of a node and a constant, in either order."""
    if isinstance(a, Node) and isinstance(b, Constant) and len(b.shape) == 2:
        return linear(lowering, a, b.moved(lambda w: w.mT))
    return product(lowering, a, b)


@lowers(aten.addmm.default)
def addmm(lowering: Lowering, bias: Constant, z: Node, weight: Value, *, beta: float = 1, alpha: float = 1) -> Node:
    """Compute bias + z·W."""
    if beta != 1 or alpha != 1 or not isinstance(weight, Constant) or not isinstance(bias, Constant):
        raise lowering.unsupported("expected a constant matrix and bias, with beta = alpha = 1")
    return linear(lowering, z, weight.moved(lambda w: w.mT), bias)


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
    """Compute γ·(z − mean)/√(variance + ε) + β with running statistics; leave out the operator's other results."""

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


@lowers(aten.batch_norm.default)
def batch_norm_call(
    lowering: Lowering,
    z: Node,
    weight: Constant | None,
    bias: Constant | None,
    mean: Constant | None,
    variance: Constant | None,
    training: bool,
    momentum: float,
    epsilon: float,
    cudnn: bool,
) -> Node:
    """Compute the normalisation by running statistics (Ioffe and Szegedy, 2015)."""
    if training or mean is None or variance is None:
        raise lowering.unsupported("expected running statistics; those of a batch mix its examples")
    return batch_norm(lowering, z, weight, bias, mean=mean, variance=variance, momentum=momentum, epsilon=epsilon)[0]


@lowers(aten.add.Tensor)
def add(lowering: Lowering, a: Value | float, b: Value | float, *, alpha: float = 1) -> Node:
    """Compute the sum a + alpha·b."""
    return _combined(lowering, a, b, alpha)


@lowers(aten.sub.Tensor)
def subtract(lowering: Lowering, a: Value | float, b: Value | float, *, alpha: float = 1) -> Node:
    """Compute the difference a − alpha·b."""
    return _combined(lowering, a, b, -alpha)


@lowers(aten.rsub.Scalar, aten.rsub.Tensor)
def reverse_subtract(lowering: Lowering, a: Value, b: Value | float, alpha: float = 1) -> Node:
    """Compute the difference b − alpha·a."""
    return _combined(lowering, b, a, -alpha)


@lowers(aten.neg.default)
def negative(lowering: Lowering, z: Node) -> Node:
    """Compute the negation −z."""
    return scaled(lowering, z, number(-1.0), None)


def multiply(lowering: Lowering, a: Value | float, b: Value | float) -> Node:
    """Compute a product with a constant."""
    if isinstance(a, Node) and isinstance(b, Node):
        raise lowering.unsupported("a product of two tensors that depend on the input is not affine")
    z, factor = (a, b) if isinstance(a, Node) else (b, a)
    assert isinstance(z, Node)
    return scaled(lowering, z, as_constant(factor), None)


def divide(lowering: Lowering, a: Value | float, b: Value | float) -> Node:
    """Compute a quotient by a constant."""
    if not isinstance(a, Node) or isinstance(b, Node):
        raise lowering.unsupported("a division by a tensor that depends on the input is not affine")
    return scaled(lowering, a, number(1.0) / as_constant(b), None)


def add_product(lowering: Lowering, a: Value, b: Value, c: Value, *, value: float = 1) -> Node:
    """Compute a + value·b·c, with b or c constant."""
    return _combined(lowering, a, _product_of(lowering, b, c), value)


def add_quotient(lowering: Lowering, a: Value, b: Value, c: Value, *, value: float = 1) -> Node:
    """Compute a + value·b/c, with c constant."""
    if isinstance(c, Node):
        raise lowering.unsupported("a division by a tensor that depends on the input is not affine")
    return _combined(lowering, a, _product_of(lowering, b, number(1.0) / c), value)


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def interpolate(lowering: Lowering, a: Value, b: Value, weight: float | Constant) -> Node:
    """Compute a + weight·(b − a), with a constant weight."""
    share = as_constant(weight)
    return _combined(lowering, _product_of(lowering, a, number(1.0) - share), _product_of(lowering, b, share), 1)


def _product_of(lowering: Lowering, a: Value, b: Value) -> Value:
    """Multiply a constant by a node or by another constant."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return a * b
    return multiply(lowering, a, b)


@lowers(aten.diff.default)
def difference(lowering: Lowering, z: Node, n: int = 1, dim: int = -1) -> Node:
    """Compute the differences of neighbours along a dimension."""
    for _ in range(n):
        after = moved(lowering, z, lambda t: t.narrow(dim, 1, t.shape[dim] - 1))
        before = moved(lowering, z, lambda t: t.narrow(dim, 0, t.shape[dim] - 1))
        z = Sum(name=lowering.name, shape=after.shape, inputs=(after, before), signs=(1, -1))
    return z


def scaled(lowering: Lowering, z: Node, scale: Constant | None, shift: Constant | None) -> Node:
    """Return the node scale·z + shift, after broadcasting."""
    z = broadcast(lowering, z, lowering.out_shape())

    def of_example(constant: Constant | None) -> Constant | None:
        return None if constant is None else per_example(lowering, constant, z.shape)

    return Scale(name=lowering.name, shape=z.shape, inputs=(z,), scale=of_example(scale), shift=of_example(shift))


def per_example(lowering: Lowering, constant: Constant, shape: tuple[int, ...]) -> Constant:
    """Return a constant, without its batch dimension if it has one; its rows along this dimension must be equal."""
    value = constant.value()
    if value.dim() <= len(shape):
        return constant
    if value.dim() == len(shape) + 1 and bool((value == value[:1]).all()):
        return constant.moved(lambda t: t[0])
    raise lowering.unsupported("a constant of it differs between the examples of a batch")


def _combined(lowering: Lowering, a: Value | float, b: Value | float, factor: float) -> Node:
    """Compute a + factor·b."""
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
