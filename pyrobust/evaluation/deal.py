"""Assign the missing chunks of a run to workers, and commit the results.

Only the calling process writes to the run. Chunks are assigned in order, one by one, as workers become free. While a
worker computes one chunk, it already holds its next chunk. Chunks of a lost worker are assigned again. After a chunk
has killed two workers, it is given to fresh workers that compute nothing else. If three of these workers die, too, the
chunk is set aside without a result. If a chunk takes many times as long as usual, a warning names the chunk, and the
chunk is taken from its worker as if the worker had died. In the next attempt, the time after which this happens is
twice as long. A slow chunk is set aside only if its worker does not answer for ``timeout`` seconds.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyrobust.checks import first_values
from pyrobust.errors import WorkerError
from pyrobust.evaluation.sweep import ChunkAnswer, Task
from pyrobust.runs.identity import software_versions
from pyrobust.runs.parameters import describe_difference, processing_order
from pyrobust.runs.reader import Header
from pyrobust.runs.writer import RunWriter
from pyrobust.workers.fleet import Event, Failed, Fleet, Lost, Place, Reply, Started
from pyrobust.zoo import ImageSet, LabelledImages

if TYPE_CHECKING:
    from pyrobust.smoothing.sequential import ImageSequence

logger = logging.getLogger(__name__)

# Tasks of a worker at once: the one that it computes, and the next.
_AHEAD = 2
# Worker deaths after which a chunk is computed alone, and after which a chunk computed alone is set aside.
_DEATHS, _DEATHS_ALONE = 2, 3
# Workers that may die in succession before any of them has computed something.
_FAILED_STARTS = 3
# Longest wait for workers, after which progress is reported even without an answer.
_WAIT_S = 1.0
# Answers needed before their median time is "usual"; multiple of it, and least time, that a worker may be silent.
_USUAL, _SLOW, _SLOW_S = 3, 20, 60.0
# Most seconds that one round counts as waiting: while suspended, the driver does not wait for its workers.
_ROUND_S = 5.0


@dataclass
class _Worker:
    place: Place
    header: Header | None = None  # None until the worker is prepared
    machine: str = ""
    tasks: deque[Task] = field(default_factory=deque)
    used: bool = False  # whether the worker has begun a chunk
    alone: bool = False  # whether the worker computes one suspect chunk, and nothing else
    pending: Mapping[str, Any] | None = None  # latest state of the worker's oldest task
    since: float = 0.0  # when the worker began its oldest task, or last answered


class MissingChunks:
    """The chunks that a run lacks, as tasks in processing order; a task includes the states of its unfinished images.

    >>> missing = MissingChunks({"images": 6, "skip": 1, "max": None, "shard": None, "chunk": 2}, {2, 3}, [])
    >>> len(missing), next(missing).indices, next(missing).indices, len(missing)
    (2, [0, 1], [4, 5], 0)
    """

    def __init__(self, parameters: Mapping[str, Any], done: Container[int], pending: Sequence[ImageSequence]) -> None:
        self._order = processing_order(dict(parameters))
        self._done, self._pending = done, {image.index: image for image in pending}
        # Sequential runs of earlier versions have no chunks: all their images share batches.
        self._chunk = parameters.get("chunk", max(1, len(self._order)))
        #: Images of the first chunk of which some are done, if any.
        self.partial: Sequence[int] | None = None
        self._starts: deque[int] = deque()
        for start in range(0, len(self._order), self._chunk):
            missing = len(self._missing(start))
            if missing:
                self._starts.append(start)
            if 0 < missing < len(self._order[start : start + self._chunk]) and self.partial is None:
                self.partial = self._order[start : start + self._chunk]

    def _missing(self, start: int) -> list[int]:
        return [index for index in self._order[start : start + self._chunk] if index not in self._done]

    def __len__(self) -> int:
        return len(self._starts)

    def __next__(self) -> Task:
        start = self._starts.popleft()
        indices = self._missing(start)
        members = set(indices)
        # In the order in which sampling continues.
        states = [image for index, image in self._pending.items() if index in members]
        return Task(self._order[start], indices, states)


class Dealer:
    """Assigns chunks of a run to workers; ``committed`` gets the rows of each commit and the number of living workers.

    If a worker does not answer for ``timeout`` seconds, its chunk is set aside. A ``timeout`` of None means no limit.
    """

    def __init__(
        self,
        fleet: Fleet,
        writer: RunWriter,
        images: LabelledImages,
        missing: MissingChunks,
        ready: tuple[int, Place, Header],
        committed: Callable[[Mapping[str, Any], int], None],
        timeout: float | None = None,
    ) -> None:
        self._timeout = timeout
        self._time, self._seen = 0.0, time.monotonic()
        self._seconds: deque[float] = deque(maxlen=100)  # times of the latest answers
        self._delays: Counter[int] = Counter()
        self._fleet, self._writer, self._images, self._committed = fleet, writer, images, committed
        self._missing = missing
        self._again: deque[Task] = deque()  # chunks of lost workers
        self._suspects: deque[Task] = deque()
        self._workers: dict[int, _Worker] = {}
        self._deaths: Counter[int] = Counter()
        self._deaths_alone: Counter[int] = Counter()
        self._failed_starts = 0
        self._refused: set[str] = set()
        self._aside: dict[int, str] = {}
        number, machine, header = ready
        self._first, self._torch = machine.name, header.versions.get("torch")
        self._workers[number] = _Worker(machine)
        self._admit(number, header)

    def run(self, started: Sequence[Started] = ()) -> None:
        """Assign chunks until each is committed or set aside; ``started`` are the workers other than the first one.

        Raises:
            WorkerError: workers died while they started, chunks were set aside, or a worker differs from the first one,
                for example in its software versions.
        """
        if len(self._missing):
            self._receive(list(started))
        while self._unfinished():
            self._deal()
            self._receive(self._fleet.wait(_WAIT_S))
            self._take_overdue()
        if self._aside:
            first, reason = next(iter(self._aside.items()))
            raise WorkerError(
                f"executor: chunks set aside: {len(self._aside)}; the one that begins with image {first}: {reason}; "
                "everything else is stored; run again to try again"
            )

    def finish(self) -> list[Any]:
        """Return the model's current identity from each worker that has begun a chunk."""
        asked = [number for number, worker in self._workers.items() if worker.used]
        for number in asked:
            self._fleet.call(number, "identify")
        identities = []
        while asked:
            for event in self._fleet.wait(_WAIT_S):
                if isinstance(event, Failed) and event.worker in asked:
                    raise event.error
                if isinstance(event, Reply | Lost) and event.worker in asked:
                    asked.remove(event.worker)
                    if isinstance(event, Reply):
                        identities.append(event.value)
        return identities

    @property
    def living(self) -> int:
        """Number of workers that take chunks."""
        return sum(worker.header is not None for worker in self._workers.values())

    def _unfinished(self) -> bool:
        pending = self._again or self._suspects or len(self._missing)
        return bool(pending) or any(worker.tasks for worker in self._workers.values())

    def _deal(self) -> None:
        """Give each idle worker a chunk to compute; then, while enough chunks remain, give each worker its next one."""
        free = [number for number, worker in self._workers.items() if worker.header is not None and not worker.alone]
        for number in free:
            if self._suspects and not self._workers[number].used:
                self._workers[number].alone = True
                self._send(number, self._suspects.popleft())
        for depth in range(_AHEAD):
            for number in free:
                if len(self._workers[number].tasks) != depth or self._workers[number].alone:
                    continue
                # The last chunks go to the workers that are free first.
                if len(self._again) + len(self._missing) <= depth * len(free):
                    break
                self._send(number, self._again.popleft() if self._again else next(self._missing))
        if self._suspects and all(worker.used for worker in self._workers.values()):
            idle = [number for number in free if not self._workers[number].tasks]
            for number in idle[: len(self._suspects)]:
                del self._workers[number]
                self._fleet.replace(number)

    def _send(self, number: int, task: Task) -> None:
        worker = self._workers[number]
        worker.used = True
        worker.tasks.append(task)
        if len(worker.tasks) == 1:
            worker.since = self._now()
        if isinstance(self._images, ImageSet):
            task = Task(task.first, task.indices, task.pending, self._images.read(task.indices))
        self._fleet.call(number, "work", task)

    def _receive(self, events: list[Event]) -> None:
        """Handle events, and commit all parts among them in one transaction."""
        answers: list[tuple[ChunkAnswer, str]] = []
        error: Exception | None = None
        for event in events:
            if isinstance(event, Started):
                self._workers[event.worker] = _Worker(event.place)
                self._fleet.call(event.worker, "prepare", self._writer.header.parameters)
            elif isinstance(event, Lost):
                self._lose(event)
            elif isinstance(event, Failed):
                error = error or event.error
            elif event.worker not in self._workers:
                pass  # an event of a worker that was lost before
            elif isinstance(event.value, Header):
                self._admit(event.worker, event.value)
            else:
                worker = self._workers[event.worker]
                answers.append((event.value, worker.machine))
                self._advance(event.worker, worker, event.value)
        self._commit(answers)
        if error is not None:
            raise error

    def _advance(self, number: int, worker: _Worker, answer: ChunkAnswer) -> None:
        """Store an answer as the state of the worker's oldest task."""
        self._failed_starts = 0
        task = worker.tasks[0]
        now = self._now()
        self._seconds.append(now - worker.since)
        worker.since = now
        if answer.last:
            worker.tasks.popleft()
            worker.alone, worker.pending = False, None
            return
        done = set(answer.part.rows["idx"])
        missing = [index for index in task.indices if index not in done]
        worker.tasks[0] = Task(task.first, missing, task.pending)
        worker.pending = answer.part.pending
        self._fleet.call(number, "work", None)

    def _commit(self, answers: list[tuple[ChunkAnswer, str]]) -> None:
        if not answers:
            return
        rows = _join([answer.part.rows for answer, _ in answers])
        # Each part of a chunk has the whole state, so the latest suffices.
        states = {answer.first: answer.part.pending for answer, _ in answers if answer.part.pending is not None}
        pending = _join(list(states.values()))
        machines = {answer.first: machine for answer, machine in answers}
        self._writer.append(rows, pending or None, machines=machines)
        self._committed(rows, self.living)

    def _admit(self, number: int, header: Header) -> None:
        """Let a prepared worker take chunks if its header matches this run's."""
        worker, ours = self._workers[number], self._writer.header
        name = worker.place.name
        wording = f"on {self._first}", "there"
        differences = ours.differences(header, wording, frozenset({"torch"}))
        for package, expected, where in (
            ("pyrobust", software_versions()["pyrobust"], "on the driver"),
            ("torch", self._torch, wording[0]),
        ):
            if expected != header.versions.get(package):
                differences.append(
                    describe_difference(package, expected, header.versions.get(package), (where, "there"))
                )
        if differences:
            raise WorkerError(
                f"executor: {name}: expected the model, data and software of the run, got others: "
                f"{'; '.join(differences)}; give all machines the same files and versions"
            )
        machine = "" if header.identity is None else header.identity.machine
        driver = machine if ours.identity is None else ours.identity.machine
        if ours.guarantee == "grid" and machine != driver:
            # The kind of device is part of the certified classifier; other kinds would compute another classifier.
            self._refused.add(machine)
            logger.warning("%s: left out: the grid guarantee is of %s, this is %s", name, driver, machine)
            del self._workers[number]
            if not self._workers:
                raise WorkerError(
                    f"executor: expected a worker on {driver}, of which the run certifies the classifier, got "
                    f"{', '.join(sorted(self._refused))}; use machines of that kind, or start a new run"
                )
            return
        worker.header, worker.machine = header, machine

    def _now(self) -> float:
        """Return the seconds spent waiting for workers."""
        now = time.monotonic()
        self._time += min(now - self._seen, _ROUND_S)
        self._seen = now
        return self._time

    def _take_overdue(self) -> None:
        """Take away the chunks of workers that have been silent for too long, and give up these workers."""
        usual = statistics.median(self._seconds) if len(self._seconds) >= _USUAL else None
        now = self._now()
        for number, worker in list(self._workers.items()):
            if not worker.tasks:
                continue
            first, silent = worker.tasks[0].first, now - worker.since
            name = f"{worker.place.name}: no answer for {silent:.0f} s about the chunk that begins with image {first}"
            if self._timeout is not None and silent > self._timeout:
                running = self._take(number)
                self._set_aside(running, f"{name}, longer than the timeout of {self._timeout:g} s")
            elif usual is not None and silent > max(_SLOW_S, _SLOW * usual) * 2 ** self._delays[first]:
                logger.warning(
                    "%s, usually %.3g s; it is dealt to another worker, and set aside only with a timeout", name, usual
                )
                self._delays[first] += 1
                running = self._take(number)
                (self._suspects if self._delays[first] >= _DEATHS else self._again).append(running)

    def _take(self, number: int) -> Task:
        """Replace a worker that is computing; return its chunk, and requeue the chunks that waited behind it."""
        worker = self._workers.pop(number)
        self._fleet.replace(number)
        return self._dealt_again(worker)

    def _lose(self, event: Lost) -> None:
        """Deal the chunks of a lost worker again; the first of them may have killed it."""
        worker = self._workers.pop(event.worker, None)
        logger.warning("%s", event.reason)
        if worker is None or not worker.used:
            self._failed_starts += not event.blameless
            if self._failed_starts >= max(_FAILED_STARTS, 2 * len(self._workers)) and not self.living:
                raise WorkerError(f"executor: {self._failed_starts} workers died as they started: {event.reason}")
            return
        if not worker.tasks:
            return
        running = self._dealt_again(worker)
        if event.blameless:
            self._again.appendleft(running)
        elif not worker.alone:
            self._deaths[running.first] += 1
            where = self._suspects if self._deaths[running.first] >= _DEATHS else self._again
            where.appendleft(running)
        else:
            self._deaths_alone[running.first] += 1
            if self._deaths_alone[running.first] < _DEATHS_ALONE:
                self._suspects.appendleft(running)
                return
            self._set_aside(
                running,
                f"{event.reason}, the last of {_DEATHS_ALONE} workers that died while they computed nothing else",
            )

    def _dealt_again(self, worker: _Worker) -> Task:
        """Requeue the chunks that waited for a worker; return its current chunk with that chunk's latest state."""
        running, *waiting = worker.tasks
        self._again.extendleft(reversed(waiting))
        if worker.pending is None:
            return running
        from pyrobust.evaluation.certify_sequential import as_sequences

        return Task(running.first, running.indices, as_sequences(worker.pending))

    def _set_aside(self, task: Task, reason: str) -> None:
        self._aside[task.first] = reason
        self._writer.set_aside(task.first, reason)
        logger.error("images %s are set aside: %s", first_values(task.indices), reason)


def _join(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Concatenate tables with the same columns."""
    if len(tables) == 1:
        return dict(tables[0])
    return {name: list(chain.from_iterable(table[name] for table in tables)) for name in tables[0]} if tables else {}
