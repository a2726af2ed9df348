"""Lowering rules of sorting, maxima and minima; comparisons of pairs become compare-exchange steps (``Sort``)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pyrobust.bounds.graph.analysis import origin
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.affine import scaled
from pyrobust.bounds.graph.lowering.elementwise import relu
from pyrobust.bounds.graph.lowering.layout import broadcast, moved
from pyrobust.bounds.graph.lowering.registry import Lowering, Value, lowers, number
from pyrobust.bounds.graph.nodes import Gather, MaxPool, Node, Sort, Sum

aten = torch.ops.aten


@lowers(aten.maximum.default, aten.max.other)
def larger(lowering: Lowering, a: Value, b: Value) -> Node:
    """Compute the larger of two elements, for tensors whose shapes broadcast."""
    return _of_two(lowering, a, b, lowest=False)


@lowers(aten.minimum.default, aten.min.other)
def smaller(lowering: Lowering, a: Value, b: Value) -> Node:
    """Compute the smaller of two elements, for tensors whose shapes broadcast."""
    return _of_two(lowering, a, b, lowest=True)


@lowers(aten.amax.default)
def largest(lowering: Lowering, z: Node, dims: Sequence[int] = (), keepdim: bool = False) -> Node:
    """Compute the largest element along dimensions."""
    return _extreme(lowering, z, dims, keepdim, lowest=False)


@lowers(aten.amin.default)
def smallest(lowering: Lowering, z: Node, dims: Sequence[int] = (), keepdim: bool = False) -> Node:
    """Compute the smallest element along dimensions."""
    return _extreme(lowering, z, dims, keepdim, lowest=True)


@lowers(aten.max.dim)
def largest_and_index(lowering: Lowering, z: Node, dim: int, keepdim: bool = False) -> list[Node | None]:
    """Compute the largest element along a dimension; the second result, its index, is None: it gets no bounds."""
    return [_extreme(lowering, z, [dim], keepdim, lowest=False), None]


@lowers(aten.min.dim)
def smallest_and_index(lowering: Lowering, z: Node, dim: int, keepdim: bool = False) -> list[Node | None]:
    """Compute the smallest element along a dimension; the second result, its index, is None: it gets no bounds."""
    return [_extreme(lowering, z, [dim], keepdim, lowest=True), None]


@lowers(aten.sort.default)
def sort(lowering: Lowering, z: Node, dim: int = -1, descending: bool = False) -> list[Node | None]:
    """Sort along a dimension; the second result, the indices, is None: it gets no bounds."""
    rows = _rows(lowering, z, [dim])
    ordered = z
    for stage in sorting_network(rows.shape[1]):
        first, second = (rows[:, list(places)].flatten() for places in zip(*stage, strict=True))
        ordered = exchanged(lowering, ordered, first, second)
    if descending:
        ordered = moved(lowering, ordered, lambda t: t.flip(dim % t.dim()))
    return [ordered, None]


@lowers(aten.sort.stable)
def stable_sort(
    lowering: Lowering, z: Node, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> list[Node | None]:
    """Sort along a dimension; stability does not change the values."""
    return sort(lowering, z, dim, descending)


def sorting_network(n: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the stages of a network that sorts n elements.

    A stage consists of disjoint pairs (i, j), i < j, whose elements are put in ascending order. The network is
    merge-exchange sort (Batcher, 1968; Knuth, The Art of Computer Programming, volume 3, algorithm 5.2.2M), with about
    (log₂ n)²/2 stages.

    >>> list(sorting_network(3))
    [[(0, 2)], [(0, 1)], [(1, 2)]]
    """
    top = 1 << max(0, (n - 1).bit_length() - 1)
    block = top
    while n > 1 and block:
        reach, residue, apart = top, 0, block
        while True:
            yield [(i, i + apart) for i in range(n - apart) if i & block == residue]
            if reach == block:
                break
            apart, reach, residue = reach - block, reach // 2, block
        block //= 2


def _rows(lowering: Lowering, z: Node, dims: Sequence[int]) -> Tensor:
    """Return flat indices [rows, K] of elements along ``dims``; rows follow the other dimensions in their order."""
    along = sorted(dim % (len(z.shape) + 1) - 1 for dim in dims) or [-1]
    if along[0] < 0:
        raise lowering.unsupported("it mixes the examples of a batch")
    kept = [dim for dim in range(len(z.shape)) if dim not in along]
    width = math.prod(z.shape[dim] for dim in along)
    return torch.arange(z.size).view(z.shape).permute(*kept, *along).reshape(-1, width)


def _extreme(lowering: Lowering, z: Node, dims: Sequence[int], keepdim: bool, *, lowest: bool) -> Node:
    """Return the smallest or largest elements along dimensions."""
    rows = _rows(lowering, z, dims)
    shape = tuple(torch.empty(1, *z.shape).amax(list(dims), keepdim).shape[1:])
    if rows.shape[1] == 2:
        low, high = _compared(lowering, *(_picked(lowering, z, column, shape) for column in rows.unbind(1)))
        return low if lowest else high
    if not lowest:
        return MaxPool(name=lowering.name, shape=shape, inputs=(z,), windows=rows)
    turned = Sum(name=lowering.name, shape=z.shape, inputs=(z,), signs=(-1,))
    highest = MaxPool(name=lowering.name, shape=shape, inputs=(turned,), windows=rows)
    return Sum(name=lowering.name, shape=shape, inputs=(highest,), signs=(-1,))


def _of_two(lowering: Lowering, a: Value, b: Value, *, lowest: bool) -> Node:
    """Return, at each place, the larger element of a and b or, with ``lowest``, the smaller one.

    For a node z and a constant c, the result is c + relu(z − c) or, with ``lowest``, c − relu(c − z).
    """
    if isinstance(a, Constant):
        a, b = b, a
    assert isinstance(a, Node)
    if isinstance(b, Node):
        shape = lowering.out_shape()
        low, high = _compared(lowering, broadcast(lowering, a, shape), broadcast(lowering, b, shape))
        return low if lowest else high
    sign = number(-1.0 if lowest else 1.0)
    above = relu(lowering, scaled(lowering, scaled(lowering, a, None, -b), sign, None))
    return scaled(lowering, above, sign, b)


def _compared(lowering: Lowering, a: Node, b: Node) -> tuple[Node, Node]:
    """Return the smaller and the larger of two elements; for two that were compared before, reuse their ``Sort``."""
    both = Gather(name=lowering.name, shape=(2, *a.shape), inputs=(a, b), index=torch.arange(2 * a.size).view(2, -1))
    source = origin(both)
    low, high = (extreme(*source.places.view(2, -1)) for extreme in (torch.minimum, torch.maximum))
    key = source.nodes, low.numpy().tobytes(), high.numpy().tobytes()
    if key not in lowering.sorts:
        z, first, second = source.nodes[0], low, high
        if len(source.nodes) > 1 or source.repeats() or bool((low < 0).any()):
            index = torch.stack([low, high])
            z = Gather(name=lowering.name, shape=tuple(index.shape), inputs=source.nodes, index=index)
            first, second = torch.arange(z.size).view(2, -1)
        lowering.sorts[key] = exchanged(lowering, z, first, second), first, second
    ordered, first, second = lowering.sorts[key]
    return _picked(lowering, ordered, first, a.shape), _picked(lowering, ordered, second, a.shape)


def exchanged(lowering: Lowering, z: Node, first: Tensor, second: Tensor) -> Sort:
    """Sort each pair of elements at (first[k], second[k]), smaller element first; no position in z occurs twice."""
    shape, count = first.shape, len(first)
    a, b = _picked(lowering, z, first, shape), _picked(lowering, z, second, shape)
    above = relu(lowering, Sum(name=lowering.name, shape=shape, inputs=(a, b), signs=(1, -1)))
    low = Sum(name=lowering.name, shape=shape, inputs=(a, above), signs=(1, -1))
    high = Sum(name=lowering.name, shape=shape, inputs=(b, above), signs=(1, 1))
    places = torch.arange(z.size)
    index, pairs, larger = places + 2 * count, places[:, None].repeat(1, 2), torch.zeros(z.size, dtype=torch.bool)
    index[first], index[second] = torch.arange(count), torch.arange(count) + count
    pairs[first] = pairs[second] = torch.stack([first, second], 1)
    larger[second] = True
    return Sort(
        name=lowering.name,
        shape=z.shape,
        inputs=(low, high, z),
        index=index.view(z.shape),
        pairs=pairs,
        larger=larger,
    )


def _picked(lowering: Lowering, z: Node, places: Tensor, shape: tuple[int, ...]) -> Node:
    """Return the elements of z at flat positions, as a node of the given shape."""
    return Gather(name=lowering.name, shape=tuple(shape), inputs=(z,), index=places.view(shape))
