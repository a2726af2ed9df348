"""Calls that do not depend on input values: calls that use parameters alone, read shapes or create tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.registry import Lowering, lowers, number
from pyrobust.bounds.graph.nodes import Node

aten = torch.ops.aten

#: Calls that move numbers without changing them.
_MOVES = {
    aten.view.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.expand.default,
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
}
_ARITHMETIC: dict[Any, Callable[..., Constant]] = {
    aten.add.Tensor: lambda a, b: a + b,
    aten.sub.Tensor: lambda a, b: a - b,
    aten.mul.Tensor: lambda a, b: a * b,
    aten.div.Tensor: lambda a, b: a / b,
    aten.neg.default: lambda a: -a,
    aten.sqrt.default: lambda a: a.sqrt(),
    aten.rsqrt.default: lambda a: number(1.0) / a.sqrt(),
    aten.reciprocal.default: lambda a: number(1.0) / a,
}


def constant_call(lowering: Lowering, *arguments: Any, target: Any, **options: Any) -> Any:
    """Return the result of a call on constants: enclosed if it moves elements or is arithmetic, else evaluated."""
    operands: list[Constant] = []

    def noted(value: Any) -> Any:
        if isinstance(value, Constant):
            operands.append(value)
        return value

    map_aggregate((arguments, options), noted)
    if target in _MOVES and len(operands) == 1 and arguments[0] is operands[0]:
        return operands[0].moved(lambda tensor: target(tensor, *arguments[1:], **options))
    if target in _ARITHMETIC and not options and not any(_has_no_interval(operand) for operand in operands):
        return _ARITHMETIC[target](*(a if isinstance(a, Constant) else number(a) for a in arguments))

    def evaluate(*tensors: Tensor) -> Any:
        remaining = iter(tensors)
        filled, named = map_aggregate(
            (arguments, options), lambda value: next(remaining) if isinstance(value, Constant) else value
        )
        return target(*filled, **named)

    with torch.no_grad():
        result = evaluate(*(operand.value() for operand in operands))
    if isinstance(result, Tensor):
        return Constant.evaluated(evaluate, operands) if operands else Constant.of(result)
    if isinstance(result, list | tuple):
        return [Constant.evaluated(lambda *tensors, i=i: evaluate(*tensors)[i], operands) for i in range(len(result))]
    return result


def _has_no_interval(operand: Constant) -> bool:
    """Whether a constant allows no interval arithmetic: it comes from a function's float result, or holds integers."""
    return operand.is_evaluated or not operand.value().is_floating_point()


def _fresh(*operators: Any) -> None:
    """Register operators that fill a new tensor with given numbers, in the shape or dtype of their first argument."""
    for operator in operators:

        def rule(lowering: Lowering, z: Node, *arguments: Any, call: Any = operator, **options: Any) -> Constant:
            like = torch.zeros(lowering.batch, *z.shape, dtype=lowering.dtype)
            kept = {key: value for key, value in options.items() if key not in ("device", "layout", "pin_memory")}
            return Constant.of(call(like, *arguments, **kept))

        lowers(operator)(rule)


_fresh(
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
)


@lowers(aten.sym_size.int)
def size(lowering: Lowering, z: Node, dim: int) -> int:
    """Return the size of a dimension."""
    return (lowering.batch, *z.shape)[dim]


@lowers(aten._assert_tensor_metadata.default)
def nothing(lowering: Lowering, *arguments: Any, **options: Any) -> None:
    """Drop checks of dtype and device, which the trace has already made."""
