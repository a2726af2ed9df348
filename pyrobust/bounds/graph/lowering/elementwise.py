"""Lowering rules of elementwise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrobust.bounds.graph.activations import (
    ACTIVATIONS,
    Differentiable,
    LinearRelaxation,
    RelaxationRule,
    row_from_rule,
)
from pyrobust.bounds.graph.lowering.registry import RULES, Lowering, Z, lowers, lowers_together
from pyrobust.bounds.graph.nodes import Activation, Node
from pyrobust.checks import number
from pyrobust.errors import InputError, InputTypeError

aten = torch.ops.aten


def activation(
    lowering: Lowering,
    z: Node,
    function: str,
    *,
    slope: float = 0.0,
    lower: float = -math.inf,
    upper: float = math.inf,
) -> Node:
    """The node of an elementwise function."""
    return Activation(
        name=lowering.name, shape=z.shape, inputs=(z,), function=function, slope=slope, lower=lower, upper=upper
    )


@lowers(aten.relu.default)
def relu(lowering: Lowering, z: Node) -> Node:
    """The larger of z and 0."""
    return activation(lowering, z, "leaky_relu")


@lowers(aten.leaky_relu.default)
def leaky_relu(lowering: Lowering, z: Node, slope: float = 0.01) -> Node:
    """The larger of z and slope·z."""
    if not 0 <= slope <= 1:
        raise lowering.unsupported(f"expected a slope in [0, 1], got {slope}")
    return activation(lowering, z, "leaky_relu", slope=slope)


@lowers(aten.clamp.default, aten.hardtanh.default)
def clamp(lowering: Lowering, z: Node, lower: float | None = None, upper: float | None = None) -> Node:
    """The element of [lower, upper] nearest to z."""
    if lower is None and upper is None:  # the defaults of hardtanh
        lower, upper = -1.0, 1.0
    low, high = -math.inf if lower is None else lower, math.inf if upper is None else upper
    if not low <= high:
        raise lowering.unsupported(f"expected lower <= upper, got {lower} and {upper}")
    return activation(lowering, z, "clamp", lower=low, upper=high)


@lowers(aten.relu6.default)
def relu6(lowering: Lowering, z: Node) -> Node:
    """The element of [0, 6] nearest to z."""
    return clamp(lowering, z, 0.0, 6.0)


@lowers(aten.clamp_min.default)
def clamp_min(lowering: Lowering, z: Node, lower: float) -> Node:
    """The larger of z and lower."""
    return clamp(lowering, z, lower)


@lowers(aten.clamp_max.default)
def clamp_max(lowering: Lowering, z: Node, upper: float) -> Node:
    """The smaller of z and upper."""
    return clamp(lowering, z, None, upper)


@lowers(aten.sigmoid.default)
def sigmoid(lowering: Lowering, z: Node) -> Node:
    """1/(1 + e⁻ᶻ)."""
    return activation(lowering, z, "sigmoid")


@lowers(aten.tanh.default)
def tanh(lowering: Lowering, z: Node) -> Node:
    """The hyperbolic tangent."""
    return activation(lowering, z, "tanh")


@lowers_together((aten.div.Tensor, Z, (aten.add.Tensor, (aten.abs.default, Z), 1)))
def softsign(lowering: Lowering, z: Node) -> Node:
    """Softsign, z / (1 + |z|), as ``torch.nn.functional.softsign`` computes it."""
    return activation(lowering, z, "softsign")


def register_rule(
    operator: Any,
    rule: RelaxationRule,
    *,
    slope_range: tuple[float, float] | None = None,
    differentiable: Callable[[Tensor, Tensor], tuple[Tensor, ...]] | None = None,
) -> None:
    """Add an elementwise operator to the activations that ``BoundedModel`` supports.

    The rule serves IBP and CROWN in both engines. ``lipschitz_bound`` and ``method="lipschitz"`` refuse the operator
    unless ``slope_range`` is given, ``DifferentiableBounds`` unless ``differentiable`` is.

    Args:
        operator: as torch.export names it, such as ``torch.ops.aten.softplus.default``; called with the tensor alone.
        rule: (l, u) → (lower slope, lower intercept, upper slope, upper intercept, lower, upper), float64 arrays of the
            length of l and u, with lower slope·z + lower intercept ≤ f(z) ≤ upper slope·z + upper intercept and
            lower ≤ f(z) ≤ upper for all real z in [l, u]. It must round outward; l and u may be infinite. It is called
            from several threads, one at a time.
        slope_range: (smallest, largest) derivative over all real numbers, rounded outward.
        differentiable: (l, u) → the same six values as tensors [B, ...] like l and u, in differentiable torch
            operations without directed rounding; l and u are finite.

    Raises:
        InputTypeError: operator is not an operator overload, or a function is not callable.
        InputError: the operator has a rule already, or slope_range is not a pair of finite numbers in order.

    >>> import numpy as np
    >>> from pyrobust.bounds import BoundedModel
    >>> def absolute(l, u):
    ...     zero, one, most = np.zeros_like(l), np.ones_like(l), np.maximum(-l, u)
    ...     return zero, zero, zero, most, np.maximum(np.maximum(l, -u), 0), most
    >>> register_rule(torch.ops.aten.abs.default, absolute, slope_range=(-1.0, 1.0))
    >>> class Model(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.abs()
    >>> bounds = BoundedModel(Model().eval(), torch.zeros(1, 1)).bounds(torch.zeros(1, 1), 1.0)
    >>> bool(bounds.upper >= 1), bool(bounds.upper < 1.001)
    (True, True)
    """
    if not isinstance(operator, torch._ops.OpOverload):
        raise InputTypeError(f"operator: expected one such as torch.ops.aten.abs.default, got {operator!r}")
    if not callable(rule):
        raise InputTypeError(f"rule: expected a function, got {type(rule).__name__}")
    if differentiable is not None and not callable(differentiable):
        raise InputTypeError(f"differentiable: expected a function or None, got {type(differentiable).__name__}")
    if operator in RULES:
        raise InputError(f"operator: expected one without a rule, got {operator}")
    ACTIVATIONS[str(operator)] = row_from_rule(
        operator,
        rule,
        slope_range=None if slope_range is None else _slope_range(slope_range),
        differentiable=None if differentiable is None else _differentiable(differentiable),
    )

    def lower_call(lowering: Lowering, z: Node) -> Node:
        return activation(lowering, z, str(operator))

    RULES[operator] = lower_call


def _slope_range(value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InputTypeError(f"slope_range: expected (smallest, largest) or None, got {value!r}")
    smallest, largest = (number("slope_range", end) for end in value)
    if not -math.inf < smallest <= largest < math.inf:
        raise InputError(f"slope_range: expected finite numbers with smallest <= largest, got {value!r}")
    return smallest, largest


def _differentiable(rule: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> Differentiable:
    """The differentiable bounds of a user's rule of six tensors."""

    def applied(node: Activation, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        parts = rule(lower, upper)
        if len(parts) != 6 or any(part.shape != lower.shape for part in parts):
            raise RuntimeError(
                f"a differentiable bound rule: expected six tensors {tuple(lower.shape)} from {node.function}"
            )
        return parts

    def interval(node: Activation, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        *_, low, high = applied(node, lower, upper)
        return low, high

    def relaxation(node: Activation, lower: Tensor, upper: Tensor) -> LinearRelaxation:
        return LinearRelaxation(*applied(node, lower, upper)[:4])

    return Differentiable(interval, relaxation)
