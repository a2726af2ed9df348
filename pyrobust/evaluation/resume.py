"""Start or resume a run, and compute its missing chunks; used by sweeps of every kind."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobust.checks import file_path, first_values
from pyrobust.errors import FileFormatError, RowDependenceError, WorkerError
from pyrobust.evaluation.deal import Dealer, MissingChunks
from pyrobust.evaluation.sweep import Advance, Sweep, SweepWorker, Task
from pyrobust.runs.identity import Identity
from pyrobust.runs.parameters import chosen_indices
from pyrobust.runs.progress import Report, SweepProgress, sweep_reporting
from pyrobust.runs.reader import Header, connect_readonly, read_header, reading
from pyrobust.runs.run import Run
from pyrobust.runs.writer import RunWriter
from pyrobust.workers.fleet import Factory, Failed, Fleet, Lost, Place, Started, ThisProcess

if TYPE_CHECKING:
    from pyrobust.workers.executors import Executor

logger = logging.getLogger(__name__)

# Workers that may die before one is prepared; seconds of preparing after which a worker is named.
_FIRST_DEATHS, _PREPARES_S = 3, 60.0


class Tally:
    """Running counts of correct, certified and robust images, initialised from the rows of a run or from given rows."""

    def __init__(self, run: Run, rows: Mapping[str, Any] | None = None) -> None:
        self._kind = run.header.type
        self.total = len(run.expected)
        self.done = 0
        self.workers = 0
        # A search for radii has no reference radius, so only correct images are counted.
        self.radius = self._kind.reference(run.parameters)
        self.correct = 0
        self.certified = 0 if self._kind.certified and self.radius else None
        # A minimum-norm attack has no rate either: at some distance, it breaks nearly every image.
        nothing = {name: np.zeros(0) for name in self._kind.columns}
        self.robust = None if self._kind.unbroken(nothing, self.radius) is None else 0
        for block in run.blocks() if rows is None else [rows]:
            self.add(block)

    def add(self, rows: Mapping[str, Any]) -> None:
        """Count committed rows."""
        self.done += len(rows["label"])
        correct = np.asarray(rows["prediction"]) == rows["label"]
        self.correct += int(correct.sum())
        if self.certified is not None:
            self.certified += int((correct & (np.asarray(rows[self._kind.certified]) >= self.radius)).sum())
        unbroken = self._kind.unbroken(rows, self.radius)
        if unbroken is not None and self.robust is not None:
            self.robust += int((correct & unbroken).sum())

    def progress(self, samples: int = 0, chunk_samples: int = 0, chunk: int = 0) -> SweepProgress:
        """Return the counts with the progress of the current chunk."""
        return SweepProgress(
            self.done,
            self.total,
            samples,
            chunk_samples,
            chunk=chunk,
            correct=self.correct,
            certified=self.certified,
            radius=self.radius,
            robust=self.robust,
            workers=self.workers,
        )


def run_sweep(sweep: Sweep, committed: Callable[[Run, Sequence[int]], None] | None = None) -> Run:
    """Start or resume the run of a sweep, and let its executor compute the missing chunks.

    ``committed`` is called after each commit. A complete run is only read, so its file may be read-only. The model is
    identified before and after the sweep. A run is void if the model's output for a row depends on other rows, or
    changes between calls.
    """
    settings = sweep.settings
    out, executor, threads = settings.out, settings.executor, settings.threads
    folder = os.getcwd()
    existing = _stored_header(out)
    stored = {} if existing is None else existing.parameters
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(sweep_reporting(settings.progress))
        inside = _InsideChunk(report)
        factory: Factory = (
            partial(SweepWorker, sweep, threads, advance=inside.advance)
            if executor is None
            else partial(SweepWorker, sweep.portable(), threads, advance=_no_progress)
        )
        fleet = stack.enter_context(_fleet(executor, factory, threads, stored))
        ready, others = _first_worker(fleet, stored, _required_machine(existing))
        header = ready[2]
        if out is not None and os.getcwd() != folder:  # the model has changed it
            out = os.path.join(folder, out)
        complete = None if out is None else _complete_run(Path(out), header)
        if complete is not None:
            report(Tally(complete).progress())
            return complete
        assert header.identity is not None
        before, exact = header.identity, header.guarantee == "grid"
        with RunWriter(out, header, allow_changed_code=settings.allow_changed_code) as writer:
            try:
                # Validates the stored rows as well.
                tally = inside.tally = Tally(Run(writer.connection, writer.path, checked=True))
                report(tally.progress())

                def count_rows(rows: Mapping[str, Any], workers: int) -> None:
                    tally.add(rows)
                    tally.workers = 0 if executor is None else workers
                    report(tally.progress())
                    if committed is not None:
                        committed(Run(writer.connection, writer.path, checked=True), rows["idx"])

                dealer = Dealer(
                    fleet,
                    writer,
                    sweep.images,
                    _missing_chunks(writer),
                    ready=ready,
                    committed=count_rows,
                    timeout=settings.timeout,
                )
                dealer.run(others)
                for after in dealer.finish():
                    _check_unchanged(before, after, exact=exact)
            except RowDependenceError as error:
                if writer.done:
                    writer.void(str(error))
                raise
    return Run(writer.connection, checked=True) if out is None else Run(out)


class _InsideChunk:
    """Reports progress inside a chunk while this process computes the chunk."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.tally: Tally | None = None

    def advance(self, task: Task) -> Advance:
        def show(done: int, total: int) -> None:
            assert self.tally is not None
            self._report(self.tally.progress(done, total, len(task.indices)))

        return show


def _no_progress(task: Task) -> Advance:
    return _ignore


def _ignore(done: int, total: int) -> None:
    """Ignore the progress inside a chunk, which the workers of an executor do not report."""


def _first_worker(
    fleet: Fleet, stored: Mapping[str, Any], machine: str | None
) -> tuple[tuple[int, Place, Header], list[Started]]:
    """Prepare the first worker; return it with the run's header, and the other workers that have started.

    Workers on machines other than ``machine`` are left out, unless no worker would remain.
    """
    refused = 0
    others: dict[int, Started] = {}
    first: Started | None = None
    deaths, asked = 0, math.inf
    while True:
        if first is not None and time.monotonic() - asked > _PREPARES_S:
            logger.warning(
                "%s: no answer for %.0f s as it prepares the model, which runs it on the first image; nothing is "
                "computed before",
                first.place.name,
                _PREPARES_S,
            )
            asked = math.inf
        for event in fleet.wait(1.0):
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Lost):
                logger.warning("%s", event.reason)
                others.pop(event.worker, None)
                deaths += 1
                if deaths == _FIRST_DEATHS:
                    raise WorkerError(f"executor: {deaths} workers died as they started: {event.reason}")
                if first is not None and first.worker == event.worker:
                    first = None
            elif isinstance(event, Started):
                others[event.worker] = event
            elif first is not None:
                worker = None if event.value.identity is None else event.value.identity.machine
                refused += machine not in (None, worker)
                if machine in (None, worker) or refused >= len(fleet):
                    return (first.worker, first.place, event.value), list(others.values())
                logger.warning(
                    "%s: left out: the grid guarantee is of %s, this is %s", first.place.name, machine, worker
                )
                first = None
        if first is None and others:
            first = others.pop(min(others))
            fleet.call(first.worker, "prepare", stored)
            asked = time.monotonic()


def _fleet(executor: Executor, factory: Factory, threads: int | None, stored: Mapping[str, Any]) -> Fleet:
    """Start the workers of an executor; without one, this process is the only worker."""
    if executor is None:
        return ThisProcess(factory)
    from pyrobust.workers.executors import open_fleet

    return open_fleet(executor, factory, threads, stored)


def _missing_chunks(writer: RunWriter) -> MissingChunks:
    """Return the chunks that a run lacks, with the states of images whose sampling has begun."""
    header, where = writer.header, writer.path or Path("(in memory)")
    states = []
    if header.type.pending:
        from pyrobust.evaluation.certify_sequential import read_pending

        states = read_pending(writer.connection, where, header.parameters, writer.done)
    missing = MissingChunks(header.parameters, writer.done, states)
    if not header.type.pending and missing.partial is not None:
        raise FileFormatError(
            f"{where}: damaged: holds part of a chunk, images {first_values(missing.partial)}; start a new run"
        )
    return missing


def _check_unchanged(before: Identity, after: Identity, *, exact: bool) -> None:
    """Raise RowDependenceError if the model's logits changed by more than rounding or, if ``exact``, in any bit."""
    # The model's source files may have been edited meanwhile, without effect on this process.
    after = replace(after, code=before.code, bits=after.bits if exact else "")
    changes = before.differences(after)
    if changes:
        raise RowDependenceError(
            f"model: expected the same logits before and after the run, but they changed: {'; '.join(changes)}; make "
            "it a function of its input, without counters or other state"
        )


def _complete_run(path: Path, header: Header) -> Run | None:
    """Return the run in a file if it is complete and agrees with the header."""
    # A write-ahead log left by a killed writer is recovered by the next writer.
    if not os.path.isfile(path) or os.path.exists(f"{os.path.realpath(path)}-wal"):
        return None
    with closing(connect_readonly(path)) as connection:
        stored = read_header(connection, path)
        # Any torch may read a complete run, since nothing more is computed.
        if stored is None or stored.differences(header, ignore=frozenset({"torch"})):
            return None
        with reading(path):
            (rows,) = connection.execute("SELECT count(*) FROM result").fetchone()
    return Run(path) if rows == len(chosen_indices(stored.parameters)) else None


def _stored_header(out: str | os.PathLike[str] | None) -> Header | None:
    """Return the header of the run in a file; None if no file is named, or the file is missing or an empty database."""
    if out is None:
        return None
    path = file_path("out", out)
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        return None
    with closing(connect_readonly(path)) as connection:
        return read_header(connection, path)


def _required_machine(header: Header | None) -> str | None:
    """Return the one machine that may compute the rest of a stored run; None if any machine may."""
    if header is None or header.identity is None or header.guarantee != "grid":
        return None
    return header.identity.machine
