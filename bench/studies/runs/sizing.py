"""Times that ``pyrobust plan --workers`` predicts from a pilot of 40 images, against runs of all 382 digits.

Each round runs the pilot (every ninth image, another seed), then the sweep in one process and in two at once, one shard
each. Predictions are those of `pyrobust plan`; the sequential sweep is predicted
from a pilot of its own and from the pilot with a fixed n. All times are CPU times of one thread, also those that the
runs store: what a process takes that has a core to itself, on a machine that is shared. The measured time is that of
the process that takes longest, from the loaded model to the end of the sweep; "stored" leaves out its preparation and
its file: the sum of the seconds that its images have. The summary has medians over the rounds: the error, that of the
images alone, and the share of rounds inside the predicted range.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from study import Results, Row, separately

from pyrobust.evaluation import Run

FIXED, N = 1000, 5000
RADII = [0.25, 0.5]
KINDS = {
    "certify, fixed n": "certify",
    "certify, sequential": "certify",
    "attack, AutoAttack": "attack",
    "verify, cascade": "verify",
}


def sweep(kind: str, out: str, pilot: bool, shard: tuple[int, int] | None) -> float:
    """Run one process's part of a sweep; return its CPU time."""
    time.perf_counter = time.process_time
    import torch

    from pyrobust import AutoAttack, RandomizedSmoothing, zoo
    from pyrobust.evaluation import attack_dataset, certify_dataset, verify_dataset

    torch.set_num_threads(1)
    model, data = zoo.load_model("zoo:digits-smooth-0.25"), zoo.load_data("digits")
    options: dict[str, Any] = {"out": out, "shard": shard}
    options |= {"skip": 9, "max_images": 40} if pilot else {}
    begin = time.process_time()
    seed = 1 if pilot else 0
    if kind == "certify, fixed n":
        certify_dataset(RandomizedSmoothing(model, 10, 0.25, seed=seed), data, n=FIXED if pilot else N, **options)
    elif kind == "certify, sequential":
        smoother = RandomizedSmoothing(model, 10, 0.25, seed=seed)
        certify_dataset(smoother, data, n=N, method="sequential", radii=RADII, **options)
    elif kind == "attack, AutoAttack":
        attack_dataset(AutoAttack(model, epsilon=0.1, seed=seed), data, batch_size=8, **options)
    else:
        verify_dataset(model, data, epsilons=[0.05, 0.1], batch_size=8, **options)
    return time.process_time() - begin


def measured(kind: str, outs: list[Path], pilot: bool = False) -> float:
    """Return the time of a sweep in as many processes as files."""

    def cpu_time(i: int) -> float:
        shard = None if len(outs) == 1 else (i + 1, len(outs))
        return separately(sweep, kind, str(outs[i]), pilot, shard)

    with ThreadPoolExecutor() as at_once:
        return max(at_once.map(cpu_time, range(len(outs))))


def plan(pilot: Path, method: str, workers: int) -> dict[str, float]:
    """Return the prediction of the command for as many shards as workers."""
    options = ["--workers", str(workers), "--images", "382", "--chunk", str(-(-382 // workers)), "--json"]
    options += ["--n-max", str(N), "--radii", ",".join(map(str, RADII))]
    line = [sys.executable, "-m", "pyrobust", "plan", str(pilot), *options]
    report = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    times: dict[str, float] = report["time"][method][0]
    return times


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)


def measure(options: argparse.Namespace) -> Results:
    rows: list[Row] = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for kind in KINDS:
                for row in of_kind(kind, Path(folder)):
                    rows.append(row | {"round": number})
                    yield rows[-1]
    summary = {}
    for label, workers in dict.fromkeys((row["sweep"], row["workers"]) for row in rows):
        group = [row for row in rows if (row["sweep"], row["workers"]) == (label, workers)]
        summary[f"{label}, {workers} workers"] = {
            "error": statistics.median(row["error"] for row in group),
            "of images alone": round(statistics.median(row["wall_seconds"] / row["stored"] - 1 for row in group), 3),
            "inside": sum(row["lower"] <= row["measured"] <= row["upper"] for row in group) / len(group),
        }
    return {"summary": summary}


def of_kind(kind: str, folder: Path) -> Iterator[Row]:
    """Predictions beside measurements of one round."""
    pilot = folder / f"{kind}.db"
    measured(kind, [pilot], pilot=True)
    sources = [(kind, pilot, "fixed" if kind == "certify, fixed n" else KINDS[kind])]
    if kind == "certify, sequential":
        sources.append((f"{kind}, from fixed n", folder / "certify, fixed n.db", "sequential"))
    for workers in (1, 2):
        files = [folder / f"{kind} {workers} {i}.db" for i in range(workers)]
        seconds = measured(kind, files)
        stored = max(float(Run(file).table["seconds"].sum()) for file in files)
        for label, file, method in sources:
            times = plan(file, method, workers)
            row = {"sweep": label, "workers": workers, "measured": round(seconds, 2), "stored": round(stored, 2)}
            row |= {key: round(times[key], 2) for key in ("wall_seconds", "lower", "upper")}
            yield row | {"error": round(times["wall_seconds"] / seconds - 1, 3)}
