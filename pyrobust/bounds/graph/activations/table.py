"""The table of activations: one row per elementwise function, with everything that an engine needs to bound it.

Engines use only this table; no engine has a special case for a function. A missing row (``row_of``), or a missing part
of a row (``required``), is an error that names the layer and the engine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.bounds.graph.nodes import Activation
from pyrobust.errors import ModelError

_Doubles = npt.NDArray[np.float64]
_T = TypeVar("_T")


class Rounding(Protocol):
    """Directed rounding, or none for unsound bounds, see ``pyrobust.bounds.engines.tensor.directed_rounding``."""

    def up(self, a: Tensor, /) -> Tensor:
        """Return an upper bound of the real number whose rounded value is a."""
        ...

    def down(self, a: Tensor, /) -> Tensor:
        """Return a lower bound of the real number whose rounded value is a."""
        ...

    def rounding_error(self, size: Tensor, /) -> Tensor:
        """Bound the rounding error of several sums and products with a total magnitude of at most ``size``."""
        ...


class LinearRelaxation(NamedTuple):
    """Lines with lower_slope·z + lower_intercept ≤ f(z) ≤ upper_slope·z + upper_intercept for all z in a range.

    All four tensors have the same shape.
    """

    lower_slope: Tensor
    lower_intercept: Tensor
    upper_slope: Tensor
    upper_intercept: Tensor


#: (l [n], u [n]) → (lower slope, lower intercept, upper slope, upper intercept, lower, upper), each [n], float64: for
#: z in [l, u], lower slope·z + lower intercept ≤ f(z) ≤ upper slope·z + upper intercept, and lower ≤ f(z) ≤ upper.
RelaxationRule: TypeAlias = Callable[[_Doubles, _Doubles], tuple[_Doubles, ...]]


#: (lower, upper) → whether a function is defined on whole ranges, bool of their shape.
Defined: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Differentiable(NamedTuple):
    """Bounds of a function in differentiable torch operations, without directed rounding; ranges are [B, *shape].

    Attributes:
        interval: (node, lower, upper) → (lower, upper) of the function's values.
        relaxation: (node, lower, upper) → linear relaxation of the function; None if ``kernels`` is True.
        kernels: whether the function is max(z, slope·z), which the fused kernels of ``pyrobust.ops`` bound.
    """

    interval: Callable[[Activation, Tensor, Tensor], tuple[Tensor, Tensor]]
    relaxation: Callable[[Activation, Tensor, Tensor], LinearRelaxation] | None
    kernels: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationRow:
    """An elementwise function. A missing part is None; an engine that needs it refuses the model.

    Attributes:
        forward: (node, z) → f(z) in differentiable torch operations.
        interval: (node, lower, upper, rounding) → (lower, upper) of the values, float64 on any device; for the torch
            engine.
        relaxation: (node, lower, upper, rounding) → its linear relaxation, for the torch engine.
        native_code: the name of the native engine's own code for the function; if there is none, the engine calls
            ``rule``.
        rule: node → interval and relaxation in numpy.
        slope_range: node → (smallest, largest) derivative.
        differentiable: bounds to train with.
        lower_slopes: node → (least, most): on ranges with zero inside, every line through zero whose slope is in
            [least, most] is a lower bound. None for functions without lower bounds of this form.
        slopes_below: node → (least, most), for native_code "prelu", whose function is z for z > 0, and s·z for z < 0:
            bounds of the slope s. They are float64 tensors that broadcast to [1, *shape].
        kinks: node → the points where linear pieces meet; a range with such a point inside is unstable. None for a
            curved function, for which every range of more than one point is unstable.
        roundings: node → number of roundings in a deployed forward pass, for ``semantics="float32"``: 2 for a rounded
            parameter and a product; 16 for approximations, which are correct to a few units in the last place.
        offset: node → the size of intermediate results that may cancel in a deployed forward pass, or 0; the errors of
            the pass are relative to |f(z)| + offset. If the offset is positive, the pass does not overflow while |f(z)|
            is at most ``LARGEST`` times the largest float.
        exact_from: node → the smallest z from which a deployed forward pass no longer rounds; −inf if it never rounds.
        defined: node → None if the activation has a value for all numbers, else a function (lower, upper) → bool, which
            tells whether the activation has a value on the whole range. If the activation may have no value in a range,
            no bounds are known for its layer, the layers after it and the network.
    """

    forward: Callable[[Activation, Tensor], Tensor] | None
    interval: Callable[[Activation, Tensor, Tensor, Rounding], tuple[Tensor, Tensor]] | None
    relaxation: Callable[[Activation, Tensor, Tensor, Rounding], LinearRelaxation] | None
    native_code: str | None
    rule: Callable[[Activation], RelaxationRule] | None
    slope_range: Callable[[Activation], tuple[float, float]] | None
    differentiable: Differentiable | None
    lower_slopes: Callable[[Activation], tuple[float, float]] | None = None
    slopes_below: Callable[[Activation], tuple[Tensor, Tensor]] | None = None
    kinks: Callable[[Activation], tuple[float, ...]] | None = None
    roundings: Callable[[Activation], int] = lambda node: 16
    offset: Callable[[Activation], float] = lambda node: 0.0
    exact_from: Callable[[Activation], float] = lambda node: math.inf
    defined: Callable[[Activation], Defined | None] = lambda node: None

    def lipschitz(self, node: Activation) -> float | None:
        """The Lipschitz constant: the largest absolute slope; None if ``slope_range`` is None."""
        return None if self.slope_range is None else max(map(abs, self.slope_range(node)))


#: The share of the largest float that intermediate results stay below, see ``ActivationRow.offset``.
LARGEST = 1 / 16

#: The rows, by the name that ``Activation.function`` gives.
ACTIVATIONS: dict[str, ActivationRow] = {}


def row_of(node: Activation, engine: str) -> ActivationRow:
    """Return the row of an activation; the engine's name is for errors.

    Raises:
        ModelError: the table has no such function.

    >>> row_of(Activation(name="0 (gumbel)", shape=(), inputs=(), function="gumbel"), "the native engine")
    Traceback (most recent call last):
    ...
    pyrobust.errors.ModelError: model: 0 (gumbel): the native engine does not support the activation 'gumbel'
    """
    row = ACTIVATIONS.get(node.function)
    if row is None:
        raise ModelError(f"model: {node.name}: {engine} does not support the activation {node.function!r}")
    return row


def required(column: _T | None, node: Activation, what: str, engine: str) -> _T:
    """Return a part of a row.

    Raises:
        ModelError: the row lacks this part.
    """
    if column is None:
        raise ModelError(f"model: {node.name} has no {what}, which {engine} needs for the activation {node.function!r}")
    return column


def row_from_rule(
    forward: Callable[[Tensor], Tensor],
    rule: RelaxationRule,
    *,
    slope_range: tuple[float, float] | None = None,
    differentiable: Differentiable | None = None,
) -> ActivationRow:
    """Return the row of a function without parameters; both engines relax the function by a numpy rule on the CPU."""

    def interval(node: Activation, lower: Tensor, upper: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
        *_, low, high = apply_rule(node.function, rule, lower, upper)
        return low, high

    def relaxation(node: Activation, lower: Tensor, upper: Tensor, rounding: Rounding) -> LinearRelaxation:
        return LinearRelaxation(*apply_rule(node.function, rule, lower, upper)[:4])

    return ActivationRow(
        forward=lambda node, z: forward(z),
        interval=interval,
        relaxation=relaxation,
        native_code=None,
        rule=lambda node: rule,
        slope_range=None if slope_range is None else lambda node: slope_range,
        differentiable=differentiable,
    )


def apply_rule(function: str, rule: RelaxationRule, lower: Tensor, upper: Tensor) -> list[Tensor]:
    """Return the six tensors of a rule, in lower's shape; raise RuntimeError if the rule does not return them."""
    limits = [bound.flatten().cpu().numpy() for bound in (lower, upper)]
    try:
        parts = [np.asarray(column, dtype=np.float64) for column in rule(*limits)]
    except Exception as error:
        raise RuntimeError(f"a bound rule failed: {type(error).__name__}: {error}") from error
    if len(parts) != 6 or any(column.shape != limits[0].shape for column in parts):
        raise RuntimeError(f"a bound rule: expected six arrays of {len(limits[0])} elements from {function}")
    return [torch.tensor(column, device=lower.device).view_as(lower) for column in parts]
