"""The grid that an image's numbers lie on, and the integers that they are there.

A file keeps a pixel as one of a few evenly spaced numbers; for bytes shown as [0, 1] these are the multiples of 1/255.
Such a number is known exactly from the float nearest to it. Noise that is rounded to the same grid then adds integers,
which no float rounds (`pyrobust.ops.sample_grid_noise`).
"""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Rational

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError
from pyrobust.ops.grid_table import grid_noise

#: The grids that `find_grid` tries, in this order: bytes divided by 255, the bundled digits, bytes divided by 256.
#: Bytes as they are (step 1) come first where a value is beyond 1.
CANDIDATES = (Fraction(1, 255), Fraction(1, 16), Fraction(1, 256))

# Integers that float32 holds, and neighbouring multiples that it tells apart.
_EXACT, _APART = 1 << 24, 1 << 23
# Numbers looked at in one go: temporaries stay small beside a data set.
_BLOCK = 1 << 22


def read_grid(value: Fraction | str | int | None) -> Fraction | str | None:
    """What ``grid=`` says: an exact step, "auto" or None.

    Args:
        value: a Fraction, an int, a string such as "1/255" or "0.0625", "auto" or None.

    Returns:
        The step, "auto" or None.

    Raises:
        InputError: not positive, no number, or of more than 24 bits.
        InputTypeError: a float, which is not the fraction that it looks like, or something else.

    >>> read_grid("1/255"), read_grid("auto"), read_grid(None)
    (Fraction(1, 255), 'auto', None)
    """
    if value is None:
        return None
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, (str, Rational)):
        raise InputTypeError(
            f'grid: expected a Fraction, a string such as "1/255", "auto" or None, got {value!r}'
            + ("; a float is not that fraction" if isinstance(value, float) else "")
        )
    try:
        # No exponents: of "1e999999999" Fraction would make a number of as many digits.
        plain = not isinstance(value, str) or (len(value) <= 40 and "e" not in value.lower())
        step = Fraction(value) if plain else Fraction(0)
    except (ValueError, ZeroDivisionError):
        step = Fraction(0)
    if not (step > 0 and step.numerator < _EXACT and step.denominator < _EXACT):
        raise InputError(
            f'grid: expected a positive fraction of integers below 2**24, such as "1/255", "auto" or None, '
            f"got {str(value)[:40]!r}"
        )
    return step


def find_grid(x: Tensor) -> Fraction | None:
    """The first of a few usual grids that every value of x lies on, by the rule of `to_grid`.

    Tried are 1 (only where some |value| is above 1), 1/255, 1/16 and 1/256. Values that several of them have, such as
    those of an all-black image, are taken for bytes: which grid a certificate is about is declared, not proved by x.

    Args:
        x: float32 or float64, any shape.

    Returns:
        The step, or None.

    Raises:
        InputTypeError: x has another dtype.

    >>> find_grid(torch.arange(256).float() / 255), find_grid(torch.rand(9))
    (Fraction(1, 255), None)
    """
    kinds, blocks = _kinds(x), _blocks(x)
    beyond = any(bool((block.abs() > 1).any()) for block in blocks)
    candidates: tuple[Fraction, ...] = ((Fraction(1),) if beyond else ()) + CANDIDATES
    for step in candidates:
        for kind in kinds:
            if all(bool(_multiples(block, step, kind)[1].all()) for block in blocks):
                return step
    return None


def usual_grid(x: Tensor) -> Fraction:
    """`find_grid`, where there has to be one.

    Args:
        x: float32 or float64, any shape.

    Returns:
        The step.

    Raises:
        InputError: x is on none of the usual grids.
        InputTypeError: x has another dtype.
    """
    step = find_grid(x)
    if step is None:
        raise InputError(
            f"grid: expected x on one of the usual grids, {', '.join(map(str, CANDIDATES))}, got values on none; "
            'give the step that x is on, or grid=None (--grid none) for guarantee="real"'
        )
    return step


def to_grid(x: Tensor, step: Fraction) -> Tensor:
    """The integers k whose multiples k·step the values of x are.

    A float is on the grid where it is the one nearest to k·step in x's dtype; of a float64 tensor, where that holds
    for all values in float64, or for all in float32. Bytes divided by 255 on the CPU are; on a GPU torch
    multiplies by the rounded 1/255 instead, and some bytes miss.

    Args:
        x: float32 or float64, any shape.
        step: of the grid, positive.

    Returns:
        k, int32, of x's shape and on its device.

    Raises:
        InputError: a value that is no such float; the message names the first.
        InputTypeError: x has another dtype.

    >>> to_grid(torch.tensor([0.0, 0.2, 1.0]), Fraction(1, 255))
    tensor([  0,  51, 255], dtype=torch.int32)
    """
    off: list[int] = []
    for kind in _kinds(x):
        k = torch.empty(x.numel(), dtype=torch.int32, device=x.device)
        begin = 0
        for block in _blocks(x):
            found, fits = _multiples(block, step, kind)
            if not bool(fits.all()):
                off.append(begin + int(fits.logical_not().nonzero()[0]))
                break
            k[begin : begin + len(block)] = found
            begin += len(block)
        else:
            return k.view(x.shape)
    raise InputError(_off_grid(x, max(off), step))


def sample_delta(sigma: float, step: Fraction, elements: int) -> float:
    """A bound on the total variation between the drawn noise of a sample and round(sigma·Z / step).

    Args:
        sigma: standard deviation of the noise.
        step: of the grid.
        elements: of one image.

    Returns:
        The bound, rounded up.

    Raises:
        InputError: sigma is more than 2**13 steps.

    >>> 0 < sample_delta(0.25, Fraction(1, 255), 3 * 32 * 32) < 1e-15
    True
    """
    return math.nextafter(elements * grid_noise(sigma, step).delta, math.inf)


def lower_by(p_lower: npt.ArrayLike, delta: float) -> npt.NDArray[np.float64]:
    """``max(0, p_lower - delta)``, rounded down: a bound under the exact distribution from one under the drawn.

    Args:
        p_lower: in [0, 1], any shape.
        delta: bound on the total variation between the two; 0 where they are one.

    Returns:
        float64 of p_lower's shape.

    >>> lower_by([0.0, 0.75], 0.25), lower_by([0.75], 0.0)
    (array([0. , 0.5]), array([0.75]))
    """
    p = np.asarray(p_lower, dtype=np.float64)
    return np.maximum(0.0, np.nextafter(p - delta, -np.inf)) if delta else p


def raise_by(p: npt.ArrayLike, delta: float) -> npt.NDArray[np.float64]:
    """``min(1, p + delta)``, rounded up: the same for an upper bound, or a p-value.

    Args:
        p: in [0, 1], any shape.
        delta: as of `lower_by`.

    Returns:
        float64 of p's shape.

    >>> raise_by([1.0], 0.25), raise_by([0.75], 0.0)
    (array([1.]), array([0.75]))
    """
    upper = np.asarray(p, dtype=np.float64)
    return np.minimum(1.0, np.nextafter(upper + delta, np.inf)) if delta else upper


def _kinds(x: Tensor) -> tuple[torch.dtype, ...]:
    """The formats that x may hold its multiples in."""
    if not isinstance(x, Tensor) or x.dtype not in (torch.float32, torch.float64):
        got = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
        raise InputTypeError(f"x: expected a float32 or float64 tensor, for values on a grid, got {got}")
    return (torch.float64, torch.float32) if x.dtype == torch.float64 else (torch.float32,)


def _blocks(x: Tensor) -> tuple[Tensor, ...]:
    return torch.split(x.detach().reshape(-1), _BLOCK)


def _multiples(x: Tensor, step: Fraction, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """The nearest k of each value, int32, and whether the value is the float of this kind nearest to k·step."""
    p, q = (torch.tensor(part, dtype=torch.float64, device=x.device) for part in step.as_integer_ratio())
    wide = x.double()
    k = (wide * q / p).round_()
    # NaN fails here, too. Below 2**23 a float32 is nearest to one multiple only.
    inside = (k.abs() < _APART) & ((k * p).abs() < _EXACT)
    k = torch.where(inside, k, 0.0)
    # One division of two integers that the dtype holds is rounded once. By a tensor: torch multiplies by the rounded
    # reciprocal of a plain number on a GPU.
    nearest = (k * p).to(kind) / q.to(kind)
    return k.to(torch.int32), inside & (nearest.double() == wide)


def _off_grid(x: Tensor, first: int, step: Fraction) -> str:
    value = float(x.detach().reshape(-1)[first])
    where = list(map(int, np.unravel_index(first, tuple(x.shape))))
    if abs(value) < _EXACT:
        multiple = round(Fraction(value) / step) * step
        nearest = f"the nearest is {multiple} = {float(multiple):.9g}"
    else:
        nearest = "which no grid holds"
    return (
        f"x: expected the floats nearest to multiples of {step}, got {value!r} at {where}; {nearest}; "
        'give the grid that x is on, or grid=None (--grid none) for guarantee="real"'
    )
