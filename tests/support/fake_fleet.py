"""A fleet whose workers answer, die and are delayed as a test says, in this process."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pyrobust.workers.fleet import Event, Factory, Failed, Fleet, Lost, Place, Reply, Started

Fate = Callable[["FakeFleet", int, str, tuple[Any, ...]], str]


class FakeFleet(Fleet):
    """Workers that hold real objects; ``fate`` decides about each call: "answer", "die", "node" (its machine) or
    "hang". ``seconds`` is the time that has passed: half a second a call, and what the driver waits for the hung.

    ``pick`` chooses among the workers that have something to do, by default in turn; ``late`` also delivers what the
    dead have computed.
    """

    def __init__(
        self,
        factory: Factory,
        workers: int,
        fate: Fate = lambda fleet, worker, method, arguments: "answer",
        pick: Callable[[Sequence[int]], int] | None = None,
        *,
        late: bool = False,
        batch: int = 1,
    ) -> None:
        self.factory, self.fate, self.late, self.batch = factory, fate, late, batch
        self.calls: dict[int, deque[tuple[str, tuple[Any, ...]]]] = {}
        self.objects: dict[int, Any] = {}
        turns = itertools.count()
        self.pick = pick or (lambda busy: busy[next(turns) % len(busy)])
        self.next = 0
        self.seconds = 0.0
        self.hung: set[int] = set()
        self.computed: list[int] = []  # first images of the chunks that workers have finished
        for _ in range(workers):
            self.start()

    def start(self) -> None:
        self.calls[self.next] = deque([("start", ())])
        self.next += 1

    def __len__(self) -> int:
        return len(self.calls)

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        if worker in self.calls:
            self.calls[worker].append((method, arguments))

    def wait(self, seconds: float) -> list[Event]:
        events: list[Event] = []
        for _ in range(self.batch):
            busy = [worker for worker, calls in self.calls.items() if calls and worker not in self.hung]
            if not busy and self.hung:
                self.seconds += seconds
                return events
            if not busy:
                break
            self.seconds += 0.5
            events += self._step(self.pick(busy))
        assert events or self.hung, "the driver waits for workers that have nothing to do"
        return events

    def _step(self, worker: int) -> list[Event]:
        method, arguments = self.calls[worker].popleft()
        fate = self.fate(self, worker, method, arguments)
        if fate == "hang":
            self.hung.add(worker)
            return []
        if fate != "answer":
            late = [self._answer(worker, method, arguments)] if self.late and method == "work" else []
            self.calls.pop(worker)
            self.objects.pop(worker, None)
            self.start()
            return [Lost(worker, f"worker {worker} died", blameless=fate == "node"), *late]
        return [self._answer(worker, method, arguments)]

    def _answer(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Event:
        place = Place("cpu", 1, f"worker {worker}")
        try:
            if method == "start":
                self.objects[worker] = self.factory(place)
                return Started(worker, place)
            value = getattr(self.objects[worker], method)(*arguments)
        except Exception as error:
            return Failed(worker, error)
        if method == "work" and value.last:
            self.computed.append(value.first)
        return Reply(worker, value)

    def replace(self, worker: int) -> None:
        assert not self.calls.pop(worker) or worker in self.hung, "only idle and hung workers are replaced"
        self.hung.discard(worker)
        self.objects.pop(worker)
        self.start()

    def close(self) -> None:
        self.calls.clear()
