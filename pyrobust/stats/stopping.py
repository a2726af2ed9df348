"""Stopping for futility: giving up an image when the chance of a certificate is not worth the cost of more samples.

This is optimal stopping by backward dynamic programming (Bellman, 1957). Chernoff and Ray (1965) treat a problem of
this kind, the choice between a coin of known and a coin of unknown probability. A certificate is worth 1, a sample
costs ``price``, and the success probability p has Jeffreys' prior. A look is a sample size at which the image is judged
by its count of successes. The value of an undecided count is the expected value at the next look minus the price of the
samples until then. If this difference is not positive, the image is given up. Nothing here is rounded outward, because
a wrong decision to give up only loses certificates. In very rare cases, a resulting count may differ by one between
processors.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.stats.arguments import CountArray, FloatArray

# Number of grid points for p on each side of the target; the nearest are half a standard deviation of the last
# frequency away.
_SIDE_POINTS: Final = 30
# Counts more than _DEVIATIONS standard deviations plus _EXTRA_FAILURES below the target have no value.
_DEVIATIONS: Final = 6.0
_EXTRA_FAILURES: Final = 20
# Largest number of counts evaluated at a look; with more counts, only every step-th is evaluated.
_MAX_NODES: Final = 256
# Posterior weights up to this are ignored.
_NEGLIGIBLE: Final = 1e-10


def _prior(target: float, n_max: int) -> tuple[FloatArray, FloatArray]:
    """Return a grid of failure probabilities q and its weights by Jeffreys' prior (uniform in arcsin(sqrt(q)))."""
    angle, half = np.arcsin(np.sqrt(target)), 0.25 / np.sqrt(n_max)
    # Offsets from the target's angle grow geometrically, from half a standard deviation to 90 degrees.
    low, high = 1e-6, 60.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        nearest = 0.5 * np.pi * np.sinh(middle / _SIDE_POINTS) / np.sinh(middle)
        low, high = (middle, high) if nearest > half else (low, middle)
    steps = np.arange(-_SIDE_POINTS, _SIDE_POINTS + 1)
    offsets = 0.5 * np.pi * np.sinh(low * steps / _SIDE_POINTS) / np.sinh(low)
    angles = (angle + offsets)[(angle + offsets > 0.0) & (angle + offsets < 0.5 * np.pi)]
    edges = np.concatenate([[0.0], 0.5 * (angles[1:] + angles[:-1]), [0.5 * np.pi]])
    return np.cos(angles) ** 2, np.diff(edges)


def _posterior(prior: FloatArray, q: FloatArray, failures: FloatArray, n: int) -> FloatArray:
    """Return posterior weights [failures, q] of the grid points q after these numbers of failures in n samples."""
    log = np.log(prior) + failures[:, None] * np.log(q) + (n - failures[:, None]) * np.log1p(-q)
    weight = np.exp(log - log.max(axis=1, keepdims=True))
    posterior: FloatArray = weight / weight.sum(axis=1, keepdims=True)
    return posterior


def _failure_cdf(count: FloatArray, trials: int, q: FloatArray) -> FloatArray:
    """Return P(Bin(trials, q) <= count), [q, count]; it is approximate where the standard deviation is above 10."""
    mean, deviation = trials * q[:, None], np.sqrt(trials * q * (1.0 - q))[:, None]
    cdf = special.ndtr((count + 0.5 - mean) / deviation)
    narrow = np.flatnonzero(deviation[:, 0] <= 10.0)
    if len(narrow):
        exact = special.bdtr(np.clip(count, 0, trials), trials, q[narrow, None])
        cdf[narrow] = np.where(count < 0, 0.0, np.where(count >= trials, 1.0, exact))
    return np.asarray(cdf)


def futility_counts(looks: npt.ArrayLike, certified: npt.ArrayLike, target: float, price: float) -> CountArray:
    """Return, for each look, the largest count at which the image is given up, int64; -1 if there is no such count.

    Each count is below the look's smallest certifying count and below its sample size. ``certified`` holds the smallest
    certifying count of each look. ``target`` is the smallest frequency that certifies at the last look, in (0, 1].
    ``price`` is the price of one sample, in units of the value of a certificate.
    """
    n, certifying = np.asarray(looks, dtype=np.int64), np.asarray(certified, dtype=np.int64)
    n_max = int(n[-1])
    q_all, prior = _prior(min(target, 1.0 - 0.5 / n_max), n_max)
    miss = 1.0 - target
    # In numbers of failures: fewer than `first` certify; `end` and more have no value.
    first = n - certifying + 1
    spread = _DEVIATIONS * np.sqrt(n * miss * target)
    stop = np.minimum(n + 1, (n * miss + spread + _EXTRA_FAILURES).astype(np.int64))
    given_up = certifying - 1
    # Undecided counts of the next look, as numbers of failures, and their values.
    nodes, values = np.array([float(first[-1])]), np.zeros(1)
    for j in range(len(n) - 2, -1, -1):
        trials, start = int(n[j + 1] - n[j]), int(first[j])
        if stop[j] <= start:
            nodes, values = np.array([float(first[j])]), np.zeros(1)
            continue
        step = -(-int(stop[j] - start) // _MAX_NODES)
        failures = start + step * np.arange(-(-int(stop[j] - start) // step), dtype=np.float64)
        weights = _posterior(prior, q_all, failures, int(n[j]))
        relevant = weights.max(axis=0) > _NEGLIGIBLE
        q, weights = q_all[relevant], weights[:, relevant]
        # Counts of the next look, in cells of `step` counts; the first cell starts where counts stop certifying.
        cells = first[j + 1] + step * np.arange(max(1, -(-int(nodes[-1] + 1 - first[j + 1]) // step)), dtype=np.float64)
        worth = np.interp(cells + 0.5 * (step - 1), nodes, values, right=0.0)
        # Failures between the looks that lead to the edges of the cells; each count's edges are a window of these.
        edges = cells[0] - 1.0 - failures[-1] + step * np.arange(len(cells) + len(failures))
        cdf = _failure_cdf(edges, trials, q)
        size = 1 << (len(edges) + len(cells)).bit_length()
        spectrum = np.fft.rfft(np.diff(cdf, axis=1), size) * np.conj(np.fft.rfft(worth, size))
        window = np.arange(len(failures))[::-1]
        expected = np.fft.irfft(spectrum, size)[:, window] + cdf[:, window]
        value = (weights * expected.T).sum(axis=1) - price * trials
        positive = int(np.argmax(np.append(value <= 0.0, True)))
        # The count at which the value reaches 0, interpolated if not every count is evaluated.
        crossing = failures[0] if positive == 0 else failures[positive - 1] + step
        if 0 < positive < len(value) and step > 1:
            above, below = value[positive - 1], value[positive]
            crossing = float(np.ceil(failures[positive - 1] + step * above / (above - below)))
        given_up[j] = n[j] - int(crossing)
        nodes, values = np.append(failures[:positive], crossing), np.append(value[:positive], 0.0)
    # More images have p close to 1 than the prior assumes, so an image without a failure is never given up.
    return np.asarray(np.clip(given_up, -1, np.minimum(certifying, n) - 1))
