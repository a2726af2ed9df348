"""Lines and ranges of functions that the native engine does not know: sigmoid, tanh, and those of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_Doubles = npt.NDArray[np.float64]

#: (l [n], u [n]) → (lower slope, lower intercept, upper slope, upper intercept, lower, upper), each [n], float64: for
#: z in [l, u], lower slope·z + lower intercept ≤ f(z) ≤ upper slope·z + upper intercept, and lower ≤ f(z) ≤ upper.
LineRule: TypeAlias = Callable[[_Doubles, _Doubles], tuple[_Doubles, ...]]


class Function(NamedTuple):
    """A function of each element that comes with its lines."""

    value: Callable[[Tensor], Tensor]
    rule: LineRule


#: By the name that activations carry.
FUNCTIONS: dict[str, Function] = {}


# What numpy's exp and tanh can be wrong by, relative to the result, with room to spare: they are within a few units in
# the last place, 2^-53 of the result each.
_MARGIN = 2.0**-44


def _outward(lower: _Doubles, upper: _Doubles) -> tuple[_Doubles, _Doubles]:
    return lower - _MARGIN * np.abs(lower) - 1e-300, upper + _MARGIN * np.abs(upper) + 1e-300


def _sigmoid(z: _Doubles) -> _Doubles:
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + small), small / (1 + small))


def _s_shaped(
    from_: _Doubles,
    to: _Doubles,
    f: Callable[[_Doubles], _Doubles],
    slope: Callable[[_Doubles], _Doubles],
    steepest: float,
) -> tuple[_Doubles, ...]:
    """The lines of an odd-symmetric function that is convex below 0 and concave above.

    The slope s of both lines is the smaller of the slopes at the two ends: f(z) − s·z then grows on all of [from_, to],
    because f' is at least as large in between (it rises to 0 and falls after), so its extremes are at the ends. On a
    range of one sign the line on the far side of the curve is the chord instead, whose extremes are the ends, too:
    above a convex f and below a concave one. The intercepts allow for the rounding of f and of the products.
    """
    finite = np.isfinite(from_) & np.isfinite(to)
    a, b = np.where(finite, from_, 0.0), np.where(finite, to, 0.0)
    fa, fb = f(a), f(b)
    low_a, high_a = _outward(fa, fa)
    low_b, high_b = _outward(fb, fb)
    width = b - a
    wide = width > 1e-9
    chord = np.where(wide, (fb - fa) / np.where(wide, width, 1.0), slope((a + b) / 2))
    tangent = np.minimum(slope(a), slope(b)) * (1 - 2.0**-30)
    upper_slope = np.where(finite, np.where(b <= 0, np.clip(chord, 0, steepest), tangent), 0.0)
    lower_slope = np.where(finite, np.where(a >= 0, np.clip(chord, 0, steepest), tangent), 0.0)

    def product(s: _Doubles, z: _Doubles) -> _Doubles:
        return np.abs(s * z) * 2.0**-50

    upper = np.maximum(
        high_a - upper_slope * a + product(upper_slope, a), high_b - upper_slope * b + product(upper_slope, b)
    )
    lower = np.minimum(
        low_a - lower_slope * a - product(lower_slope, a), low_b - lower_slope * b - product(lower_slope, b)
    )
    lower, upper = _outward(lower, upper)
    least, most = f(np.full_like(from_, -np.inf)), f(np.full_like(from_, np.inf))
    ends_low, _ = _outward(f(from_), f(from_))
    _, ends_high = _outward(f(to), f(to))
    ends_low, ends_high = np.maximum(ends_low, least), np.minimum(ends_high, most)
    lower = np.where(finite, lower, least)
    upper = np.where(finite, upper, most)
    return lower_slope, lower, upper_slope, upper, ends_low, ends_high


def _sigmoid_rule(from_: _Doubles, to: _Doubles) -> tuple[_Doubles, ...]:
    return _s_shaped(from_, to, _sigmoid, lambda z: _sigmoid(z) * _sigmoid(-z), 0.25)


def _tanh_rule(from_: _Doubles, to: _Doubles) -> tuple[_Doubles, ...]:
    return _s_shaped(from_, to, np.tanh, lambda z: 1 / np.cosh(np.clip(z, -350, 350)) ** 2, 1.0)


FUNCTIONS["sigmoid"] = Function(torch.sigmoid, _sigmoid_rule)
FUNCTIONS["tanh"] = Function(torch.tanh, _tanh_rule)
