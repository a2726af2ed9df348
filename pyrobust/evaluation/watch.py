"""The state of a run while a sweep writes it: progress, rates so far, and bounds on the final rates."""

from __future__ import annotations

import copy
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from pyrobust.checks import file_path, number_text, probability
from pyrobust.errors import FileFormatError, StoreError
from pyrobust.evaluation.resume import Tally
from pyrobust.frames import plain_fields
from pyrobust.runs.parameters import processing_order
from pyrobust.runs.reader import connect_readonly, reading
from pyrobust.runs.run import Run
from pyrobust.runs.written import is_written
from pyrobust.stats import population_sequence

# Latest images, whose times give the speed, so that it follows a sweep that slows down.
_RECENT: Final = 1000
# Most images for which a random order is computed again, which takes about a second for a million.
_MOST_ORDERED: Final = 10_000_000
# Attempts to read a file while its writer is opening or closing it.
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.1
# Seconds for which a run without images counts as running: its writer takes the lock after it has stored the header.
_BEGINNING_S: Final = 2.0


@dataclass(frozen=True)
class WatchedRate:
    """A rate of a run so far, with bounds on its value for the complete run.

    Attributes:
        name: "correct", "certified" or "robust".
        radius: the radius that the rate refers to (``SweepProgress.radius``); None for "correct", and for the rate of
            an attack at one epsilon.
        count: number of images so far that are correct, certified or robust, according to ``name``.
        n: images done.
        value: count / n.
        lower, upper: bounds on the rate of the complete run; None if ``RunState.bounded`` is 0, as it is in an order
            that is not random.
    """

    name: str
    radius: float | None
    count: int
    n: int
    value: float
    lower: float | None
    upper: float | None

    @property
    def title(self) -> str:
        """Name and radius.

        >>> WatchedRate("certified", 0.25, 3, 4, 0.75, None, None).title
        'certified at 0.25'
        """
        return self.name if self.radius is None else f"{self.name} at {number_text(self.radius)}"


@dataclass(frozen=True)
class RunState:
    """The state of a run at one moment.

    Attributes:
        path: the run file.
        kind, model, data: kind, model and data of the run.
        state: "running", "stopped" (unfinished, and no process of this machine writes it) or "done".
        done, total: numbers of committed images and of images of the complete run.
        images_per_second: speed over the last thousand images; None before the first image.
        seconds_left: time that the missing images need at this speed; None before the first image.
        idle_seconds: time since the last commit.
        abstained: number of images with an abstention.
        failed: number of images with a model output that has no largest logit, such as NaN.
        order: "data" or "random".
        bounded: number of images from which the bounds are computed. In a random order, these are all images before the
            first one that is not done. Without bounds, the number is 0.
        alpha: upper bound on the probability that the bounds of one rate are ever wrong.
        rates: rates of the images done.
        machines: maps each machine's name to the number of images that it computed (`Run.machines`).
        set_aside: error of each chunk that was given up, keyed by the chunk's first image; a resumed run computes these
            chunks.
    """

    path: str
    kind: str
    model: str
    data: str
    state: Literal["running", "stopped", "done"]
    done: int
    total: int
    images_per_second: float | None
    seconds_left: float | None
    idle_seconds: float
    abstained: int
    failed: int
    order: str
    bounded: int
    alpha: float
    rates: tuple[WatchedRate, ...]
    machines: dict[str, int] = field(default_factory=dict)
    set_aside: dict[int, str] = field(default_factory=dict)

    to_dict = plain_fields


class RunWatcher:
    """Read the state of a run repeatedly, whether or not a sweep is writing it.

    The file is opened read-only. The process that writes it does not have to wait while it writes; when it closes the
    file, it waits up to 5 seconds for readers. Each reading after a commit reads all rows, which takes about a second
    for ten thousand images. Reading is skipped if nothing was committed since the last reading.

    The bounds are a confidence sequence (`pyrobust.stats.population_sequence`): with probability at least 1 - alpha,
    the bounds of one rate are correct at all moments of the run together. A user may therefore look at the bounds and
    stop the run at any time. The bounds are for the images of this run, not for other images. The bounds need a random
    order (``order="random"`` of the sweep), because the first images of a data set in its own order are not a random
    sample. Sequential sampling finishes easy images early, so the finished images are not a random sample either. The
    bounds therefore use only the images before the first unfinished image in the order.

    Args:
        path: the run file, which may not exist yet.
        alpha: upper bound on the probability that the bounds of one rate are ever wrong, in (0, 1).

    Raises:
        InputError, InputTypeError: an invalid path or alpha.

    >>> import tempfile
    >>> from pyrobust.evaluation import predict_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     watcher = RunWatcher(os.path.join(folder, "run.db"))
    ...     watcher.state() is None
    ...     _ = predict_dataset(smoother, load_data("digits"), n=100, max_images=3, out=watcher.path)
    ...     state = watcher.state()
    True
    >>> state.state, state.done, [rate.title for rate in state.rates]
    ('done', 3, ['correct'])
    """

    def __init__(self, path: str | os.PathLike[str], alpha: float = 0.05) -> None:
        self.path = file_path("path", path)
        self.alpha = probability("alpha", alpha, "0.05 is usual")
        self._seen: tuple[Any, ...] | None = None
        self._run: Run | None = None
        self._order: Sequence[int] | None = None
        self._facts: dict[str, Any] = {}

    @property
    def run(self) -> Run | None:
        """The run as ``state`` last read it; None before the first call, or if the file had no run."""
        return self._run

    def state(self) -> RunState | None:
        """Return the state of the run now.

        Returns:
            The state; None if the file has no run yet, or no longer has one.

        Raises:
            FileFormatError: the file is damaged, or not a run.
            StoreError: the file cannot be read, or the run is void, so that its results must not be used.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._state()
            except (FileFormatError, StoreError):
                if attempt + 1 == _ATTEMPTS:
                    raise
            self._seen = None
            time.sleep(_PAUSE_S)
        raise AssertionError

    def _state(self) -> RunState | None:
        written = is_written(self.path)  # before a connection is open: it also reads the companions
        seen = _signature(self.path)
        if seen is None:
            self._seen = self._run = self._order = None
            return None
        if seen != self._seen or not written:
            self._read(seen, whole=not written)
            self._seen = seen
        run = self._run
        assert run is not None
        complete = len(run) == len(run.expected)
        idle = max(0.0, time.time() - max(seen[3], seen[4]))
        seconds = self._facts["work_left"]
        if written and seconds is not None:
            seconds = max(0.0, seconds - idle)
        running = written or (len(run) == 0 and idle < _BEGINNING_S)
        return RunState(
            path=str(self.path),
            kind=run.kind,
            model=run.header.model,
            data=run.header.data,
            state="running" if running else "done" if complete else "stopped",
            done=len(run),
            total=len(run.expected),
            images_per_second=self._facts["speed"],
            seconds_left=0.0 if complete else seconds,
            idle_seconds=idle,
            abstained=int((run.table["status"] == "abstain").sum()),
            failed=self._facts["failed"],
            order=run.parameters.get("order", "data"),
            bounded=self._facts["bounded"],
            alpha=self.alpha,
            rates=self._facts["rates"],
            machines=run.machines,
            set_aside=run.set_aside,
        )

    def _read(self, seen: tuple[Any, ...], *, whole: bool) -> None:
        """Read the rows; also read the header if the file was replaced or no process is writing it."""
        if self._run is None or self._seen is None or seen[:2] != self._seen[:2] or (whole and seen != self._seen):
            self._run, self._order = Run(self.path), None
        elif seen != self._seen:
            self._run = copy.copy(self._run)
            for cached in ("table", "_chunks"):
                self._run.__dict__.pop(cached, None)
            self._run._checked = False
        else:
            return
        run = self._run
        if self._order is None:
            many = "order" in run.parameters and len(run.expected) > _MOST_ORDERED
            self._order = run.expected if many else processing_order(run.parameters)
        rank = {index: position for position, index in enumerate(self._order)} if "order" in run.parameters else None
        index = run.table["index"].tolist()
        positions = np.array(index if rank is None else [rank[i] for i in index], dtype=np.int64)
        by_place = np.argsort(positions, kind="stable")
        recent = run.table["seconds"][by_place[-_RECENT:]]
        spent = float(recent.sum())
        speed = len(recent) / spent if spent > 0 else None
        first = positions[by_place] == np.arange(len(positions))
        bounded = by_place[: len(first) if first.all() else int(first.argmin())] if rank is not None else by_place[:0]
        if len(run.expected) > _MOST_ORDERED:
            bounded = by_place[:0]
        self._facts = {
            "speed": speed,
            "work_left": None if speed is None else (len(run.expected) - len(run)) / speed,
            "failed": run.header.type.failures(run),
            "bounded": len(bounded),
            "rates": _rates(run, bounded, self.alpha),
        }


def snapshot(path: str | os.PathLike[str]) -> Run:
    """Read the current state of a run into memory, even while a sweep is writing the run.

    Args:
        path: the run file.

    Returns:
        The run in its current state, with its examples. Later commits do not change it.

    Raises:
        FileFormatError: the file is missing, damaged, or not a run, or was written by a newer or an older version.
        StoreError: the file cannot be read, or its run is void, so that its results must not be used.

    >>> snapshot("none.db")
    Traceback (most recent call last):
    pyrobust.errors.FileFormatError: none.db: file not found; expected a run of pyrobust
    """
    file = file_path("path", path)
    memory = sqlite3.connect(":memory:", isolation_level=None)
    with closing(connect_readonly(file)) as connection, reading(file):
        connection.backup(memory)
    return Run(memory, file)


def _signature(path: Path) -> tuple[Any, ...] | None:
    """Return device, inode, sizes and times of the file and its write-ahead log; None if missing or empty."""
    try:
        main = os.stat(path)
    except OSError:
        return None
    try:
        log = os.stat(f"{os.path.realpath(path)}-wal")
        sizes, changed = (main.st_size, log.st_size), log.st_mtime
    except OSError:
        sizes, changed = (main.st_size, 0), 0.0
    return None if not any(sizes) else (main.st_dev, main.st_ino, sizes, main.st_mtime, changed)


def _rates(run: Run, bounded: npt.NDArray[np.intp], alpha: float) -> tuple[WatchedRate, ...]:
    """Return the rates over all rows; their bounds are computed from the rows ``bounded`` alone."""
    done, total = len(run), len(run.expected)
    if not done:
        return ()
    everything = Tally(run).progress()
    sample = Tally(run, {name: column[bounded] for name, column in run.table.items()}).progress()
    rates = []
    for name in ("correct", "certified", "robust"):
        count, among = getattr(everything, name), getattr(sample, name)
        if count is None:
            continue
        lower = upper = None
        if len(bounded):
            bounds = population_sequence(among, len(bounded), total, alpha)
            lower, upper = (int(bound) / total for bound in bounds)
        radius = None if name == "correct" else everything.radius or None
        rates.append(WatchedRate(name, radius, count, done, value=count / done, lower=lower, upper=upper))
    return tuple(rates)
