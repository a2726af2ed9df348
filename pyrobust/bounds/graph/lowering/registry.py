"""How operators are translated to the graph's few kinds of node: the registry of rules, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import Node
from pyrobust.errors import ModelError

#: What a lowering rule is given and gives back: a node of the graph, or a constant.
Value: TypeAlias = Node | Constant

#: Examples in the traced batch: two, so that an operation that mixes them is seen.
BATCH = 2


class Lowering:
    """The translation of one module: what a rule may ask for.

    Attributes:
        name: "module path (operator)" of the call being lowered, the name of the nodes made from it.
        shape: of one example of the call's result; None where the result is no tensor.
    """

    def __init__(self) -> None:
        self.name = ""
        self.shape: tuple[int, ...] | None = None
        self.batch = BATCH

    def out_shape(self) -> tuple[int, ...]:
        """The shape of one example of the result."""
        if self.shape is None:
            raise self.unsupported("its result is not one tensor")
        return self.shape

    def unsupported(self, why: str) -> ModelError:
        """The error that names the call."""
        return ModelError(f"model: {self.name} cannot be bounded: {why}")


#: (lowering, *arguments of the call) → its result. Nodes and constants stand for tensors, lists for lists of them.
Rule: TypeAlias = Callable[..., Any]

_F = TypeVar("_F", bound=Rule)

#: Operator → rule.
RULES: dict[Any, Rule] = {}


def lowers(*operators: Any) -> Callable[[_F], _F]:
    """Registers a function as the lowering rule of operators."""

    def register(rule: _F) -> _F:
        for operator in operators:
            RULES[operator] = rule
        return rule

    return register


def number(value: float) -> Constant:
    """A Python number as a constant."""
    return Constant.of(torch.tensor(float(value), dtype=torch.float64, device="cpu"))


def pair(value: int | Sequence[int], first: int, *, flat: bool) -> tuple[int, int]:
    """A size along both axes; of one dimension, with ``first`` for the height."""
    values = [value] if isinstance(value, int) else list(value)
    if flat:
        return first, values[0]
    return values[0], values[-1]
