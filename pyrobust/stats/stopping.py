"""When another sample of an image is worth less than it costs: optimal stopping by dynamic programming, backwards.

A certificate is worth 1, a sample its price. With p unknown but for Jeffreys' prior, an undecided count is worth what
the counts at the next look are worth on average, less the samples until then; it is given up where that is not positive
(Bellman, 1957; for a coin against a known one Chernoff and Ray, 1965). Nothing here is rounded outward: giving up
certifies nothing. On other processors a count may come out one off, so rarely that no one will see it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.stats.arguments import CountArray, FloatArray

# Probabilities on each side of the target, half a standard deviation of the last frequency apart next to it.
_SIDE: Final = 30
# Counts this many standard deviations, and some, below the target are worth nothing.
_WIDE: Final = 6.0
_MORE: Final = 20
# Most counts of a look; where there are more, the step between them is longer.
_NODES: Final = 256
# Posterior weights below it do not count.
_NEGLIGIBLE: Final = 1e-10


def _prior(target: float, n_max: int) -> tuple[FloatArray, FloatArray]:
    """Probabilities of a failure, and Jeffreys' prior of them: uniform in the angle arcsin(sqrt(p))."""
    angle, half = np.arcsin(np.sqrt(target)), 0.25 / np.sqrt(n_max)
    # The distances grow geometrically, from half a standard deviation to 90 degrees.
    low, high = 1e-6, 60.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        near = 0.5 * np.pi * np.sinh(middle / _SIDE) / np.sinh(middle)
        low, high = (middle, high) if near > half else (low, middle)
    away = 0.5 * np.pi * np.sinh(low * np.arange(-_SIDE, _SIDE + 1) / _SIDE) / np.sinh(low)
    angles = (angle + away)[(angle + away > 0.0) & (angle + away < 0.5 * np.pi)]
    edges = np.concatenate([[0.0], 0.5 * (angles[1:] + angles[:-1]), [0.5 * np.pi]])
    return np.cos(angles) ** 2, np.diff(edges)


def _posterior(prior: FloatArray, q: FloatArray, failures: FloatArray, n: int) -> FloatArray:
    """[failures, q]: weights of the probabilities after so many failures of n."""
    log = np.log(prior) + failures[:, None] * np.log(q) + (n - failures[:, None]) * np.log1p(-q)
    weight = np.exp(log - log.max(axis=1, keepdims=True))
    found: FloatArray = weight / weight.sum(axis=1, keepdims=True)
    return found


def _cumulative(at: FloatArray, trials: int, q: FloatArray) -> FloatArray:
    """[q, at]: P(failures of so many trials <= at); normal where many counts are taken together."""
    mean, deviation = trials * q[:, None], np.sqrt(trials * q * (1.0 - q))[:, None]
    many = deviation[:, 0] > 10.0
    found = special.ndtr((at + 0.5 - mean) / deviation)
    few = np.flatnonzero(~many)
    if len(few):
        inside = np.clip(at, 0, trials)
        exact = special.bdtr(inside, trials, q[few, None])
        found[few] = np.where(at < 0, 0.0, np.where(at >= trials, 1.0, exact))
    return np.asarray(found)


def least_worth(looks: npt.ArrayLike, certified: npt.ArrayLike, target: float, price: float) -> CountArray:
    """The greatest counts that are given up.

    Args:
        looks: increasing sample sizes.
        certified: per look the least count that certifies.
        target: the least frequency that certifies at the last look, in (0, 1].
        price: of a sample, in certificates.

    Returns:
        Per look, int64; -1 where no count is, and never all successes.
    """
    n, least = np.asarray(looks, dtype=np.int64), np.asarray(certified, dtype=np.int64)
    n_max = int(n[-1])
    q_all, prior = _prior(min(target, 1.0 - 0.5 / n_max), n_max)
    miss = 1.0 - target
    # Failures: fewer than `first` certify, `end` and more are worth nothing.
    first = n - least + 1
    end = np.minimum(n + 1, (n * miss + _WIDE * np.sqrt(n * miss * target) + _MORE).astype(np.int64))
    given_up = least - 1
    nodes, values = np.array([float(first[-1])]), np.zeros(1)  # of the look after, where neither is decided
    for j in range(len(n) - 2, -1, -1):
        trials, start = int(n[j + 1] - n[j]), int(first[j])
        if end[j] <= start:
            nodes, values = np.array([float(first[j])]), np.zeros(1)
            continue
        step = -(-int(end[j] - start) // _NODES)
        failures = start + step * np.arange(-(-int(end[j] - start) // step), dtype=np.float64)
        weights = _posterior(prior, q_all, failures, int(n[j]))
        some = weights.max(axis=0) > _NEGLIGIBLE
        q, weights = q_all[some], weights[:, some]
        # The counts after, in cells of this step, the first one next to what certifies.
        cells = first[j + 1] + step * np.arange(max(1, -(-int(nodes[-1] + 1 - first[j + 1]) // step)), dtype=np.float64)
        worth = np.interp(cells + 0.5 * (step - 1), nodes, values, right=0.0)
        # P(failures until then <= edge): for each count now, the edges of the cells are a part of these.
        edges = cells[0] - 1.0 - failures[-1] + step * np.arange(len(cells) + len(failures))
        up_to = _cumulative(edges, trials, q)
        size = 1 << (len(edges) + len(cells)).bit_length()
        spectrum = np.fft.rfft(np.diff(up_to, axis=1), size) * np.conj(np.fft.rfft(worth, size))
        last = np.arange(len(failures))[::-1]
        expected = np.fft.irfft(spectrum, size)[:, last] + up_to[:, last]
        value = (weights * expected.T).sum(axis=1) - price * trials
        positive = int(np.argmax(np.append(value <= 0.0, True)))
        # The count where the value falls to 0: between two of the lattice where they stand far apart.
        where = failures[0] if positive == 0 else failures[positive - 1] + step
        if 0 < positive < len(value) and step > 1:
            above, below = value[positive - 1], value[positive]
            where = float(np.ceil(failures[positive - 1] + step * above / (above - below)))
        given_up[j] = n[j] - int(where)
        nodes, values = np.append(failures[:positive], where), np.append(value[:positive], 0.0)
    # Images gather at p = 1 more than the prior knows: no failure, no giving up.
    return np.asarray(np.clip(given_up, -1, np.minimum(least, n) - 1))
