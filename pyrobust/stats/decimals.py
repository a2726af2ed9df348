"""Decimal arithmetic for proofs of bounds, and the constants of the searches for bounds that can be proved."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Final

MARGIN: Final = 2.0**-40
"""Relative distance by which each guess of a bound p or a normal quantile z is moved to the safe side before its proof.

The distance is relative to min(p, 1 - p) for a bound p, and to |z| for a quantile z. The value 2**-40, about 9e-13, is
above the usual error of the guess, so the first proof usually succeeds. It is also far too small to change a certified
radius visibly. The distance affects only how tight the returned bounds are; they are sound for any distance. A returned
bound is within 4 times this distance plus 8 units in the last place of the exact bound.
"""

MAX_NEWTON: Final = 100
"""Maximum number of guesses; after it, a bound is the best one proved, or else trivial, and a quantile is -inf."""

_STIRLING_FROM: Final = 256
# B(2j) / (2j (2j-1)), j = 1..7; the remainder is smaller than the next term, 3617 / (122400 x^15) < 3e-38 for x >= 256.
_STIRLING: Final = ((1, 12), (-1, 360), (1, 1260), (-1, 1680), (1, 1188), (-691, 360360), (1, 156))


def context(digits: int = 50) -> decimal.Context:
    """Return a decimal context independent of the caller's, in which ln and exp are correctly rounded."""
    return decimal.Context(
        prec=digits,
        rounding=decimal.ROUND_HALF_EVEN,
        Emin=decimal.MIN_EMIN,
        Emax=decimal.MAX_EMAX,
        clamp=0,
        traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
    )


@lru_cache(maxsize=1)
def pi() -> Decimal:
    """Return pi to 420 digits (Machin 1706: pi = 16 atan(1/5) - 4 atan(1/239))."""
    one = 10**440

    def arctan_inverse(x: int) -> int:
        total, power, j = 0, one // x, 1
        while power:
            total += power // j if j % 4 == 1 else -(power // j)
            power //= x * x
            j += 2
        return total

    with localcontext(context(420)):
        return Decimal(16 * arctan_inverse(5) - 4 * arctan_inverse(239)) / one


@lru_cache(maxsize=4096)
def log_factorial(x: int) -> Decimal:
    """Return the natural logarithm of x!, within 1e-37; call under context()."""
    if x < _STIRLING_FROM:
        return Decimal(math.factorial(x)).ln()
    d = Decimal(x)
    total = d * d.ln() - d + (2 * pi() * d).ln() / 2
    for j, (a, b) in enumerate(_STIRLING):
        total += Decimal(a) / (b * d ** (2 * j + 1))
    return total
