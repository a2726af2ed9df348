"""The cost of dealing: one worker beside the same sweep in this process, at chunks of about a second.

Digits by smoothing, one image a chunk, one thread everywhere. Runs alternate. Times are from the first committed chunk
to the last, so that neither imports nor the start of a worker count; the start is shown beside. Needs ray, but for
--executors cpu:1.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from study import Results

from pyrobust.evaluation import RayCluster, SweepProgress, certify_dataset
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model


def swept(executor: str | None, n: int, chunks: int, folder: Path, run: str) -> tuple[float, float]:
    """Seconds of a chunk after the first, and seconds until the first is committed."""
    smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    commits: list[float] = []

    def note(progress: SweepProgress) -> None:
        if progress.done > len(commits):
            commits.extend([time.perf_counter()] * (progress.done - len(commits)))

    begin = time.perf_counter()
    out = folder / f"{run}.db"
    certify_dataset(
        smoother,
        load_data("digits"),
        n=n,
        max_images=chunks,
        batch_size=512,
        threads=1,
        executor=RayCluster(workers=1) if executor == "ray" else executor,
        out=out,
        progress=note,
    )
    out.unlink()
    assert len(commits) == chunks
    return (commits[-1] - commits[0]) / (chunks - 1), commits[0] - begin


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, default=150_000, help="samples of an image")
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--executors", default="cpu:1,ray")


def measure(options: argparse.Namespace) -> Results:
    executors = [None, *options.executors.split(",")]
    seconds: dict[str | None, list[float]] = {name: [] for name in executors}
    starts: dict[str | None, list[float]] = {name: [] for name in executors}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for name in executors:
                run = f"{number}-{name}".replace(":", "")
                chunk, start = swept(name, options.n, options.chunks, Path(folder), run)
                seconds[name].append(chunk)
                starts[name].append(start)
    for name in executors:
        ratios = [chunk / alone for chunk, alone in zip(seconds[name], seconds[None], strict=True)]
        yield {
            "executor": name or "this process",
            "chunk_s": statistics.median(seconds[name]),
            "ratio": statistics.median(ratios),
            "ratio_least": min(ratios),
            "ratio_most": max(ratios),
            "first_chunk_s": statistics.median(starts[name]),
        }
