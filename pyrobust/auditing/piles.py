"""Piles: more equal radii than binomial votes can give.

The votes k of each image are binomial. So the expected number f(k) of images with k votes satisfies, for every d and
whatever the probabilities of the images are,

    f(k)² ≤ f(k - d)·f(k + d)·C(n, k)² / (C(n, k - d)·C(n, k + d))

by the Cauchy-Schwarz inequality; equality holds for a single image. So the numbers of images with k - d and k + d votes
limit f(k). Only k = n has no neighbour above and no such limit, so only k = n can be a pile. But if different images
get the same noise, their votes depend on each other and can pile up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

# Logarithm of the likelihood ratio to a binomial mixture from which equal radii are a pile, and their least number.
_PILE, _MIN_PILE = 22.0, 8


@dataclass(frozen=True)
class Pile:
    """A radius that is below the maximum, and that occurs in more rows than binomial votes can explain.

    Attributes:
        radius: the radius as printed.
        rows: number of rows with this radius.
        beside: number of rows just below and just above the pile; each side covers as many vote counts as the pile.
        decimals: number of decimals of the printed radius.
        evidence: natural logarithm of the factor by which the numbers of rows are likelier without constraints than
            under the likeliest mixture of binomials.
    """

    radius: float
    rows: int
    beside: int
    decimals: int
    evidence: float


def find_piles(
    radius: _Floats, decimals: _Ints, count: _Ints, votes: tuple[_Ints, _Ints], limits: tuple[int, int], n: int
) -> list[Pile]:
    """Find the distinct radii [D] that occur in more rows than binomial votes can explain.

    A radius stands for d adjacent vote counts. Its neighbours are the d vote counts below these and the d vote counts
    above these. The numbers of rows in the two neighbours bound the number of rows with this radius. A radius is never
    a pile if no vote count gives it, or if one of its neighbours lies outside the limits.

    Args:
        radius: distinct radii [D], in ascending order.
        decimals: number of decimals [D] of each radius.
        count: number of rows [D] with each radius.
        votes: (least, most), the smallest and largest vote counts [D] that each radius stands for; a radius with most <
            least stands for no vote count.
        limits: the smallest vote count that is certified, and the vote count of the maximum radius.
        n: number of samples.
    """
    least, most = votes
    width = most - least + 1
    tried = (width > 0) & (count >= _MIN_PILE) & (most + width <= limits[1]) & (least - width > limits[0])
    if not tried.any():
        return []
    # Two ranges of votes overlap unless one of them ends before the other begins.
    by_least, by_most = np.argsort(least), np.argsort(most)
    least_rows = np.append(0, count[by_least].cumsum())
    most_rows = np.append(0, count[by_most].cumsum())
    sorted_least, sorted_most = least[by_least], most[by_most]
    rows = int(count.sum())

    def rows_in(low: _Ints, high: _Ints) -> _Floats:
        """Count the rows whose votes may lie in each range."""
        below = most_rows[np.searchsorted(sorted_most, low)]
        above = rows - least_rows[np.searchsorted(sorted_least, high, side="right")]
        return np.asarray(rows - below - above, dtype=np.float64)

    least, most, width, equal = least[tried], most[tried], width[tried], count[tried].astype(np.float64)
    below, above = rows_in(least - width, least - 1), rows_in(most + 1, most + width)
    ratio = np.maximum(_log_ratio(least, width, n), _log_ratio(most, width, n))
    evidence = pile_evidence(below, equal, above, ratio)
    peaks = np.flatnonzero(evidence > _PILE)
    values, beside, decimals = radius[tried], below + above, decimals[tried]
    return [Pile(float(values[i]), int(equal[i]), int(beside[i]), int(decimals[i]), float(evidence[i])) for i in peaks]


def _log_ratio(k: _Ints, d: _Ints, n: int) -> _Floats:
    """Compute ln(C(n, k)² / (C(n, k - d)·C(n, k + d)))."""

    def log_binomial(j: _Ints) -> _Floats:
        return np.asarray(-special.betaln(n - j + 1.0, j + 1.0), dtype=np.float64)

    return 2 * log_binomial(k) - log_binomial(k - d) - log_binomial(k + d)


def pile_evidence(below: _Floats, rows: _Floats, above: _Floats, log_ratio: _Floats) -> _Floats:
    """Return how much likelier Poisson counts are with free means than with means such that rows² ≤ ratio·below·above.

    The result is the logarithm of the likelihood ratio. The counts are ``below``, ``rows`` and ``above``. Under the
    condition, the likeliest means of the three counts are below + t, rows - 2t and above + t, for some t ≥ 0.
    """
    ratio = np.exp(np.minimum(log_ratio, 300.0))
    # (rows - 2t)² = ratio·(below + t)·(above + t)
    a, b, c = 4 - ratio, 4 * rows + ratio * (below + above), rows**2 - ratio * below * above
    root = np.sqrt(np.maximum(b**2 - 4 * a * c, 0.0))
    t = np.where(c > 0, 2 * c / (b + root), 0.0)
    evidence = np.zeros(len(rows))
    for x, mean in ((below, below + t), (rows, rows - 2 * t), (above, above + t)):
        evidence += special.xlogy(x, x / np.maximum(mean, 1e-300))
    return np.where(c > 0, evidence, 0.0)
