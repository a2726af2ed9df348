"""Timing side by side: variants take turns, so that drift of the machine's speed affects all variants equally."""

from __future__ import annotations

import itertools
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch

import pyrobust
from pyrobust.machine import processor_name
from pyrobust.ops import build_info

Call = Callable[[], object]

# A measurement lasts at least this long; shorter calls are repeated.
_MIN_SECONDS = 0.02


@dataclass
class Case:
    """Variants of one task. Ratios are relative to the first variant, which is the native one."""

    name: str
    variants: dict[str, Call]
    #: Minimum number of bytes moved or operations computed; times are stated per item.
    work: dict[str, float] = field(default_factory=dict)
    items: int = 1
    #: Calls whose time is subtracted from the variant of the same name, such as start-up.
    less: dict[str, Call] = field(default_factory=dict)
    #: Names of the variant in a user's PyTorch code, and of the variant that bounds the time from below.
    plain: str = ""
    floor: str = ""


def compare(name: str, native: Call, plain: tuple[str, Call], floor: tuple[str, Call], **work: float) -> Case:
    """Return a case of three calls: the native op, a user's PyTorch code, and one that bounds the time from below."""
    return Case(name, dict([("native", native), plain, floor]), work, plain=plain[0], floor=floor[0])


@dataclass
class Timing:
    """Seconds per call: median, minimum, maximum and quartiles of the repeats."""

    median: float
    low: float
    high: float
    repeats: int
    quartiles: tuple[float, float]


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


def measure(case: Case, repeats: int, device: torch.device, seconds: float = 0.0) -> dict[str, Timing]:
    """Time the variants of a case in turns: at least ``repeats`` rounds, and more until ``seconds`` have passed."""
    deadline = time.perf_counter() + seconds
    loops: dict[str, int] = {}
    for name, call in case.variants.items():
        call()  # warm-up: allocations, lazy initialisation
        case.less.get(name, call)()
        loops[name] = max(1, int(_MIN_SECONDS / max(1e-9, _timed(call, 1, device))))
        if loops[name] > 1:
            _timed(call, loops[name], device)
    taken: dict[str, list[float]] = {name: [] for name in case.variants}
    for done in itertools.count():
        if done >= repeats and time.perf_counter() >= deadline:
            break
        for name, call in case.variants.items():
            taken[name].append(_timed(call, loops[name], device))
            if name in case.less:
                taken[name][-1] -= _timed(case.less[name], loops[name], device)
    return {name: _summary(times) for name, times in taken.items()}


def _summary(times: list[float]) -> Timing:
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return Timing(statistics.median(times), min(times), max(times), len(times), (low, high))


def row(case: Case, times: dict[str, Timing]) -> dict[str, object]:
    """Return the result of a case for JSON."""
    native = next(iter(times.values())).median
    return {
        "case": case.name,
        "work": case.work,
        "items": case.items,
        "seconds": {name: asdict(timing) for name, timing in times.items()},
        "times_native": {name: timing.median / native for name, timing in times.items()},
    }


def describe_machine(device: torch.device) -> dict[str, object]:
    """Return what the times depend on: processor, device, threads, versions, native build and instruction set."""
    return {
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pyrobust": pyrobust.__version__,
        **build_info(),
    }
