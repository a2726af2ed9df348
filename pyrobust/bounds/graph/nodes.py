"""The graph of a classifier, made of the kinds of node that bounds propagate through.

Every node is a function of its input nodes, and its shape is the shape of one example. A node is an affine map
(``Linear``, ``Conv2d``, ``Scale``, ``Gather``, ``Sum``, ``Reshape``), an elementwise function (``Activation``), an
elementwise ``Product`` of two nodes, or a ``MaxPool``. Average pooling, for instance, is a convolution with ones and a
``Scale``; sorting is a chain of ``Sort`` nodes.
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
        name: origin of the tensor in the model, "module path (operator)", for messages.
        shape: shape of one example.
        inputs: nodes from which it is computed.
        known: (lower, upper) bounds on its values that hold for every input in real arithmetic, such as (0, inf) for a
            sum of squares.
        deployable: whether bounds with ``semantics="float32"`` cover the operator that the node comes from; False if
            torch computes it in a fused kernel.
    """

    name: str
    shape: tuple[int, ...]
    inputs: tuple[Node, ...]
    known: tuple[float, float] = (-math.inf, math.inf)
    deployable: bool = True

    @property
    def size(self) -> int:
        """Number of elements of one example."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Input(Node):
    """The input of the network."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Linear(Node):
    """The map W z + b from all N elements of the input to M numbers: weight [M, N], bias [M] or None."""

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
    """The map scale·z + shift of each element z; scale and shift broadcast to [1, *shape].

    A scale of None stands for 1, a shift of None for 0.
    """

    scale: Constant | None
    shift: Constant | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Gather(Node):
    """A selection of its inputs' elements: element i is the one at index[i] in the inputs, flattened and concatenated.

    index is int64, of the node's shape; -1 selects the constant 0. ``Reshape`` is the special case that keeps every
    element in order.
    """

    index: Tensor


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sort(Gather):
    """The elements of the last input, with disjoint pairs put in ascending order; elements in no pair stay in place.

    The last input holds the elements. For each pair (a, b), the other two inputs hold the smaller element, a − relu(a −
    b), and the larger one, b + relu(a − b). The node gathers its elements from the inputs, so that linear bounds pass
    through these two formulas. The pairs also give the node's range, which is often smaller than the range of the two
    formulas. The node's Lipschitz constant is 1, because sorting increases no distance in any p-norm.

    Attributes:
        pairs: int64 [size, 2]: for each element, the two elements that are compared, as indices into the last input; if
            the element is not compared, its own index twice.
        larger: bool [size], whether the element is the larger of its pair.
    """

    pairs: Tensor
    larger: Tensor


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reshape(Node):
    """The elements of the input, in order, in another shape."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sum(Node):
    """The sum of the inputs, each times a sign, +1 or -1; all inputs have the same shape."""

    signs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Activation(Node):
    """An elementwise function.

    Attributes:
        function: the name of an entry of ``pyrobust.bounds.graph.activations``, such as "leaky_relu" (z or slope·z,
            whichever is larger; ReLU has slope 0), "clamp" (z between lower and upper) or "sigmoid"; or the name of an
            operator of ``register_rule``.
        slope: slope of leaky_relu for z < 0, a number in [0, 1].
        lower: lower end of clamp.
        upper: upper end of clamp.
        parameters: arguments of other functions, such as beta and threshold of softplus, in the order in which their
            lowering rules take them.
        weight: slopes of prelu for z < 0; they broadcast to [1, *shape].
    """

    function: str
    slope: float = 0.0
    lower: float = -math.inf
    upper: float = math.inf
    parameters: tuple[float, ...] = ()
    weight: Constant | None = None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Product(Node):
    """The elementwise product of the two inputs, both of the node's shape."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MaxPool(Node):
    """The largest element of each window; rows of ``windows`` [size, K] are flat input indices, -1 for no element."""

    windows: Tensor


def in_order(output: Node) -> list[Node]:
    """Return all nodes that the output depends on, each after its inputs.

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
