"""Tables for Gaussian noise on a grid: they turn random words into integer multiples of the grid's step."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import positive, summary
from pyrobust.errors import InputError, InputTypeError

from .normal_tail import upper_tail

#: Random bits that one integer is drawn from: the word of the element and, if that does not decide, two more.
BITS = 96
# Number of standard deviations beyond which noise is a tail: 2 Q(7) = 2.6e-12, or one sample in 2.5 million for an
# image of 150,528 elements.
_REACH = 7
_MAX_RATIO = 1 << 13
_MAX_TERM = 1 << 24
_MANTISSA = 23


@dataclass(frozen=True, eq=False)
class GridNoise:
    """Table for drawing noise h·J, where J = round(sigma·Z / h) is an integer and Z is standard normal.

    To draw J, make a number V of 95 uniform random bits. The magnitude |J| is the number of thresholds above V, and one
    more random bit gives the sign of J. Threshold k is ⌊2^96 · Q((k + ½)h / sigma)⌋, where Q is the upper tail of the
    standard normal distribution. An integer beyond ``reach`` is a tail. Its magnitude is not drawn, so a sample with a
    tail must not be counted in favour of the claim to be proved.

    Attributes:
        sigma: standard deviation of the noise before rounding. The thresholds are computed from the exact value of this
            float64.
        step: h, the spacing of the grid.
        reach: the largest |J| that can be drawn. Any larger |J| is a tail and is replaced by ± (reach + 1).
        delta: bound on the total variation distance between the distribution of a drawn J and the exact distribution,
            when each of the two tails is taken as a single value. For a sample of d elements, the distance is at most
            d·delta.
        thresholds: ⌊2^96 · Q((k + ½)h / sigma)⌋ for k = 0 … reach, non-increasing.
        words: the thresholds as int32 [reach + 1, 3]: the 31 leading bits, then two words of 32 bits.
        guide: int32 [32 · 2^m], a look-up table of the kernels, with 2^m cells for each power of two
            (csrc/smoothing/grid_noise.h).

    >>> noise = grid_noise(0.25, Fraction(1, 255))
    >>> noise.reach, noise.delta < 1e-25
    (446, True)
    """

    sigma: float
    step: Fraction
    reach: int
    delta: float
    thresholds: tuple[int, ...]
    words: Tensor
    guide: Tensor

    def __repr__(self) -> str:
        return summary(self, sigma=self.sigma, step=str(self.step), reach=self.reach, delta=self.delta)


def grid_noise(sigma: float, step: Fraction) -> GridNoise:
    """Return the table of Gaussian noise of standard deviation sigma on the grid of multiples of step.

    Args:
        sigma: positive. The table is computed from the exact value of this binary64 number.
        step: spacing of the grid: positive, at least sigma / 2**13, numerator and denominator below 2**24.

    Returns:
        The table, cached.

    Raises:
        InputError: a value out of range.
        InputTypeError: sigma is not a number, or step is not a Fraction.

    >>> noise = grid_noise(0.5, Fraction(1, 16))
    >>> [round(threshold / 2**96, 4) for threshold in noise.thresholds[:3]]
    [0.4751, 0.4256, 0.3773]
    """
    make = _kept if type(sigma) is float and type(step) is Fraction else _checked
    return make(sigma, step, _REACH)


def _checked(sigma: float, step: Fraction, deviations: int) -> GridNoise:
    if not isinstance(step, Fraction):
        raise InputTypeError("grid_noise: step", "a Fraction such as Fraction(1, 255)", repr(step))
    if not 0 < step.numerator < _MAX_TERM > step.denominator:
        raise InputError("grid_noise: step", "a positive Fraction with numerator and denominator below 2**24", step)
    sigma = positive("grid_noise: sigma", sigma)
    if Fraction(sigma) > _MAX_RATIO * step:
        raise InputError(
            "grid_noise: sigma", "at most 2**13 steps", f"{sigma} with a step of {step}", "take a coarser grid"
        )
    return _build(sigma, step, deviations)


_kept = functools.lru_cache(maxsize=64)(_checked)


def check_held(argument: str, noise: GridNoise, real: torch.dtype, where: str = "") -> None:
    """Refuse grid noise if ``real`` might round the product of a noise integer J and the step's numerator."""
    exact = 1 << (53 if real == torch.float64 else 24)
    limit = exact // (noise.reach + 1)
    if noise.step.numerator > limit:
        what = str(real).removeprefix("torch.")
        raise InputError(
            argument,
            where=where,
            problem=f"expected a numerator of at most {limit}, so that {what} holds the noise's integers, up to "
            f"{noise.reach + 1}, times it; got {noise.step}",
            hint="take a step with a smaller numerator, or a smaller sigma",
        )


@functools.lru_cache(maxsize=64)
def _build(sigma: float, step: Fraction, deviations: int) -> GridNoise:
    """Build the table; its tails begin at about ``deviations`` standard deviations."""
    unit = step / Fraction(sigma)
    reach = max(0, math.ceil(deviations / unit - Fraction(1, 2)))
    thresholds = tuple(upper_tail((k + Fraction(1, 2)) * unit, BITS) for k in range(reach + 1))
    # There are two thresholds per k, one on either side of zero, each below its exact value by less than 2^-96; moving
    # a threshold by e moves mass e from one integer to the next.
    delta = math.ldexp(2 * (reach + 1), -BITS)
    leading = np.array([threshold >> 64 for threshold in thresholds], dtype=np.int64)
    halves = np.array([[threshold >> 32 & 0xFFFFFFFF, threshold & 0xFFFFFFFF] for threshold in thresholds])
    words = np.concatenate([leading[:, None], halves], axis=1).astype(np.uint32)
    guide = _guide(leading)
    return GridNoise(sigma, step, reach, delta, thresholds=thresholds, words=_as_tensor(words), guide=_as_tensor(guide))


def _as_tensor(words: npt.NDArray[np.uint32]) -> Tensor:
    return torch.from_numpy(words.view(np.int32))


def _positions(v: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the position of each 31-bit word on the guide's scale, which is nearly logarithmic."""
    return (v | 1).astype(np.float32).view(np.int32).astype(np.int64) - 0x3F800000


def _guide(leading: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return the guide: for each cell, the number of thresholds above it and the position of a threshold inside it.

    The guide's scale is the bit pattern of a float, which divides [1, 2^31] into cells of about equal relative width.
    The thresholds have nearly equal relative spacing, too, since the tail probability falls by about the same factor
    from each threshold to the next. So a small number of cells is enough to give each position with thresholds a cell
    of its own. Thresholds at the same position share a cell; a draw at their position is compared with the thresholds
    themselves.
    """
    places, counts = np.unique(_positions(leading), return_counts=True)
    for bits in range(_MANTISSA + 1):
        low = _MANTISSA - bits
        cells = places >> low
        alone = np.ones(len(places), dtype=bool)
        alone[1:] &= cells[1:] != cells[:-1]
        # Below 2^bits every word has its own cell. In any other cell, positions get counts that differ by one.
        several = (counts > 1) & (places >> _MANTISSA >= bits)
        if alone.all() and not several.any() and len(leading) + 1 < 1 << (32 - low):
            break
    above = len(leading) - np.searchsorted(np.sort(_positions(leading)), np.arange((32 << bits) + 1) << low)
    # Thresholds at or above the end of a cell are above every word in it.
    entries = above[1:] << low
    entries[cells] |= places & ((1 << low) - 1)
    return entries.astype(np.uint32)
