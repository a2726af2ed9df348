"""Analysis of a graph, done once: the readers of each node, fused layers, and the part that is affine in the input."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyrobust.bounds.graph.activations import ACTIVATIONS
from pyrobust.bounds.graph.nodes import (
    Activation,
    Conv2d,
    Gather,
    Input,
    Linear,
    MaxPool,
    Node,
    Product,
    Reshape,
    Scale,
    Sum,
)


def consumers(order: Sequence[Node], wanted: Collection[Node]) -> dict[Node, list[Node]]:
    """Map each wanted node, and each node that a wanted node needs, to its readers, with one entry for each read.

    Args:
        order: all nodes, each after its inputs.
        wanted: some of these nodes.

    >>> x = Input(name="x", shape=(2,), inputs=())
    >>> y = Sum(name="y", shape=(2,), inputs=(x, x), signs=(1, 1))
    >>> [len(readers) for readers in consumers([x, y], [y]).values()]
    [0, 2]
    """
    readers: dict[Node, list[Node]] = {node: [] for node in wanted}
    for node in reversed(order):
        if node in readers:
            for source in node.inputs:
                readers.setdefault(source, []).append(node)
    return readers


def read_counts(node: Gather | MaxPool) -> list[Tensor]:
    """Count how often the node reads each element of each of its inputs: int64 [size] for each input.

    >>> x = Input(name="x", shape=(2,), inputs=())
    >>> read_counts(Gather(name="g", shape=(3,), inputs=(x, x), index=torch.tensor([0, 0, 3])))
    [tensor([2, 0]), tensor([0, 1])]
    """
    sizes = [source.size for source in node.inputs]
    index = node.index if isinstance(node, Gather) else node.windows
    counts = torch.bincount(index.flatten() + 1, minlength=1 + sum(sizes))[1:]  # -1 reads the constant 0
    return list(torch.split(counts, sizes))


class Origin(NamedTuple):
    """The origin of elements, as indices into the concatenation of distinct nodes; −1 stands for the constant 0."""

    nodes: tuple[Node, ...]
    places: Tensor

    def repeats(self) -> bool:
        """Whether an element occurs more than once."""
        return bool((torch.bincount(self.places + 1)[1:] > 1).any())


def origin(node: Node) -> Origin:
    """Trace the elements [size] of a node back through every ``Gather`` and ``Reshape`` to their origin.

    >>> x = Input(name="x", shape=(2,), inputs=())
    >>> last = Gather(name="g", shape=(1,), inputs=(x,), index=torch.tensor([1]))
    >>> origin(Gather(name="h", shape=(2,), inputs=(last, x), index=torch.tensor([0, 1]))).places
    tensor([1, 0])
    """
    if isinstance(node, Reshape):
        return origin(node.inputs[0])
    if type(node) is not Gather:
        return Origin((node,), torch.arange(node.size))
    begin: dict[Node, int] = {}
    parts = []
    for source in map(origin, node.inputs):
        sizes = [inner.size for inner in source.nodes]
        ranges = []
        for inner, size in zip(source.nodes, sizes, strict=True):
            begin.setdefault(inner, sum(other.size for other in begin))
            ranges.append(torch.arange(begin[inner], begin[inner] + size))
        parts.append(torch.cat([*ranges, torch.tensor([-1])])[source.places])  # -1 is the last
    return Origin(tuple(begin), torch.cat([*parts, torch.tensor([-1])])[node.index.flatten()])


def representatives(node: Node) -> tuple[Tensor, Tensor] | None:
    """Return, for each element, the index and the sign (±1) of the first one equal or opposite to it for every input.

    Only gathered elements, and sums and differences of two elements, are compared. If no two elements are equal or
    opposite, the result is None. The deployed forward pass rounds equal and opposite elements in the same way.

    >>> x = Input(name="x", shape=(2,), inputs=())
    >>> turned = Gather(name="g", shape=(2,), inputs=(x,), index=torch.tensor([1, 0]))
    >>> representatives(Sum(name="s", shape=(2,), inputs=(x, turned), signs=(1, -1)))
    (tensor([0, 0]), tensor([ 1, -1]))
    """
    every = torch.arange(node.size)
    if type(node) is Gather:
        keys, sign = origin(node).places, torch.ones_like(every)
    elif isinstance(node, Sum) and len(node.inputs) == 2:
        both = Gather(name="", shape=(2 * node.size,), inputs=node.inputs, index=torch.arange(2 * node.size))
        terms, order = origin(both).places.view(2, -1).sort(0)
        sign, other = torch.tensor(node.signs)[order]
        keys = (terms[0] * (terms.max() + 2) + terms[1]) * 2 + (sign == other)  # numbers of terms are at least -1
    else:
        return None
    kinds, kind = keys.unique(return_inverse=True)
    if len(kinds) == node.size:
        return None
    first = torch.full((len(kinds),), node.size).scatter_reduce_(0, kind, every, "amin")[kind]
    return first, sign * sign[first]


def squares_below(node: Node) -> tuple[list[Node], Node] | None:
    """Return the nodes from a weighted sum of squares down to its squares, and the node whose elements are squared.

    The result is None unless the node is such a sum and its weights and shifts are ≥ 0. A ReLU may be among the nodes:
    it leaves the values, which are ≥ 0, unchanged.
    """
    chain = []
    while not (isinstance(node, Activation) and _power(node) == 2):
        relu = isinstance(node, Activation) and node.function == "leaky_relu"
        moves = isinstance(node, Reshape) or (type(node) is Gather and len(node.inputs) == 1)
        if isinstance(node, Linear | Conv2d | Scale):
            parts = (node.scale, node.shift) if isinstance(node, Scale) else (node.weight, node.bias)
            if not all(constant is None or bool((constant.enclosure().lower >= 0).all()) for constant in parts):
                return None
        elif not relu and not moves:
            return None
        chain.append(node)
        node = node.inputs[0]
    return chain, node.inputs[0]


def _power(node: Activation) -> float | None:
    """Return the exponent of a power, a square or a square root; None for another function."""
    return node.parameters[0] if node.function == "power" else {"square": 2.0, "sqrt": 0.5}.get(node.function)


def seminorm(node: Node) -> tuple[list[Node], Node] | None:
    """Apply ``squares_below`` to the argument of a square root; None if the node is not a square root."""
    return squares_below(node.inputs[0]) if isinstance(node, Activation) and _power(node) == 0.5 else None


def is_affine(node: Node) -> bool:
    """Whether a node is an affine map of its inputs; False for ``Reshape``, which engines drop."""
    return isinstance(node, Linear | Conv2d | Scale | Gather | Sum)


def is_nonlinear(node: Node) -> bool:
    """Whether a node has a relaxation of its own."""
    return isinstance(node, Activation | MaxPool | Product)


#: The known range of most nodes: all numbers.
EVERYTHING = (-math.inf, math.inf)


def needs_interval_bounds(nodes: Iterable[Node]) -> bool:
    """Whether interval bounds may be tighter than backward passes, due to products, known ranges or partial functions.

    Partial functions count because a reciprocal or a root needs a range that is known to be positive.
    """
    return any(isinstance(node, Product) or node.known != EVERYTHING or is_partial(node) for node in nodes)


def is_partial(node: Node) -> bool:
    """Whether a node is an activation that has no value for some numbers."""
    if not isinstance(node, Activation) or node.function not in ACTIVATIONS:
        return False
    return ACTIVATIONS[node.function].defined(node) is not None


class Step(NamedTuple):
    """A layer in an engine's list of layers: a node, and the indices of the earlier layers that it reads."""

    node: Node
    inputs: tuple[int, ...]


class Analysis:
    """Structure of an engine's list of layers: consumers, fused activations and the affine part.

    Args:
        steps: the layers, each after its inputs.
        output: the index of the output layer.

    Attributes:
        consumers: for each layer, the layers that read it, one entry for each read.
        fused: for each layer, whether it is affine and its only reader is an activation, which then includes the
            rounding errors of the affine layer.
        affine_in_input: for each layer, whether it is an affine function of the network's input.
        ends_affine_part: for each layer, whether it is affine in the input and either is the output or has a reader
            that is not affine in the input.
    """

    def __init__(self, steps: Sequence[Step], output: int) -> None:
        self._steps = steps
        self.consumers: list[list[int]] = [[] for _ in steps]
        self.affine_in_input: list[bool] = []
        for i, (node, inputs) in enumerate(steps):
            for source in inputs:
                self.consumers[source].append(i)
            affine = isinstance(node, Input) or is_affine(node)
            self.affine_in_input.append(affine and all(self.affine_in_input[source] for source in inputs))
        self.fused = [
            is_affine(step.node) and len(readers) == 1 and isinstance(steps[readers[0]].node, Activation)
            for step, readers in zip(steps, self.consumers, strict=True)
        ]
        self.ends_affine_part = [
            i > 0 and affine and (i == output or not all(self.affine_in_input[reader] for reader in self.consumers[i]))
            for i, affine in enumerate(self.affine_in_input)
        ]

    def repeats(self, i: int) -> list[int]:
        """Return, for each input of layer i, the largest number of times that the layer reads one element of it.

        These numbers are at least 1.
        """
        node, inputs = self._steps[i]
        if not isinstance(node, Gather | MaxPool):
            return [1] * len(inputs)
        return [_largest(counts) for counts in read_counts(node)]

    def repeats_in_all(self, i: int) -> list[int]:
        """Return ``repeats``; if layer i has the same layer as several inputs, the reads through all of them count."""
        node, inputs = self._steps[i]
        if not isinstance(node, Gather | MaxPool) or len(set(inputs)) == len(inputs):
            return self.repeats(i)
        total: dict[int, Tensor] = {}
        for source, counts in zip(inputs, read_counts(node), strict=True):
            total[source] = total[source] + counts if source in total else counts
        return [_largest(total[source]) for source in inputs]


def _largest(counts: Tensor) -> int:
    return max(1, int(counts.max())) if len(counts) else 1
