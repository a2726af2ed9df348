"""The table of activations: one row per elementwise function, with everything that an engine needs to bound it.

Engines use only this table; none has a special case for a function. A missing row, or a missing part of a row, is an
error that names the layer and the engine (``row_of``, ``required``).
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
from torch.nn import functional

from pyrobust.bounds.graph.nodes import Activation
from pyrobust.errors import ModelError

_Doubles = npt.NDArray[np.float64]
_T = TypeVar("_T")


class Rounding(Protocol):
    """Directed rounding, or none for unsound bounds, see ``pyrobust.bounds.engines.tensor.directed_rounding``."""

    def up(self, a: Tensor, /) -> Tensor:
        """At least the real number whose nearest float64 is a."""
        ...

    def down(self, a: Tensor, /) -> Tensor:
        """At most the real number whose nearest float64 is a."""
        ...

    def rounding_error(self, size: Tensor, /) -> Tensor:
        """The rounding error of several sums and products with a total magnitude of at most ``size``."""
        ...


class LinearRelaxation(NamedTuple):
    """lower_slope·z + lower_intercept ≤ f(z) ≤ upper_slope·z + upper_intercept for z in a range; of one shape."""

    lower_slope: Tensor
    lower_intercept: Tensor
    upper_slope: Tensor
    upper_intercept: Tensor


#: (l [n], u [n]) → (lower slope, lower intercept, upper slope, upper intercept, lower, upper), each [n], float64: for
#: z in [l, u], lower slope·z + lower intercept ≤ f(z) ≤ upper slope·z + upper intercept, and lower ≤ f(z) ≤ upper.
RelaxationRule: TypeAlias = Callable[[_Doubles, _Doubles], tuple[_Doubles, ...]]


class Differentiable(NamedTuple):
    """Bounds of a function in differentiable torch operations, without directed rounding; ranges are [B, *shape].

    Attributes:
        interval: (node, lower, upper) → (lower, upper) of the values.
        relaxation: (node, lower, upper) → its linear relaxation; None with ``kernels``.
        kernels: whether the function is max(z, slope·z), which the fused kernels of ``pyrobust.ops`` bound.
    """

    interval: Callable[[Activation, Tensor, Tensor], tuple[Tensor, Tensor]]
    relaxation: Callable[[Activation, Tensor, Tensor], LinearRelaxation] | None
    kernels: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationRow:
    """An elementwise function; a missing part is None, and an engine that needs it refuses the model.

    Attributes:
        forward: (node, z) → f(z) in torch operations, differentiable.
        interval: (node, lower, upper, rounding) → (lower, upper) of the values, float64 on any device; for the torch
            engine.
        relaxation: (node, lower, upper, rounding) → its linear relaxation, likewise.
        native_code: the name of the native engine's own code for the function; without one it calls ``rule``.
        rule: interval and relaxation in numpy.
        slope_range: node → (smallest, largest) derivative.
        differentiable: bounds to train with.
        kinks: node → the points where linear pieces meet: a range is unstable where it holds one inside. None for a
            curved function: every range of more than a point is unstable.
        roundings: of a deployed forward pass, for ``semantics="float32"``: 2 for a rounded parameter and a product;
            approximations are right to a few units in the last place, 16 roundings.
        exact_from: node → the smallest value that a deployed forward pass does not round: −inf where it never rounds.
    """

    forward: Callable[[Activation, Tensor], Tensor] | None
    interval: Callable[[Activation, Tensor, Tensor, Rounding], tuple[Tensor, Tensor]] | None
    relaxation: Callable[[Activation, Tensor, Tensor, Rounding], LinearRelaxation] | None
    native_code: str | None
    rule: RelaxationRule | None
    slope_range: Callable[[Activation], tuple[float, float]] | None
    differentiable: Differentiable | None
    kinks: Callable[[Activation], tuple[float, ...]] | None = None
    roundings: int = 16
    exact_from: Callable[[Activation], float] = lambda node: math.inf

    def lipschitz(self, node: Activation) -> float | None:
        """The Lipschitz constant: the largest absolute slope; None where ``slope_range`` is."""
        return None if self.slope_range is None else max(map(abs, self.slope_range(node)))


#: By the name that ``Activation.function`` gives.
ACTIVATIONS: dict[str, ActivationRow] = {}


def row_of(node: Activation, engine: str) -> ActivationRow:
    """Return the row of an activation; errors name the engine.

    Raises:
        ModelError: the table has no such function.

    >>> row_of(Activation(name="0 (softplus)", shape=(), inputs=(), function="softplus"), "the native engine")
    Traceback (most recent call last):
    ...
    pyrobust.errors.ModelError: model: 0 (softplus): the native engine does not support the activation 'softplus'
    """
    row = ACTIVATIONS.get(node.function)
    if row is None:
        raise ModelError(f"model: {node.name}: {engine} does not support the activation {node.function!r}")
    return row


def required(part: _T | None, node: Activation, what: str, engine: str) -> _T:
    """Return a part of a row.

    Raises:
        ModelError: the row lacks it.
    """
    if part is None:
        raise ModelError(f"model: {node.name} has no {what}, which {engine} needs for the activation {node.function!r}")
    return part


def row_from_rule(
    forward: Callable[[Tensor], Tensor],
    rule: RelaxationRule,
    *,
    slope_range: tuple[float, float] | None = None,
    differentiable: Differentiable | None = None,
) -> ActivationRow:
    """The row of a function without parameters whose relaxation is a numpy rule, on the host, for both engines."""

    def interval(node: Activation, lower: Tensor, upper: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
        *_, low, high = _apply_rule(node.function, rule, lower, upper)
        return low, high

    def relaxation(node: Activation, lower: Tensor, upper: Tensor, rounding: Rounding) -> LinearRelaxation:
        return LinearRelaxation(*_apply_rule(node.function, rule, lower, upper)[:4])

    return ActivationRow(
        forward=lambda node, z: forward(z),
        interval=interval,
        relaxation=relaxation,
        native_code=None,
        rule=rule,
        slope_range=None if slope_range is None else lambda node: slope_range,
        differentiable=differentiable,
    )


def _apply_rule(function: str, rule: RelaxationRule, lower: Tensor, upper: Tensor) -> list[Tensor]:
    """Return the six tensors of a rule, of lower's shape; RuntimeError if the rule fails or returns anything else."""
    ends = [end.flatten().cpu().numpy() for end in (lower, upper)]
    try:
        parts = [np.asarray(part, dtype=np.float64) for part in rule(*ends)]
    except Exception as error:
        raise RuntimeError(f"a bound rule failed: {type(error).__name__}: {error}") from error
    if len(parts) != 6 or any(part.shape != ends[0].shape for part in parts):
        raise RuntimeError(f"a bound rule: expected six arrays of {len(ends[0])} elements from {function}")
    return [torch.tensor(part, device=lower.device).view_as(lower) for part in parts]


# --- max(z, slope·z), slope in [0, 1]


def _leaky_relu(node: Activation, z: Tensor) -> Tensor:
    return torch.relu(z) if node.slope == 0 else functional.leaky_relu(z, node.slope)


def _leaky_relu_interval(node: Activation, lower: Tensor, upper: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
    if node.slope == 0:
        return lower.clamp(min=0), upper.clamp(min=0)
    return (
        lower.where(lower >= 0, rounding.down(lower * node.slope)),
        upper.where(upper >= 0, rounding.up(upper * node.slope)),
    )


def _leaky_relu_relaxation(node: Activation, lower: Tensor, upper: Tensor, rounding: Rounding) -> LinearRelaxation:
    """The identity below an unstable neuron where upper > −lower, else slope·z (Zhang et al., 2018).

    Above it is the chord, its slope as rounded, with the intercept that this slope needs at both ends.
    """
    slope = node.slope
    ones, zero = torch.ones_like(lower), torch.zeros_like(lower)
    span = upper - lower
    chord = (upper / span + slope * (-lower / span)).nan_to_num(1, 1, 1).clamp(slope, 1)
    intercept = torch.maximum(
        rounding.up(rounding.up((slope - chord).abs()) * -lower),
        rounding.up(rounding.up((1 - chord).abs()) * upper),
    ).clamp(min=0)
    on, off = lower >= 0, upper <= 0
    lower_slope = torch.where(on | (~off & (upper > -lower)), ones, slope)
    upper_slope = torch.where(on, ones, torch.where(off, slope, chord))
    finite = lower.isfinite() & upper.isfinite()
    stable = on | off
    return LinearRelaxation(
        lower_slope=lower_slope.where(stable | finite, slope),
        lower_intercept=zero.where(stable | finite, 0.0 if slope == 0 else -torch.inf),
        upper_slope=upper_slope.where(stable | finite, slope),
        upper_intercept=zero.where(stable, intercept.where(finite, torch.inf)),
    )


ACTIVATIONS["leaky_relu"] = ActivationRow(
    forward=_leaky_relu,
    interval=_leaky_relu_interval,
    relaxation=_leaky_relu_relaxation,
    native_code="leaky_relu",
    rule=None,
    slope_range=lambda node: (node.slope, 1.0),
    differentiable=Differentiable(
        interval=lambda node, lower, upper: (_leaky_relu(node, lower), _leaky_relu(node, upper)),
        relaxation=None,
        kernels=True,
    ),
    kinks=lambda node: (0.0,),
    roundings=2,
    exact_from=lambda node: -math.inf if node.slope == 0 else 0.0,
)


# --- the element of [node.lower, node.upper] nearest to z


def _clamp(node: Activation, z: Tensor) -> Tensor:
    return z.clamp(node.lower, node.upper)


def _clamp_relaxation(node: Activation, lower: Tensor, upper: Tensor, rounding: Rounding) -> LinearRelaxation:
    """The line from the nearer corner to the far end of the range, or a constant, whichever is closer in the middle.

    Below, the constant is f(lower); above, f(upper). Where only one corner lies inside, one of the two is the chord.
    """
    least, most = node.lower, node.upper
    bottom, top = lower.clamp(min=least), upper.clamp(max=most)  # f(lower), f(upper) where the range holds a corner
    middle = lower / 2 + upper / 2
    chord = (top - bottom) / (upper - lower)
    below = torch.where(lower >= least, chord, ((top - least) / (upper - least)).where(middle > least, 0.0))
    above = torch.where(upper <= most, chord, ((most - bottom) / (most - lower)).where(middle < most, 0.0))
    below, above = (slope.nan_to_num(0, 1, 0).clamp(0, 1) for slope in (below, above))
    # f(z) − slope·z is linear between the corners: its extremes are among these
    lows, highs = [], []
    for point in (lower, upper, torch.full_like(lower, least), torch.full_like(lower, most)):
        value, inside = point.clamp(least, most), (point >= lower) & (point <= upper)
        lows.append(_intercept_below(value, below, point, rounding).where(inside, torch.inf))
        highs.append(-_intercept_below(-value, -above, point, rounding).where(inside, torch.inf))
    relaxation = LinearRelaxation(below, torch.stack(lows).amin(0), above, torch.stack(highs).amax(0))
    zero = torch.zeros_like(lower)
    cases = (
        (~(lower.isfinite() & upper.isfinite()), LinearRelaxation(zero, zero + least, zero, zero + most)),
        (lower >= most, LinearRelaxation(zero, zero + most, zero, zero + most)),
        (upper <= least, LinearRelaxation(zero, zero + least, zero, zero + least)),
        ((lower >= least) & (upper <= most), LinearRelaxation(zero + 1, zero, zero + 1, zero)),
    )
    for holds, simple in cases:  # the last that holds
        relaxation = LinearRelaxation(*(torch.where(holds, *parts) for parts in zip(simple, relaxation, strict=True)))
    return relaxation


def _intercept_below(value: Tensor, slope: Tensor, point: Tensor, rounding: Rounding) -> Tensor:
    """At most value − slope·point."""
    product = slope * point
    return rounding.down(value - product - rounding.rounding_error(product.abs()))


def _differentiable_clamp_relaxation(node: Activation, lower: Tensor, upper: Tensor) -> LinearRelaxation:
    """The relaxation of ``_clamp_relaxation``, with differentiable intercepts."""
    inside = (lower >= node.lower) & (upper <= node.upper)
    crossing = (upper > node.lower) & (lower < node.upper) & ~inside
    middle = (lower + upper) / 2
    bottom, top = lower.clamp(node.lower, node.upper), upper.clamp(node.lower, node.upper)
    below = crossing & ((lower >= node.lower) | (middle > node.lower))
    above = crossing & ((upper <= node.upper) | (middle < node.upper))
    slope = inside.to(lower.dtype)  # of the stable neurons
    lower_slope = torch.where(below, (top - bottom) / torch.where(below, upper - bottom, 1), slope)
    upper_slope = torch.where(above, (top - bottom) / torch.where(above, top - lower, 1), slope)
    return LinearRelaxation(lower_slope, bottom * (1 - lower_slope), upper_slope, top * (1 - upper_slope))


ACTIVATIONS["clamp"] = ActivationRow(
    forward=_clamp,
    interval=lambda node, lower, upper, rounding: (_clamp(node, lower), _clamp(node, upper)),
    relaxation=_clamp_relaxation,
    native_code="clamp",
    rule=None,
    slope_range=lambda node: (0.0, 1.0),
    differentiable=Differentiable(
        interval=lambda node, lower, upper: (_clamp(node, lower), _clamp(node, upper)),
        relaxation=_differentiable_clamp_relaxation,
    ),
    kinks=lambda node: (node.lower, node.upper),
    roundings=2,
)


# --- sigmoid and tanh: odd but for a constant, convex below 0 and concave above

# Exceeds the error of numpy's exp and tanh: several units in the last place, each 2^-53 of the result.
_APPROXIMATION = 2.0**-44


def _widened(lower: _Doubles, upper: _Doubles) -> tuple[_Doubles, _Doubles]:
    """Values rounded outward by the error of an approximation."""
    return lower - _APPROXIMATION * np.abs(lower) - 1e-300, upper + _APPROXIMATION * np.abs(upper) + 1e-300


def _s_shaped_rule(
    left: _Doubles,
    right: _Doubles,
    f: Callable[[_Doubles], _Doubles],
    derivative: Callable[[_Doubles], _Doubles],
    steepest: float,
) -> tuple[_Doubles, ...]:
    """The rule of an S-shaped function, convex below 0 and concave above.

    The slope s of both relaxations is the smaller of the slopes at the two ends: f(z) − s·z then grows on all of
    [left, right], because f' is at least as large in between (it rises to 0 and falls after), so its extremes are at
    the ends. On a range of one sign the relaxation on the far side of the curve is the chord instead, whose extremes
    are the ends, too: above a convex f and below a concave one. Intercepts allow for the rounding of f and of the
    products.
    """
    finite = np.isfinite(left) & np.isfinite(right)
    a, b = np.where(finite, left, 0.0), np.where(finite, right, 0.0)
    fa, fb = f(a), f(b)
    low_a, high_a = _widened(fa, fa)
    low_b, high_b = _widened(fb, fb)
    width = b - a
    wide = width > 1e-9
    chord = np.where(wide, (fb - fa) / np.where(wide, width, 1.0), derivative((a + b) / 2))
    tangent = np.minimum(derivative(a), derivative(b)) * (1 - 2.0**-30)
    upper_slope = np.where(finite, np.where(b <= 0, np.clip(chord, 0, steepest), tangent), 0.0)
    lower_slope = np.where(finite, np.where(a >= 0, np.clip(chord, 0, steepest), tangent), 0.0)

    def product_error(s: _Doubles, z: _Doubles) -> _Doubles:
        return np.abs(s * z) * 2.0**-50

    upper = np.maximum(
        high_a - upper_slope * a + product_error(upper_slope, a),
        high_b - upper_slope * b + product_error(upper_slope, b),
    )
    lower = np.minimum(
        low_a - lower_slope * a - product_error(lower_slope, a),
        low_b - lower_slope * b - product_error(lower_slope, b),
    )
    lower, upper = _widened(lower, upper)
    least, most = f(np.full_like(left, -np.inf)), f(np.full_like(left, np.inf))
    low, _ = _widened(f(left), f(left))
    _, high = _widened(f(right), f(right))
    lower = np.where(finite, lower, least)
    upper = np.where(finite, upper, most)
    return lower_slope, lower, upper_slope, upper, np.maximum(low, least), np.minimum(high, most)


def _sigmoid(z: _Doubles) -> _Doubles:
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + small), small / (1 + small))


def _sigmoid_rule(left: _Doubles, right: _Doubles) -> tuple[_Doubles, ...]:
    return _s_shaped_rule(left, right, _sigmoid, lambda z: _sigmoid(z) * _sigmoid(-z), 0.25)


def _tanh_rule(left: _Doubles, right: _Doubles) -> tuple[_Doubles, ...]:
    return _s_shaped_rule(left, right, np.tanh, lambda z: 1 / np.cosh(np.clip(z, -350, 350)) ** 2, 1.0)


ACTIVATIONS["sigmoid"] = row_from_rule(torch.sigmoid, _sigmoid_rule, slope_range=(0.0, 0.25))
ACTIVATIONS["tanh"] = row_from_rule(torch.tanh, _tanh_rule, slope_range=(0.0, 1.0))


# --- softsign: z / (1 + |z|), odd, convex below 0 and concave above, with slope 1 / (1 + |z|)²

# A quotient of z and the rounded 1 + |z| is within 2^-52 of itself, products and differences of two such likewise.
_SOFTSIGN_ERROR = 2.0**-50
_SMALLEST = 2.0**-1022


def _softsign_upper_slope(lower: Tensor, upper: Tensor) -> Tensor:
    """The slope of the upper relaxation on finite [lower, upper]; −f(−z) = f(z) gives the lower one.

    From (lower, f(lower)) with lower = −a < 0 the tangent touches the concave side at d = a / (1 + √(2 + 2a)), the
    solution of f(d) − f(−a) = f'(d)·(d + a). Where upper ≤ d the chord is above the function; where lower ≥ 0 the
    tangent in the middle is. The chord's slope is f[l, u] = 1 / ((1 + |l|)·(1 + |u|)) for ends of one sign, and
    (u − l + 2u|l|) / ((u − l)·(1 + |l|)·(1 + u)) otherwise.
    """
    a, b = (-lower).clamp(min=0), upper.clamp(min=0)
    product = (1 + lower.abs()) * (1 + upper.abs())
    width = a + b
    crossing = (lower < 0) & (upper > 0)
    chord = (1 + 2 * a * b / torch.where(crossing, width, 1)) / product
    touch = a / (1 + (2 + 2 * a).sqrt())
    point = torch.where(lower >= 0, lower / 2 + upper / 2, touch)
    return torch.where((lower >= 0) | (upper > touch), 1 / (1 + point).square(), chord)


def _softsign_upper(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """(slope, intercept) of the upper relaxation, rounded outward: float64, a constant where an end is infinite.

    For any slope s in (0, 1], f(z) − s·z has its maximum on the whole range at an end, or at z = 1/√s − 1 if that lies
    inside, where it is (1 − √s)².
    """
    finite = lower.isfinite() & upper.isfinite()
    low, high = lower.where(finite, 0.0), upper.where(finite, 0.0)
    slope = _softsign_upper_slope(low, high).clamp(max=1)
    intercept = torch.maximum(_softsign_excess(low, slope), _softsign_excess(high, slope))
    root = slope.sqrt()
    peak = 1 / root - 1
    reached = (peak * (1 + _SOFTSIGN_ERROR) + _SOFTSIGN_ERROR >= low) & (
        peak * (1 - _SOFTSIGN_ERROR) - _SOFTSIGN_ERROR <= high
    )
    at_peak = (1 - root).square() + _SOFTSIGN_ERROR
    intercept = torch.maximum(intercept, at_peak.where(reached & (slope > 0), -torch.inf))
    _, most = _softsign_interval(lower, upper)
    return slope.where(finite, 0.0), intercept.where(finite, most)


def _softsign_excess(z: Tensor, slope: Tensor) -> Tensor:
    """At least f(z) − slope·z."""
    value, product = functional.softsign(z), slope * z
    return value - product + (value.abs() + product.abs()) * _SOFTSIGN_ERROR + _SMALLEST


def _softsign_interval(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    low, high = (functional.softsign(end).where(end.isfinite(), end.sign()) for end in (lower, upper))
    low = (low - low.abs() * _SOFTSIGN_ERROR - _SMALLEST).clamp(min=-1)
    high = (high + high.abs() * _SOFTSIGN_ERROR + _SMALLEST).clamp(max=1)
    return low.where(~lower.isnan(), torch.nan), high.where(~upper.isnan(), torch.nan)


def _softsign_rule(l: _Doubles, u: _Doubles) -> tuple[_Doubles, ...]:  # noqa: E741 - the field's names
    lower, upper = torch.tensor(l), torch.tensor(u)
    upper_slope, upper_intercept = _softsign_upper(lower, upper)
    lower_slope, negative = _softsign_upper(-upper, -lower)
    parts = lower_slope, -negative, upper_slope, upper_intercept, *_softsign_interval(lower, upper)
    return tuple(part.numpy() for part in parts)


def _differentiable_softsign(node: Activation, lower: Tensor, upper: Tensor) -> LinearRelaxation:
    def above(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        slope = _softsign_upper_slope(low, high)
        middle = low / 2 + high / 2
        point = torch.where(low >= 0, middle, low)  # where the relaxation touches the function
        return slope, functional.softsign(point) - slope * point

    upper_slope, upper_intercept = above(lower, upper)
    lower_slope, negative = above(-upper, -lower)
    return LinearRelaxation(lower_slope, -negative, upper_slope, upper_intercept)


ACTIVATIONS["softsign"] = row_from_rule(
    functional.softsign,
    _softsign_rule,
    slope_range=(0.0, 1.0),
    differentiable=Differentiable(
        interval=lambda node, lower, upper: (functional.softsign(lower), functional.softsign(upper)),
        relaxation=_differentiable_softsign,
    ),
)
