"""CPU time of ``RandomizedSmoothing.certify`` over Cohen's plain loop, in pairs.

Each pair certifies one image both ways, in turns first and second, from the smoother's second image on. The loop has a
process of its own, whose heap is as PyTorch leaves it. The grid of the images is detected, as by default. ratio is the
geometric mean of the pairs' ratios, upper the upper end of its 95 % interval; above 1 the loop is faster. Cells whose
loop takes more than --longest seconds are left out. Nets have random weights but for the digits net. --busy keeps that
many other processes running.
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from multiprocessing.connection import Connection

import torch
from nets import convolutional
from study import Results, Row, busy
from torch import Tensor, nn

from pyrobust import RandomizedSmoothing
from pyrobust.microbench.smoothing import certify_in_a_loop
from pyrobust.zoo import load_digits, load_model

_IMAGES, _FEWEST_PAIRS, _SIGMA = 50, 5, 0.25


class Residual(nn.Module):
    """Convolutions with batch normalisation beside a shortcut."""

    def __init__(self, inputs: int, widths: tuple[int, ...], kernels: tuple[int, ...], stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = inputs
        for i, (width, kernel) in enumerate(zip(widths, kernels, strict=True)):
            strided = stride if i == len(widths) - 2 else 1
            layers += [nn.Conv2d(before, width, kernel, strided, kernel // 2, bias=False), nn.BatchNorm2d(width)]
            layers += [nn.ReLU()] if i < len(widths) - 1 else []
            before = width
        self.body = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if (inputs, stride) != (widths[-1], 1):
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, widths[-1], 1, stride, bias=False), nn.BatchNorm2d(widths[-1])
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet20() -> nn.Sequential:
    blocks, inputs = [], 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for i in range(3):
            blocks.append(Residual(inputs, (width, width), (3, 3), stride if i == 0 else 1))
            inputs = width
    stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def resnet50() -> nn.Sequential:
    blocks, inputs = [], 64
    for width, stride, count in ((64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)):
        for i in range(count):
            blocks.append(Residual(inputs, (width, width, 4 * width), (1, 3, 1), stride if i == 0 else 1))
            inputs = 4 * width
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


_NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 784-256-10": (mlp, (1, 28, 28)),
    "digits net": (functools.partial(load_model, "zoo:digits-smooth-0.25"), (1, 8, 8)),
    "MNIST CNN": (functools.partial(convolutional, (1, 16, 32), 1568), (1, 28, 28)),
    "OVAL base": (functools.partial(convolutional, (3, 8, 16), 1024), (3, 32, 32)),
    "ResNet-20": (resnet20, (3, 32, 32)),
    "ResNet-50": (resnet50, (3, 224, 224)),
}


def images_and_net(name: str) -> tuple[Tensor, nn.Module]:
    """Images [50, ...] and the net of this name, the same in every process."""
    build, shape = _NETS[name]
    torch.manual_seed(0)
    model = build().eval()
    return load_digits("test").x[:_IMAGES] if name == "digits net" else torch.randint(
        256, (_IMAGES, *shape)
    ) / 255, model


def serve_loops(connection: Connection, name: str, threads: int) -> None:
    """Answer each (image, n0, n, batch) with the CPU seconds of the loop on it, until None comes."""
    torch.set_num_threads(threads)
    x, model = images_and_net(name)
    while (request := connection.recv()) is not None:
        i, n0, n, batch = request
        begin = time.process_time()
        certify_in_a_loop(model, x[i : i + 1], n0, n, batch)
        connection.send(time.process_time() - begin)


def cell(
    model: nn.Module, x: Tensor, loops: Connection, n0: int, n: int, batch: int, seconds: float
) -> dict[str, float]:
    """Ratios of pairs until the seconds have passed; the first image warms both up."""
    smoother = RandomizedSmoothing(model, 10, _SIGMA, batch_size=batch)

    def ours(i: int) -> float:
        begin = time.process_time()
        smoother.certify(x[i], n0, n)
        return time.process_time() - begin

    def loop(i: int) -> float:
        loops.send((i, n0, n, batch))
        taken: float = loops.recv()
        return taken

    ours(0), loop(0)
    pairs: list[tuple[float, float]] = []
    deadline = time.perf_counter() + seconds
    while len(pairs) < _FEWEST_PAIRS or time.perf_counter() < deadline:
        i = 1 + len(pairs) % (_IMAGES - 1)
        if len(pairs) % 2:
            pairs.append((ours(i), loop(i)))
        else:
            theirs = loop(i)
            pairs.append((ours(i), theirs))
    logs = [math.log(a / b) for a, b in pairs]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    return {
        "pairs": len(pairs),
        "loop_ms": statistics.median(b for _, b in pairs) * 1e3,
        "certify_ms": statistics.median(a for a, _ in pairs) * 1e3,
        "ratio": math.exp(mean),
        "upper": math.exp(mean + 1.96 * error),
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="the nets whose name contains this text")
    parser.add_argument("--n0", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--n", type=int, nargs="+", default=[10, 100, 1000, 10_000, 100_000])
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256, 2048])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each cell, which has at least 5 pairs")
    parser.add_argument("--longest", type=float, default=20.0, help="seconds of a loop from which a cell is left out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0, help="other processes that never sleep")


def measure(options: argparse.Namespace) -> Results:
    with busy(options.busy):
        for name in _NETS:
            if options.only in name:
                yield from of_net(name, options)


def of_net(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """The cells of a net."""
    x, model = images_and_net(name)
    context = multiprocessing.get_context("spawn")
    loops, connection = context.Pipe()
    server = context.Process(target=serve_loops, args=(connection, name, options.threads), daemon=True)
    server.start()
    for n0, n, batch in product(options.n0, options.n, options.batch):
        begin = time.process_time()
        certify_in_a_loop(model, x[:1], 1, min(batch, n), batch)
        if (time.process_time() - begin) * (n0 + n) / min(batch, n) <= options.longest:
            result = cell(model, x, loops, n0, n, batch, options.seconds)
            yield {"net": name, "n0": n0, "n": n, "batch": batch, **result}
    loops.send(None)
    server.join()
