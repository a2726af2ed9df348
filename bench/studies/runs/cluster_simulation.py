"""The driver of a sweep with workers that only sleep: efficiency with 64 and 512 of them, its limit, its memory.

The real driver (``run_sweep``: dealer, run file on disk, counts of progress) deals the chunks of a sequential
certification of a million images. Its fleet are entries of one heap: a worker replies when the time of its chunk is
over, in one part, with rows that are unpickled. The clock runs with the driver's CPU time, and jumps
where the driver would sleep, so that other processes of the machine do not count; with --real it is the machine's. The
seconds of a chunk are the sum of as many images' seconds, drawn from a real sequential run on digits, scaled so that a
chunk takes SECONDS on average; with 0 the workers take no time, which shows the driver's limit. Each case runs in a
process of its own. Efficiency is the total time of all chunks, divided by the workers and by the wall time from the
first chunk to the end of the run; "dealt" is what dealing alone would reach, without any cost of the driver.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import pickle
import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from study import Results, separately

from pyrobust import RandomizedSmoothing, zoo
from pyrobust.evaluation import Run, SweepSettings, certify_dataset
from pyrobust.evaluation.resume import run_sweep
from pyrobust.evaluation.sweep import ChunkAnswer, ChunkPart, Sweep, Task
from pyrobust.runs.kinds.certify import Sequential
from pyrobust.runs.reader import Header
from pyrobust.workers import executors
from pyrobust.workers.fleet import Event, Fleet, Place, Reply, Started

CASES = ["64,32,1", "64,32,0.2", "512,32,1", "512,32,0.2", "512,1024,32", "64,32,0", "512,32,0", "64,1024,0"]


def makespan(seconds: list[float], workers: int) -> float:
    """Wall time of chunks that are dealt in order, each to the worker that is free first."""
    free = [0.0] * workers
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


class Sleepers(Fleet):
    """Workers that sleep for the time of their chunks, all in this process."""

    def __init__(self, workers: int, header: Header, seconds: list[float], rows: bytes, real: bool) -> None:
        self._real, self._slept = real, 0.0
        self._header, self._seconds, self._rows = header, seconds, rows
        self._chunk = header.parameters["chunk"]
        self._number = itertools.count()
        self._free_at = [0.0] * workers
        place = Place("cpu", 1, "sleeper")
        self._replies: list[tuple[float, int, int, Any]] = []
        self._started: list[Event] = [Started(worker, place) for worker in range(workers)]
        self.begin = 0.0

    def __len__(self) -> int:
        return len(self._free_at)

    def now(self) -> float:
        return time.perf_counter() if self._real else time.process_time() + self._slept

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        now = self.now()
        if method == "prepare":
            value: Any = self._header
        elif method == "identify":
            value = self._header.identity
        else:
            self.begin = self.begin or now
            value = arguments[0]
            now = max(now, self._free_at[worker]) + self._seconds[value.first // self._chunk]
        self._free_at[worker] = now = max(now, self._free_at[worker])
        heapq.heappush(self._replies, (now, next(self._number), worker, value))

    def wait(self, seconds: float) -> list[Event]:
        if self._started:
            events, self._started = self._started, []
            return events
        if self._replies and (pause := min(seconds, self._replies[0][0] - self.now())) > 0:
            if self._real:
                time.sleep(pause)
            else:
                self._slept += pause
        now, events = self.now(), []
        while self._replies and self._replies[0][0] <= now:
            _, _, worker, value = heapq.heappop(self._replies)
            if isinstance(value, Task):
                rows, pending = pickle.loads(self._rows)  # pickled here, for the time it takes
                if len(value.indices) < self._chunk:
                    rows = {name: column[: len(value.indices)] for name, column in rows.items()}
                value = ChunkAnswer(value.first, ChunkPart(rows | {"idx": list(value.indices)}, pending), last=True)
            events.append(Reply(worker, value))
        return events

    def replace(self, worker: int) -> None:
        raise AssertionError("sleepers never die")

    def close(self) -> None:
        pass


def rows_of(run: Run, chunk: int) -> bytes:
    """Rows of as many images as a chunk has, pickled as a worker sends them."""
    names = list(Sequential.columns)
    columns = run.table | {name: run.histogram(name) for name in ("counts0", "counts")} | {"idx": run.table["index"]}
    repeated = np.arange(chunk) % len(run)
    pending: dict[str, Any] = {name: [] for name in Sequential.pending}
    rows = {name: columns[name][repeated] for name in names}
    rows |= {name: rows[name].tolist() for name in ("idx", "status", "undecided")}
    return pickle.dumps((rows, pending), pickle.HIGHEST_PROTOCOL)


def simulate(source: Path, images: int, workers: int, chunk: int, seconds: float, real: bool) -> dict[str, Any]:
    """Return the figures of one case."""
    run = Run(source)
    method = {name: run.parameters[name] for name in ("n0", "n", "alpha", "radii", "hybrid", "two_class")}
    parameters = run.parameters | method | {"images": images, "chunk": chunk, "batch_size": 512}
    header = Header(
        "certify", parameters, "net", "", "images", "", run.header.guarantee, run.header.versions, run.header.identity
    )
    rng = np.random.default_rng(0)
    drawn: npt.NDArray[np.float64] = rng.choice(run.table["seconds"], images)
    of_chunks = np.add.reduceat(drawn, np.arange(0, images, chunk)) * (seconds / (chunk * drawn.mean()))
    fleet = Sleepers(workers, header, of_chunks.tolist(), rows_of(run, chunk), real)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory(dir=os.environ.get("SIMULATION_DIR")) as folder:
        executors.open_fleet = lambda *arguments: fleet
        settings = SweepSettings(out=Path(folder, "run.db"), executor="cpu")
        sweep = SimpleNamespace(images=None, settings=settings, portable=lambda: None)
        cpu = time.process_time()
        result = run_sweep(cast(Sweep, sweep))
        wall, cpu = fleet.now() - fleet.begin, time.process_time() - cpu
        size = Path(folder, "run.db").stat().st_size
    del result
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ideal = float(of_chunks.sum()) / workers
    return {
        "workers": workers,
        "images": images,
        "chunk": chunk,
        "seconds a chunk": seconds,
        "longest chunk": round(float(of_chunks.max()), 3),
        "wall": round(wall, 2),
        "efficiency": round(ideal / wall, 4),
        "dealt": round(ideal / makespan(of_chunks.tolist(), workers), 4) if seconds else None,
        "chunks a second": round(len(of_chunks) / wall, 1),
        "driver's CPU share": round(cpu / wall, 3),
        "MiB before": memory // 1024,
        "MiB at most": peak // 1024,
        "bytes an image": round(size / images, 1),
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--case", action="append", metavar="WORKERS,CHUNK,SECONDS")
    parser.add_argument("--rows", type=Path, help="a sequential run of digits to draw rows and seconds from")
    parser.add_argument("--real", action="store_true", help="let the workers sleep in real time")


def measure(options: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        source = options.rows or Path(folder, "real.db")
        if options.rows is None:
            smoother = RandomizedSmoothing(zoo.load_model("zoo:digits-smooth-0.25"), 10, 0.25)
            certify_dataset(smoother, zoo.load_data("digits"), out=source, method="sequential", radii=[0.25, 0.5])
        for case in options.case or CASES:
            workers, chunk, duration = case.split(",")
            sizes = options.images, int(workers), int(chunk), float(duration)
            yield separately(simulate, source, *sizes, options.real)
        seconds = Run(source).table["seconds"]
    spread = {f"quantile {q}": round(float(np.quantile(seconds, q) / seconds.mean()), 3) for q in (0.05, 0.5, 0.95, 1)}
    return {"seconds of an image over their mean": spread}
