"""Powers: squares, roots, reciprocals, and any real exponent."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from pyrobust.bounds.graph.activations.curves import Curve, curve_interval, curve_relaxation, row_of_bounds
from pyrobust.bounds.graph.activations.table import ACTIVATIONS, Defined, LinearRelaxation
from pyrobust.bounds.graph.nodes import Activation

_LEAST = 5e-324  # the smallest positive number


def _exponent(node: Activation) -> float:
    return _EXPONENTS[node.function] if node.function in _EXPONENTS else node.parameters[0]


_EXPONENTS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}


def _value(z: Tensor, p: float) -> Tensor:
    """Compute z^p, by correctly rounded operations for common exponents."""
    if p == 0.5:
        return z.sqrt()
    if p == -0.5:
        return 1 / z.sqrt()
    return z.pow(p)  # torch uses products and quotients for small integers


@functools.cache
def _curve(p: float) -> Curve:
    """Return the curve of z^p, restricted to z > 0 if p is negative, else to z ≥ 0 if p is not an integer."""
    whole = p == int(p)
    odd = whole and p % 2 == 1
    everywhere = whole and p > 0
    return Curve(
        value=lambda z: _value(z, p),
        slope=lambda z, piece: p * _value(z, p - 1),
        breaks=(0.0, math.inf) if everywhere and odd else (-math.inf, math.inf),
        middle_convex=not 0 < p < 1,
        stationary=(0.0,) if everywhere and not odd else (),
        limits=(-math.inf if odd else math.inf, math.inf if p > 0 else 0.0),
        image=(-math.inf if everywhere and odd else 0.0, math.inf),
        domain=(-math.inf if everywhere else 0.0 if p > 0 else _LEAST, math.inf),
    )


def _mirrored(p: float, upper: Tensor) -> Tensor:
    """Mark the ranges that lie below 0 if p is a negative integer, for which z^p has values there; else mark none."""
    return upper < 0 if p < 0 and p == int(p) else torch.zeros_like(upper, dtype=torch.bool)


def _interval(node: Activation, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    p = _exponent(node)
    flip = _mirrored(p, upper)
    low, high = curve_interval(_curve(p), torch.where(flip, -upper, lower), torch.where(flip, -lower, upper))
    if p % 2 == 1:
        low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    return low, high


def _relaxation(node: Activation, lower: Tensor, upper: Tensor) -> LinearRelaxation:
    p = _exponent(node)
    flip = _mirrored(p, upper)
    parts = curve_relaxation(_curve(p), torch.where(flip, -upper, lower), torch.where(flip, -lower, upper))
    below, low, above, high = parts
    odd = LinearRelaxation(above, -high, below, -low)
    even = LinearRelaxation(-below, low, -above, high)
    flipped = odd if p % 2 == 1 else even
    return LinearRelaxation(*(torch.where(flip, *pair) for pair in zip(flipped, parts, strict=True)))


def _defined(node: Activation) -> Defined | None:
    p = _exponent(node)
    curve = _curve(p)
    return None if curve.everywhere else lambda lower, upper: curve.defined_on(lower, upper) | _mirrored(p, upper)


def _forward(node: Activation, z: Tensor) -> Tensor:
    return _value(z, _exponent(node))


def _roundings(node: Activation) -> int:
    """Bound the roundings of a deployed pass: 16, and |p ln z| < 104·|p| more if float32 rounds the exponent p."""
    p = _exponent(node)
    exact = p == float(torch.tensor(p, dtype=torch.float32))
    return 16 if exact else 16 + math.ceil(104 * abs(p))


for _name in ("square", "sqrt", "rsqrt", "reciprocal", "power"):
    ACTIVATIONS[_name] = row_of_bounds(_forward, _interval, _relaxation, roundings=_roundings, defined=_defined)
