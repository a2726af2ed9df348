"""Formulas that give radii from votes: the usual one (Cohen et al., 2019), and those that some scripts use instead.

Let a radius R come from k of n votes. A formula consists of two functions. The first gives the tail 1 - p from R, where
p is the probability that R is computed from. The second gives k from p. A printed radius stands for an interval of
radii, and so for an interval of votes. This is why votes are real numbers here. The formula explains the radius if the
interval of votes contains an integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.metrics.votes import continuous_votes, worth_a_table

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
# (q [C, E], n [C, 1], alpha [C, 1]) -> votes k [C, E] whose bound on the probability is 1 - q
_Votes: TypeAlias = Callable[[_Floats, _Floats, _Floats], _Floats]

# Width, in votes, from which the interval of a printed radius explains it however votes are rounded; and variance of
# the votes from which an expansion is accurate to a tenth of a vote.
_DENSE, _SMOOTH = 4.0, 50.0


@dataclass(frozen=True)
class Formula:
    """A formula from votes to radii.

    Attributes:
        name: what differs from the usual certificate, in words; "" if nothing does.
        votes: function that returns numbers of votes [C, E], given tails q [C, E], n [C, 1] and alpha [C, 1], for C
            candidates with E tails each. With these votes, the bound on the probability is 1 - q.
        largest: function of (n, alpha) that returns the tail q of the largest finite radius. No finite radius has a
            smaller tail.
        tail: function that returns the tail q for each radius at sigma 1, elementwise. The probability 1 - q gives this
            radius.
        radius: inverse of ``tail``.
        factor: function of sigma that returns the factor by which radii at sigma 1 are multiplied.
        up: whether radii are rounded up.
    """

    name: str
    votes: _Votes
    largest: Callable[[int, float], float]
    tail: Callable[[_Floats], _Floats]
    radius: Callable[[float], float]
    factor: Callable[[float], float] = float
    up: bool = False

    @property
    def only_scales(self) -> bool:
        """Whether radii differ from the usual ones only by a factor."""
        return (self.votes, self.tail, self.up) == (USUAL.votes, USUAL.tail, USUAL.up)


def _gaussian_tail(radius: _Floats) -> _Floats:
    return np.asarray(special.ndtr(-radius), dtype=np.float64)


def _gaussian_radius(tail: float) -> float:
    return max(0.0, -float(special.ndtri(tail)))


def _binomial(tail: _Floats, n: _Floats, z: _Floats, exact: Callable[[_Floats, _Ints], _Floats]) -> _Floats:
    """Return quantiles of Binomial(n, 1 - tail) at level Φ(z), by the expansion of Cornish and Fisher (1938).

    Adjacent columns hold the tails at the two ends of a radius's interval. Where the votes of the two ends are close
    together, or the variance is small, ``exact`` computes both instead. It takes tails [N] and, for each tail, the row
    [N] of its candidate.
    """
    variance = n * tail * (1 - tail)
    votes = n * (1 - tail) + z * np.sqrt(variance) + (2 * tail - 1) * (z**2 - 1) / 6 + np.copysign(0.5, z)
    width = np.abs(votes[:, 1::2] - votes[:, ::2])
    close = (width < _DENSE) | (np.minimum(variance[:, ::2], variance[:, 1::2]) < _SMOOTH)
    short = np.repeat(close, 2, axis=1)
    votes[short] = exact(tail[short], np.nonzero(short)[0])
    return np.asarray(votes, dtype=np.float64)


def _clopper_pearson(tail: _Floats, n: _Floats, alpha: _Floats) -> _Floats:
    def exact(short: _Floats, row: _Ints) -> _Floats:
        votes, quantile, rest = np.empty_like(short), -special.ndtri(short), np.ones(len(short), dtype=bool)
        for one, asked in enumerate(np.bincount(row, minlength=len(n)).tolist()):
            if worth_a_table(int(n[one, 0]), asked):
                mine = row == one
                votes[mine] = continuous_votes(quantile[mine], int(n[one, 0]), float(alpha[one, 0]))
                rest[mine] = False
        votes[rest] = continuous_votes(quantile[rest], n[row[rest], 0], alpha[row[rest], 0])
        return votes

    return _binomial(tail, n, -special.ndtri(alpha), exact)


def _upper(tail: _Floats, n: _Floats, alpha: _Floats) -> _Floats:
    return _binomial(tail, n, special.ndtri(alpha), lambda q, row: special.bdtrik(alpha[row, 0], n[row, 0], 1 - q))


def _jeffreys(tail: _Floats, n: _Floats, alpha: _Floats) -> _Floats:
    votes = _binomial(
        tail, n, -special.ndtri(alpha), lambda q, row: n[row, 0] - special.bdtrik(alpha[row, 0], n[row, 0], q)
    )
    votes -= 0.5
    # Tails below Clopper and Pearson's for n votes map to votes above n - 1/2, linearly up to n.
    first, last = -np.expm1(np.log(alpha) / n), special.betainccinv(0.5, n + 0.5, alpha)
    return np.where(tail <= first, n - 0.5 * (tail - last) / (first - last), votes)


def _hoeffding(tail: _Floats, n: _Floats, alpha: _Floats) -> _Floats:
    return np.asarray(n * (1 - tail + np.sqrt(-np.log(alpha) / (2 * n))), dtype=np.float64)


def _normal(tail: _Floats, n: _Floats, alpha: _Floats) -> _Floats:
    square = special.ndtri(alpha) ** 2
    spread = np.sqrt(square * tail * (1 - tail) / n + (square / (2 * n)) ** 2)
    return np.asarray(n * (1 - tail + square / (2 * n) + spread) / (1 + square / n), dtype=np.float64)


def _wilson(tail: _Floats, n: _Floats, alpha: _Floats) -> _Floats:
    return np.asarray(n * (1 - tail) - special.ndtri(alpha) * np.sqrt(n * tail * (1 - tail)), dtype=np.float64)


def _share(tail: _Floats, n: _Floats, alpha: _Floats) -> _Floats:
    return n * (1 - tail)


def _laplace(width: float) -> tuple[Callable[[_Floats], _Floats], Callable[[float], float]]:
    return lambda radius: 0.5 * np.exp(-radius / width), lambda tail: -width * math.log(2 * tail)


def _uniform(width: float) -> tuple[Callable[[_Floats], _Floats], Callable[[float], float]]:
    return lambda radius: np.maximum(0.5 - radius / (2 * width), 0.0), lambda tail: 2 * width * (0.5 - tail)


def _unanimous(n: int, alpha: float) -> float:
    return -math.expm1(math.log(alpha) / n)


def _formula(
    name: str,
    votes: _Votes = _clopper_pearson,
    largest: Callable[[int, float], float] = _unanimous,
    *,
    noise: tuple[Callable[[_Floats], _Floats], Callable[[float], float]] = (_gaussian_tail, _gaussian_radius),
    factor: Callable[[float], float] = float,
    up: bool = False,
) -> Formula:
    tail, radius = noise
    return Formula(name, votes, largest, tail=tail, radius=radius, factor=factor, up=up)


def _hoeffding_tail(n: int, alpha: float) -> float:
    return min(0.5, math.sqrt(-math.log(alpha) / (2 * n)))


def _wilson_tail(n: int, alpha: float) -> float:
    square = float(special.ndtri(alpha)) ** 2
    return square / (n + square)


def _jeffreys_tail(n: int, alpha: float) -> float:
    return float(special.betainccinv(0.5, n + 0.5, alpha))


def _upper_tail(n: int, alpha: float) -> float:
    return max(1e-300, -math.expm1(math.log1p(-alpha) / n))


def _one_vote(n: int, alpha: float) -> float:
    return 1 / n


def _normal_tail(n: int, alpha: float) -> float:
    return min(0.5, (1 - float(special.ndtri(alpha)) * math.sqrt(1 - 1 / n)) / n)


#: The usual certificate: ``sigma·Φ⁻¹(CP(k, n, alpha))``.
USUAL = _formula("")
#: Other formulas found in logs, common ones first; with some, the largest finite radius needs only n - 1 votes.
OTHER_FORMULAS = (
    _formula("radii not multiplied by sigma", factor=lambda sigma: 1.0),
    _formula("radii multiplied by sigma twice", factor=lambda sigma: sigma**2),
    _formula("radii multiplied by 255", factor=lambda sigma: 255 * sigma),
    _formula("radii multiplied by 2", factor=lambda sigma: 2 * sigma),
    _formula("radii divided by 2", factor=lambda sigma: sigma / 2),
    _formula("l-infinity radii of 3 x 32 x 32 pixels, divided by √3072", factor=lambda sigma: sigma / math.sqrt(3072)),
    _formula("l-infinity radii of 3 x 224 x 224 pixels, divided by √150528", factor=lambda sigma: sigma / 150528**0.5),
    _formula("l-infinity radii of 28 x 28 pixels, divided by √784", factor=lambda sigma: sigma / 28),
    _formula("radii rounded up", up=True),
    _formula("upper bound in place of the lower bound", _upper, _upper_tail),
    _formula("share of votes in place of the lower bound", _share, _one_vote),
    _formula("Hoeffding's bound", _hoeffding, _hoeffding_tail),
    _formula("normal approximation in place of the lower bound", _normal, _normal_tail),
    _formula("Wilson's bound", _wilson, _wilson_tail),
    _formula("Jeffreys' bound", _jeffreys, _jeffreys_tail),
    _formula("radii of Laplace noise of this standard deviation", noise=_laplace(math.sqrt(0.5))),
    _formula("radii of Laplace noise with b = sigma", noise=_laplace(1.0)),
    _formula("radii of uniform noise of this standard deviation", noise=_uniform(math.sqrt(3))),
    _formula("radii of uniform noise of half-width sigma", noise=_uniform(1.0)),
)


@dataclass(frozen=True)
class Parameters:
    """Parameters of a certification by smoothing, and the formula that turns its votes into radii.

    Attributes:
        n: number of samples.
        alpha: probability that a certificate is wrong.
        sigma: standard deviation of the noise.
        formula: formula of the radii.
    """

    n: int
    alpha: float
    sigma: float
    formula: Formula = USUAL

    def __str__(self) -> str:
        text = f"n {self.n:,}, alpha {self.alpha:g} and sigma {self.sigma:g}"
        return f"{text}, {self.formula.name}" if self.formula.name else text

    @property
    def scale(self) -> float:
        """Factor by which radii at sigma 1 are multiplied."""
        return self.formula.factor(self.sigma)

    @property
    def maximum(self) -> float:
        """Largest finite radius."""
        return self.scale * _unit_maximum(self.n, self.alpha, self.formula)

    def differing(self, other: Parameters) -> list[str]:
        """Return which of "n", "alpha" and "sigma" have a different value in ``other``."""
        return [name for name in ("n", "alpha", "sigma") if getattr(self, name) != getattr(other, name)]


def votes_between(candidates: Sequence[Parameters], low: _Floats, high: _Floats) -> tuple[_Floats, _Floats]:
    """Return the votes [C, N], as real numbers, at the radii ``low`` and ``high``, both [N] and in [0, ∞).

    The C candidates must share one formula.
    """
    formula = candidates[0].formula
    n, alpha, scale = np.array([(float(c.n), c.alpha, c.scale) for c in candidates]).T[:, :, None]
    tail = np.clip(formula.tail(np.stack([low, high], axis=1).ravel() / scale), 1e-300, 0.5)
    votes = formula.votes(tail, n, alpha)
    return votes[:, ::2], votes[:, 1::2]


@lru_cache(maxsize=16384)
def _unit_maximum(n: int, alpha: float, formula: Formula) -> float:
    return formula.radius(formula.largest(n, alpha))
