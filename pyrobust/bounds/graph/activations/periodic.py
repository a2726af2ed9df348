"""Sine and cosine, shifted by half periods so that the middle of the range lies between 0 and π.

In the shifted variable, the function is the sine or minus the sine. The sine is concave on [0, π], and convex on the
half period before it and the half period after it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrobust.bounds.graph.activations.curves import Curve, curve_interval, curve_relaxation, row_of_bounds
from pyrobust.bounds.graph.activations.table import ACTIVATIONS, LinearRelaxation
from pyrobust.bounds.graph.nodes import Activation

_CURVE = Curve(
    value=torch.sin,
    slope=lambda z, piece: torch.cos(z),
    breaks=(0.0, math.pi),
    middle_convex=False,
    stationary=(-math.pi / 2, math.pi / 2, 3 * math.pi / 2),
    image=(-1.0, 1.0),
    slope_floor=1.0,
)

#: Ranges of |z| up to here are shifted, with an error of at most ``_SHIFTED``·(1 + |z|).
_LARGEST = 2.0**30
_SHIFTED = 2.0**-49


def _reduced(node: Activation, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return (lower, upper, shift, sign, usable): shifted ranges, with f(z) = sign·sin(z − shift) where ``usable``."""
    origin = -math.pi / 2 if node.function == "cos" else 0.0
    usable = (upper - lower < 6.28) & (lower.abs() < _LARGEST) & (upper.abs() < _LARGEST)
    l, u = lower.where(usable, 0.0), upper.where(usable, 0.0)  # noqa: E741 - the field's names
    turns = torch.floor(((l + u) / 2 - origin) / math.pi)  # the middle is then between 0 and π
    shift = turns * math.pi + origin
    margin = _SHIFTED * (1 + l.abs().maximum(u.abs()))
    return l - shift - margin, u - shift + margin, shift, 1 - 2 * turns.remainder(2), usable


def _interval(node: Activation, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    l, u, _, sign, usable = _reduced(node, lower, upper)  # noqa: E741 - the field's names
    low, high = curve_interval(_CURVE, l, u)
    low, high = torch.where(sign > 0, low, -high), torch.where(sign > 0, high, -low)
    unknown = lower.isnan() | upper.isnan()
    return (
        low.where(usable, -1.0).where(~unknown, torch.nan),
        high.where(usable, 1.0).where(~unknown, torch.nan),
    )


def _relaxation(node: Activation, lower: Tensor, upper: Tensor) -> LinearRelaxation:
    """Relax the shifted curve and move the lines back; use constants on ranges that are too long or too far from 0."""
    l, u, shift, sign, usable = _reduced(node, lower, upper)  # noqa: E741 - the field's names
    below, low, above, high = curve_relaxation(_CURVE, l, u)
    below, low, above, high = (
        torch.where(sign > 0, *pair) for pair in ((below, -above), (low, -high), (above, -below), (high, -low))
    )
    least, most = _interval(node, lower, upper)
    error = 2 * _SHIFTED * (1 + lower.abs().maximum(upper.abs()))
    low = low - below * shift - below.abs() * error
    high = high - above * shift + above.abs() * error
    return LinearRelaxation(
        below.where(usable, 0.0), low.where(usable, least), above.where(usable, 0.0), high.where(usable, most)
    )


for _name, _function in (("sin", torch.sin), ("cos", torch.cos)):
    ACTIVATIONS[_name] = row_of_bounds(
        lambda node, z, function=_function: function(z),  # type: ignore[misc]  # mypy infers no such lambda
        _interval,
        _relaxation,
        slope_range=lambda node: (-1.0, 1.0),
        offset=lambda node: 1.0,
    )
