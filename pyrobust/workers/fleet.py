"""The interface between workers, wherever they run, and the code that gives them work."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

#: Most CPU threads of a worker, and most workers of one machine.
MOST_THREADS = MOST_WORKERS = 1 << 16


@dataclass(frozen=True)
class Place:
    """Where a worker runs: device, CPU threads of a forward pass, and the worker's name in messages.

    >>> Place("cuda:1", 4, "worker 2 on node7")
    Place(device='cuda:1', threads=4, name='worker 2 on node7')
    """

    device: str | None
    threads: int | None
    name: str


@dataclass(frozen=True)
class Started:
    """The event that a new worker has built its object."""

    worker: int
    place: Place


@dataclass(frozen=True)
class Reply:
    """The value that a call of a worker's object returned."""

    worker: int
    value: Any


@dataclass(frozen=True)
class Failed:
    """An exception of a worker's object; the worker stays alive."""

    worker: int
    error: Exception


@dataclass(frozen=True)
class Lost:
    """The event that a worker died or that its machine was lost; the calls of the worker are then lost as well.

    Attributes:
        worker: number of the worker.
        reason: how the worker died.
        blameless: whether the worker's machine was lost. If so, the loss cannot be due to the worker's own work.
    """

    worker: int
    reason: str
    blameless: bool = False


Event: TypeAlias = Started | Reply | Failed | Lost

#: Makes the object of a worker, from its place.
Factory: TypeAlias = Callable[[Place], Any]

_Self = TypeVar("_Self", bound="Fleet")


class Fleet(abc.ABC):
    """Workers that each hold one object, made by a factory, and execute calls of the object's methods in order.

    A lost worker is replaced by a fresh one. Worker numbers are never reused.
    """

    #: Why a worker of this fleet cannot start, if the fleet knows a reason; "" otherwise.
    waiting_for: str = ""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of workers, including those that are starting."""

    @abc.abstractmethod
    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Queue a method call for a worker's object; a later ``wait`` returns the outcome."""

    @abc.abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """Wait at most ``seconds`` for events; return those that have come, in order for each worker."""

    @abc.abstractmethod
    def replace(self, worker: int) -> None:
        """Stop a worker, and start a fresh one, without queued calls, in its place."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop all workers, including those that are computing."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ThisProcess(Fleet):
    """One worker, which is this process: its calls run inside ``wait``, and their exceptions propagate.

    >>> with ThisProcess(lambda place: [3, 1, 2]) as fleet:
    ...     fleet.wait(0)
    ...     fleet.call(0, "index", 2)
    ...     fleet.wait(0)
    [Started(worker=0, place=Place(device=None, threads=None, name='this process'))]
    [Reply(worker=0, value=2)]
    """

    def __init__(self, factory: Factory, place: Place | None = None) -> None:
        self._place = place or Place(None, None, "this process")
        self._factory = factory
        self._object: Any = None
        self._calls: deque[tuple[str, Sequence[Any]]] = deque()

    def __len__(self) -> int:
        return 1

    def call(self, worker: int, method: str, *arguments: Any) -> None:
        """Store a call; a later ``wait`` executes it."""
        self._calls.append((method, arguments))

    def wait(self, seconds: float) -> list[Event]:
        """Make the object the first time; after that, execute the next call that was stored."""
        if self._object is None:
            self._object = self._factory(self._place)
            return [Started(0, self._place)]
        if not self._calls:
            return []
        method, arguments = self._calls.popleft()
        return [Reply(0, getattr(self._object, method)(*arguments))]

    def replace(self, worker: int) -> None:
        """Never called, since this process is the worker."""
        raise AssertionError("the only worker is this process")

    def close(self) -> None:
        """Close the object if it has ``close``."""
        if hasattr(self._object, "close"):
            self._object.close()
