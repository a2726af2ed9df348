"""Time of a sweep on several workers, estimated from the time per image in a pilot run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyrobust.checks import WORDS, array, count
from pyrobust.errors import InputError
from pyrobust.frames import plain_fields


@dataclass(frozen=True)
class SweepTime:
    """Expected time of a sweep on several workers.

    Attributes:
        images: number of images in the sweep.
        workers: number of workers, among which the chunks are distributed.
        chunk: number of images in a chunk.
        wall_seconds: time from the start of the first chunk to the end of the last, if all chunks take equally long.
        worker_seconds: total computing time of the workers.
        standard_error: standard error of ``worker_seconds`` due to the choice of the pilot's images; None if there is
            only one time.
        waiting: share of ``workers * wall_seconds`` during which workers have no chunk left, in [0, 1).
    """

    images: int
    workers: int
    chunk: int
    wall_seconds: float
    worker_seconds: float
    standard_error: float | None
    waiting: float

    to_dict = plain_fields


def sweep_time(seconds: npt.ArrayLike, images: int, workers: int = 1, chunk: int = 1) -> SweepTime:
    """Extrapolate the time of a sweep from the time per image in a pilot run.

    The total computing time is ``images · mean(seconds)``. The last worker is estimated to finish after the time of
    ⌈chunks / workers⌉ average chunks. If chunks take different times and each free worker takes the next chunk, the
    last worker finishes later than this estimate by at most the time of the longest chunk (Graham, "Bounds on
    multiprocessing timing anomalies", 1969). The workers are assumed to be as fast as the workers of the pilot run, at
    the same batch size; the start-up time of the workers is not included.

    Args:
        seconds: [N], seconds per image for each image or chunk of the pilot, finite and at least 0.
        images: images of the sweep, from 1 to 2**32.
        workers: number of workers, from 1 to 2**32.
        chunk: number of images in a chunk, from 1 to 2**32. For a job array of K shards, pass images / K, rounded up.

    Returns:
        SweepTime.

    Raises:
        InputError: a value out of range, or no times.
        InputTypeError: an argument of another type.

    >>> time = sweep_time([1.0, 2.0, 3.0], images=100, workers=8, chunk=5)
    >>> time.wall_seconds, time.worker_seconds, round(time.waiting, 3)
    (30.0, 200.0, 0.167)
    """
    times = array("seconds", seconds)
    if times.ndim != 1 or not times.size or not (np.isfinite(times) & (times >= 0)).all():
        raise InputError("seconds", "finite times of at least 0, [N]", repr(np.asarray(seconds)))
    images, workers = count("images", images, WORDS), count("workers", workers, WORDS)
    chunk = count("chunk", chunk, WORDS)
    mean, n = float(times.mean()), len(times)
    longest = min(-(-images // (chunk * workers)) * chunk, images)
    return SweepTime(
        images,
        workers,
        chunk,
        wall_seconds=longest * mean,
        worker_seconds=images * mean,
        standard_error=images * float(times.std(ddof=1)) / n**0.5 if n > 1 else None,
        waiting=1 - images / (workers * longest),
    )
