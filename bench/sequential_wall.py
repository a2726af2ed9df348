"""Time and samples of sequential certification at one radius, against a fixed n, end to end on real nets.

PYROBUST_DATA=DIR python bench/sequential_wall.py [--images N] [--n N] [--radius R] [--json FILE]

Whole runs, store included: ``certify_dataset`` with method "fixed", "sequential", and "sequential" with half of alpha
for the bound at n, on the same images with the same noise, alpha = 0.001, n0 = 100. The nets: the bundled one for
digits, trained with noise, and OVAL21's base net for CIFAR-10 (where PYROBUST_DATA has it), which is not. The runs
follow one another: the sequential ones twice, before and after the fixed one. Ratios are of wall time and of samples.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from pyrobust import RandomizedSmoothing, zoo
from pyrobust.evaluation import certify_dataset

sys.path.insert(0, str(Path(__file__).parent))

import nets

SIGMA, ALPHA, N0 = 0.25, 0.001, 100
METHODS: dict[str, dict[str, Any]] = {
    "sequential": {"method": "sequential"},
    "hybrid": {"method": "sequential", "hybrid": 0.5},
    "fixed": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100, help="images for each net, spread over its data set")
    parser.add_argument("--n", type=int, default=100_000, help="samples of the fixed run, maximum of the others")
    parser.add_argument("--radius", type=float, default=0.25)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    results = [compare(name, args.images, args.n, args.radius) for name in settings()]
    for result in results:
        for name in ("sequential", "hybrid"):
            figures = result[name]
            print(
                f"{result['net']}, radius {args.radius:g}, {name}: {figures['times faster']:.1f}x faster, "
                f"{figures['times fewer samples']:.1f}x fewer samples, {figures['certified']} certified of "
                f"{result['images']} (fixed: {result['fixed']['certified']}), {figures['undecided']} undecided"
            )
    if args.json:
        from pyrobust.microbench.timing import describe_machine

        figures = {
            "command": "python bench/sequential_wall.py " + shlex.join(sys.argv[1:]),
            "machine": describe_machine(torch.device("cpu")),
            "sigma": SIGMA,
            "alpha": ALPHA,
            "n0": N0,
            "n": args.n,
            "radius": args.radius,
            "nets": results,
        }
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


def settings() -> list[str]:
    return ["digits-smooth-0.25", *(["oval_base"] if os.environ.get("PYROBUST_DATA") else [])]


def load(name: str) -> tuple[RandomizedSmoothing, zoo.ImageSet]:
    if name == "oval_base":
        net, x, y = nets.load(name, Path(os.environ["PYROBUST_DATA"]))
        return RandomizedSmoothing(net, 10, SIGMA, grid=None), zoo.ImageSet(name, x, y)
    return RandomizedSmoothing(zoo.load_model(f"zoo:{name}"), 10, SIGMA, grid=None), zoo.load_data("digits")


def compare(name: str, images: int, n: int, radius: float) -> dict[str, Any]:
    smoother, data = load(name)
    selection = {"skip": max(1, len(data) // images), "max_images": images}
    found: dict[str, Any] = {"net": name, "threads": torch.get_num_threads()}
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
        first = found.get(method)
        found[method] = figures if first is None or wall < first["wall seconds"] else first
        found["images"] = len(run)
    for method in ("sequential", "hybrid"):
        found[method]["times faster"] = found["fixed"]["wall seconds"] / found[method]["wall seconds"]
        found[method]["times fewer samples"] = found["fixed"]["samples"] / found[method]["samples"]
    return found


if __name__ == "__main__":
    main()
