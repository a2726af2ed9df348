"""Printed radii of a log, as distinct values that each stand for an interval."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.saturation import ROUNDING, Saturation, find_saturation

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

# Logarithm of a probability: if all radii are low-precision floats, and this would be less probable by chance, they are
# taken as stored in that format.
_LOG_CHANCE = -24.0
# Bits of the significand of IEEE half precision, and of bfloat16, by name.
_SIGNIFICANDS = {"float16": 11, "bfloat16": 8}


class PrintedRadii:
    """Positive, finite printed radii [N] with their decimals [N], reduced to distinct values with row counts.

    Attributes:
        value: [D], distinct radii, ascending.
        decimals: [D], number of decimals of each radius.
        count: [D], number of rows with each radius.
        inverse: [N], position of each row's radius in ``value``.
        rows: N, the number of rows.

    >>> radii = PrintedRadii(np.array([0.978, 0.978, 0.377]), np.full(3, 3))
    >>> radii.value.tolist(), radii.count.tolist()
    ([0.377, 0.978], [1, 2])
    """

    def __init__(self, radius: _Floats, decimals: _Ints) -> None:
        self.rows = len(radius)
        pairs, self.inverse, self.count = np.unique(radius + 1j * decimals, return_inverse=True, return_counts=True)
        self.value, self.decimals = pairs.real, pairs.imag.astype(np.int64)

    @cached_property
    def precision(self) -> str:
        """Name of the floating-point format below 32 bits to which all radii are rounded; "" if there is none."""
        for name, bits in _SIGNIFICANDS.items():
            rounded, step = _round_to(self.value, bits)
            if (np.abs(rounded - self.value) > 0.5000001 * 10.0**-self.decimals).any():
                continue
            if np.log(np.minimum(1.0, 10.0**-self.decimals / step)).sum() < _LOG_CHANCE:
                return name
        return ""

    @cached_property
    def unit(self) -> _Floats:
        """Distance [D] between neighbouring printed radii."""
        unit = 10.0**-self.decimals
        if self.precision:
            unit = np.maximum(unit, _round_to(self.value, _SIGNIFICANDS[self.precision])[1])
        return np.asarray(unit, dtype=np.float64)

    @cached_property
    def interval(self) -> tuple[_Floats, _Floats]:
        """Smallest and largest radius [D] that each printed radius stands for, if it was rounded down or to nearest.

        With unit u, a radius ρ stands for [ρ - u/2, ρ + u].
        """
        rounding = self.value * ROUNDING
        return np.maximum(self.value - self.unit / 2 - rounding, 0.0), self.value + self.unit + rounding

    @cached_property
    def interval_up(self) -> tuple[_Floats, _Floats]:
        """Smallest and largest radius [D] that each printed radius stands for, if it was rounded up: [ρ - u, ρ]."""
        rounding = self.value * ROUNDING
        return np.maximum(self.value - self.unit - rounding, 0.0), self.value + rounding

    def saturation(self) -> Saturation | None:
        """Return the pile of equal radii at the upper end, or None, see ``find_saturation``."""
        return find_saturation(self.value, self.decimals, self.count)

    def largest(self, size: int) -> PrintedRadii:
        """Return the ``size`` largest distinct radii."""
        return self.chosen(np.arange(max(0, len(self.value) - size), len(self.value)))

    def furthest_apart(self, size: int, sigma: float) -> PrintedRadii:
        """Return the ``size`` radii near which attainable radii are furthest apart, in units of the last printed digit.

        Near a radius r, the radii that some number of votes gives are about sigma/(n φ(r/sigma)) apart. So with a fixed
        number of decimals, the largest radii are chosen first. With a fixed number of significant digits, small radii
        may be chosen first, because their last digit is a smaller unit.
        """
        apart = (self.value / sigma) ** 2 / 2 - np.log(self.unit)
        return self.chosen(np.sort(np.argsort(apart, kind="stable")[max(0, len(apart) - size) :]))

    def every(self, step: int) -> PrintedRadii:
        """Return every ``step``-th distinct radius, always including the largest."""
        return self.chosen(np.arange(len(self.value) - 1, -1, -step)[::-1])

    def chosen(self, chosen: _Ints | npt.NDArray[np.bool_]) -> PrintedRadii:
        """Return some of the distinct radii, selected by position or mask [D]; ``inverse`` has an entry for each."""
        subset = PrintedRadii(self.value[chosen], self.decimals[chosen])
        subset.count, subset.rows = self.count[chosen], int(self.count[chosen].sum())
        subset.precision = self.precision
        return subset


def _round_to(value: _Floats, bits: int) -> tuple[_Floats, _Floats]:
    """Round to a significand of this many bits; return the nearest floats and the spacing of floats there."""
    step = 2.0 ** (np.floor(np.log2(value)) + 1 - bits)
    return np.round(value / step) * step, step
