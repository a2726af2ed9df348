"""Timing for all of bench/: variants take turns, so that drift of the machine's speed affects all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Call = Callable[[], object]

# A measurement lasts at least this long; shorter calls are repeated within it.
_MIN_SECONDS = 0.02


@dataclass
class Case:
    """Variants of one task. Ratios are relative to the first variant, the native one."""

    name: str
    variants: dict[str, Call]
    #: Minimum bytes moved or operations computed; times are quoted per item.
    work: dict[str, float] = field(default_factory=dict)
    items: int = 1
    #: Calls whose time is subtracted from the variant of the same name, such as start-up.
    less: dict[str, Call] = field(default_factory=dict)


@dataclass
class Timing:
    median: float
    low: float
    high: float
    repeats: int


def _timed(call: Call, loops: int, device: torch.device) -> float:
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(loops):
            call()
        end.record()
        torch.cuda.synchronize(device)
        return float(start.elapsed_time(end)) / 1e3 / loops
    begin = time.perf_counter()
    for _ in range(loops):
        call()
    return (time.perf_counter() - begin) / loops


def measure(case: Case, repeats: int, device: torch.device) -> dict[str, Timing]:
    loops: dict[str, int] = {}
    for name, call in case.variants.items():
        call()  # warm-up: allocations, lazy initialisation
        case.less.get(name, call)()
        loops[name] = max(1, int(_MIN_SECONDS / max(1e-9, _timed(call, 1, device))))
        _timed(call, loops[name], device)
    seconds: dict[str, list[float]] = {name: [] for name in case.variants}
    for _ in range(repeats):
        for name, call in case.variants.items():
            seconds[name].append(_timed(call, loops[name], device))
            if name in case.less:
                seconds[name][-1] -= _timed(case.less[name], loops[name], device)
    return {name: Timing(statistics.median(s), min(s), max(s), repeats) for name, s in seconds.items()}
