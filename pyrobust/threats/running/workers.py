"""Have the models of a threat run compute on workers: processes of this machine or actors of a Ray cluster."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Final

import torch

from pyrobust.errors import InputError, PyrobustError, WorkerError
from pyrobust.threats.models import Answer, CallError, ChatEndpoint, TextModel
from pyrobust.threats.running.judges import Judge, ModelJudge
from pyrobust.workers.executors import Executor, check_executor, open_fleet
from pyrobust.workers.fleet import Event, Failed, Lost, Place, Started

logger = logging.getLogger(__name__)

#: Workers that may die as they start, in succession and while none lives, before the run ends.
_FAILED_STARTS: Final = 3
#: Longest wait in seconds: for workers while all compute, and for calls while some do and others are free.
_LOOK_S, _POLL_S = 0.5, 0.01


def computing_models(executor: Executor, model: TextModel | None, judge: Judge) -> list[TextModel]:
    """Return the models of a run that an executor can compute: all but endpoints, which compute on their servers.

    Raises:
        InputError: an executor is given, and there is none.
    """
    if check_executor(executor) is None:
        return []
    models = [model, judge.model if isinstance(judge, ModelJudge) else None]
    computing = [model for model in models if model is not None and not isinstance(model, ChatEndpoint)]
    if not computing:
        given = ", ".join(model.name for model in models if model is not None) or "a rule or function as judge"
        raise InputError(
            f"executor: expected a transformers model or a function, got {given}, which workers do not make faster; "
            "leave it out (--concurrency sets how many calls an endpoint gets at once)"
        )
    return computing


class ModelWorkers:
    """Workers that each hold the models of a run and answer one call at a time, whoever is free.

    Entering starts the workers and waits for the first; leaving stops them, whatever they compute. A thread of its own
    deals the calls. A call whose worker dies fails with a retryable CallError; the worker is replaced.

    Args:
        executor: where the workers are, not None.
        models: what each of them holds.

    Raises:
        InputError: a model cannot be sent, or not be made there.
        WorkerError: workers die as they start, or a model is another one there.
    """

    def __init__(self, executor: Executor, models: Sequence[TextModel]) -> None:
        self._models = models
        factory = partial(_Models, tuple(models), tuple(model.name for model in models))
        self._fleet = open_fleet(executor, factory, None, {})
        self._free: deque[int] = deque()
        self._busy: dict[int, Future[Answer]] = {}
        self._failed_starts = 0
        self._changed = threading.Condition()  # guards the calls that wait, and the end
        self._calls: deque[tuple[Future[Answer], tuple[int, str, int]]] = deque()
        self._closing = False
        self._end: PyrobustError | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> ModelWorkers:
        try:
            while not self._free:
                for event in self._fleet.wait(_LOOK_S):
                    self._handle(event)
        except BaseException:
            self._fleet.close()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._fleet.close()

    def __len__(self) -> int:
        return len(self._fleet)

    def serve(self, model: TextModel) -> TextModel:
        """Return a model of the same name and costs that computes on the workers, or one that they lack itself."""
        numbers = [number for number, held in enumerate(self._models) if held is model]
        return _ServedModel(model, self, numbers[0]) if numbers else model

    def ask(self, number: int, prompt: str, attempt: int) -> Answer:
        """Have a worker's model answer; called from any thread, and blocks.

        Raises:
            CallError: no answer came; retryable where the worker was lost.
            WorkerError: no worker will ever answer.
        """
        future: Future[Answer] = Future()
        with self._changed:
            if self._end is not None:
                raise self._end
            self._calls.append((future, (number, prompt, attempt)))
            self._changed.notify()
        return future.result()

    def _serve(self) -> None:
        """Deal calls until the end; the only thread that uses the fleet meanwhile."""
        end: PyrobustError = CallError("the run has ended", retryable=True)
        try:
            while self._await_call():
                self._deal()
                # A new call does not interrupt the wait for workers, which is short while one is free.
                seconds = _LOOK_S if not self._free else _POLL_S if self._busy else 0.0
                for event in self._fleet.wait(seconds):
                    self._handle(event)
        except WorkerError as error:
            end = error
        except Exception as error:
            known = isinstance(error, PyrobustError)
            end = WorkerError(str(error) if known else f"executor: {type(error).__name__}: {error}")
        with self._changed:
            self._end = end
        for future in (*self._busy.values(), *(future for future, _ in self._calls)):
            future.set_exception(end)

    def _await_call(self) -> bool:
        """Wait for a call while no worker computes; False at the end."""
        with self._changed:
            if not self._busy:
                self._changed.wait_for(lambda: self._calls or self._closing, _LOOK_S)
            return not self._closing

    def _deal(self) -> None:
        with self._changed:
            while self._free and self._calls:
                worker = self._free.popleft()
                self._busy[worker], call = self._calls.popleft()
                self._fleet.call(worker, "answer", *call)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Lost):
            self._lose(event)
            return
        if isinstance(event, Started):
            self._failed_starts = 0
        elif isinstance(event, Failed):
            if event.worker not in self._busy:  # its models cannot be made
                raise event.error
            self._busy.pop(event.worker).set_exception(event.error)
        else:
            # of a worker that this process started
            self._busy.pop(event.worker).set_result(pickle.loads(event.value))
        self._free.append(event.worker)

    def _lose(self, event: Lost) -> None:
        logger.warning("%s", event.reason)
        future = self._busy.pop(event.worker, None)
        if future is not None:
            future.set_exception(CallError(f"{event.reason}; its call is lost", retryable=True))
        elif event.worker in self._free:
            self._free.remove(event.worker)
        else:
            self._failed_starts += not event.blameless
            if self._failed_starts >= _FAILED_STARTS and not (self._busy or self._free):
                raise WorkerError(f"executor: {self._failed_starts} workers died as they started: {event.reason}")


class _ServedModel:
    """A model of this process whose answers are computed on workers."""

    def __init__(self, model: TextModel, workers: ModelWorkers, number: int) -> None:
        self.name, self.largest_cost = model.name, model.largest_cost
        self._ask = partial(workers.ask, number)

    def __call__(self, prompt: str, attempt: int) -> Answer:
        return self._ask(prompt, attempt)


class _Models:
    """The models of a run on a worker."""

    def __init__(self, models: Sequence[Any], names: Sequence[str], place: Place) -> None:
        if place.threads is not None:
            torch.set_num_threads(place.threads)
        for model, name in zip(models, names, strict=True):
            if model.name != name:
                raise WorkerError(
                    f"executor: {place.name}: expected the model {name}, got {model.name}; give all machines the same "
                    "files and versions"
                )
            if place.device is not None and hasattr(model, "to"):
                model.to(place.device)
        self._models = models

    def answer(self, number: int, prompt: str, attempt: int) -> bytes:
        # Pickled here, so that an answer that cannot be is this call's error on every kind of worker.
        return pickle.dumps(self._models[number](prompt, attempt))
