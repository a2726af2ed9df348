"""Bounds of small architectures beside another tool's: time, margins, memory, construction; on Linux.

Margins of one method, batch and number of threads are a cell. In a cell both tools are called in turns, in one process
for the methods of a network; a process of its own for each tool and method measures the growth of the resident size
during its first call. Calls that take longer than --seconds end, and their cell has no figure. Ratios are the other's
wall-clock time over the native engine's, with 95 % intervals of the mean logarithm (Student's t). "torch" is this
package's engine of tensors.

Margins are compared without directed rounding: "looser" is the largest (other - native) / (1 + |other|), "loss" what
directed rounding costs, the largest (plain - sound) / (1 + |plain|). "false" is the largest excess of a tool's margin
over the smallest at random corners of the box: where it is positive, the tool's margin does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import study
import torch
from scipy import stats
from studies.bounds.architecture_nets import ARCHITECTURES, architecture
from study import Results, Row, peak_rise
from torch import Tensor, nn

from pyrobust import BoundedModel

METHODS = ("ibp", "crown-ibp", "crown")
Margins = Callable[[str], Tensor]


class Late(Exception):
    """A call took longer than it may."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Late

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@dataclass
class Problem:
    """A net, its inputs, their predicted classes and a radius."""

    net: nn.Module
    x: Tensor
    y: Tensor
    epsilon: float

    @classmethod
    def make(cls, name: str, batch: int) -> Problem:
        net, x = architecture(name, batch)
        return cls(net, x, net(x).argmax(1), ARCHITECTURES[name].epsilon)

    def smallest(self) -> Tensor:
        """The smallest margins [B, K - 1] at random corners of the box."""
        classes = self.net(self.x).shape[1]
        others = torch.arange(classes) != self.y.unsqueeze(1)
        best = torch.full((len(self.x), classes - 1), torch.inf)
        for _ in range(200):
            logits = self.net(self.x + self.epsilon * torch.randn_like(self.x).sign())
            margins = logits.gather(1, self.y.unsqueeze(1)) - logits
            best = best.minimum(margins[others].view(best.shape))
        return best

    def build(self, tool: str, seconds: float, *, sound: bool = True) -> Margins:
        """A function from a method's name to margins [B, K - 1]."""
        if tool == "auto_LiRPA":
            return self._auto_lirpa()
        bounded = BoundedModel(self.net, self.x, engine="torch" if tool == "torch" else "native")

        def margins(method: str) -> Tensor:
            result = bounded.margins(
                self.x, self.y, self.epsilon, method=method, sound=sound, time_limit=None if sound else seconds
            )
            return result.lower

        return margins

    def _auto_lirpa(self) -> Margins:
        from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm

        bounded = BoundedModule(self.net, self.x)
        classes = self.net(self.x).shape[1]
        eye = torch.eye(classes)
        rows = eye[self.y].unsqueeze(1) - eye
        rows = rows[torch.arange(classes) != self.y.unsqueeze(1)].view(len(self.y), classes - 1, classes)
        box = BoundedTensor(self.x, PerturbationLpNorm(x_L=self.x - self.epsilon, x_U=self.x + self.epsilon))

        @torch.no_grad()
        def margins(method: str) -> Tensor:
            lower: Tensor = bounded.compute_bounds(x=(box,), C=rows, method=method, bound_upper=False)[0]
            return lower

        return margins


def largest_share(a: Tensor, b: Tensor) -> float:
    """The largest (a - b) / (1 + |a|); 0 where both are the same infinity, which are margins that nothing bounds."""
    return float(((a - b) / (1 + a.abs())).where(a != b, 0.0).nan_to_num(nan=-1.0).max())


def memory(name: str, batch: int, tool: str, method: str, seconds: float) -> dict[str, Any]:
    """Seconds of construction, and the growth of the resident size during the first call."""
    problem = Problem.make(name, batch)
    begin = time.process_time()
    margins = problem.build(tool, seconds)
    construction = time.process_time() - begin
    with at_most(seconds):
        _, peak = peak_rise(lambda: margins(method))
    return {"construction": construction, "peak": peak}


def times(name: str, batch: int, other: str, methods: list[str], seconds: float) -> dict[str, Any]:
    """Method → what a comparison of both tools gives, each built once."""
    problem = Problem.make(name, batch)
    tools: dict[str, Margins] = {}
    refusals: dict[str, str] = {}
    for tool in ("native", other):
        try:
            with at_most(seconds):
                tools[tool] = problem.build(tool, seconds)
        except Exception as error:
            refusals[f"{tool} says"] = said(error, seconds)
    plain = problem.build("native", seconds, sound=False)
    return {method: refusals | compared(problem, tools, other, method, plain, seconds) for method in methods}


def said(error: Exception, seconds: float) -> str:
    """The operator that a tool does not support, as its error names it."""
    return f"more than {seconds:g} s" if isinstance(error, Late) else f"{type(error).__name__}: {str(error)[:200]}"


def compared(
    problem: Problem, tools: dict[str, Margins], other: str, method: str, plain: Margins, seconds: float
) -> dict[str, Any]:
    """Time both tools in turns for a while, and compare their margins."""
    result: dict[str, Any] = {}
    first: dict[str, Tensor] = {}
    for tool, margins in tools.items():
        try:
            with at_most(seconds):
                first[tool] = margins(method)
                begin = time.perf_counter()
                margins(method)
                result[tool] = time.perf_counter() - begin
        except Exception as error:
            result[f"{tool} says"] = said(error, seconds)
    if len(result) < 2 or any(name.endswith("says") for name in result):
        return result
    undirected = plain(method)
    result["looser"] = largest_share(first[other], undirected)
    result["loss"] = largest_share(undirected, first["native"])
    corners = problem.smallest()
    result["false"] = {tool: float((margins - corners).max()) for tool, margins in first.items()}
    taken: dict[str, list[float]] = {tool: [] for tool in tools}
    loops = {tool: max(1, int(0.02 / result[tool])) for tool in tools}
    deadline = time.perf_counter() + min(20.0, max(2.0, 6 * (result["native"] + result[other])))
    while len(taken[other]) < 5 or time.perf_counter() < deadline:
        for tool, margins in tools.items():
            begin = time.perf_counter()
            for _ in range(loops[tool]):
                margins(method)
            taken[tool].append((time.perf_counter() - begin) / loops[tool])
    logs = [math.log(b / a) for a, b in zip(taken["native"], taken[other], strict=True)]
    mean, deviation = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * deviation
    ratio = {"ratio": math.exp(mean), "ratio_low": math.exp(mean - half), "ratio_high": math.exp(mean + half)}
    return result | {tool: statistics.median(times) for tool, times in taken.items()} | ratio


def in_process(threads: int, seconds: float, **arguments: Any) -> dict[str, Any]:
    """Run one of the two above in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-W", "ignore", study.__file__, "bounds/architectures"]
    command += ["--child", json.dumps(arguments | {"seconds": seconds})]
    try:
        process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300 + 8 * seconds)
    except subprocess.TimeoutExpired:
        return {"says": "did not end"}
    if process.returncode:
        return {"says": process.stderr.strip().rpartition("\n")[2][:200]}
    answer: dict[str, Any] = json.loads(process.stdout.strip().rpartition("\n")[2])
    return answer


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", choices=("auto_LiRPA", "torch"), default="auto_LiRPA")
    parser.add_argument("--only", default="", help="architectures whose name contains this text")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 8))
    parser.add_argument("--threads", nargs="+", type=int, default=(1, 2))
    parser.add_argument("--seconds", type=float, default=60.0, help="the most for two calls of a tool (default 60)")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)


def measure(options: argparse.Namespace) -> Results:
    if options.child:
        print(json.dumps((memory if "tool" in options.child else times)(**options.child)))
        raise SystemExit
    for name, batch in itertools.product((name for name in ARCHITECTURES if options.only in name), options.batches):
        network = {"name": name, "batch": batch}
        measured = {
            threads: in_process(threads, options.seconds, other=options.against, methods=options.methods, **network)
            for threads in (() if options.no_times else options.threads)
        }
        for method in options.methods:
            row: Row = network | {"method": method}
            row |= {f"threads {threads}": answer.get(method, answer) for threads, answer in measured.items()}
            for tool in ("native", options.against) if not options.no_memory else ():
                row[f"memory {tool}"] = in_process(1, options.seconds, tool=tool, method=method, **network)
            yield row
