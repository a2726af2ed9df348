"""Choice of the number of threads for a small network's passes when other processes keep the machine busy.

OpenMP's threads spin while they wait for each other. If another process occupies the processor of one thread, all other
threads wait for that thread at the end of every parallel loop. A pass of a small network then takes at least ten times
as long as on one thread. If torch is not loaded yet, ``pyrobust.environment`` makes waiting threads sleep. This module
is for programs whose threads spin.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pyrobust.machine import threads_are_fixed, threads_wait_for_others

# CPU seconds of a pass on all threads above which a network is not small: on one thread, a pass takes no longer.
_SMALL_S: Final = 0.5
# Passes with each number of threads, and the ratio of their times that decides after the first pass with each.
_PAIRS: Final = 3
_CLEAR: Final = 3.0
# Seconds for which other calls on the same model need no passes to decide; and those for a network that is not small.
_REMEMBERED_S: Final = 10.0
_LARGE_REMEMBERED_S: Final = 600.0
#: For each model, whether one thread is faster, and the time until which this is taken as known.
_DECIDED: WeakKeyDictionary[object, tuple[float, bool]] = WeakKeyDictionary()


class ThreadTrial:
    """A trial that times a model's first passes, alternately on all threads and on one, and keeps the faster choice.

    ``run`` measures no times on a GPU, in a sweep, on a machine that is not busy, or where waiting threads sleep. In a
    sweep, the number of threads must not change, because the sweep records it. The trial is a context manager, and
    leaving its context restores torch's number of threads.

    >>> with ThreadTrial(torch.device("cpu")) as trial:
    ...     trial.run(lambda: torch.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, device: torch.device, model: object = None) -> None:
        self._model = model
        self._all = torch.get_num_threads()
        self._seconds = [0.0, 0.0]  # on all threads, and on one
        self._passes = 0
        self._large = False  # whether a pass has taken too long
        self._deciding = device.type == "cpu" and not threads_are_fixed() and threads_wait_for_others()
        self._changed = False
        with contextlib.suppress(TypeError):  # a model that cannot be a key
            until, alone = _DECIDED.get(model, (0.0, False))
            if self._deciding and time.monotonic() < until:
                self._decide(alone=alone)

    def __enter__(self) -> ThreadTrial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._changed:
            torch.set_num_threads(self._all)

    def run(self, forward: Callable[[], Tensor]) -> Tensor:
        """Run a pass; until the number of threads is decided, time the pass and change the number for the next pass."""
        if not self._deciding:
            return forward()
        alone = self._passes % 2
        begin, cpu = time.perf_counter(), time.process_time()
        logits = forward()
        if not alone and time.process_time() - cpu > _SMALL_S:
            # The first pass of a process may also import and initialize libraries.
            self._large, self._deciding = True, not self._large
            return logits
        self._seconds[alone] += time.perf_counter() - begin
        self._passes += 1
        on_all, on_one = self._seconds
        paired = bool(alone)
        if paired and (self._passes == 2 * _PAIRS or on_one * _CLEAR < on_all):
            self._decide(alone=on_one < on_all)
            if on_one < on_all:
                self._remember(_REMEMBERED_S, alone=True)
        else:
            self._set(self._all if paired else 1)
        return logits

    def settle(self, forward: Callable[[], Tensor]) -> None:
        """Run passes until the number of threads is decided, and drop the results; later passes keep this number."""
        while self._deciding and not self._large:
            self.run(forward)
        if self._deciding:
            self._deciding = False
            self._remember(_LARGE_REMEMBERED_S, alone=False)

    def _remember(self, seconds: float, *, alone: bool) -> None:
        with contextlib.suppress(TypeError):
            _DECIDED[self._model] = (time.monotonic() + seconds, alone)

    def _decide(self, *, alone: bool) -> None:
        self._deciding = False
        self._set(1 if alone else self._all)

    def _set(self, threads: int) -> None:
        self._changed = True
        torch.set_num_threads(threads)
