"""Smooth functions with parameters: exponential linear units and softplus."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.graph.activations.curves import (
    ERROR,
    Curve,
    curve_interval,
    curve_relaxation,
    differentiable_curve,
    row_of_bounds,
    row_of_curve,
)
from pyrobust.bounds.graph.activations.table import ACTIVATIONS, LinearRelaxation
from pyrobust.bounds.graph.nodes import Activation

# --- elu: scale·z above 0, alpha·scale·(e^(input_scale·z) − 1) below; parameters (alpha, scale, input_scale)


def _elu(node: Activation, z: Tensor) -> Tensor:
    alpha, scale, input_scale = node.parameters
    # torch does not annotate its operators
    return torch.ops.aten.elu.default(z, alpha, scale, input_scale)  # type: ignore[no-any-return]


@functools.cache
def _elu_curve(alpha: float, scale: float, input_scale: float) -> Curve:
    """Return the curve: one convex piece if 0 ≤ alpha·input_scale·scale ≤ scale, else one piece on each side of 0."""
    size, steepest = alpha * scale, alpha * scale * input_scale
    convex = 0 <= steepest <= scale

    def value(z: Tensor) -> Tensor:
        return torch.where(z > 0, scale * z, size * torch.expm1(input_scale * z.clamp(max=0)))

    def slope(z: Tensor, piece: int) -> Tensor:
        below = steepest * torch.exp(input_scale * z.clamp(max=0))
        if convex:
            return torch.where(z > 0, scale, below)
        return below if piece == 0 else torch.full_like(z, scale)

    return Curve(
        value=value,
        slope=slope,
        breaks=(-math.inf, math.inf) if convex else (0.0, math.inf),
        middle_convex=convex or size < 0,  # for a negative size, concave below 0 with the minimum at 0
        stationary=(0.0,),
        limits=(-size, math.inf),
        slope_floor=0.0,
    )


ACTIVATIONS["elu"] = row_of_curve(
    _elu,
    lambda node: _elu_curve(*node.parameters),
    slope_range=lambda node: (
        min(0.0, math.prod(node.parameters) * (1 + ERROR)),
        max(node.parameters[1], math.prod(node.parameters) * (1 + ERROR)),
    ),
    # the rounding of input_scale·z is large only where e^(input_scale·z) is tiny beside 1, so it does not matter
)


# --- softplus: log(1 + e^(beta·z)) / beta where beta·z is at most a threshold, z above; parameters (beta, threshold)


def _softplus(node: Activation, z: Tensor) -> Tensor:
    return functional.softplus(z, *node.parameters)


@functools.cache
def _softplus_curve(beta: float) -> Curve:
    return Curve(
        value=lambda z: z.clamp(min=0) + torch.log1p(torch.exp(-beta * z.abs())) / beta,
        slope=lambda z, piece: torch.sigmoid(beta * z),
        breaks=(-math.inf, math.inf),
        middle_convex=True,
        limits=(0.0, math.inf),
        image=(0.0, math.inf),
        value_floor=1e-6 / beta,  # the rounding of beta·z matters where the value is tiny
        slope_floor=1e-6,
    )


#: Relative error of the two sides of a comparison in float32: three roundings.
_COMPARISON = 2.0**-22


def _jump(node: Activation, upper: Tensor) -> Tensor:
    """Return the largest difference of softplus and z beyond the threshold; 0 for ranges below it."""
    beta, threshold = node.parameters
    # A float32 pass compares beta·z to the threshold with three roundings: it may take z a little below the threshold.
    least = threshold - abs(threshold) * _COMPARISON - torch.finfo(torch.float32).tiny
    size = float(np.logaddexp(0.0, -least)) / beta * (1 + ERROR)
    product = upper * beta
    return torch.where(product + product.abs() * _COMPARISON >= least, size, 0.0)


def _softplus_interval(node: Activation, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    low, high = curve_interval(_softplus_curve(node.parameters[0]), lower, upper)
    return low - _jump(node, upper), high


def _softplus_relaxation(node: Activation, lower: Tensor, upper: Tensor) -> LinearRelaxation:
    relaxation = curve_relaxation(_softplus_curve(node.parameters[0]), lower, upper)
    return relaxation._replace(lower_intercept=relaxation.lower_intercept - _jump(node, upper))


ACTIVATIONS["softplus"] = row_of_bounds(
    _softplus,
    _softplus_interval,
    _softplus_relaxation,
    differentiable=differentiable_curve(lambda node: _softplus_curve(node.parameters[0])),
    offset=lambda node: 1e-4 / node.parameters[0],
)
