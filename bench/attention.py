"""Bounds of attention, normalization and recurrence: the native engine beside the torch engine, in CPU seconds.

python bench/attention.py [--only TEXT] [--pairs N] [--json FILE]

Each pair is one call of each engine, one after the other, on one thread. Losses are those of rounding: the width of the
native engine's bounds over that of its plain floating-point ones, less 1.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from pyrobust import BoundedModel
from pyrobust.microbench.timing import describe_machine

METHODS = ("ibp", "crown-ibp", "crown")


class Transformer(nn.Module):
    """Tokens of eight features through pre-norm encoder layers, and their mean through a linear layer."""

    def __init__(self, blocks: int, activation: str = "gelu") -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, activation, norm_first=True, batch_first=True)
        self.embedding, self.head = nn.Linear(8, 16), nn.Linear(16, 5)
        self.blocks = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(x)).mean(1))


class Last(nn.Module):
    """The last output of a recurrent layer through a linear layer."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(8, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def normalized(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))


#: Name → (constructor, shape of an example).
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "one block, 4 tokens": (lambda: Transformer(1), (4, 8)),
    "one block, 16 tokens": (lambda: Transformer(1), (16, 8)),
    "two blocks, 4 tokens, ReLU": (lambda: Transformer(2, "relu"), (4, 8)),
    "group norm": (lambda: normalized(nn.GroupNorm(2, 8)), (3, 8, 8)),
    "LSTM, 6 steps": (lambda: Last(nn.LSTM), (6, 8)),
    "GRU, 6 steps": (lambda: Last(nn.GRU), (6, 8)),
}


def measure(net: nn.Module, x: Tensor, method: str, pairs: int) -> dict[str, float]:
    """Median CPU seconds of both engines and their ratio, the ratio of their widths, and the loss by rounding."""
    engines = [BoundedModel(net, x[:1], engine=name) for name in ("native", "torch")]
    seconds: list[tuple[float, float]] = []
    widths = [0.0, 0.0]
    for pair in range(pairs + 1):
        times = []
        for i, bounded in enumerate(engines):
            begin = time.process_time()
            bounds = bounded.bounds(x, 0.01, method=method)
            times.append(time.process_time() - begin)
            widths[i] = float((bounds.upper - bounds.lower).mean())
        if pair:  # the first is for tables and caches
            seconds.append((times[0], times[1]))
    plain = engines[0].bounds(x, 0.01, method=method, sound=False)
    return {
        "native": statistics.median(a for a, _ in seconds),
        "torch": statistics.median(b for _, b in seconds),
        "ratio": statistics.median(b / a for a, b in seconds),
        "width": widths[0] / widths[1],
        "loss": widths[0] / float((plain.upper - plain.lower).mean()) - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="nets whose name contains this text")
    parser.add_argument("--pairs", type=int, default=5, help="paired calls (default 5)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (make, shape) in NETS.items():
        if args.only not in name:
            continue
        for batch in (1, 8):
            for method in METHODS:
                torch.manual_seed(0)
                net, x = make().eval().requires_grad_(False), torch.randn(batch, *shape)
                row = measure(net, x, method, args.pairs)
                rows.append({"net": name, "batch": batch, "method": method, **row})
                print(
                    f"{name}, B = {batch}, {method}: native {1000 * row['native']:.1f} ms, torch "
                    f"{1000 * row['torch']:.1f} ms, {row['ratio']:.1f}x; widths {row['width']:.4f}; lost by rounding "
                    f"{100 * row['loss']:.3f} %",
                    flush=True,
                )
    if args.json:
        command = "python bench/attention.py " + shlex.join(sys.argv[1:])
        figures = {"command": command, "machine": describe_machine(torch.device("cpu")), "rows": rows}
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
