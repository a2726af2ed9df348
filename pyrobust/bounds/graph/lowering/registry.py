"""The registry of lowering rules, which turn torch operators into graph nodes, and helper functions for the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, fx

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import Node
from pyrobust.errors import ModelError

#: Argument and result of a lowering rule: a node of the graph, or a constant.
Value: TypeAlias = Node | Constant

#: Number of examples in the traced batch: two, so that operations that mix examples are detected.
BATCH = 2


class Lowering:
    """The call being lowered, as its rule sees it.

    Attributes:
        name: "module path (operator)" of the call being lowered; also the name of the nodes made from the call.
        source: place of the call in the user's code, for messages; empty if unknown.
        shape: shape of one example of the call's result, or of the first result if the call has several; None if this
            result is not a tensor.
        dtype: dtype of the call's result; None if it is not a tensor.
        device: device of the call's result; None if it is not a tensor.
        input_dtype: dtype of the network's input and of every node.
        sorts: the comparisons made so far. For each list of compared pairs, the dictionary holds the node that sorts
            these pairs, and the positions of the smaller and of the larger elements in that node; see
            ``lowering.sorting``.
    """

    def __init__(self, input_dtype: torch.dtype) -> None:
        self.input_dtype = input_dtype
        self.name = ""
        self.source = ""
        self.shape: tuple[int, ...] | None = None
        self.dtype: torch.dtype | None = None
        self.device: torch.device | None = None
        self.batch = BATCH
        self.sorts: dict[tuple[Any, ...], tuple[Node, Tensor, Tensor]] = {}

    def out_shape(self) -> tuple[int, ...]:
        """Return the shape of one example of the result."""
        if self.shape is None:
            raise self.unsupported("its result is not one tensor")
        return self.shape

    def unsupported(self, why: str) -> ModelError:
        """Return the error for a call that cannot be bounded; its message names the call."""
        return ModelError(f"model: {self.name} cannot be bounded: {why}{self.source}")


#: (lowering, *arguments of the call) → its result. Nodes and constants stand for tensors, lists of them for lists of
#: tensors.
Rule: TypeAlias = Callable[..., Any]

_F = TypeVar("_F", bound=Rule)

#: Operator → rule.
RULES: dict[Any, Rule] = {}


def lowers(*operators: Any) -> Callable[[_F], _F]:
    """Register a function as the lowering rule of operators."""

    def register(rule: _F) -> _F:
        for operator in operators:
            RULES[operator] = rule
        return rule

    return register


#: The operand of a pattern.
Z = object()

#: A number in a pattern, which its rule takes as an argument; it is the same in all its places.
NUMBER = object()

#: (operator, *arguments), as traced: an argument is ``Z``, ``NUMBER``, a number, or a pattern.
Pattern: TypeAlias = tuple[Any, ...]

#: Last operator → patterns of calls that one rule lowers together, and their rules: (lowering, operand, *numbers) →
#: node.
COMPOSITES: dict[Any, list[tuple[Pattern, Rule]]] = {}


def lowers_together(pattern: Pattern) -> Callable[[_F], _F]:
    """Register a function as the lowering rule of a pattern of several calls."""

    def register(rule: _F) -> _F:
        COMPOSITES.setdefault(pattern[0], []).append((pattern, rule))
        return rule

    return register


def match(call: fx.Node, pattern: Pattern) -> tuple[fx.Node, set[fx.Node], tuple[float, ...]] | None:
    """Match a pattern that ends with ``call``; return its operand, its calls before ``call``, and its numbers.

    Returns None if the pattern does not match. Also returns None if the value of a call in the pattern, other than the
    last one, is used by a call outside the pattern.
    """
    operands: set[fx.Node] = set()
    inner: set[fx.Node] = set()
    numbers: set[float] = set()

    def matches(value: Any, expected: Any) -> bool:
        if expected is Z:
            if isinstance(value, fx.Node):
                operands.add(value)
            return isinstance(value, fx.Node)
        if expected is NUMBER:
            if isinstance(value, int | float):
                numbers.add(float(value))
            return isinstance(value, int | float)
        if not isinstance(expected, tuple):
            return not isinstance(value, fx.Node) and value == expected
        if not isinstance(value, fx.Node) or value.target != expected[0] or value.kwargs:
            return False
        if value is not call:
            inner.add(value)
        return len(value.args) == len(expected) - 1 and all(map(matches, value.args, expected[1:]))

    if not matches(call, pattern) or len(operands) != 1 or len(numbers) > 1:
        return None
    if any(user is not call and user not in inner for node in inner for user in node.users):
        return None
    return operands.pop(), inner, tuple(numbers)


def number(value: float) -> Constant:
    """Return a Python number as a constant."""
    return Constant.of(torch.tensor(float(value), dtype=torch.float64, device="cpu"))


def as_constant(value: Any) -> Constant:
    """Convert a number to a constant; return a constant unchanged."""
    return value if isinstance(value, Constant) else number(value)


def sizes(value: int | Sequence[int], dimensions: int) -> tuple[int, ...]:
    """Return one size per dimension, given one number for all dimensions or one for each."""
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * dimensions if len(values) == 1 else values)
