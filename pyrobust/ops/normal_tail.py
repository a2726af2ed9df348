"""Upper tails of the normal distribution in fixed point, computed with integers and exact to the last bit."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

from pyrobust.errors import InputError

# Extra bits of working precision: the alternating series below loses 1.44 z²/2 bits.
_SPARE = 96
# Q(z) < phi(z)/z (Gordon, 1941), which is below 2^-107 from z = 12 on.
_FAR = 12
_FAR_BITS = 107


def upper_tail(z: Fraction, bits: int) -> int:
    """Return ⌊2^bits · Q(z)⌋, where Q(z) is the probability that a standard normal exceeds z.

    Q(z) = ½ − (2π)^-½ · Σ_j (−1)^j z^(2j+1) / (2^j j! (2j+1)) (Abramowitz and Stegun 1964, 26.2.10). Every term is
    scaled by a power of two, 2^precision, and enclosed between two integers. The first omitted term bounds the
    remainder of the alternating sum. This encloses Q(z), too; the precision grows until both ends of its enclosure give
    the same ⌊2^bits · Q(z)⌋.

    Args:
        z: non-negative, exact.
        bits: at most 107.

    Returns:
        The integer, exactly.

    Raises:
        InputError: too many bits.

    >>> [upper_tail(Fraction(z), 16) for z in (0, 1, 2)]
    [32768, 10397, 1490]
    """
    if bits > _FAR_BITS:
        raise InputError("upper_tail: bits", f"at most {_FAR_BITS}", bits)
    if z >= _FAR:
        return 0
    if z == 0:
        return 1 << bits >> 1
    precision = bits + _SPARE
    while True:
        low, high = _enclose(z, precision)
        if low >> (precision - bits) == high >> (precision - bits):
            return low >> (precision - bits)
        precision += 64


def _enclose(z: Fraction, precision: int) -> tuple[int, int]:
    """Return integers on both sides of 2^precision · Q(z)."""
    term_low, term_high = _scaled(z, precision)
    half_low, half_high = _scaled(z * z / 2, precision)
    total_low = total_high = 0
    j = 0
    while True:
        odd = 2 * j + 1
        if j % 2 == 0:
            total_low += term_low // odd
            total_high -= -term_high // odd
        else:
            total_low += -term_high // odd
            total_high -= term_low // odd
        j += 1
        term_low = (term_low * half_low >> precision) // j
        term_high = (-(-term_high * half_high >> precision)) // j + 1
        if term_high <= 2 and j << precision > half_high:  # terms shrink and alternate from here on
            break
    total_low, total_high = total_low - term_high, total_high + term_high
    density_low, density_high = _density_at_zero(precision)
    half = 1 << (precision - 1)
    return half + (-total_high * density_high >> precision), half - (total_low * density_low >> precision)


def _scaled(value: Fraction, precision: int) -> tuple[int, int]:
    """Return floor and ceiling of 2^precision · value."""
    floor, remainder = divmod(value.numerator << precision, value.denominator)
    return floor, floor + (remainder > 0)


@functools.cache
def _density_at_zero(precision: int) -> tuple[int, int]:
    """Return integers on both sides of 2^precision / √(2π)."""
    # Machin (1706): pi = 16 atan(1/5) - 4 atan(1/239); fewer than 64 + precision roundings, each off by less than one.
    guard = precision + 32
    pi = 16 * _arctan(5, guard) - 4 * _arctan(239, guard)
    error = 20 * (64 + guard)
    cube = 1 << (2 * precision + guard)
    return math.isqrt(cube // (2 * (pi + error))), math.isqrt(cube // (2 * (pi - error))) + 1


def _arctan(n: int, precision: int) -> int:
    """Return 2^precision · atan(1/n); each term of the series adds an error of less than one."""
    power = (1 << precision) // n
    total, j = 0, 0
    while power:
        total += (power if j % 2 == 0 else -power) // (2 * j + 1)
        power //= n * n
        j += 1
    return total
