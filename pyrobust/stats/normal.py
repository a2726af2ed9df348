"""Normal quantiles, rounded down.

SciPy's ``ndtri`` only supplies a first guess, as SciPy's functions do for the binomial bounds. The returned quantile z
is proved: its normal probability Phi(z) is bounded in decimal arithmetic, with as many digits as needed, and must be at
most p. If no guess passes this proof, -inf is returned.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import overload

import numpy.typing as npt
from scipy import special

from pyrobust.errors import InputError
from pyrobust.stats.arguments import FloatArray, as_real, map_scalars
from pyrobust.stats.decimals import MARGIN, MAX_NEWTON, context, pi


@lru_cache(maxsize=1 << 16)
def _quantile(p: float) -> float:
    if not p > 0.0:
        return -math.inf
    z = float(special.ndtri(p))
    for _ in range(MAX_NEWTON):
        z = min(9.0, max(-39.0, z))  # contains the quantile of every double p; NaN becomes -39
        width = MARGIN * abs(z)
        z = math.nextafter(z - width, -math.inf) if p != 0.5 else 0.0
        # In the tails, the first z^2 / (2 ln 10) digits of Phi(z) - 1/2 and p - 1/2 agree.
        digits = 50 + int(z * z / 4.6)
        with localcontext(context(digits)):
            d = Decimal(z)
            square = d * d
            # Phi(z) - 1/2 = phi(z) (z + z^3/3 + z^5/(3 5) + ...), with all terms of one sign. A few thousand roundings
            # cost far less than 1e10 units in the last digit. The sum ends at a term below that digit, after which each
            # term is at most half the one before.
            total, term, j = d, d, 1
            while abs(term) > abs(total).scaleb(-digits) or 2 * square > j:
                j += 2
                term = term * square / j
                total += term
            density = (-square / 2).exp() / (2 * pi()).sqrt()
            excess = density * total
            gap = excess + abs(excess).scaleb(10 - digits) - (Decimal(p) - Decimal("0.5"))
            change = -float(gap / density)
        if gap <= 0 and change <= 3.0 * width + 3.0 * math.ulp(z):
            return z
        z += change
    return -math.inf


@overload
def normal_quantile_lower(p: float) -> float: ...
@overload
def normal_quantile_lower(p: npt.ArrayLike) -> float | FloatArray: ...
def normal_quantile_lower(p: npt.ArrayLike) -> float | FloatArray:
    """Quantile of the standard normal distribution, rounded down.

    Args:
        p: probabilities below 1, any shape. NaN and p <= 0 give -inf, so that nothing is certified from them.

    Returns:
        Float64 array of the same shape, or a float for a scalar. The result is never above the exact quantile z. It is
        smaller than z by at most ``4 * MARGIN * |z|`` (`pyrobust.stats.MARGIN`) plus 8 units in the last place; for p =
        1/2, it is exactly 0.0.

    Raises:
        InputError: a probability is 1 or larger, so that its quantile would be infinite.
        InputTypeError: p is not a real number.

    >>> f"{normal_quantile_lower(0.975):.6f}"
    '1.959964'
    >>> normal_quantile_lower(0.0)
    -inf
    """
    array = as_real("p", p)
    if (array >= 1.0).any():
        raise InputError("p", "probabilities below 1", array.max(), "pass a lower confidence bound")
    return map_scalars(_quantile, array)
