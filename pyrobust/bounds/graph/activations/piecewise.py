"""Piecewise linear functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.graph.activations.curves import ERROR, TINY, row_of_bounds
from pyrobust.bounds.graph.activations.table import (
    ACTIVATIONS,
    ActivationRow,
    Differentiable,
    LinearRelaxation,
    Rounding,
)
from pyrobust.bounds.graph.nodes import Activation

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
    """Relax a leaky ReLU: an unstable neuron's lower bound is z if upper > −lower, else slope·z (Zhang et al., 2018).

    The upper bound is the chord. Its slope is rounded, and its intercept is the one that this slope needs at both
    ends, rounded up.
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
    lower_slopes=lambda node: (node.slope, 1.0),
    differentiable=Differentiable(
        interval=lambda node, lower, upper: (_leaky_relu(node, lower), _leaky_relu(node, upper)),
        relaxation=None,
        kernels=True,
    ),
    kinks=lambda node: (0.0,),
    roundings=lambda node: 2,
    exact_from=lambda node: -math.inf if node.slope == 0 else 0.0,
)


# --- the element of [node.lower, node.upper] nearest to z


def _clamp(node: Activation, z: Tensor) -> Tensor:
    return z.clamp(node.lower, node.upper)


def _clamp_relaxation(node: Activation, lower: Tensor, upper: Tensor, rounding: Rounding) -> LinearRelaxation:
    """Relax a clamp by the line from a corner to the far end of the range, or by a constant if that is tighter.

    The constant is f(lower) for the lower bound and f(upper) for the upper bound. If only the upper corner lies inside
    the range, the lower bound is the chord; if only the lower corner does, the upper bound is the chord.
    """
    least, most = node.lower, node.upper
    bottom, top = lower.clamp(min=least), upper.clamp(max=most)  # f(lower), f(upper) where the range holds a corner
    middle = lower / 2 + upper / 2
    chord = (top - bottom) / (upper - lower)
    below = torch.where(lower >= least, chord, ((top - least) / (upper - least)).where(middle > least, 0.0))
    above = torch.where(upper <= most, chord, ((most - bottom) / (most - lower)).where(middle < most, 0.0))
    below, above = (slope.nan_to_num(0, 1, 0).clamp(0, 1) for slope in (below, above))
    # f(z) − slope·z is linear between the corners: its extremes are among these points
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
    for holds, simple in cases:  # the last case that applies counts
        relaxation = LinearRelaxation(*(torch.where(holds, *parts) for parts in zip(simple, relaxation, strict=True)))
    return relaxation


def _intercept_below(value: Tensor, slope: Tensor, point: Tensor, rounding: Rounding) -> Tensor:
    """Return a number of at most value − slope·point."""
    product = slope * point
    return rounding.down(value - product - rounding.rounding_error(product.abs()))


def _differentiable_clamp_relaxation(node: Activation, lower: Tensor, upper: Tensor) -> LinearRelaxation:
    """Return the relaxation of ``_clamp_relaxation`` with differentiable intercepts."""
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
    roundings=lambda node: 2,
)


# --- any two or three pieces, by their knots


def _at_knots(lower: Tensor, upper: Tensor, knots: Sequence[float]) -> list[Tensor]:
    """Return the ends of ranges and the knots inside them; a knot outside a range is replaced by an end."""
    inside = [torch.minimum(torch.maximum(torch.full_like(lower, knot), lower), upper) for knot in knots]
    return [lower, *inside, upper]


def _linear_pieces_interval(
    below: Callable[[Tensor], Tensor],
    above: Callable[[Tensor], Tensor],
    lower: Tensor,
    upper: Tensor,
    knots: Sequence[float],
) -> tuple[Tensor, Tensor]:
    """Bound a function that lies between ``below`` and ``above``, which are linear between the knots."""
    points = _at_knots(lower, upper, knots)
    low, high = torch.stack([below(z) for z in points]).amin(0), torch.stack([above(z) for z in points]).amax(0)
    return low - (low.abs() * ERROR + TINY), high + (high.abs() * ERROR + TINY)


def _linear_pieces_relaxation(
    below: Callable[[Tensor], Tensor],
    above: Callable[[Tensor], Tensor],
    lower: Tensor,
    upper: Tensor,
    knots: Sequence[float],
) -> LinearRelaxation:
    """Return the relaxation of smallest area: the pieces of the convex and concave envelopes at the range's middle."""
    low, high = _linear_pieces_interval(below, above, lower, upper, knots)
    finite = lower.isfinite() & upper.isfinite()
    points = _at_knots(lower.where(finite, 0.0), upper.where(finite, 0.0), knots)
    middle = points[0] / 2 + points[-1] / 2
    parts = []
    for sign, function, constant in ((-1, below, low), (1, above, high)):
        values = [sign * function(z) for z in points]
        best, slope = torch.full_like(middle, -torch.inf), torch.zeros_like(middle)
        for i, left in enumerate(points):
            for j, right in list(enumerate(points))[i + 1 :]:
                chord = (values[j] - values[i]) / torch.where(right > left, right - left, 1)
                height = values[i] + chord * (middle - left)
                higher = (left < right) & (left <= middle) & (middle <= right) & (height > best)
                best, slope = torch.where(higher, height, best), torch.where(higher, chord, slope)
        excesses = []
        for z, value in zip(points, values, strict=True):
            product = slope * z
            excesses.append(value - product + (value.abs() + product.abs()) * ERROR + TINY)
        intercept = torch.stack(excesses).amax(0)
        usable = finite & slope.isfinite() & intercept.isfinite()
        parts += [(sign * slope).where(usable, 0.0), (sign * intercept).where(usable, constant)]
    return LinearRelaxation(*parts)


Ends = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


def _row_of_linear_pieces(
    forward: Callable[[Activation, Tensor], Tensor],
    knots: Callable[[Activation], tuple[float, ...]],
    *,
    slope_range: Callable[[Activation], tuple[float, float]],
    roundings: int,
    ends: Callable[[Activation, Tensor], Ends] | None = None,
    offset: Callable[[Activation], float] = lambda node: 0.0,
    slopes_below: Callable[[Activation], tuple[Tensor, Tensor]] | None = None,
) -> ActivationRow:
    """Return the row of a piecewise linear function; if it is inexact, ``ends`` gives functions below and above it."""

    def exact(node: Activation, like: Tensor) -> Ends:
        def value(z: Tensor) -> Tensor:
            return forward(node, z)

        return value, value

    ends = ends or exact
    row = row_of_bounds(
        forward,
        lambda node, lower, upper: _linear_pieces_interval(*ends(node, lower), lower, upper, knots(node)),
        lambda node, lower, upper: _linear_pieces_relaxation(*ends(node, lower), lower, upper, knots(node)),
        slope_range=slope_range,
        differentiable=Differentiable(
            lambda node, lower, upper: _linear_pieces_interval(*exact(node, lower), lower, upper, knots(node)),
            lambda node, lower, upper: _linear_pieces_relaxation(*exact(node, lower), lower, upper, knots(node)),
        ),
        roundings=lambda node: roundings,
        offset=offset,
    )
    native_code = None if slopes_below is None else "prelu"
    return dataclasses.replace(row, kinks=knots, native_code=native_code, slopes_below=slopes_below)


_MINUS_ONE = torch.tensor(-1.0, dtype=torch.float64, device="cpu")

ACTIVATIONS["abs"] = _row_of_linear_pieces(
    lambda node, z: z.abs(),
    lambda node: (0.0,),
    slope_range=lambda node: (-1.0, 1.0),
    roundings=0,
    slopes_below=lambda node: (_MINUS_ONE, _MINUS_ONE),
)
# parameters: (bound,)
ACTIVATIONS["softshrink"] = _row_of_linear_pieces(
    lambda node, z: functional.softshrink(z, node.parameters[0]),
    lambda node: (-node.parameters[0], node.parameters[0]),
    slope_range=lambda node: (0.0, 1.0),
    roundings=2,
    offset=lambda node: node.parameters[0],
)


# --- z above 0, slope·z below, with any slopes


def _prelu(node: Activation, z: Tensor) -> Tensor:
    assert node.weight is not None
    return torch.where(z >= 0, z, node.weight.value().to(z.device, z.dtype) * z)


def _prelu_ends(node: Activation, like: Tensor) -> Ends:
    """Return the smallest and the largest function that a node's slopes allow, for tensors in the shape of ``like``."""
    assert node.weight is not None
    slopes = [slope.to(like).expand(1, *node.shape).flatten() for slope in _prelu_slopes(node)]
    least, most = (slope.repeat(like.numel() // max(1, node.size)).view_as(like) for slope in slopes)
    return lambda z: torch.where(z >= 0, z, most * z), lambda z: torch.where(z >= 0, z, least * z)


def _prelu_slopes(node: Activation) -> tuple[Tensor, Tensor]:
    assert node.weight is not None
    return node.weight.enclosure()


def _prelu_slope_range(node: Activation) -> tuple[float, float]:
    least, most = _prelu_slopes(node)
    return min(1.0, float(least.min())), max(1.0, float(most.max()))


ACTIVATIONS["prelu"] = _row_of_linear_pieces(
    _prelu,
    lambda node: (0.0,),
    slope_range=_prelu_slope_range,
    roundings=2,
    ends=_prelu_ends,
    slopes_below=_prelu_slopes,
)
