"""Smooth functions with at most two inflection points."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.graph.activations.curves import Curve, row_of_curve
from pyrobust.bounds.graph.activations.table import ACTIVATIONS

_INFINITY = math.inf


def _add(
    name: str,
    forward: Callable[[Tensor], Tensor],
    curve: Curve,
    slope_range: tuple[float, float] | None = None,
    offset: float = 0.0,
) -> None:
    """Add the row of a function without parameters."""
    ACTIVATIONS[name] = row_of_curve(
        lambda node, z: forward(z),
        lambda node: curve,
        slope_range=None if slope_range is None else lambda node: slope_range,
        offset=offset,
    )


# --- convex below 0 and concave above

_add(
    "sigmoid",
    torch.sigmoid,
    Curve(
        value=torch.sigmoid,
        slope=lambda z, piece: torch.sigmoid(z) * torch.sigmoid(-z),
        breaks=(0.0, _INFINITY),
        middle_convex=False,
        limits=(0.0, 1.0),
        image=(0.0, 1.0),
    ),
    (0.0, 0.25),
)


def _tanh_slope(z: Tensor, piece: int) -> Tensor:
    """4 e^(−2|z|) / (1 + e^(−2|z|))²."""
    small = torch.exp(-2 * z.abs())
    return 4 * small / (1 + small).square()


_add(
    "tanh",
    torch.tanh,
    Curve(
        value=torch.tanh,
        slope=_tanh_slope,
        breaks=(0.0, _INFINITY),
        middle_convex=False,
        limits=(-1.0, 1.0),
        image=(-1.0, 1.0),
    ),
    (0.0, 1.0),
)

_add(
    "erf",
    torch.erf,
    Curve(
        value=torch.erf,
        slope=lambda z, piece: torch.exp(-z.square()) * (2 / math.sqrt(math.pi)),
        breaks=(0.0, _INFINITY),
        middle_convex=False,
        limits=(-1.0, 1.0),
        image=(-1.0, 1.0),
        slope_floor=1e-9,  # the rounding of z² counts where the slope is tiny
    ),
    (0.0, 1.1283791670955128),
)

# --- convex or concave

_add(
    "exp",
    torch.exp,
    Curve(
        value=torch.exp,
        slope=lambda z, piece: torch.exp(z),
        breaks=(-_INFINITY, _INFINITY),
        middle_convex=True,
        limits=(0.0, _INFINITY),
        image=(0.0, _INFINITY),
    ),
)

_add(
    "log",
    torch.log,
    Curve(
        value=torch.log,
        slope=lambda z, piece: 1 / z,
        breaks=(-_INFINITY, _INFINITY),
        middle_convex=False,
        domain=(0.0, _INFINITY),
        limits=(-_INFINITY, _INFINITY),
    ),
)

# --- concave, convex and concave, with a minimum


def _normal(z: Tensor) -> Tensor:
    """The distribution function of the normal distribution."""
    return torch.erfc(z * -math.sqrt(0.5)) / 2


_add(
    "gelu",
    functional.gelu,
    Curve(
        value=lambda z: z * _normal(z),
        slope=lambda z, piece: _normal(z) + z * torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi),
        breaks=(-math.sqrt(2), math.sqrt(2)),
        middle_convex=True,
        stationary=(-0.7517915246935645,),
        limits=(0.0, _INFINITY),
        value_floor=1e-20,  # the rounding of z/√2 counts where the value is tiny
        slope_floor=1.0,
    ),
    (-0.1289041452, 1.1289041452),
    offset=4.0,
)
