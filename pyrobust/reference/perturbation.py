"""Addition of a perturbation, rounded toward the example."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .rounding import _two_sum


def add_perturbation(x: Tensor, z: Tensor, lower: float = 0.0, upper: float = 1.0) -> Tensor:
    """Add z to x, round the sum toward x and clip it: reference of ``pyrobust.ops.add_perturbation``.

    Each element is the number nearest to x + z among the numbers of x's dtype that lie between x and x + z and in
    [lower, upper].

    Args:
        x: float, in [lower, upper].
        z: same shape and dtype as x.
        lower: smallest value of the result.
        upper: largest value of the result.

    Returns:
        Same shape and dtype as x.

    >>> x = torch.tensor([0.5, 0.5, 0.5])
    >>> add_perturbation(x, torch.tensor([2.0**-25, 0.25, -3.0]))  # the first sum would round to 0.5 + 2**-24
    tensor([0.5000, 0.7500, 0.0000])
    """
    total, error = _two_sum(x.double(), z.double())
    nearest = total.to(x.dtype)
    # Neighbours in x's dtype differ by an exact number, so the comparison with the sum's error is exact as well.
    overshoot = nearest.double() - total
    beyond = torch.where(z > 0, overshoot > error, overshoot < error)
    result = torch.where(beyond, _toward(nearest, x), nearest)
    return result.maximum(_inside(lower, math.inf, x)).minimum(_inside(upper, -math.inf, x))


def _toward(value: Tensor, target: Tensor) -> Tensor:
    """Return the neighbour of value in its dtype that lies toward target."""
    if value.dtype == torch.float64:
        return value.nextafter(target)
    # torch has no nextafter for 16-bit floats; the bits of magnitudes are ordered.
    integer = torch.int16 if value.element_size() == 2 else torch.int32
    step = torch.where((value > target) == (value > 0), -1, 1).to(integer)
    tiny = torch.tensor(1, dtype=integer, device=value.device).view(value.dtype).copysign(target)
    return torch.where(value == 0, tiny, (value.view(integer) + step).view(value.dtype))


def _inside(bound: float, direction: float, like: Tensor) -> Tensor:
    """Round the bound to the dtype of ``like``, up if ``direction`` is inf and down if it is -inf."""
    nearest = torch.tensor(bound, dtype=torch.float64).to(like.dtype)
    outside = nearest.double() > bound if direction < 0 else nearest.double() < bound
    target = torch.tensor(direction, dtype=like.dtype)
    return (_toward(nearest, target) if outside else nearest).to(like.device)
