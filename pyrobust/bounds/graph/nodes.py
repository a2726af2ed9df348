"""The graph of a classifier, in the few kinds of node that bounds are propagated through.

Every node is a function of the nodes it names; shapes are those of one example. A node is an
affine map (``Linear``, ``Conv2d``, ``Scale``, ``Gather``, ``Sum``), a function of each element (``Activation``), or a
``MaxPool``. Average pooling, for instance, is a convolution with ones and a ``Scale``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from torch import Tensor

from pyrobust.bounds.graph.constants import Constant


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """One tensor of the network.

    Attributes:
        name: its origin, "module path (operator)", for messages.
        shape: of one example.
        inputs: the nodes it is computed from.
    """

    name: str
    shape: tuple[int, ...]
    inputs: tuple[Node, ...]

    @property
    def size(self) -> int:
        """How many elements one example has."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Input(Node):
    """The input of the network."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Linear(Node):
    """The map W z + b of all N elements of its input to M numbers: weight [M, N], bias [M] or None."""

    weight: Constant
    bias: Constant | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Conv2d(Node):
    """A convolution of [C, H, W]: weight [O, C / groups, kh, kw], bias [O] or None; zero padding on both sides."""

    weight: Constant
    bias: Constant | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Scale(Node):
    """The map scale·z + shift of each element; both broadcast to [1, *shape], None for 1 and 0."""

    scale: Constant | None
    shift: Constant | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Gather(Node):
    """Elements of its inputs in another order: element i is number index[i] of all inputs, one after the other, flat.

    index is int64 of the node's shape; -1 stands for the number 0. ``Reshape`` is the case in which nothing moves.
    """

    index: Tensor


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reshape(Node):
    """The elements of its input, in order, in another shape."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sum(Node):
    """The sum of its inputs, each times a sign, +1 or -1; all of one shape."""

    signs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Activation(Node):
    """A function of each element.

    Attributes:
        function: a row of ``pyrobust.bounds.graph.activations``: "leaky_relu" (z or slope·z, whichever is larger; ReLU
            has slope 0), "clamp" (z between lower and upper), "sigmoid", ..., or an operator of ``register_rule``.
        slope: of leaky_relu, in [0, 1].
        lower: of clamp.
        upper: of clamp.
    """

    function: str
    slope: float = 0.0
    lower: float = -math.inf
    upper: float = math.inf


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MaxPool(Node):
    """The largest element of each window: windows [size, K] holds flat indices into the input, -1 for none."""

    windows: Tensor


def in_order(output: Node) -> list[Node]:
    """All nodes that the output depends on, each after its inputs.

    >>> x = Input(name="x", shape=(2,), inputs=())
    >>> y = Sum(name="y", shape=(2,), inputs=(x, x), signs=(1, 1))
    >>> [node.name for node in in_order(y)]
    ['x', 'y']
    """
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, Iterator[Node]]] = [(output, iter(output.inputs))]
    seen.add(output)
    while stack:
        node, inputs = stack[-1]
        for source in inputs:
            if source not in seen:
                seen.add(source)
                stack.append((source, iter(source.inputs)))
                break
        else:
            order.append(node)
            stack.pop()
    return order
