"""Lowering rules of operators that only move elements: views, permutations, slices, concatenation, padding.

One rule serves all of them: it runs the operator itself on the indices of the elements.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.registry import Lowering, lowers
from pyrobust.bounds.graph.nodes import Gather, Node, Reshape

aten = torch.ops.aten


def moved(lowering: Lowering, z: Node, move: Callable[[Tensor], Tensor]) -> Node:
    """The result of a movement of elements [B, *z.shape]."""
    return gathered(lowering, (z,), move)


def gathered(lowering: Lowering, nodes: Sequence[Node], move: Callable[..., Tensor]) -> Node:
    """The result of a movement of elements of several nodes; zeros that it inserts are the number 0.

    Elements are numbered from 1, in float64, which holds the numbers exactly and which every operator supports.
    """
    total = sum(node.size for node in nodes)
    indices, begin = [], 1
    for node in nodes:
        index = torch.arange(begin, begin + node.size, dtype=torch.float64).view(1, *node.shape)
        indices.append(torch.cat([index + i * total for i in range(lowering.batch)]))
        begin += node.size
    result = move(*indices)
    first, rest = result[:1], result[1:]
    if len(result) != lowering.batch or not bool((rest == torch.where(first > 0, first + total, first)).all()):
        raise lowering.unsupported("it mixes the examples of a batch")
    index = first[0].long() - 1
    if len(nodes) == 1 and index.numel() == total and bool((index.flatten() == torch.arange(total)).all()):
        return reshaped(lowering, nodes[0], tuple(index.shape))
    return Gather(name=lowering.name, shape=tuple(index.shape), inputs=tuple(nodes), index=index.contiguous())


def reshaped(lowering: Lowering, z: Node, shape: tuple[int, ...]) -> Node:
    """The elements of z in another shape."""
    if z.shape == shape:
        return z
    if isinstance(z, Reshape):
        z = z.inputs[0]
        if z.shape == shape:
            return z
    return Reshape(name=lowering.name, shape=shape, inputs=(z,))


def broadcast(lowering: Lowering, z: Node, shape: tuple[int, ...]) -> Node:
    """The node repeated along dimensions of size 1."""
    if z.shape == shape:
        return z
    padded = (1,) * (len(shape) - len(z.shape)) + z.shape
    return moved(lowering, z, lambda t: t.reshape(t.shape[0], *padded).expand(t.shape[0], *shape))


def _moves(*operators: Any) -> None:
    """Register operators (tensor, ...) that only move elements."""
    for operator_ in operators:

        def rule(lowering: Lowering, z: Node, *rest: Any, call: Any = operator_, **options: Any) -> Node:
            options.pop("memory_format", None)
            return moved(lowering, z, lambda t: call(t, *rest, **options))

        lowers(operator_)(rule)


_moves(
    aten.view.default,
    aten._unsafe_view.default,
    aten.permute.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.slice.Tensor,
    aten.select.int,
    aten.expand.default,
    aten.repeat.default,
    aten.flip.default,
    aten.roll.default,
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
    aten.channel_shuffle.default,
    aten.upsample_nearest2d.vec,
)


@lowers(
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
)
def same(lowering: Lowering, z: Node, **options: Any) -> Node:
    """The input, for operators that change nothing."""
    return z


@lowers(aten.cat.default)
def concatenated(lowering: Lowering, parts: Sequence[Node | Constant], dim: int = 0) -> Node:
    """Concatenated tensors, none of them constant."""
    return gathered(lowering, _nodes(lowering, parts), lambda *tensors: torch.cat(tensors, dim))


@lowers(aten.stack.default)
def stacked(lowering: Lowering, parts: Sequence[Node | Constant], dim: int = 0) -> Node:
    """Tensors stacked along a new dimension, none of them constant."""
    return gathered(lowering, _nodes(lowering, parts), lambda *tensors: torch.stack(tensors, dim))


def _nodes(lowering: Lowering, parts: Sequence[Node | Constant]) -> list[Node]:
    nodes = [part for part in parts if isinstance(part, Node)]
    if len(nodes) != len(parts):
        raise lowering.unsupported("a constant cannot be concatenated with what depends on the input")
    return nodes


@lowers(aten.pad.default, aten.constant_pad_nd.default)
def padded(
    lowering: Lowering, z: Node, sides: Sequence[int], mode: str | float = "constant", value: float | None = None
) -> Node:
    """Padding with zeros, or with elements of the tensor itself."""
    fill = value if isinstance(mode, str) else mode
    kind = mode if isinstance(mode, str) else "constant"
    if kind == "constant" and fill:
        raise lowering.unsupported("padding with a number other than 0 has no bound rule")
    return moved(lowering, z, lambda t: torch.nn.functional.pad(t, list(sides), kind))


def _splits(*operators: Any) -> None:
    """Register operators (tensor, ...) that split a tensor."""
    for operator_ in operators:

        def rule(lowering: Lowering, z: Node, *rest: Any, call: Any = operator_) -> list[Node]:
            def piece(i: int) -> Node:
                return moved(lowering, z, lambda t: call(t, *rest)[i])

            return [piece(i) for i in range(len(call(torch.zeros(lowering.batch, *z.shape), *rest)))]

        lowers(operator_)(rule)


_splits(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)


@lowers(operator.getitem)
def item(lowering: Lowering, values: Sequence[Any], index: int) -> Any:
    """One of several results."""
    return values[index]
