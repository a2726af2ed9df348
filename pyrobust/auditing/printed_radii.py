"""Judge printed radii: can n, alpha and sigma give them, and if not, which can?

A radius printed with decimals stands for a range of votes, which may be empty: near the maximum, attainable radii lie
further apart than printed digits. Nor can radii pile up below the maximum. The votes k of an image are binomial, so
that the expected number f(k) of images with k votes satisfies, whatever the images' probabilities,

    f(k)² ≤ f(k - d)·f(k + d)·C(n, k)² / (C(n, k - d)·C(n, k + d))

(Cauchy and Schwarz: equality holds for each image alone). Only k = n has no neighbour above, and can be a pile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.auditing.saturation import ROUNDING, Saturation, find_saturation
from pyrobust.metrics.votes import is_attainable, maximum_radius, votes_for_radius

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Mask = npt.NDArray[np.bool_]

# Distinct radii that are judged; of more, a sample.
_MAX_JUDGED = 5000
#: Usual numbers of samples and standard deviations.
ROUND_N = (*(m * 10**e for e in range(1, 6) for m in (1, 2, 5)), 10**6)
ROUND_ALPHA = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5, 1e-5, 1e-6, 1e-7)
USUAL_SIGMA = (0.06, 0.1, 0.12, 0.125, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 2.0)
# Probability that a row of a log is spoiled, as a likelihood; and the natural logarithm of the likelihood ratio at
# which other parameters are believed: with about 300 candidates, false by chance in one of 10⁷ logs.
_LOG_SPOILED, _BELIEVED = float(np.log(1e-3)), 24.0
# Logarithm of the likelihood ratio against a binomial mixture at which equal radii are a pile, and their least number.
_PILE, _MIN_PILE = 22.0, 8
# Rows of a pile that other parameters must have as their maximum.
_SURE_PILE = 10
# Neighbours of a printed radius, in units of its last digit.
_STEPS = (*range(-8, 0), *range(1, 9))
# Radii that screen candidates without a table of all attainable radii, and the share that may not fit.
_SCREENED, _MISFITS = 30, 0.2


@dataclass(frozen=True)
class Parameters:
    """Parameters of a certification by smoothing with Gaussian noise."""

    n: int
    alpha: float
    sigma: float

    def __str__(self) -> str:
        return f"n {self.n:,}, alpha {self.alpha:g} and sigma {self.sigma:g}"

    @property
    def maximum(self) -> float:
        """Largest radius."""
        return maximum_radius(self.n, self.alpha, self.sigma)

    def differing(self, other: Parameters) -> list[str]:
        """Return the names of the parameters that differ from another log's."""
        return [name for name in ("n", "alpha", "sigma") if getattr(self, name) != getattr(other, name)]


@dataclass(frozen=True)
class Pile:
    """Equal radii, more than votes can give below the maximum.

    Attributes:
        radius: the radius as printed.
        rows: number of rows with it.
        beside: rows with as many different counts of votes on its two sides.
        decimals: number of decimals it is printed with.
        evidence: natural logarithm of the likelihood ratio against a mixture of binomials.
    """

    radius: float
    rows: int
    beside: int
    decimals: int
    evidence: float


@dataclass(frozen=True)
class Judgement:
    """Judgement of assumed parameters by printed radii.

    Attributes:
        assumed: the parameters that were assumed.
        better: parameters that give the radii, where the assumed ones do not and these are far more likely.
        piles: radii that pile up below the maximum of ``better``, or else of ``assumed``.
        saturation: the pile at the maximum of ``assumed``, if any.
    """

    assumed: Parameters
    better: Parameters | None
    piles: tuple[Pile, ...]
    saturation: Saturation | None

    @property
    def parameters(self) -> Parameters:
        """The most likely parameters."""
        return self.better or self.assumed


class PrintedRadii:
    """Positive, finite printed radii [N] with their decimals [N], as distinct values with numbers of rows.

    >>> radii = PrintedRadii(np.array([0.978, 0.978, 0.377]), np.full(3, 3))
    >>> radii.beyond(Parameters(100_000, 0.001, 0.25)).tolist()
    [False, True]
    """

    def __init__(self, radius: _Floats, decimals: _Ints) -> None:
        self.rows = len(radius)
        pairs, self.inverse, self.count = np.unique(radius + 1j * decimals, return_inverse=True, return_counts=True)
        self.value, self.decimals = pairs.real, pairs.imag.astype(np.int64)

    def beyond(self, parameters: Parameters) -> _Mask:
        """Whether each distinct radius exceeds the maximum by more than half a unit of its last digit."""
        beyond: _Mask = self.value > parameters.maximum * (1 + ROUNDING) + 0.5 * 10.0**-self.decimals
        return beyond

    def attainable(self, parameters: Parameters) -> _Mask:
        """Whether some number of votes gives each distinct radius."""
        n, alpha, sigma = parameters.n, parameters.alpha, parameters.sigma
        if not self.rows:
            return np.zeros(0, dtype=bool)
        return is_attainable(self.value, n, alpha, sigma, decimals=self.decimals) & ~self.beyond(parameters)

    def piles(self, parameters: Parameters) -> list[Pile]:
        """Radii with more rows than any binomial votes give; for none that no votes give, and not for the maximum.

        A radius stands for the counts from least to most, of width d. The numbers of rows at most d counts below and
        above bound its own.
        """
        n, alpha, sigma = parameters.n, parameters.alpha, parameters.sigma
        if not self.rows:
            return []
        _, least, most = votes_for_radius(self.value, n, alpha, sigma, decimals=self.decimals)
        width = most - least + 1
        first = int(votes_for_radius(np.full(1, 1e-300), n, alpha, sigma, decimals=17)[2][0])  # fewer are not certified
        tried = (self.count >= _MIN_PILE) & (most + width <= n) & (least - width > first) & self.attainable(parameters)
        if not tried.any():
            return []
        # A range of votes overlaps another one unless one of them ends before the other begins.
        by_least, by_most = np.argsort(least), np.argsort(most)
        least_rows = np.append(0, self.count[by_least].cumsum())
        most_rows = np.append(0, self.count[by_most].cumsum())
        sorted_least, sorted_most = least[by_least], most[by_most]

        def rows_in(low: _Ints, high: _Ints) -> _Floats:
            """Rows whose votes may lie in each range."""
            below = most_rows[np.searchsorted(sorted_most, low)]
            above = self.rows - least_rows[np.searchsorted(sorted_least, high, side="right")]
            return np.asarray(self.rows - below - above, dtype=np.float64)

        least, most, width, rows = least[tried], most[tried], width[tried], self.count[tried].astype(np.float64)
        below, above = rows_in(least - width, least - 1), rows_in(most + 1, most + width)
        evidence = _evidence(below, rows, above, np.maximum(_log_ratio(least, width, n), _log_ratio(most, width, n)))
        found = np.flatnonzero(evidence > _PILE)
        values, decimals, beside = self.value[tried], self.decimals[tried], below + above
        return [
            Pile(float(values[i]), int(rows[i]), int(beside[i]), int(decimals[i]), float(evidence[i])) for i in found
        ]

    def saturation(self) -> Saturation | None:
        """Return the pile of equal radii at the upper end, if one is clear."""
        return find_saturation(self.value, self.decimals, self.count)

    def judge(self, assumed: Parameters) -> Judgement:
        """Judge whether the assumed parameters give the radii, and else whether any usual ones do."""
        if not self.rows:
            return Judgement(assumed, None, (), None)
        piles, attainable = self.piles(assumed), self.attainable(assumed)
        pile = self.saturation()
        saturation = pile if pile is not None and pile.agrees(assumed.n, assumed.alpha, assumed.sigma) else None
        sample, better = self._sample(), None
        assumed_likelihood = sample.likelihood(assumed, piles)
        spoiled = float(self.count[~attainable].sum())
        # What other parameters can gain by giving all radii; fewer radii are spoiled, whatever these are.
        contradicted = sum(pile.evidence for pile in piles) - _LOG_SPOILED * spoiled > _BELIEVED
        level = _BELIEVED + assumed_likelihood
        for candidates in self._candidates(assumed, pile) if contradicted else [_smaller(assumed)]:
            for candidate in filter(sample.screen, candidates):
                likelihood = sample.likelihood(candidate, self.piles(candidate))
                if likelihood > level:
                    better, level = candidate, likelihood
            if better is not None:
                break
        return Judgement(assumed, better, tuple(piles if better is None else self.piles(better)), saturation)

    def likelihood(self, parameters: Parameters, piles: list[Pile]) -> float:
        """Logarithm of the likelihood of the radii, relative to random digits.

        Where few of the neighbouring printed radii are attainable, one that is says much.
        """
        attainable = self.attainable(parameters)
        spoiled = _LOG_SPOILED * float(self.count[~attainable].sum()) - sum(pile.evidence for pile in piles)
        if not attainable.any():
            return spoiled
        value, decimals = self.value[attainable], self.decimals[attainable]
        unit = 10.0**-decimals
        neighbours = np.stack([value + step * unit for step in _STEPS])
        n, alpha, sigma = parameters.n, parameters.alpha, parameters.sigma
        near = is_attainable(
            np.abs(neighbours).ravel(), n, alpha, sigma, decimals=np.broadcast_to(decimals, neighbours.shape).ravel()
        )
        share = (1 + near.reshape(neighbours.shape).sum(axis=0)) / (1 + len(_STEPS))
        return spoiled - float(np.log(share).sum())

    def screen(self, parameters: Parameters) -> bool:
        """Test the pile at the maximum, and the largest radii, where attainable ones lie furthest apart.

        This needs no table of all attainable radii: R(k) ≥ x means P(Bin(n, Φ(x/sigma)) ≥ k) ≤ alpha, so that the
        smallest such k is a quantile.
        """
        pile = self.saturation()
        sure = pile is not None and pile.rows >= _SURE_PILE
        if pile is not None and sure and not pile.agrees(parameters.n, parameters.alpha, parameters.sigma):
            return False
        radius, unit = self.value[-_SCREENED:], 10.0 ** -self.decimals[-_SCREENED:]
        ends = np.stack([radius - unit / 2 - radius * ROUNDING, radius + unit + radius * ROUNDING])
        above = ends[0] > parameters.maximum
        first, beyond = np.ceil(
            special.bdtrik(1 - parameters.alpha, parameters.n, special.ndtr(ends / parameters.sigma))
        )
        # Rounding can move a quantile by one, and p = 1 gives NaN; the table decides those.
        empty = (beyond < first) | ((beyond == first) & (first < parameters.n - 1))
        return float((above | empty).mean()) <= _MISFITS

    def _sample(self) -> PrintedRadii:
        """Return at most _MAX_JUDGED of the distinct radii, the largest among them."""
        if len(self.value) <= _MAX_JUDGED:
            return self
        chosen = np.unique(np.linspace(len(self.value) - 1, 0, _MAX_JUDGED).astype(np.int64))
        sample = PrintedRadii(self.value[chosen], self.decimals[chosen])
        sample.count, sample.rows = self.count[chosen], int(self.count[chosen].sum())
        return sample

    def _candidates(self, assumed: Parameters, pile: Saturation | None) -> Iterator[list[Parameters]]:
        """Yield lists of other usual parameters, the likeliest first."""
        n, alpha, sigma = assumed.n, assumed.alpha, assumed.sigma
        alphas, sigmas = [*ROUND_ALPHA], [*USUAL_SIGMA]
        if pile is not None and pile.radius > 0:
            implied = pile.implied_alpha(n, sigma)[1]
            alphas += [implied_alpha for implied_alpha in [float(f"{implied:.1g}")] if 1e-30 < implied_alpha < 0.5]
            unit = maximum_radius(n, alpha, 1.0)
            sigmas += [float(f"{pile.radius / unit:.{digits}g}") for digits in (2, 3) if unit > 0]
        yield [
            *(Parameters(n, other, sigma) for other in dict.fromkeys(alphas) if other != alpha),
            *(Parameters(other, alpha, sigma) for other in ROUND_N if other != n),
            *(Parameters(n, alpha, other) for other in dict.fromkeys(sigmas) if 0 < other != sigma),
        ]
        yield [Parameters(m, a, sigma) for m in ROUND_N[:-1] if m != n for a in ROUND_ALPHA if a != alpha]


def _smaller(assumed: Parameters) -> list[Parameters]:
    """Return parameters with smaller usual n, which give so few radii that a log with no other is no chance."""
    return [replace(assumed, n=n) for n in ROUND_N if n < assumed.n]


def _log_ratio(k: _Ints, d: _Ints, n: int) -> _Floats:
    """ln(C(n, k)² / (C(n, k - d)·C(n, k + d)))."""

    def log_binomial(j: _Ints) -> _Floats:
        return np.asarray(-special.betaln(n - j + 1.0, j + 1.0), dtype=np.float64)

    return 2 * log_binomial(k) - log_binomial(k - d) - log_binomial(k + d)


def _evidence(below: _Floats, rows: _Floats, above: _Floats, log_ratio: _Floats) -> _Floats:
    """Logarithm of the likelihood ratio of Poisson counts against the largest with rows² ≤ ratio·below·above.

    The best such means are below + t, rows - 2t and above + t.
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
