"""Grids of pixel values: read a grid's step, detect a grid, and convert images to integer multiples of its step.

Image files store pixels as evenly spaced numbers; for bytes scaled to [0, 1] these are the multiples of 1/255. Each of
these numbers can be recovered exactly from the float nearest to it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Rational
from typing import TYPE_CHECKING, Any

from pyrobust.checks import dense
from pyrobust.errors import InputError, InputTypeError
from pyrobust.late import numpy as np
from pyrobust.late import torch

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt
    from torch import Tensor

    _Values: TypeAlias = npt.NDArray[np.floating[Any]]

#: Steps that `find_grid` tries, in this order: bytes divided by 255, the bundled digits, bytes divided by 256. Step 1
#: (raw bytes) is tried first if a value is above 1.
CANDIDATES = (Fraction(1, 255), Fraction(1, 16), Fraction(1, 256))

_EXACT = 1 << 24  # float32 represents integers below it exactly


def read_grid(value: Fraction | str | int | None) -> Fraction | str | None:
    """Parse the argument ``grid``: a Fraction, an int, a string such as "1/255" or "0.0625", "auto" or None.

    >>> read_grid("1/255"), read_grid("auto"), read_grid(None)
    (Fraction(1, 255), 'auto', None)
    """
    if value is None:
        return None
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, (str, Rational)):
        hint = "a float does not represent the fraction exactly" if isinstance(value, float) else ""
        raise InputTypeError("grid", 'a Fraction, a string such as "1/255", "auto" or None', repr(value), hint)
    try:
        # Exponents are refused: Fraction("1e999999999") would have a billion digits.
        plain = not isinstance(value, str) or (len(value) <= 40 and "e" not in value.lower())
        step = Fraction(value) if plain else Fraction(0)
    except (ValueError, ZeroDivisionError):
        step = Fraction(0)
    if not (step > 0 and step.numerator < _EXACT and step.denominator < _EXACT):
        raise InputError(
            "grid",
            'a positive fraction of integers below 2**24, such as "1/255", "auto" or None',
            repr(str(value)[:40]),
        )
    return step


def is_on_grid(x: Tensor, step: Fraction) -> bool:
    """Whether ``to_grid`` converts x without raising an error.

    >>> is_on_grid(torch.tensor([0.2, 1.0]), Fraction(1, 255)), is_on_grid(torch.tensor([0.21]), Fraction(1, 255))
    (True, False)
    """
    return _holds(_values(x), step)


def simplest_fraction(value: float) -> Fraction:
    """Return the fraction of least denominator that rounds to the finite float; of several, that of least magnitude.

    If the float is also a float32 number, such as an element of a float32 tensor, the fraction only has to round to
    this number in float32.

    >>> simplest_fraction(8 / 255), simplest_fraction(0.1), simplest_fraction(float(np.float32(8 / 255)))
    (Fraction(8, 255), Fraction(1, 10), Fraction(8, 255))
    """
    exact = Fraction(abs(value))
    if exact == 0:
        return exact
    bits, smallest = (24, -149) if abs(value) < 2.0**128 and float(np.float32(value)) == value else (53, -1074)
    half_ulp = Fraction(2) ** (max(math.frexp(value)[1] - bits, smallest) - 1)
    # Below a power of two, floats are half as far apart.
    power = math.frexp(abs(value))[0] == 0.5 and half_ulp > Fraction(2) ** (smallest - 1)
    simplest = _simplest_between(exact - half_ulp / (2 if power else 1), exact + half_ulp)
    return -simplest if value < 0 else simplest


def find_grid(x: Tensor) -> Fraction | None:
    """Return the step of the first of a few usual grids on which every value of x lies, or None (see `to_grid`).

    The steps tried are 1 (only if some |value| is above 1), 1/255, 1/16 and 1/256, in this order. If all values lie on
    several of these grids, as in an all-black image, the first of these grids is returned.

    >>> find_grid(torch.arange(256).float() / 255), find_grid(torch.rand(9))
    (Fraction(1, 255), None)
    """
    values = _values(x)
    above_one = len(values) and (values.max() > 1 or values.min() < -1)
    candidates: tuple[Fraction, ...] = ((Fraction(1),) if above_one else ()) + CANDIDATES
    return next((step for step in candidates if _holds(values, step)), None)


def to_grid(x: Tensor, step: Fraction) -> Tensor:
    """Convert the values k·step of x to the integers k, int32, in x's shape and on its device.

    A value is on the grid if, for some integer k with |k| < 2^23 and |k·step.numerator| < 2^24, it is the number of x's
    dtype that is nearest to k·step. A float64 tensor x is also on the grid if each of its values is the float32 number
    nearest to k·step for some such k. Bytes divided by 255 on the CPU are on the grid. On a GPU, torch multiplies bytes
    by the rounded 1/255 instead of dividing them, and some results are not on the grid. A value off the grid raises
    InputError, a tensor of another dtype raises InputTypeError, and a step that is not a positive fraction of integers
    below 2^24 raises ValueError.

    >>> to_grid(torch.tensor([0.0, 0.2, 1.0]), Fraction(1, 255))
    tensor([  0,  51, 255], dtype=torch.int32)
    """
    values, misses = _values(x), list[int]()
    for dtype in _grid_dtypes(values):
        levels = np.empty(len(values), dtype=np.int32)
        miss = _first_off_grid(values, step, dtype, levels)
        if miss is None:
            return torch.from_numpy(levels.reshape(x.shape)).to(x.device)
        misses.append(miss)
    raise _off_grid(x, max(misses), step)


def _simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """Return the fraction of smallest denominator in the open interval (low, high), 0 ≤ low < high."""
    whole = math.floor(low)
    if whole + 1 < high:
        return Fraction(whole + 1)
    # Every number in the interval has the same integer part as its lower end: expand the reciprocal of the rest.
    low, high = low - whole, high - whole
    if low == 0:
        return whole + Fraction(1, math.floor(1 / high) + 1)
    return whole + 1 / _simplest_between(1 / high, 1 / low)


def _values(x: Tensor) -> _Values:
    """Return the values of x, float32 or float64, as a flat array."""
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.float32, torch.float64):
        got = str(x.dtype) if isinstance(x, torch.Tensor) else type(x).__name__
        raise InputTypeError("x", "a float32 or float64 tensor for values on a grid", got)
    values: _Values = dense("x", x).detach().cpu().resolve_neg().numpy().reshape(-1)
    return values


def _grid_dtypes(values: _Values) -> tuple[type[np.floating[Any]], ...]:
    """Return the dtypes to try when testing whether each value is the float nearest to a grid point."""
    return (np.float64, np.float32) if values.dtype == np.float64 else (np.float32,)


def _holds(values: _Values, step: Fraction) -> bool:
    return any(_first_off_grid(values, step, dtype) is None for dtype in _grid_dtypes(values))


def _first_off_grid(
    values: _Values, step: Fraction, dtype: type[np.floating[Any]], levels: npt.NDArray[np.int32] | None = None
) -> int | None:
    """Write each value's multiple of the step to ``levels``; return the position of the first value off the grid."""
    from pyrobust.ops.native import grid_levels

    first = grid_levels(values, *step.as_integer_ratio(), dtype is np.float32, levels)
    return None if first == len(values) else first


def _off_grid(x: Tensor, first: int, step: Fraction) -> InputError:
    value = float(x.detach().reshape(-1)[first])
    position = list(map(int, np.unravel_index(first, tuple(x.shape))))
    if abs(value) < _EXACT:
        multiple = round(Fraction(value) / step) * step
        nearest = f"the nearest multiple is {multiple} = {float(multiple):.9g}"
    else:
        nearest = "which is on no supported grid"
    got = f"{value!r} at {position}; {nearest}"
    hint = 'pass the step of the grid of x, or grid=None (--grid none) for guarantee="real"'
    return InputError("x", f"the floats nearest to multiples of {step}", got, hint)
