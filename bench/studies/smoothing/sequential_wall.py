"""Time and samples of sequential certification at one radius, against a fixed n, end to end on real nets.

Whole runs, store included: ``certify_dataset`` with method "fixed", "sequential", and "sequential" with half of alpha
for the bound at n, on the same images with the same noise, alpha = 0.001, n0 = 100. The nets: the bundled one for
digits, trained with noise, and OVAL21's base net for CIFAR-10 (where PYROBUST_DATA has it), which is not. The runs
follow one another: the sequential ones twice, before and after the fixed one. Ratios are of wall time and of samples.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import nets
import torch
from study import Results

from pyrobust import RandomizedSmoothing
from pyrobust.evaluation import certify_dataset
from pyrobust.zoo import ImageSet

SIGMA, ALPHA, N0 = 0.25, 0.001, 100
METHODS: dict[str, dict[str, Any]] = {
    "sequential": {"method": "sequential"},
    "hybrid": {"method": "sequential", "hybrid": 0.5},
    "fixed": {},
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=100, help="images for each net, spread over its data set")
    parser.add_argument("--n", type=int, default=100_000, help="samples of the fixed run, maximum of the others")
    parser.add_argument("--radius", type=float, default=0.25)


def measure(options: argparse.Namespace) -> Results:
    for name in ("digits-smooth-0.25", *(["oval_base"] if os.environ.get("PYROBUST_DATA") else [])):
        yield compare(name, options.images, options.n, options.radius)
    return {"sigma": SIGMA, "alpha": ALPHA, "n0": N0, "n": options.n, "radius": options.radius}


def compare(name: str, images: int, n: int, radius: float) -> dict[str, Any]:
    net, x, y = nets.load(name)
    smoother, data = RandomizedSmoothing(net, 10, SIGMA, grid=None), ImageSet(name, x, y)
    selection = {"skip": max(1, len(data) // images), "max_images": images}
    comparison: dict[str, Any] = {"net": name, "threads": torch.get_num_threads()}
    for method in (*METHODS, "sequential", "hybrid"):
        options = METHODS[method] | ({} if method == "fixed" else {"radii": [radius]})
        with tempfile.TemporaryDirectory() as folder:
            begin, cpu = time.perf_counter(), time.process_time()
            run = certify_dataset(
                smoother, data, out=Path(folder, "run.db"), n0=N0, n=n, alpha=ALPHA, **selection, **options
            )
            wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
            samples = int(run.table["samples"].sum()) if "samples" in run.table else len(run) * (N0 + n)
            undecided = sum("1" in digits for digits in run.table["undecided"].tolist()) if method != "fixed" else 0
            figures = {
                "wall seconds": wall,
                "cpu seconds": cpu,
                "samples": samples,
                "certified": int(((run.table["prediction"] >= 0) & (run.table["radius"] >= radius)).sum()),
                "undecided": undecided,
            }
        first = comparison.get(method)
        comparison[method] = figures if first is None or wall < first["wall seconds"] else first
        comparison["images"] = len(run)
    for method in ("sequential", "hybrid"):
        comparison[method]["times faster"] = comparison["fixed"]["wall seconds"] / comparison[method]["wall seconds"]
        comparison[method]["times fewer samples"] = comparison["fixed"]["samples"] / comparison[method]["samples"]
    return comparison
