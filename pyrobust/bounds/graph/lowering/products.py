"""Lowering rules of products, quotients and contractions of two tensors that both depend on the input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering import affine, contraction
from pyrobust.bounds.graph.lowering.elementwise import activation
from pyrobust.bounds.graph.lowering.layout import broadcast, moved, reshaped
from pyrobust.bounds.graph.lowering.registry import Lowering, Value, lowers
from pyrobust.bounds.graph.nodes import Conv2d, Node, Product, Sum

aten = torch.ops.aten


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def multiply(lowering: Lowering, a: Value | float, b: Value | float) -> Node:
    """Compute a product of two tensors that depend on the input, or of one such tensor and a constant."""
    if isinstance(a, Node) and isinstance(b, Node):
        return product(lowering, a, b)
    return affine.multiply(lowering, a, b)


@lowers(aten.div.Tensor, aten.div.Scalar)
def divide(lowering: Lowering, a: Value | float, b: Value | float) -> Node:
    """Compute a quotient; if the range of a divisor contains 0, nothing is known of the result."""
    if not isinstance(b, Node):
        return affine.divide(lowering, a, b)
    return multiply(lowering, a, activation(lowering, b, "reciprocal"))


@lowers(aten.addcmul.default)
def add_product(lowering: Lowering, start: Value, a: Value, b: Value, *, value: float = 1) -> Node:
    """Compute start + value·a·b."""
    if not (isinstance(a, Node) and isinstance(b, Node)):
        return affine.add_product(lowering, start, a, b, value=value)
    return affine.add(lowering, start, product(lowering, a, b), alpha=value)


@lowers(aten.addcdiv.default)
def add_quotient(lowering: Lowering, start: Value, a: Value, b: Value, *, value: float = 1) -> Node:
    """Compute start + value·a/b."""
    if not isinstance(b, Node):
        return affine.add_quotient(lowering, start, a, b, value=value)
    return affine.add(lowering, start, divide(lowering, a, b), alpha=value)


def product(lowering: Lowering, a: Node, b: Node) -> Node:
    """Return the elementwise product of two nodes, after broadcasting; for a node times itself, its square."""
    if a is b:
        return activation(lowering, a, "square")
    # torch does not annotate this function
    shape = tuple(torch.broadcast_shapes(a.shape, b.shape))
    factors = broadcast(lowering, a, shape), broadcast(lowering, b, shape)
    return Product(name=lowering.name, shape=shape, inputs=factors)


def columns(lowering: Lowering, z: Node, move: Callable[[Tensor], Tensor]) -> Node:
    """Move the elements of z to [B, ..., K] by ``move``, then to the layout [K, 1, P] of ``summed``."""
    return moved(lowering, z, lambda t: _as_columns(move(t)))


def _as_columns(t: Tensor) -> Tensor:
    return t.reshape(len(t), -1, t.shape[-1]).mT.unsqueeze(2)


def summed(
    lowering: Lowering,
    z: Node,
    weight: Constant | None = None,
    bias: Constant | None = None,
    known: tuple[float, float] = (-math.inf, math.inf),
) -> Node:
    """Return the sums Σ_k weight_k·z_k + bias, [M, 1, P], for z [K, 1, P] and weight [M, K] (default: all ones)."""
    matrix = Constant.of(torch.ones(1, z.shape[0])) if weight is None else weight
    return Conv2d(
        name=lowering.name,
        shape=(len(matrix.value()), *z.shape[1:]),
        inputs=(z,),
        weight=matrix.moved(lambda w: w[:, :, None, None]),
        bias=bias,
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
        groups=1,
        known=known,
    )


@lowers(aten.matmul.default, aten.mm.default, aten.bmm.default)
def matmul(lowering: Lowering, a: Value, b: Value) -> Node:
    """Compute a matrix product of two tensors that depend on the input, or of one such tensor and a constant."""
    if not (isinstance(a, Node) and isinstance(b, Node)):
        return affine.matmul(lowering, a, b)
    ranks = len(a.shape), len(b.shape)
    if min(ranks) < 2:
        raise lowering.unsupported("expected matrices [B, ..., N, K] and [B, ..., K, M]")
    leading = "abcdefgh"[: max(ranks) - 2]
    left, right = (leading[len(leading) - rank + 2 :] for rank in ranks)
    return contracted(lowering, f"B{left}NK,B{right}KM->B{leading}NM", a, b)


@lowers(aten.baddbmm.default)
def added_matmul(lowering: Lowering, start: Value, a: Node, b: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """Compute start + a·b."""
    if beta != 1 or alpha != 1 or not isinstance(start, Node):
        raise lowering.unsupported("expected three tensors that depend on the input, with beta = alpha = 1")
    shape = lowering.out_shape()
    terms = broadcast(lowering, start, shape), matmul(lowering, a, b)
    return Sum(name=lowering.name, shape=shape, inputs=terms, signs=(1, 1))


@lowers(aten.einsum.default)
def einsum(lowering: Lowering, equation: str, operands: Sequence[Value]) -> Node:
    """Compute a contraction of two tensors that depend on the input, or of one such tensor and at most one constant."""
    nodes = [operand for operand in operands if isinstance(operand, Node)]
    if len(nodes) < 2:
        return contraction.einsum(lowering, equation, operands)
    equation = equation.replace(" ", "")
    if "->" not in equation or "." in equation or len(operands) > 2:
        raise lowering.unsupported("expected two operands, and an equation with '->' and without '...'")
    return contracted(lowering, equation, *nodes)


def contracted(lowering: Lowering, equation: str, a: Node, b: Node) -> Node:
    """Return the contraction of two tensors, as in ``torch.einsum``: products of elements, and their sums.

    The batch is the first index of both tensors and of the result.
    """
    operands, result = equation.split("->")
    labels = operands.split(",")
    batch = result[:1]
    if any(axes[:1] != batch or axes.count(batch) > 1 for axes in labels):
        raise lowering.unsupported("it mixes the examples of a batch")
    sizes: dict[str, int] = {}
    for axes, z in zip(labels, (a, b), strict=True):
        for label, size in zip(axes[1:], z.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    over = sorted(set(sizes) - set(result))
    every = result[1:] + "".join(over)
    extents, terms = [sizes[label] for label in every], math.prod(sizes[label] for label in over)

    def arranged(axes: str) -> Callable[[Tensor], Tensor]:
        """Return a function that moves the elements of a tensor to [B, elements of the result, terms]."""
        kept = [label for label in every if label in axes]

        def move(t: Tensor) -> Tensor:
            t = torch.einsum(f"{axes}->{batch}{''.join(kept)}", t)
            shape = dict(zip(kept, t.shape[1:], strict=True))
            t = t.reshape(len(t), *(shape.get(label, 1) for label in every)).expand(-1, *extents)
            return t.reshape(len(t), -1, terms)

        return move

    first, second = (columns(lowering, z, arranged(axes)) for axes, z in zip(labels, (a, b), strict=True))
    products = product(lowering, first, second)
    total = products if terms == 1 else summed(lowering, products)
    return reshaped(lowering, total, tuple(sizes[label] for label in result[1:]))


@lowers(aten.glu.default)
def gated_linear_unit(lowering: Lowering, z: Node, dim: int = -1) -> Node:
    """Compute a·sigmoid(b) for the two halves a and b of a tensor."""
    a, b = moved(lowering, z, lambda t: t.chunk(2, dim)[0]), moved(lowering, z, lambda t: t.chunk(2, dim)[1])
    return product(lowering, a, activation(lowering, b, "sigmoid"))
