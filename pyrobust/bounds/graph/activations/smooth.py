"""Smooth functions without parameters, with at most two inflection points."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.graph.activations.curves import Curve, row_of_curve
from pyrobust.bounds.graph.activations.table import ACTIVATIONS

_INFINITY = math.inf
_EVERYWHERE = (-_INFINITY, _INFINITY)


def _add(
    name: str,
    forward: Callable[[Tensor], Tensor],
    curve: Curve,
    slope_range: tuple[float, float] | None = None,
    offset: float = 0.0,
) -> None:
    """Add the row of a function."""
    ACTIVATIONS[name] = row_of_curve(
        lambda node, z: forward(z),
        lambda node: curve,
        slope_range=None if slope_range is None else lambda node: slope_range,
        offset=lambda node: offset,
    )


# --- convex below 0 and concave above


def _s_shaped(
    value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], image: tuple[float, float], floor: float = 0.0
) -> Curve:
    return Curve(
        value=value,
        slope=lambda z, piece: slope(z),
        breaks=(0.0, _INFINITY),
        middle_convex=False,
        limits=image,
        image=image,
        slope_floor=floor,
    )


def _tanh_slope(z: Tensor) -> Tensor:
    """Return the derivative of tanh, 4 e^(−2|z|) / (1 + e^(−2|z|))²."""
    small = torch.exp(-2 * z.abs())
    return 4 * small / (1 + small).square()


def _erf_slope(z: Tensor) -> Tensor:
    return torch.exp(-z.square()) * (2 / math.sqrt(math.pi))


_RIGHT_ANGLE = 1.5707963267948968  # at least π/2

_add(
    "sigmoid",
    torch.sigmoid,
    _s_shaped(torch.sigmoid, lambda z: torch.sigmoid(z) * torch.sigmoid(-z), (0.0, 1.0)),
    (0.0, 0.25),
)
_add("tanh", torch.tanh, _s_shaped(torch.tanh, _tanh_slope, (-1.0, 1.0)), (0.0, 1.0))
# the rounding of z² matters where the slope is tiny
_add("erf", torch.erf, _s_shaped(torch.erf, _erf_slope, (-1.0, 1.0), 1e-9), (0.0, 1.1283791670955128))
_add(
    "atan",
    torch.atan,
    _s_shaped(torch.atan, lambda z: 1 / (1 + z.square()), (-_RIGHT_ANGLE, _RIGHT_ANGLE)),
    (0.0, 1.0),
)

_add(
    "softsign",
    functional.softsign,
    _s_shaped(lambda z: z / (1 + z.abs()), lambda z: 1 / (1 + z.abs()).square(), (-1.0, 1.0)),
    (0.0, 1.0),
)

# --- concave below 0 and convex above


def _tanhshrink(z: Tensor) -> Tensor:
    """Return z − tanh z; near 0, by the continued fraction tanh z = z / (1 + z²/(3 + z²/(5 + …)))."""
    near = z.clamp(-1, 1)
    fraction = torch.zeros_like(z)
    for odd in range(21, 1, -2):
        fraction = near.square() / (odd + fraction)
    return torch.where(z.abs() < 1, near * fraction / (1 + fraction), z - torch.tanh(z))


_add(
    "tanhshrink",
    functional.tanhshrink,
    Curve(
        value=_tanhshrink,
        slope=lambda z, piece: torch.tanh(z).square(),
        breaks=(0.0, _INFINITY),
        middle_convex=True,
    ),
    (0.0, 1.0),
    offset=1.0,
)

# --- convex or concave


def _one_piece(
    value: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    *,
    convex: bool,
    limits: tuple[float, float],
    image: tuple[float, float] = _EVERYWHERE,
    domain: tuple[float, float] = _EVERYWHERE,
) -> Curve:
    return Curve(
        value=value,
        slope=lambda z, piece: slope(z),
        breaks=_EVERYWHERE,
        middle_convex=convex,
        limits=limits,
        image=image,
        domain=domain,
    )


_HALF_LINE = (0.0, _INFINITY)

_add("exp", torch.exp, _one_piece(torch.exp, torch.exp, convex=True, limits=_HALF_LINE, image=_HALF_LINE))
_add(
    "exp2",
    torch.exp2,
    _one_piece(torch.exp2, lambda z: torch.exp2(z) * math.log(2), convex=True, limits=_HALF_LINE, image=_HALF_LINE),
)
_add(
    "expm1",
    torch.expm1,
    _one_piece(torch.expm1, torch.exp, convex=True, limits=(-1.0, _INFINITY), image=(-1.0, _INFINITY)),
)
_add("log", torch.log, _one_piece(torch.log, lambda z: 1 / z, convex=False, limits=_EVERYWHERE, domain=_HALF_LINE))
_add(
    "log2",
    torch.log2,
    _one_piece(torch.log2, lambda z: 1 / (z * math.log(2)), convex=False, limits=_EVERYWHERE, domain=_HALF_LINE),
)
_add(
    "log1p",
    torch.log1p,
    _one_piece(torch.log1p, lambda z: 1 / (1 + z), convex=False, limits=_EVERYWHERE, domain=(-1.0, _INFINITY)),
)
_add(
    "log_sigmoid",
    functional.logsigmoid,
    _one_piece(
        lambda z: z.clamp(max=0) - torch.log1p(torch.exp(-z.abs())),
        lambda z: torch.sigmoid(-z),
        convex=False,
        limits=(-_INFINITY, 0.0),
        image=(-_INFINITY, 0.0),
    ),
    (0.0, 1.0),
)

# --- concave, convex and concave, with a minimum: z times a function that rises from 0 to 1


def _gated(
    value: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    breaks: tuple[float, float],
    minimum: float,
) -> Curve:
    return Curve(
        value=value,
        slope=lambda z, piece: slope(z),
        breaks=breaks,
        middle_convex=True,
        stationary=(minimum,),
        limits=(0.0, _INFINITY),
        value_floor=1e-6,  # the rounding of an exponent matters where the value is tiny
        slope_floor=1.0,
    )


def _normal(z: Tensor) -> Tensor:
    """Return the distribution function of the normal distribution."""
    return torch.erfc(z * -math.sqrt(0.5)) / 2


def _gelu_slope(z: Tensor) -> Tensor:
    return _normal(z) + z * torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)


_GELU = 2 * math.sqrt(2 / math.pi)


def _tanh_gelu(z: Tensor) -> Tensor:
    return z * torch.sigmoid(_GELU * (z + 0.044715 * z**3))


def _tanh_gelu_slope(z: Tensor) -> Tensor:
    y = _GELU * (z + 0.044715 * z**3)
    bell = torch.sigmoid(y) * torch.sigmoid(-y)
    return torch.sigmoid(y) + _GELU * torch.where(bell > 0, z * (1 + 3 * 0.044715 * z.square()) * bell, 0)


def _silu_slope(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * (1 + z * torch.sigmoid(-z))


def _mish_parts(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh(log(1 + eᶻ)) and its derivative, by rational functions of eᶻ or, for z > 0, of e^(−z)."""
    small = torch.exp(-z.abs())
    square, rising = small.square(), z > 0
    size = torch.where(rising, 1 + 2 * small + 2 * square, square + 2 * small + 2)
    gate = torch.where(rising, 1 + 2 * small, square + 2 * small) / size
    return gate, 4 * torch.where(rising, square * (1 + small), small * (1 + small)) / size.square()


def _mish(z: Tensor) -> Tensor:
    return z * _mish_parts(z)[0]


def _mish_slope(z: Tensor) -> Tensor:
    gate, slope = _mish_parts(z)
    return gate + z * slope


_add(
    "gelu",
    functional.gelu,
    _gated(lambda z: z * _normal(z), _gelu_slope, (-math.sqrt(2), math.sqrt(2)), -0.7517915246935645),
    (-0.12890414518516, 1.12890414518516),
    offset=4.0,
)
_add(
    "tanh_gelu",
    lambda z: functional.gelu(z, approximate="tanh"),
    _gated(_tanh_gelu, _tanh_gelu_slope, (-1.4185040087908284, 1.4185040087908284), -0.7524614220710163),
    (-0.12899306865878, 1.12899306865878),
    offset=4.0,
)
_add(
    "silu",
    functional.silu,
    _gated(lambda z: z * torch.sigmoid(z), _silu_slope, (-2.3993572805154677, 2.3993572805154677), -1.2784645427610738),
    (-0.09983932012887, 1.09983932012887),
)
_add(
    "mish",
    functional.mish,
    _gated(_mish, _mish_slope, (-2.256376396360793, 1.4905711794854285), -1.1924312145154952),
    (-0.11252612238947, 1.08849816125173),
)


def _hardswish_slope(z: Tensor, piece: int) -> Tensor:
    return (torch.zeros_like(z), (2 * z + 3) / 6, torch.ones_like(z))[piece]


_add(
    "hardswish",
    functional.hardswish,
    Curve(
        value=lambda z: z * ((z + 3).clamp(0, 6) / 6),
        slope=_hardswish_slope,
        breaks=(-3.0, 3.0),
        middle_convex=True,
        stationary=(-1.5,),
        limits=(0.0, _INFINITY),
        value_floor=4.0,
        slope_floor=1.0,
    ),
    (-0.5, 1.5),
    offset=4.0,
)
