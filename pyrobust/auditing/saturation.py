"""The radius at which all votes agree: what a log says about its own n and alpha.

With all n votes for one class the radius is ``R = sigma·Φ⁻¹(alpha^(1/n))``. No certificate of the log is larger, and
where a classifier is confident many images have just this one: they pile up. Turned round, ``alpha = Φ(R/sigma)^n``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.metrics.votes import maximum_radius

#: What the reference script, and nearly everybody after it, certifies with.
USUAL_N, USUAL_ALPHA = 100_000, 0.001
#: Relative: sigma in float32 or not, and the sums of other programs.
SLACK = 2.0**-23

_ROUND_N = [m * 10**e for e in range(1, 8) for m in (1, 2, 5)]
_ROUND_ALPHA = [m * 10.0**-e for e in range(1, 8) for m in (1, 2, 5)]
# A pile: that many equal radii, twice as many as at each of the next values below, and hardly any above.
_LEAST_ROWS, _NEIGHBOURS, _ABOVE = 4, 5, 0.1


@dataclass(frozen=True)
class Saturation:
    """Where the largest radii of a log pile up.

    Args:
        radius: as printed.
        rows: that have it.
        decimals: it is printed with.

    >>> pile = Saturation(0.953, 1036, 3)
    >>> low, alpha, high = pile.implied_alpha(100_000, 0.25)
    >>> f"{low:.2g} {alpha:.2g} {high:.2g}", pile.agrees(100_000, 0.001, 0.25)
    ('0.00096 0.001 0.0011', True)
    """

    radius: float
    rows: int
    decimals: int

    def agrees(self, n: int, alpha: float, sigma: float) -> bool:
        """Whether it is what is printed, rounded down or to nearest, of the largest radius of these."""
        low, high = self._ends
        return low <= maximum_radius(n, alpha, sigma) <= high

    def implied_alpha(self, n: int, sigma: float) -> tuple[float, float, float]:
        """The alphas that give this radius at n: the least, that of the radius as printed, the largest.

        ``Φ(R/sigma)^n`` rises with R, which lies within [printed - u/2, printed + u] for the unit u of the last digit.
        """
        low, high = self._ends
        least, printed, largest = (math.exp(n * _log_phi(radius / sigma)) for radius in (low, self.radius, high))
        return least, printed, largest

    def implied_n(self, alpha: float, sigma: float) -> tuple[float, float, float]:
        """The n that give this radius at alpha, ``ln alpha / ln Φ(R/sigma)``: least, as printed, largest."""
        low, high = self._ends
        least, printed, largest = (
            min(1e300, math.log(alpha) / min(-1e-300, _log_phi(radius / sigma))) for radius in (low, self.radius, high)
        )
        return least, printed, largest

    def describe(self, n: int, alpha: float, sigma: float) -> str:
        """Which alpha, or which n, the radius implies, in words; round ones that fit are named.

        >>> Saturation(0.953, 1036, 3).describe(100_000, 0.001, 0.25)[:64]
        'saturated radii, 0.953 in 1,036 rows, imply alpha 0.00102 at n 1'
        """
        least, printed, largest = self.implied_alpha(n, sigma)
        words = [f"alpha {_number(printed)} at n {n:,}"]
        fit = [value for value in _ROUND_ALPHA if least <= value <= largest]
        words[0] += f" (alpha {fit[0]:g} fits)" if fit else ""
        least, printed, largest = self.implied_n(alpha, sigma)
        whole = [value for value in _ROUND_N if least <= value <= largest]
        if printed < 1e12:
            words.append(f"n {round(printed):,} at alpha {alpha:g}" + (f" (n {whole[0]:,} fits)" if whole else ""))
        return f"saturated radii, {self.radius:g} in {self.rows:,} rows, imply {', or '.join(words)}"

    @property
    def _ends(self) -> tuple[float, float]:
        unit = 10.0**-self.decimals
        slack = self.radius * SLACK
        return self.radius - unit / 2 - slack, self.radius + unit + slack

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {"radius": self.radius, "rows": self.rows, "decimals": self.decimals}


def find_saturation(radius: npt.NDArray[np.float64], decimals: npt.NDArray[np.int64]) -> Saturation | None:
    """The pile of equal radii at the upper end of a log, if there is one.

    Args:
        radius: [N], those that are no number or not positive are passed over.
        decimals: [N], of the printed radii.

    Returns:
        The pile; None where none is saturated, or too few to tell.

    >>> find_saturation(np.array([0.3, 0.5, 0.8, 0.8, 0.8, 0.8]), np.full(6, 1))
    Saturation(radius=0.8, rows=4, decimals=1)
    """
    certified = np.isfinite(radius) & (radius > 0)
    values, where, counts = np.unique(radius[certified], return_index=True, return_counts=True)
    if not len(values):
        return None
    first = max(0, len(values) - 1 - _NEIGHBOURS)
    pile = first + int(counts[first:].argmax())
    rows, below, above = int(counts[pile]), counts[max(0, pile - _NEIGHBOURS) : pile], int(counts[pile + 1 :].sum())
    if rows < _LEAST_ROWS or rows < 2 * below.max(initial=0) or above > _ABOVE * rows:
        return None
    return Saturation(float(values[pile]), rows, int(decimals[certified][where[pile]]))


def _log_phi(z: float) -> float:
    return float(special.log_ndtr(z))


def _number(alpha: float) -> str:
    return f"{alpha:.3g}" if alpha > 1e-300 else "below 1e-300"
