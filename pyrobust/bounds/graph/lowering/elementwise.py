"""Lowering rules of elementwise functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.bounds.graph.activations import (
    ACTIVATIONS,
    ActivationRow,
    Differentiable,
    LinearRelaxation,
    RelaxationRule,
    row_from_rule,
)
from pyrobust.bounds.graph.activations.curves import Curve, curve_interval, curve_relaxation, row_of_curve
from pyrobust.bounds.graph.activations.sampled_check import check_bounds, check_slopes, rounds_well
from pyrobust.bounds.graph.activations.table import apply_rule
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.affine import add, divide
from pyrobust.bounds.graph.lowering.registry import NUMBER, RULES, Lowering, Value, Z, lowers, lowers_together
from pyrobust.bounds.graph.lowering.registry import number as constant
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
    parameters: tuple[float, ...] = (),
    weight: Constant | None = None,
) -> Node:
    """Return the node of an elementwise function."""
    return Activation(
        name=lowering.name,
        shape=z.shape,
        inputs=(z,),
        function=function,
        slope=slope,
        lower=lower,
        upper=upper,
        parameters=parameters,
        weight=weight,
    )


@lowers(aten.relu.default)
def relu(lowering: Lowering, z: Node) -> Node:
    """Compute max(z, 0)."""
    return activation(lowering, z, "leaky_relu")


@lowers(aten.leaky_relu.default)
def leaky_relu(lowering: Lowering, z: Node, slope: float = 0.01) -> Node:
    """Compute a leaky ReLU: z above 0, slope·z below."""
    if 0 <= slope <= 1:
        return activation(lowering, z, "leaky_relu", slope=slope)
    if not math.isfinite(slope):
        raise lowering.unsupported(f"expected a finite slope, got {slope}")
    return activation(lowering, z, "prelu", weight=constant(slope))


@lowers(aten.prelu.default)
def prelu(lowering: Lowering, z: Node, weight: Value) -> Node:
    """Compute a PReLU: z for z > 0, else slope·z; there is one slope for all elements or one per channel."""
    if not isinstance(weight, Constant):
        raise lowering.unsupported("its slopes depend on the input")
    slopes = weight.moved(lambda w: w.view(-1, *[1] * (len(z.shape) - 1)))
    return activation(lowering, z, "prelu", weight=slopes)


@lowers(aten.rrelu.default)
def rrelu(lowering: Lowering, z: Node, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Node:
    """Compute a randomized leaky ReLU; in evaluation mode, its slope is the mean of ``lower`` and ``upper``."""
    if training:
        raise lowering.unsupported("expected training=False, got random slopes")
    return leaky_relu(lowering, z, (lower + upper) / 2)


@lowers(aten.clamp.default, aten.hardtanh.default)
def clamp(lowering: Lowering, z: Node, lower: float | None = None, upper: float | None = None) -> Node:
    """Compute a clamp, which returns the element of [lower, upper] nearest to z."""
    if lower is None and upper is None:  # the defaults of hardtanh
        lower, upper = -1.0, 1.0
    low, high = -math.inf if lower is None else lower, math.inf if upper is None else upper
    if not low <= high:
        raise lowering.unsupported(f"expected lower <= upper, got {lower} and {upper}")
    return activation(lowering, z, "clamp", lower=low, upper=high)


@lowers(aten.relu6.default)
def relu6(lowering: Lowering, z: Node) -> Node:
    """Compute ReLU6, which returns the element of [0, 6] nearest to z."""
    return clamp(lowering, z, 0.0, 6.0)


@lowers(aten.clamp_min.default)
def clamp_min(lowering: Lowering, z: Node, lower: float) -> Node:
    """Compute max(z, lower)."""
    return clamp(lowering, z, lower)


@lowers(aten.clamp_max.default)
def clamp_max(lowering: Lowering, z: Node, upper: float) -> Node:
    """Compute min(z, upper)."""
    return clamp(lowering, z, None, upper)


def _plain(*functions: str) -> None:
    """Register operators on one tensor whose names are also the names of their rows in the activation table."""
    for function in functions:

        def rule(lowering: Lowering, z: Node, function: str = function) -> Node:
            return activation(lowering, z, function)

        lowers(getattr(aten, function).default)(rule)


_plain("sigmoid", "tanh", "erf", "atan", "exp", "exp2", "expm1", "log", "log2", "log1p", "log_sigmoid")
_plain("square", "sqrt", "rsqrt", "reciprocal", "abs", "silu", "mish", "hardswish", "sin", "cos")


@lowers(aten.gelu.default)
def gelu(lowering: Lowering, z: Node, *, approximate: str = "none") -> Node:
    """Compute GELU, the product of z and the normal distribution function at z."""
    return activation(lowering, z, "gelu" if approximate == "none" else "tanh_gelu")


@lowers(aten.hardsigmoid.default)
def hardsigmoid(lowering: Lowering, z: Node) -> Node:
    """Compute min(max(z + 3, 0), 6) / 6."""
    return divide(lowering, clamp(lowering, add(lowering, z, 3.0), 0.0, 6.0), 6.0)


@lowers(aten.elu.default)
def elu(lowering: Lowering, z: Node, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Node:
    """Compute an ELU: scale·z above 0, alpha·scale·(exp(input_scale·z) − 1) below."""
    parameters = (float(alpha), float(scale), float(input_scale))
    if not (math.isfinite(alpha) and 0 < scale < math.inf and 0 < input_scale < math.inf):
        raise lowering.unsupported(f"expected a finite alpha and positive scales, got {parameters}")
    return activation(lowering, z, "elu", parameters=parameters)


@lowers(aten.celu.default)
def celu(lowering: Lowering, z: Node, alpha: float = 1.0) -> Node:
    """Compute a CELU: z above 0, alpha·(exp(z/alpha) − 1) below."""
    if not 0 < alpha < math.inf:
        raise lowering.unsupported(f"expected a positive alpha, got {alpha}")
    return elu(lowering, z, alpha, 1.0, 1 / alpha)


@lowers(aten.selu.default)
def selu(lowering: Lowering, z: Node) -> Node:
    """Compute SELU, an ELU with the constants of Klambauer et al. (2017)."""
    return elu(lowering, z, 1.6732632423543772, 1.0507009873554805, 1.0)


@lowers(aten.softplus.default)
def softplus(lowering: Lowering, z: Node, beta: float = 1, threshold: float = 20) -> Node:
    """Compute softplus: log(1 + exp(beta·z)) / beta, or z where beta·z exceeds the threshold."""
    if not 0 < beta < math.inf:
        raise lowering.unsupported(f"expected a positive beta, got {beta}")
    if not 0 <= threshold <= 80:  # beyond 80, a deployed forward pass overflows
        raise lowering.unsupported(f"expected a threshold in [0, 80], got {threshold}")
    return activation(lowering, z, "softplus", parameters=(float(beta), float(threshold)))


@lowers(aten.threshold.default)
def threshold(lowering: Lowering, z: Node, least: float, value: float) -> Node:
    """Compute max(z, value); refuse a threshold other than ``value``, because the function would jump there."""
    if least != value:
        raise lowering.unsupported(
            f"it jumps at {least}, where no linear relaxation is tight; expected value={least}, got value={value}"
        )
    return clamp(lowering, z, value)


@lowers(*(getattr(aten, name).Scalar for name in ("gt", "ge", "lt", "le", "eq", "ne")), aten.sign.default)
def step(lowering: Lowering, z: Node, *operands: float) -> Node:
    """Refuse comparisons."""
    raise lowering.unsupported("a step of its operand jumps, so that no linear relaxation is tight")


@lowers(aten.pow.Tensor_Scalar)
def power(lowering: Lowering, z: Node, exponent: float) -> Node:
    """Compute a constant power of z."""
    p = float(exponent)
    if not math.isfinite(p) or p == 0:
        raise lowering.unsupported(f"expected a finite exponent other than 0, got {exponent}")
    return z if p == 1 else activation(lowering, z, "power", parameters=(p,))


@lowers_together((aten.sub.Tensor, Z, (aten.tanh.default, Z)))
def tanhshrink(lowering: Lowering, z: Node) -> Node:
    """Compute z − tanh z."""
    return activation(lowering, z, "tanhshrink")


_SHRUNK = (aten.sub.Tensor, Z, (aten.mul.Tensor, (aten.sign.default, Z), NUMBER))


@lowers_together((aten.where.self, (aten.gt.Scalar, (aten.abs.default, Z), NUMBER), _SHRUNK, (aten.mul.Tensor, Z, 0)))
def softshrink(lowering: Lowering, z: Node, bound: float) -> Node:
    """Compute softshrink, which moves z towards 0 by at most ``bound``; torch traces it as several operations."""
    return activation(lowering, z, "softshrink", parameters=(bound,))


@lowers_together((aten.div.Tensor, Z, (aten.add.Tensor, (aten.abs.default, Z), 1)))
def softsign(lowering: Lowering, z: Node) -> Node:
    """Compute softsign, z / (1 + |z|), which torch traces as several operations."""
    return activation(lowering, z, "softsign")


def register_rule(
    operator: Any,
    rule: RelaxationRule | Curve,
    *,
    slope_range: tuple[float, float] | None = None,
    differentiable: Callable[[Tensor, Tensor], tuple[Tensor, ...]] | None = None,
) -> None:
    """Add an elementwise operator to the activations that ``BoundedModel`` supports.

    The rule serves IBP and CROWN in both engines. Without ``slope_range``, ``lipschitz_bound`` and
    ``method="lipschitz"`` refuse the operator. ``DifferentiableBounds`` needs ``differentiable``, or a rule that is a
    `Curve`.

    The rule is trusted. Before it is added, the rule is compared with values of the operator at thousands of points;
    this finds mistakes but proves nothing. A rule that fails, or does not return six arrays of the length of l, raises
    a RuntimeError. ``semantics="float32"`` assumes that the operator's error is at most 16 roundings of its value; this
    semantics is refused if the float32 operator is found to have a larger error.

    Args:
        operator: as torch.export names it, such as ``torch.ops.aten.asinh.default``, or your own operator, made with
            ``torch.library.custom_op``; it is called with one argument, a float32 or float64 tensor.
        rule: a `Curve`, or (l, u) → (lower slope, lower intercept, upper slope, upper intercept, lower, upper), float64
            arrays of the length of l and u, with lower slope·z + lower intercept ≤ f(z) ≤ upper slope·z + upper
            intercept and lower ≤ f(z) ≤ upper for all real z in [l, u]. The rule must round outward; l and u may be
            infinite. Several threads call the rule, one at a time. A function that has no value for some numbers must
            be a `Curve` with a domain.
        slope_range: (smallest, largest) derivative over all real numbers, rounded outward.
        differentiable: (l, u) → the six values of a rule, in differentiable torch operations without directed rounding.
            l, u and the values are tensors [B, ...]; l and u are finite.

    Raises:
        InputTypeError: operator is not an operator overload, a function is not callable, or slope_range is not a tuple
            or list of two numbers.
        InputError: the operator has a rule already, the numbers of slope_range are not finite or not in order, or a
            value of the operator violates the rule, slope_range or differentiable.

    >>> import numpy as np
    >>> from pyrobust.bounds import BoundedModel
    >>> def floor(l, u):  # between z − 1 and z
    ...     zero, one = np.zeros_like(l), np.ones_like(l)
    ...     return one, -one, one, zero, np.floor(l), np.floor(u)
    >>> register_rule(torch.ops.aten.floor.default, floor)
    >>> class Model(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.floor()
    >>> bounds = BoundedModel(Model().eval(), torch.zeros(1, 1)).bounds(torch.zeros(1, 1), 1.0)
    >>> bool(bounds.upper >= 1), bool(bounds.upper < 1.001)
    (True, True)
    """
    if not isinstance(operator, torch._ops.OpOverload):
        raise InputTypeError("operator", "one such as torch.ops.aten.asinh.default", repr(operator))
    if not callable(rule) and not isinstance(rule, Curve):
        raise InputTypeError("rule", "a function or a Curve", type(rule).__name__)
    if differentiable is not None and not callable(differentiable):
        raise InputTypeError("differentiable", "a function or None", type(differentiable).__name__)
    if operator in RULES:
        raise InputError("operator", "one without a rule", operator)
    slopes = None if slope_range is None else _slope_range(slope_range)
    trained = None if differentiable is None else _differentiable(differentiable)
    row = _row_of(operator, rule, slopes)
    row = row if trained is None else dataclasses.replace(row, differentiable=trained)
    with torch.no_grad():
        check_bounds("rule", operator, _bounds_of(operator, rule), exact=True)
        if differentiable is not None:
            check_bounds("differentiable", operator, differentiable, exact=False)
        if slopes is not None:
            check_slopes(operator, slopes)
        deployable = rounds_well(operator, row.roundings(Activation(name="", shape=(), inputs=(), function="")))
    ACTIVATIONS[str(operator)] = row

    def lower_call(lowering: Lowering, z: Node) -> Node:
        return dataclasses.replace(activation(lowering, z, str(operator)), deployable=deployable)

    RULES[operator] = lower_call


def _row_of(operator: Any, rule: RelaxationRule | Curve, slopes: tuple[float, float] | None) -> ActivationRow:
    if not isinstance(rule, Curve):
        return row_from_rule(operator, rule, slope_range=slopes)
    return row_of_curve(
        lambda node, z: rule.value(z),  # works under torch.func, unlike an operator of Python code
        lambda node: rule,
        slope_range=None if slopes is None else lambda node: slopes,
    )


def _bounds_of(operator: Any, rule: RelaxationRule | Curve) -> Callable[[Tensor, Tensor], Sequence[Tensor]]:
    """Return a user's rule as a function that returns its six values as tensors."""
    if isinstance(rule, Curve):
        return lambda lower, upper: (*curve_relaxation(rule, lower, upper), *curve_interval(rule, lower, upper))
    return lambda lower, upper: apply_rule(str(operator), rule, lower, upper)


def _slope_range(value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InputTypeError("slope_range", "(smallest, largest) or None", repr(value))
    smallest, largest = (number("slope_range", slope) for slope in value)
    if not -math.inf < smallest <= largest < math.inf:
        raise InputError("slope_range", "finite numbers with smallest <= largest", repr(value))
    return smallest, largest


def _differentiable(rule: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> Differentiable:
    """Return the differentiable bounds of a user's rule, which maps lower and upper to six tensors."""

    def applied(node: Activation, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        parts = rule(lower, upper)
        if len(parts) != 6 or any(tensor.shape != lower.shape for tensor in parts):
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
