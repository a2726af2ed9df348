"""Saturated radii: what the largest radius of a log implies about its n and alpha.

If all n votes go to one class, the radius is ``R = sigma·Φ⁻¹(alpha^(1/n))``, the largest that the log can certify. Many
images of a confident classifier have exactly this radius; they form a pile. Conversely, ``alpha = Φ(R/sigma)^n``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.frames import plain_fields

#: Settings of the reference script and of most published certifications.
USUAL_N, USUAL_ALPHA = 100_000, 0.001
#: Relative rounding error of radii by other programs, which may compute in float32.
ROUNDING = 2.0**-23

_ROUND_N = [m * 10**e for e in range(1, 8) for m in (1, 2, 5)]
_ROUND_ALPHA = [m * 10.0**-e for e in range(1, 8) for m in (1, 2, 5)]
# A pile has _MIN_ROWS or more equal radii, twice as many as each of the _NEIGHBOURS values below, and few above it.
_MIN_ROWS, _NEIGHBOURS, _SHARE_ABOVE = 4, 5, 0.1


@dataclass(frozen=True)
class Saturation:
    """The pile of equal radii at the maximum of a log.

    Attributes:
        radius: the radius as printed.
        rows: number of rows with this radius.
        decimals: number of decimals it is printed with.

    >>> pile = Saturation(0.953, 1036, 3)
    >>> low, alpha, high = pile.implied_alpha(100_000, 0.25)
    >>> f"{low:.2g} {alpha:.2g} {high:.2g}", pile.agrees(0.952864)
    ('0.00096 0.001 0.0011', True)
    """

    radius: float
    rows: int
    decimals: int

    def agrees(self, maximum: float, up: bool = False) -> bool:
        """Whether the printed radius can be ``maximum`` rounded down or to nearest or, with ``up``, also rounded up."""
        low, high = self.interval
        return low - up * (self.radius - low) <= maximum <= high

    def implied_alpha(self, n: int, sigma: float) -> tuple[float, float, float]:
        """Return the alphas that give this radius at n: the smallest, the one for the printed value, and the largest.

        Alpha is ``Φ(R/sigma)^n``, which rises with R. The radius R before rounding lies in [printed - u/2, printed +
        u], where u is a unit of the last digit.
        """
        low, high = self.interval
        least, printed, largest = (math.exp(n * _log_phi(radius / sigma)) for radius in (low, self.radius, high))
        return least, printed, largest

    def implied_n(self, alpha: float, sigma: float) -> tuple[float, float, float]:
        """Return the sample sizes that give this radius at alpha: the smallest, the printed value's, and the largest.

        Each n is ``ln alpha / ln Φ(R/sigma)``.
        """
        low, high = self.interval
        least, printed, largest = (
            min(1e300, math.log(alpha) / min(-1e-300, _log_phi(radius / sigma))) for radius in (low, self.radius, high)
        )
        return least, printed, largest

    def describe(self, n: int, alpha: float, sigma: float) -> str:
        """Describe the alpha or the n that the radius implies, naming round values that fit.

        >>> Saturation(0.953, 1036, 3).describe(100_000, 0.001, 0.25)[:64]
        'saturated radii, 0.953 in 1,036 rows, imply alpha 0.00102 at n 1'
        """
        least, printed, largest = self.implied_alpha(n, sigma)
        implied = [f"alpha {_format_alpha(printed)} at n {n:,}"]
        fitting_alphas = [value for value in _ROUND_ALPHA if least <= value <= largest]
        implied[0] += f" (alpha {fitting_alphas[0]:g} fits)" if fitting_alphas else ""
        least, printed, largest = self.implied_n(alpha, sigma)
        fitting_n = [value for value in _ROUND_N if least <= value <= largest]
        if printed < 1e12:
            fit = f" (n {fitting_n[0]:,} fits)" if fitting_n else ""
            implied.append(f"n {round(printed):,} at alpha {alpha:g}{fit}")
        return f"saturated radii, {self.radius:g} in {self.rows:,} rows, imply {', or '.join(implied)}"

    @property
    def interval(self) -> tuple[float, float]:
        """Smallest and largest radius that the printed one stands for."""
        unit = 10.0**-self.decimals
        rounding = self.radius * ROUNDING
        return self.radius - unit / 2 - rounding, self.radius + unit + rounding

    to_dict = plain_fields


def find_saturation(
    radius: npt.NDArray[np.float64], decimals: npt.NDArray[np.int64], count: npt.NDArray[np.int64]
) -> Saturation | None:
    """Find the pile of equal radii at the upper end, from ascending distinct radii [D], their decimals and row counts.

    Two radii are candidates: first the one with the most rows among the largest radii, then the one with the most rows
    of all. A candidate qualifies if it has at least four rows, if few rows have larger radii, and if it has clearly
    more rows than each radius just below it. The pile is the first candidate that qualifies; the result is None if
    neither does.

    >>> find_saturation(np.array([0.3, 0.5, 0.8]), np.full(3, 1), np.array([1, 1, 4]))
    Saturation(radius=0.8, rows=4, decimals=1)
    """
    if not len(radius):
        return None
    first = max(0, len(radius) - 1 - _NEIGHBOURS)
    for pile in (first + int(count[first:].argmax()), int(count.argmax())):
        rows, below, above = int(count[pile]), count[max(0, pile - _NEIGHBOURS) : pile], int(count[pile + 1 :].sum())
        if rows >= _MIN_ROWS and rows >= 2 * below.max(initial=0) and above <= _SHARE_ABOVE * rows:
            return Saturation(float(radius[pile]), rows, int(decimals[pile]))
    return None


def _log_phi(z: float) -> float:
    return float(special.log_ndtr(z))


def _format_alpha(alpha: float) -> str:
    return f"{alpha:.3g}" if alpha > 1e-300 else "below 1e-300"
