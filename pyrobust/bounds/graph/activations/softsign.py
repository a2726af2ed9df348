"""Softsign, z / (1 + |z|): odd, convex below 0 and concave above, with slope 1 / (1 + |z|)²."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.graph.activations.table import ACTIVATIONS, Differentiable, LinearRelaxation, row_from_rule
from pyrobust.bounds.graph.nodes import Activation

_Doubles = npt.NDArray[np.float64]

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
