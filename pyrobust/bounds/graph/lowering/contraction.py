"""Lowering rules of products with a constant tensor that sum over some dimensions: matmul, bmm, einsum, tensordot."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence

import torch

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.layout import moved, reshaped
from pyrobust.bounds.graph.lowering.registry import Lowering, Value, lowers
from pyrobust.bounds.graph.nodes import Conv2d, Linear, Node

aten = torch.ops.aten


def contraction(lowering: Lowering, z: Node, weight: Constant, of_z: str, of_weight: str, of_result: str) -> Node:
    """Compute einsum("of_z, of_weight -> of_result"), with one letter for each dimension except the batch.

    Dimensions that the result lacks are summed over. If the weight lacks a dimension of z, the same weights apply at
    every index of this dimension.
    """
    size = dict(zip(of_weight, weight.shape, strict=True)) | dict(zip(of_z, z.shape, strict=True))
    groups = [d for d in of_z if d in of_weight and d in of_result]
    summed = [d for d in of_z if d not in of_result]
    free = [d for d in of_z if d not in of_weight and d in of_result]
    outputs = [d for d in of_weight if d not in of_z and d in of_result]
    if len(set(of_z)) < len(of_z) or len(set(of_weight)) < len(of_weight) or set(of_weight) - set(of_z + of_result):
        raise lowering.unsupported("expected each dimension once in each tensor, and in the result or the other tensor")

    def count(dimensions: Sequence[str]) -> int:
        return torch.Size(size[d] for d in dimensions).numel()

    def columns(t: torch.Tensor) -> torch.Tensor:
        order = [1 + of_z.index(d) for d in (*groups, *summed, *free)]
        return t.permute(0, *order).reshape(len(t), count(groups) * count(summed), 1, count(free))

    def matrices(w: torch.Tensor) -> torch.Tensor:
        alone = [d for d in summed if d not in of_weight]
        w = w.expand(*(size[d] for d in alone), *w.shape)
        names = [*alone, *of_weight]
        w = w.permute([names.index(d) for d in (*groups, *outputs, *summed)])
        return w.reshape(count(groups) * count(outputs), count(summed), 1, 1)

    rows, kernels = count(groups) * count(outputs), weight.moved(matrices)
    if count(free) == 1 and count(groups) == 1:
        flat = reshaped(lowering, moved(lowering, z, columns), (count(summed),))
        product: Node = Linear(
            name=lowering.name,
            shape=(rows,),
            inputs=(flat,),
            weight=kernels.moved(lambda w: w.flatten(1)),
            bias=None,
        )
    else:
        product = Conv2d(
            name=lowering.name,
            shape=(rows, 1, count(free)),
            inputs=(moved(lowering, z, columns),),
            weight=kernels,
            bias=None,
            stride=(1, 1),
            padding=(0, 0),
            dilation=(1, 1),
            groups=count(groups),
        )
    names = [*groups, *outputs, *free]

    def arranged(t: torch.Tensor) -> torch.Tensor:
        t = t.reshape(len(t), *(size[d] for d in names))
        return t.permute(0, *(1 + names.index(d) for d in of_result))

    return moved(lowering, product, arranged)


def einsum(lowering: Lowering, equation: str, operands: Sequence[Value]) -> Node:
    """Compute an einsum of one node and at most one constant."""
    inputs, explicit, result = equation.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if not explicit:
        once = sorted(d for d in set(inputs) - set(".,") if inputs.count(d) == 1)
        result = ("..." if "..." in inputs else "") + "".join(once)
    if "..." in inputs:
        letters, result = _without_ellipsis(lowering, letters, result, operands)
    nodes = [i for i, operand in enumerate(operands) if isinstance(operand, Node)]
    if len(nodes) != 1 or len(operands) > 2:
        raise lowering.unsupported("expected an einsum of one tensor that depends on the input and one constant")
    z, z_letters = operands[nodes[0]], letters[nodes[0]]
    assert isinstance(z, Node)
    weight, weight_letters = Constant.of(torch.ones((), device="cpu")), ""
    if len(operands) == 2:
        other = operands[1 - nodes[0]]
        assert isinstance(other, Constant)
        weight, weight_letters = other, letters[1 - nodes[0]]
    batch = z_letters[0]
    if result[:1] != batch or z_letters.count(batch) > 1:
        if batch not in result or z_letters.count(batch) > 1:
            raise lowering.unsupported("it mixes the examples of a batch")
        raise lowering.unsupported("expected the batch as the first dimension of the result")
    if batch in weight_letters:
        axis = weight_letters.index(batch)
        weight = of_any_example(lowering, weight, axis)
        weight_letters = weight_letters.replace(batch, "")
    return contraction(lowering, z, weight, z_letters[1:], weight_letters, result[1:])


def _without_ellipsis(
    lowering: Lowering, letters: list[str], result: str, operands: Sequence[Value]
) -> tuple[list[str], str]:
    """Return the letters of the operands and of the result, with new letters in place of "..."."""
    unused = [d for d in string.ascii_letters if d not in "".join(letters)]
    ranks = [
        len(o.shape) + isinstance(o, Node) - len(term.replace("...", ""))
        for o, term in zip(operands, letters, strict=True)
    ]
    dims = max(rank for rank, term in zip(ranks, letters, strict=True) if "..." in term)
    if any(1 in operand.shape for operand in operands):
        raise lowering.unsupported('expected an einsum without "...", or without dimensions of size 1')
    named = [
        term.replace("...", "".join(unused[dims - rank : dims])) for rank, term in zip(ranks, letters, strict=True)
    ]
    return named, result.replace("...", "".join(unused[:dims]))


def of_any_example(lowering: Lowering, constant: Constant, axis: int) -> Constant:
    """Return a constant without its batch dimension, along which it must not change."""
    value = constant.value()
    if not torch.equal(value, value.narrow(axis, 0, 1).expand_as(value)):
        raise lowering.unsupported("a constant of it differs between the examples of a batch")
    return constant.moved(lambda t: t.select(axis, 0))


@lowers(aten.mv.default, aten.dot.default)
def product(lowering: Lowering, a: Value, b: Value) -> Node:
    """Compute the matrix product of a node and a constant, in either order, broadcast as in ``torch.matmul``."""
    if isinstance(a, Node) == isinstance(b, Node):
        raise lowering.unsupported("expected one factor that is constant")
    ranks = [len(factor.shape) + isinstance(factor, Node) for factor in (a, b)]
    first_letters = ("i" if ranks[0] > 1 else "") + "k"
    second_letters = "k" + ("j" if ranks[1] > 1 else "")
    stacks = [string.ascii_uppercase[: max(0, rank - 2)][::-1] for rank in ranks]
    letters = [stacks[0] + first_letters, stacks[1] + second_letters]
    result = max(stacks, key=len) + first_letters[:-1] + second_letters[1:]
    z, weight = (a, b) if isinstance(a, Node) else (b, a)
    z_letters, weight_letters = letters if isinstance(a, Node) else letters[::-1]
    assert isinstance(z, Node)
    assert isinstance(weight, Constant)
    if not z_letters or result[:1] != z_letters[0]:
        raise lowering.unsupported("it mixes the examples of a batch")
    for axis in reversed(range(len(weight_letters) - 2)):
        if weight.shape[axis] == 1 and weight_letters[axis] in z_letters:
            weight = weight.moved(functools.partial(torch.squeeze, dim=axis))
            weight_letters = weight_letters.replace(weight_letters[axis], "")
    if z_letters[0] in weight_letters:
        weight = of_any_example(lowering, weight, weight_letters.index(z_letters[0]))
        weight_letters = weight_letters.replace(z_letters[0], "")
    # a dimension of size 1 that only z has is summed, which removes it
    broadcast = [
        d for d, n in zip(z_letters[1:], z.shape, strict=True) if n == 1 and d in weight_letters and d in result
    ]
    for i, d in enumerate(broadcast):
        z_letters = z_letters.replace(d, string.digits[i])
    return contraction(lowering, z, weight, z_letters[1:], weight_letters, result[1:])


@lowers(aten.inner.default)
def inner(lowering: Lowering, a: Node, b: Constant) -> Node:
    """Compute the sum of products over the last dimension."""
    return tensordot(lowering, a, b, [len(a.shape)], [len(b.shape) - 1])


@lowers(aten.tensordot.default)
def tensordot(lowering: Lowering, a: Node, b: Constant, dims_a: Sequence[int], dims_b: Sequence[int]) -> Node:
    """Compute the product of a node and a constant, summed over pairs of dimensions."""
    rank, other = 1 + len(a.shape), len(b.shape)
    z_letters = list(string.ascii_lowercase[:rank])
    weight_letters = list(string.ascii_uppercase[:other])
    for i, j in zip(dims_a, dims_b, strict=True):
        weight_letters[j % other] = z_letters[i % rank]
    if z_letters[0] in weight_letters:
        raise lowering.unsupported("it mixes the examples of a batch")
    result = [d for d in z_letters + weight_letters if (d in z_letters) != (d in weight_letters)]
    return contraction(lowering, a, b, "".join(z_letters[1:]), "".join(weight_letters), "".join(result[1:]))
