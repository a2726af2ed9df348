"""Lowering rules of operators that write or add elements at constant positions; additions become sums of windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.layout import gathered
from pyrobust.bounds.graph.lowering.pooling import averages
from pyrobust.bounds.graph.lowering.registry import Lowering, Value, as_constant, lowers, number
from pyrobust.bounds.graph.nodes import Node, Scale

aten = torch.ops.aten


@lowers(aten.col2im.default)
def fold(lowering: Lowering, z: Node, size: Sequence[int], *arguments: Any) -> Node:
    """Put patches back at their positions, and sum them where they overlap."""
    out = lowering.out_shape()
    numbers = torch.arange(1, math.prod(out) + 1, dtype=torch.float64).view(1, *out)
    # the place of each element of z, -1 in the padding
    return _summed(lowering, z, aten.im2col(numbers, *arguments).flatten().long() - 1)


@lowers(aten.index_add.default)
def index_add(lowering: Lowering, z: Value, dim: int, index: Value, source: Node, *, alpha: float = 1) -> Node:
    """Add slices of one tensor, times alpha, to slices of another."""
    places = _constant(lowering, index)
    if alpha != 1:
        inputs, factor = (source,), number(float(alpha))
        source = Scale(name=lowering.name, shape=source.shape, inputs=inputs, scale=factor, shift=None)
    return _added(lowering, z, source, lambda numbers: numbers.index_select(dim, places))


@lowers(aten.scatter_add.default)
def scatter_add(lowering: Lowering, z: Value, dim: int, index: Value, source: Node) -> Node:
    """Add elements of ``source`` to elements of z; source elements beyond the shape of ``index`` are left out."""
    places = _constant(lowering, index)
    used = gathered(lowering, (source,), lambda t: t[tuple(slice(size) for size in places.shape)])
    return _added(lowering, z, used, lambda numbers: numbers.gather(dim, places))


@lowers(aten.scatter.src)
def scatter(lowering: Lowering, z: Value, dim: int, index: Value, source: Value) -> Node:
    """Replace elements of one tensor by those of another."""
    places = _constant(lowering, index)
    written = _numbers(lowering).gather(dim, places)
    return _put(lowering, z, source, written, lambda t, v: t.scatter(dim, places, v))


@lowers(aten.scatter.value)
def scatter_number(lowering: Lowering, z: Value, dim: int, index: Value, value: float) -> Node:
    """Replace elements by a number."""
    places = _constant(lowering, index)
    return gathered(
        lowering, (z, as_constant(value)), lambda t, v: t.scatter(dim, places, v.to(t).expand(places.shape))
    )


@lowers(aten.index_copy.default)
def index_copy(lowering: Lowering, z: Value, dim: int, index: Value, source: Value) -> Node:
    """Replace slices of one tensor by those of another."""
    places = _constant(lowering, index)
    written = _numbers(lowering).index_select(dim, places)
    return _put(lowering, z, source, written, lambda t, v: t.index_copy(dim, places, v))


@lowers(aten.index_put.default)
def index_put(lowering: Lowering, z: Value, indices: Sequence[Any], values: Value, accumulate: bool = False) -> Node:
    """Write values to constant positions of a tensor, or add them to the elements there."""
    places = [None if index is None else index.value().cpu() for index in indices]
    written = aten.index.Tensor(_numbers(lowering), places)
    if not accumulate:
        return _put(lowering, z, values, written, lambda t, v: aten.index_put.default(t, places, v))
    each = gathered(lowering, (values,), lambda v: v.expand(written.shape))
    return _added(lowering, z, each, lambda numbers: aten.index.Tensor(numbers, places))


def _constant(lowering: Lowering, index: Value) -> Tensor:
    if not isinstance(index, Constant):
        raise lowering.unsupported("its index depends on the input")
    return index.value().cpu()


def _put(lowering: Lowering, z: Value, source: Value, written: Tensor, write: Callable[..., Tensor]) -> Node:
    """Write elements of the source into z; unless the source is one number, no place may be written twice."""
    one_number = isinstance(source, Constant) and source.value().numel() == 1
    if not one_number and len(written.unique()) != written.numel():
        raise lowering.unsupported("expected an index that names no place twice: which value stays is undefined")
    return gathered(lowering, (z, source), write)


def _numbers(lowering: Lowering) -> Tensor:
    """Return the numbers 0, 1, 2, ... as a tensor that has the shape of a batch of results."""
    shape = lowering.out_shape()
    return torch.arange(lowering.batch * math.prod(shape)).view(lowering.batch, *shape)


def _added(lowering: Lowering, z: Value, source: Node, position: Callable[[Tensor], Tensor]) -> Node:
    """Add each source element to the element of z that ``position`` gives; terms of a sum may be added in any order."""
    size = math.prod(lowering.out_shape())
    places = position(_numbers(lowering)).flatten(1)
    first = places[0]
    mixed = any(not torch.equal(row, first + i * size) for i, row in enumerate(places))
    if len(places) != lowering.batch or mixed or first.numel() != source.size:
        raise lowering.unsupported("it mixes the examples of a batch")
    both = gathered(lowering, (z, source), lambda t, v: torch.cat([t.flatten(1), v.flatten(1)], 1))
    return _summed(lowering, both, torch.cat([torch.arange(size), first]))


def _summed(lowering: Lowering, z: Node, target: Tensor) -> Node:
    """Sum the elements of z that have the same target, a place in the result; elements with target -1 are left out."""
    order = target.argsort(stable=True)[int((target < 0).sum()) :]
    counts = torch.bincount(target[order], minlength=math.prod(lowering.out_shape()))
    windows = torch.nn.utils.rnn.pad_sequence(list(order.split(counts.tolist())), batch_first=True, padding_value=-1)
    return averages(lowering, z, windows, torch.ones(len(windows), dtype=torch.int64))
