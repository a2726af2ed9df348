"""The number of threads of a small network's passes, where other processes keep the machine busy.

OpenMP's threads spin while they wait for each other. Where another process has the processor of one of them, all wait
for it at the end of every parallel loop: a pass of a small network takes ten times as long as on one thread, or more.
Where torch is not loaded yet, ``pyrobust.environment`` makes them sleep; this module is for all other programs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pyrobust.environment import machine_is_busy
from pyrobust.machine import threads_are_fixed

# CPU seconds of a pass on all threads, above which a network is not small: on one thread it takes no longer than this.
_SMALL_S: Final = 0.5
# Passes with either number of threads, and the ratio of their times that decides after the first of each.
_PAIRS: Final = 3
_CLEAR: Final = 3.0
# Seconds for which other attacks on the same model need no passes to decide.
_REMEMBERED_S: Final = 10.0
_SMALL: WeakKeyDictionary[object, float] = WeakKeyDictionary()  # time until which a model is known to be one


class ThreadTrial:
    """Times the first passes of an attack, by turns on all threads and on one, and keeps the faster number.

    On a quiet machine, on a GPU, in sweeps, which record their threads, and where threads sleep while they wait,
    ``run`` only calls its function. Leaving the context restores torch's threads.

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
        self._deciding = (
            device.type == "cpu"
            and self._all > 1
            and not threads_are_fixed()
            and os.environ.get("OMP_WAIT_POLICY", "").lower() != "passive"
            and "GOMP_SPINCOUNT" not in os.environ
            and machine_is_busy()
        )
        self._changed = False
        with contextlib.suppress(TypeError):  # a model that cannot be a key
            if self._deciding and time.monotonic() < _SMALL.get(model, 0.0):
                self._decide(alone=True)

    def __enter__(self) -> ThreadTrial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._changed:
            torch.set_num_threads(self._all)

    def run(self, forward: Callable[[], Tensor]) -> Tensor:
        """Run a pass, and time it if the number of threads is not decided yet; the next pass has the other number."""
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
                with contextlib.suppress(TypeError):
                    _SMALL[self._model] = time.monotonic() + _REMEMBERED_S
        else:
            self._set(self._all if paired else 1)
        return logits

    def _decide(self, *, alone: bool) -> None:
        self._deciding = False
        self._set(1 if alone else self._all)

    def _set(self, threads: int) -> None:
        self._changed = True
        torch.set_num_threads(threads)
