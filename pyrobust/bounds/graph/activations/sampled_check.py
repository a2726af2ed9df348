"""Check of a user's bounds against values of the operator, before anything is certified with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.errors import InputError

_Doubles = npt.NDArray[np.float64]

_RANGES, _POINTS = 400, 33
# Error allowed for rounding, relative to the terms of an inequality: samples find mistakes, not missing roundings.
_EXACT, _DIFFERENTIABLE = 2.0**-36, 1e-5


def check_bounds(
    name: str, forward: Callable[[Tensor], Tensor], bounds: Callable[[Tensor, Tensor], Sequence[Tensor]], *, exact: bool
) -> None:
    """Compare the six values of bounds with values of the operator at points of random ranges.

    Args:
        name: the argument, for messages.
        forward: the operator.
        bounds: (l [n], u [n]) → (lower slope, lower intercept, upper slope, upper intercept, lower, upper), each [n].
        exact: whether the bounds are rounded outward. If not, the check allows a larger error and uses finite ranges
            only.

    Raises:
        InputError: a value lies outside its bounds; the message names the range and the point.
    """
    lower, upper, z = _samples(infinite=exact)
    value = forward(z)
    parts = [term.unsqueeze(1) for term in bounds(lower, upper)]
    room = _EXACT if exact else _DIFFERENTIABLE
    for side, first, sign in (("lower", 0, 1), ("upper", 1, -1)):
        slope, intercept, limit = parts[2 * first], parts[2 * first + 1], parts[4 + first]
        product = torch.where(slope == 0, 0.0, slope * z)
        for form, bound in (("linear relaxation", product + intercept), ("range", limit.expand_as(z))):
            slack = room * (1 + value.abs() + product.abs() + intercept.abs().nan_to_num(0, 0, 0))
            outside = (sign * (bound - value) > slack) | bound.isnan()
            if bool((outside & value.isfinite()).any()):
                i, j = (outside & value.isfinite()).nonzero()[0].tolist()
                raise InputError(
                    name,
                    f"{'at most' if sign > 0 else 'at least'} {value[i, j]:.9g} as the {side} {form} on ["
                    f"{lower[i]:.6g}, {upper[i]:.6g}] at z = {z[i, j]:.9g}",
                    f"{bound[i, j]:.9g}",
                    "mend the bound",
                )


def check_slopes(forward: Callable[[Tensor], Tensor], slope_range: tuple[float, float]) -> None:
    """Compare a range of slopes with the slopes of chords; raise InputError if a chord's slope lies outside."""
    *_, z = _samples(infinite=False)
    value = forward(z)
    run, rise = z[:, 1:] - z[:, :-1], value[:, 1:] - value[:, :-1]
    slack = 2.0**-40 * (value[:, 1:].abs() + value[:, :-1].abs() + 1)
    outside = (rise < slope_range[0] * run - slack) | (rise > slope_range[1] * run + slack)
    if bool(outside.any()):
        i, j = outside.nonzero()[0].tolist()
        raise InputError(
            "slope_range",
            f"to contain the slope {rise[i, j] / run[i, j]:.9g} between {z[i, j]:.9g} and {z[i, j + 1]:.9g}",
            slope_range,
            "widen it",
        )


def rounds_well(forward: Callable[[Tensor], Tensor], roundings: int) -> bool:
    """Whether the operator's float32 error is at most ``roundings`` roundings of its value at the sampled points."""
    *_, z = _samples(infinite=False)
    z = z.float()
    value = forward(z.double())
    error = (forward(z).double() - value).abs()
    return bool((error <= roundings * 2.0**-24 * (value.abs() + 2.0**-120)).all() | ~value.isfinite().all())


def _samples(*, infinite: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return ranges l, u [n] (wide, narrow or of one point, some unbounded), and points [n, P] inside them."""
    rng = np.random.default_rng(0)
    center = rng.standard_normal(_RANGES) * 10 ** rng.uniform(-2, 1, _RANGES)
    radius = np.abs(rng.standard_normal(_RANGES)) * 10 ** rng.uniform(-4, 1, _RANGES)
    radius[::23], center[1::11] = 0, rng.integers(-3, 4, len(center[1::11]))
    lower, upper = (torch.from_numpy(bound) for bound in (center - radius, center + radius))
    shares = torch.linspace(0, 1, _POINTS, dtype=torch.float64)
    z = (lower[:, None] * (1 - shares) + upper[:, None] * shares).clamp(lower[:, None], upper[:, None])
    if infinite:
        lower[::19], upper[::29] = -torch.inf, torch.inf
    return lower, upper, z
