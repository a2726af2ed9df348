"""Sweeps whose workers write down which chunks they begin and finish; run as a driver that may be killed.

Workers import this module for the class of the model, and so count as well.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyrobust.evaluation import Run, certify_dataset, format_log
from pyrobust.evaluation.deal import Dealer
from pyrobust.evaluation.sweep import ChunkAnswer, SweepWorker, Task
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data
from support import counted_model

#: Environment variable with the path of the file. With a file ``.hang-INDEX`` behind that path, a worker that begins
#: the chunk of this image sleeps for ever.
LOG = "PYROBUST_TEST_CHUNKS"
#: Environment variable with the timeout of a chunk in seconds.
TIMEOUT = "PYROBUST_TEST_TIMEOUT"

#: 48 chunks of 8 images and 16 batches; 8 chunks of 48 images, in parts of about a second.
METHODS: dict[str, dict[str, Any]] = {
    "fixed": {"n0": 50, "n": 4050, "batch_size": 2048},
    "sequential": {"n0": 100, "n": 400_000, "method": "sequential", "radii": [0.25, 0.5], "batch_size": 256},
}


class Watched(counted_model.Counted):
    """The bundled smoothed classifier."""


def _write(what: str, first: int) -> None:
    path = os.environ.get(LOG)
    if path:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{what} {first} {os.getpid()}\n".encode())
        os.close(descriptor)


def _counting(work: Callable[..., ChunkAnswer]) -> Callable[..., ChunkAnswer]:
    def counted(self: Any, task: Task | None) -> ChunkAnswer:
        first = (self._tasks[0] if self._tasks else task).first
        if Path(f"{os.environ.get(LOG)}.hang-{first}").exists():
            time.sleep(1e6)
        _write("begin", first)
        answer = work(self, task)
        _write("end", first)
        return answer

    return counted


def _noting(commit: Callable[..., None]) -> Callable[..., None]:
    def noted(self: Any, answers: list[tuple[ChunkAnswer, str]]) -> None:
        commit(self, answers)
        for answer, _ in answers:
            _write("commit", answer.first)

    return noted


SweepWorker.work = _counting(SweepWorker.work)  # type: ignore[method-assign]  # mypy forbids replacing any method
Dealer._commit = _noting(Dealer._commit)  # type: ignore[method-assign]  # as above


def sweep(kind: str, out: str, executor: str | None) -> Run:
    """Sweep digits, and write the log without the seconds beside the run."""
    data = load_data("digits")
    timeout = os.environ.get(TIMEOUT)
    where: dict[str, Any] = {"out": out, "executor": executor, "threads": 1}
    where |= {"timeout": float(timeout)} if timeout else {}
    options = dict(METHODS[kind])
    smoother = RandomizedSmoothing(Watched(), 10, 0.25, batch_size=options.pop("batch_size"))
    run = certify_dataset(smoother, data, **options, **where)
    lines = [line.rpartition("\t")[0] for line in format_log(run).splitlines()]
    Path(f"{out}.log").write_text("\n".join(lines))
    return run


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    kind, out, executor = sys.argv[1:4]
    sweep(kind, out, None if executor == "none" else executor)
