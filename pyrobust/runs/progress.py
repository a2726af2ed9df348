"""Progress of a sweep, and the bar that shows it on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from pyrobust.checks import flag, number_text


@dataclass(frozen=True)
class SweepProgress:
    """Progress of a sweep.

    Args:
        done: committed images, including those committed before the sweep was resumed.
        total: number of images in the sweep.
        samples: finished samples of the current chunk (for an attack, finished images; for a verification, finished
            epsilons or methods).
        chunk_samples: total samples of the current chunk.
        chunk: number of images in the current chunk.
        correct: committed images classified correctly.
        certified: correct images also certified at ``radius`` or more; None if the sweep has no column of certified
            radii, or no ``radius``: a search for certified radii has none, nor has a sandwich of a base classifier
            without epsilons.
        radius: the radius to which ``certified`` refers. It is the smallest radius of a sequential certification, the
            smallest epsilon of a verification or of a sandwich of a base classifier, or else the noise's sigma. It is
            0.0 if the sweep has none of these.
        robust: committed images robust to an attack at one epsilon, or to the attack of a sandwich within ``radius``;
            None for any other sweep, such as a minimum-norm attack or a verification with an attack.
        workers: number of computing workers; 0 if this process alone computes.

    >>> SweepProgress(8, 20, 50, 100, 4, 7, 6, 0.25).images
    10.0
    """

    done: int
    total: int
    samples: int
    chunk_samples: int
    chunk: int
    correct: int
    certified: int | None
    radius: float
    robust: int | None = None
    workers: int = 0

    @property
    def images(self) -> float:
        """Number of finished images, counting the current chunk by its share of finished samples."""
        return self.done + self.chunk * self.samples / self.chunk_samples if self.chunk_samples else float(self.done)

    @property
    def summary(self) -> str:
        """Short text with the accuracy so far, and the certified accuracy at ``radius`` or the robust accuracy.

        >>> SweepProgress(8, 20, 0, 100, 4, 7, 6, 0.25).summary
        'correct 87.5 %, R>=0.25: 75.0 %'
        >>> SweepProgress(8, 20, 0, 100, 4, 7, None, 0.0, 2).summary
        'correct 87.5 %, robust: 25.0 %'
        """
        workers = f"{self.workers} worker{'s' * (self.workers != 1)}" if self.workers else ""
        if not self.done:
            return workers
        correct = f"{workers}{', ' * bool(workers)}correct {100 * self.correct / self.done:.1f} %"
        if self.robust is not None:
            return f"{correct}, robust: {100 * self.robust / self.done:.1f} %"
        if self.certified is None:
            return correct
        return f"{correct}, R>={number_text(self.radius)}: {100 * self.certified / self.done:.1f} %"


Report: TypeAlias = Callable[[SweepProgress], None]


@contextlib.contextmanager
def sweep_reporting(progress: bool | Report) -> Iterator[Report]:
    """Interpret ``progress=`` of a sweep: False (nothing is shown), True (a bar on standard error), or a function.

    >>> with sweep_reporting(False) as report:
    ...     report(SweepProgress(0, 1, 0, 1, 1, 0, None, 0.25))
    """
    if callable(progress):
        yield progress
    elif flag("progress", progress):
        from pyrobust.runs.progress_bar import progress_bar

        with progress_bar("images") as show:
            yield lambda now: show(now.images, now.done, now.total, now.summary)
    else:
        yield lambda now: None
