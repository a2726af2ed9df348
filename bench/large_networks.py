"""Messages, seconds and memory of large networks: a ResNet-50 at 224 pixels, a layer 10⁶ wide, 10⁵ classes; on Linux.

python bench/large_networks.py [--only TEXT] [--method TEXT] [--time-limit 30] [--json FILE]

Each method runs with the least memory_limit that it accepts and with none; the peak is the growth of the resident size
during the call, for which the C library first returns its free memory, of short calls the second. Construction includes
a first call.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from smoothing_pace import resnet50
from torch import Tensor, nn

from pyrobust import BoundedModel
from pyrobust.errors import InputError
from pyrobust.microbench.timing import describe_machine


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


def resident(field: str) -> int:
    """A size in bytes from the state of this process."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(field + r":\s+(\d+)", text)[0])


def measured(bounded: BoundedModel, x: Tensor, y: Tensor, method: str, limit: int | None, seconds: float) -> Any:
    """Bound the margins of a batch; return what that took and gave."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before, cpu, wall = resident("VmRSS"), time.process_time(), time.monotonic()
    bounds = bounded.margins(x, y, 1 / 255, method=method, memory_limit=limit, time_limit=seconds)
    return {
        "memory_limit": limit,
        "peak": resident("VmHWM") - before,
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.monotonic() - wall,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="nets whose name contains this text")
    parser.add_argument("--method", default="", help="methods whose name begins with this text")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds of each call")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    said: list[str] = []
    logging.getLogger("pyrobust").addHandler(Kept(said))
    rows = []
    for name, (net, x) in large_nets().items():
        if args.only not in name:
            continue
        net.eval().requires_grad_(False)
        net(x)
        cpu = time.process_time()
        y = net(x).argmax(1)
        forward = time.process_time() - cpu
        cpu = time.process_time()
        bounded = BoundedModel(net, x)
        bounded.bounds(x, 0.0, method="ibp")
        print(
            f"{name}: forward pass {forward:.2f} s of CPU, construction {time.process_time() - cpu:.1f} s", flush=True
        )
        for method in ("ibp", "crown-ibp", "crown", "alpha-crown"):
            if not method.startswith(args.method):
                continue
            try:
                bounded.margins(x, y, 0.0, method=method, memory_limit=1)
            except InputError as error:
                refusal = str(error)
            limits = int(refusal.split(" at least ")[1].split()[0]), None
            for limit in limits:
                for _ in range(2):  # the first call may copy weights, which belong to the network
                    said.clear()
                    row = measured(bounded, x, y, method, limit, args.time_limit)
                    if row["wall_seconds"] > args.time_limit / 4:
                        break
                row |= {"net": name, "method": method, "forward_seconds": forward, "said": list(said)}
                rows.append(row | {"refusal": refusal})
                print(json.dumps(row), flush=True)
    if args.json:
        command = "python bench/large_networks.py " + shlex.join(sys.argv[1:])
        figures = {"command": command, "machine": describe_machine(torch.device("cpu")), "calls": rows}
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
