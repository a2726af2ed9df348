"""Time of a sweep on several workers, predicted from the times of a pilot's images."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pyrobust.checks import WORDS, array, count, integer, non_negatives
from pyrobust.errors import InputError
from pyrobust.frames import plain_fields

from .rate import checked_alpha

# Chunks dealt one by one in each resampling, at least, and for each worker. Workers wait only at the end, so that of
# more chunks only the last ones have to be.
_DEALT: Final = 1024
_DEALT_PER_WORKER: Final = 8
# Draws for a chunk, at most: images of larger ones are drawn in groups.
_DRAWS_PER_CHUNK: Final = 4096
# Draws in all resamplings together: a second or two.
_DRAWS: Final = 1 << 24
_LEAST_RESAMPLES: Final = 20

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SweepTime:
    """Predicted time of a sweep on several workers.

    Attributes:
        images: images of the sweep.
        workers: workers that the chunks are dealt to.
        chunk: images in a chunk.
        wall_seconds: expected time from the first chunk's start to the last one's end.
        lower, upper: ends of the prediction interval of the wall time.
        alpha: approximate probability that a sweep's wall time lies outside the interval.
        worker_seconds: expected total time that the workers compute.
        waiting: expected share of ``workers * wall_seconds`` in which workers have no chunk left and wait for the last.
    """

    images: int
    workers: int
    chunk: int
    wall_seconds: float
    lower: float
    upper: float
    alpha: float
    worker_seconds: float
    waiting: float

    @property
    def held_seconds(self) -> float:
        """Time for which the workers are held until the last chunk ends: ``workers * wall_seconds``."""
        return self.workers * self.wall_seconds

    to_dict = plain_fields


def makespan(seconds: Iterable[float], workers: int) -> float:
    """Compute the wall time of chunks that are dealt in order, each to the worker that is free first.

    With m workers, total time T and longest chunk t, the makespan is at least max(t, T/m), and at most
    ``T/m + (1 - 1/m)·t`` (Graham, "Bounds on multiprocessing timing anomalies", 1969).

    Args:
        seconds: time of each chunk, finite and at least 0, in the order of dealing.
        workers: number of workers, at least 1.

    Returns:
        Seconds from the first chunk's start to the last one's end; 0.0 without chunks.

    Raises:
        InputError: a time is negative or not finite, or there is no worker.
        InputTypeError: an argument of another type.

    >>> makespan([1, 1, 1, 3], workers=2)
    4.0
    >>> makespan([3, 1, 1, 1], workers=2)
    3.0
    """
    return _makespan(non_negatives("seconds", seconds), count("workers", workers))


def sweep_time(
    seconds: npt.ArrayLike,
    images: int,
    workers: int = 1,
    chunk: int = 1,
    *,
    timed: int = 1,
    alpha: float = 0.1,
    resamples: int = 200,
    seed: int = 0,
) -> SweepTime:
    """Predict the time of a sweep by resampling the times of a pilot's images.

    Each resampling draws the images of the sweep from the pilot's and deals their chunks as `makespan` does. For the
    interval it is also scaled by a draw of the true mean over the pilot's, from the studentized bootstrap of the mean's
    logarithm (Hall, 1988), because another pilot would have held other images. Heavy tails still hide from small
    pilots: where a pilot has not met the slowest kind of image, sweeps exceed the interval more often than it says.

    The workers are assumed to be as fast as the pilot's, at the same batch size, and to compute all the time: neither
    the start of a worker (imports, model, data) is included, nor failures, nor a driver too slow for its workers.

    Args:
        seconds: [N], seconds per image of each image of the pilot, at least 0; or [R, N], R simulated times for each.
        images: images of the sweep, from 1 to 2**32.
        workers: number of workers, from 1 to 2**32.
        chunk: images in a chunk, from 1 to 2**32. For K shards of a job array: images / K, rounded up.
        timed: images behind each time, where the pilot timed several together: its chunk.
        alpha: probability that a sweep takes longer or less than the interval says, in (0, 1).
        resamples: number of resamplings, at least 20; fewer are made of very large chunks.
        seed: random seed, at least 0.

    Returns:
        SweepTime.

    Raises:
        InputError: a value out of range, or no times.
        InputTypeError: an argument of another type.

    >>> time = sweep_time([2.0, 2.0, 2.0], images=100, workers=8, chunk=5)
    >>> time.wall_seconds, time.worker_seconds, round(time.waiting, 3)
    (30.0, 200.0, 0.167)
    """
    times = np.atleast_2d(array("seconds", seconds))
    if times.ndim != 2 or not times.size or not (np.isfinite(times) & (times >= 0)).all():
        raise InputError("seconds", "finite times of at least 0, [N] or [R, N]", repr(np.asarray(seconds)))
    images, workers = count("images", images, WORDS), count("workers", workers, WORDS)
    chunk = count("chunk", chunk, WORDS)
    timed, alpha = count("timed", timed), checked_alpha(alpha)
    resamples = integer("resamples", resamples, _LEAST_RESAMPLES)
    rng = np.random.default_rng(integer("seed", seed, 0))
    group = -(-chunk // _DRAWS_PER_CHUNK)
    units, size, timed = -(-images // group), -(-chunk // group), -(-timed // group)
    times = times * (images / units)
    chunks = -(-units // size)
    # A multiple of the workers before, so that equal chunks leave as many workers without one at the end.
    before = max(0, chunks - max(_DEALT, _DEALT_PER_WORKER * workers)) // workers * workers * size
    drawn = units - before
    resamples = max(_LEAST_RESAMPLES, min(resamples, _DRAWS // drawn))
    walls, totals = np.empty(resamples), np.empty(resamples)
    means = times.mean(axis=0)
    for i in range(resamples):
        of_chunks = _chunk_seconds(times, drawn, size, timed, rng)
        work = 0.0
        if before:
            draws = max(1, before // timed)
            work = before * float(rng.multinomial(draws, np.full(len(means), 1 / len(means))) @ means) / draws
        walls[i] = work / workers + _makespan(of_chunks.tolist(), workers)
        totals[i] = work + of_chunks.sum()
    lower, upper = np.quantile(walls * _true_over_mean(means, resamples, rng), [alpha / 2, 1 - alpha / 2]).tolist()
    wall, total = float(walls.mean()), float(totals.mean())
    waiting = max(0.0, 1 - total / (workers * wall)) if wall else 0.0
    return SweepTime(
        images, workers, chunk, wall, lower=lower, upper=upper, alpha=alpha, worker_seconds=total, waiting=waiting
    )


def _true_over_mean(values: _Floats, resamples: int, rng: np.random.Generator) -> _Floats:
    """Draw the true mean of what values [N] are a sample of, relative to theirs."""
    n, mean = len(values), values.mean()
    weights = rng.dirichlet(np.ones(n), resamples)
    means = weights @ values
    errors = np.sqrt(np.maximum(weights @ values**2 - means**2, 0.0) / n)
    with np.errstate(divide="ignore", invalid="ignore"):  # equal values, or zeros
        pivots = np.log(means / mean) * means / errors
    drawn: _Floats = np.exp(-np.nan_to_num(pivots, posinf=0.0, neginf=0.0) * values.std() / (mean * n**0.5 or 1.0))
    return drawn


def _chunk_seconds(times: _Floats, images: int, chunk: int, timed: int, rng: np.random.Generator) -> _Floats:
    """Draw the times of images, as many together as were timed together, and add them up by chunks."""
    drawn = rng.choice(times.ravel(), -(-images // timed))
    total: _Floats = np.add.reduceat(np.repeat(drawn, min(timed, images))[:images], np.arange(0, images, chunk))
    return total


def _makespan(seconds: Sequence[float], workers: int) -> float:
    free = [0.0] * max(1, min(workers, len(seconds)))
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
