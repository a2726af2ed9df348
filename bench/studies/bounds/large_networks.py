"""Messages, seconds and memory of large networks: a ResNet-50 at 224 pixels, a layer 10⁶ wide, 10⁵ classes; on Linux.

Each method runs with the least memory_limit that it accepts and with none; the peak is the growth of the resident size
during the call, for which the C library first returns its free memory, of short calls the second. Construction includes
a first call.
"""

from __future__ import annotations

import argparse
import logging
import time

import torch
from studies.smoothing.pace import resnet50
from study import Results, Row, peak_rise
from torch import Tensor, nn

from pyrobust import BoundedModel, Bounds
from pyrobust.errors import InputError


def large_nets() -> dict[str, tuple[nn.Sequential, Tensor]]:
    """Name → (net with random weights, an input)."""
    torch.manual_seed(0)
    resnet = resnet50()
    resnet[-1] = nn.Linear(2048, 1000)
    return {
        "ResNet-50 at 224 pixels": (resnet, torch.rand(1, 3, 224, 224)),
        "layer 10⁶ wide": (nn.Sequential(nn.Linear(16, 10**6), nn.ReLU(), nn.Linear(10**6, 4)), torch.rand(1, 16)),
        "10⁵ classes": (nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10**5)), torch.rand(1, 64)),
    }


def measured(bounded: BoundedModel, x: Tensor, y: Tensor, method: str, limit: int | None, seconds: float) -> Row:
    """Bound the margins of a batch; return what that took and gave."""

    def timed() -> tuple[Bounds, float, float]:
        cpu, wall = time.process_time(), time.monotonic()
        bounds = bounded.margins(x, y, 1 / 255, method=method, memory_limit=limit, time_limit=seconds)
        return bounds, time.process_time() - cpu, time.monotonic() - wall

    (bounds, cpu, wall), peak = peak_rise(timed, trimmed=True)
    return {
        "memory_limit": limit,
        "peak": peak,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "margins_by": {by: int((bounds.lower_by == by).sum()) for by in sorted(set(bounds.lower_by.flat))},
        "finite": int(bounds.lower.isfinite().sum()),
    }


class Kept(logging.Handler):
    """Appends messages to a list."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="nets whose name contains this text")
    parser.add_argument("--method", default="", help="methods whose name begins with this text")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds of each call")


def measure(options: argparse.Namespace) -> Results:
    said: list[str] = []
    logging.getLogger("pyrobust").addHandler(Kept(said))
    for name, (net, x) in large_nets().items():
        if options.only not in name:
            continue
        net.eval().requires_grad_(False)
        net(x)
        cpu = time.process_time()
        y = net(x).argmax(1)
        forward = time.process_time() - cpu
        cpu = time.process_time()
        bounded = BoundedModel(net, x)
        bounded.bounds(x, 0.0, method="ibp")
        print(f"{name}: construction {time.process_time() - cpu:.1f} s of CPU", flush=True)
        for method in ("ibp", "crown-ibp", "crown", "alpha-crown"):
            if not method.startswith(options.method):
                continue
            try:
                bounded.margins(x, y, 0.0, method=method, memory_limit=1)
            except InputError as error:
                refusal = str(error)
            for limit in int(refusal.split(" at least ")[1].split()[0]), None:
                for _ in range(2):  # the first call may copy weights, which belong to the network
                    said.clear()
                    row = measured(bounded, x, y, method, limit, options.time_limit)
                    if row["wall_seconds"] > options.time_limit / 4:
                        break
                row |= {"net": name, "method": method, "forward_seconds": forward, "said": list(said)}
                yield row | {"refusal": refusal}
