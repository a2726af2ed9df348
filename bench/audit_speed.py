"""Seconds and peak memory of auditing a certification log of a million rows. Linux only.

python bench/audit_speed.py [--rows N] [--json FILE] [--repeats N]

The log is synthetic: votes for a class drawn from a beta distribution, radii at n = 100,000, alpha = 0.001 and sigma =
0.25, printed as the reference script prints them (three significant digits) and in full (as Python prints a double).
Each measurement runs in a separate process. "read" is reading alone, "audit" reading and auditing. Seconds are CPU
time without imports, megabytes the peak resident size with imports; the lowest of the repeats counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shlex
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

N, ALPHA, SIGMA = 100_000, 0.001, 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the log")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--repeats", type=int, default=3, help="processes per measurement; the lowest counts")
    args = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool,
    ):
        for style in ("three digits", "in full"):
            path = Path(folder, f"{style.replace(' ', '_')}_sigma{SIGMA:g}.tsv")
            pool.apply(write_log, (path, args.rows, style))
            for what in ("read", "audit"):
                measured = [pool.apply(_measure, (path, what)) for _ in range(args.repeats)]
                seconds, megabytes = (min(column) for column in zip(*measured, strict=True))
                results[f"{what}, {style}"] = {"seconds": seconds, "peak_megabytes": megabytes}
                print(f"{what + ', ' + style:<24}{seconds:8.2f} s{megabytes:10.0f} MB")
    if args.json:
        import torch

        from pyrobust.microbench.timing import describe_machine

        command = "python bench/audit_speed.py " + shlex.join(sys.argv[1:])
        figures = {
            "command": command,
            "machine": describe_machine(torch.device("cpu")),
            "rows": args.rows,
            "results": results,
        }
        args.json.write_text(json.dumps(figures, indent=1))


def write_log(path: Path, rows: int, style: str) -> None:
    """Write a log in the format of a certification."""
    from pyrobust.metrics.votes import attainable_radii

    random = np.random.default_rng(0)
    votes = random.binomial(N, random.beta(4, 0.5, rows))
    radius = attainable_radii(N, ALPHA, SIGMA)[votes]
    label = random.integers(0, 10, rows)
    prediction = np.where(radius > 0, np.where(random.random(rows) < 0.8, label, (label + 1) % 10), -1)
    with path.open("w") as file:
        file.write("idx\tlabel\tpredict\tradius\tcorrect\ttime\n")
        columns = (label.tolist(), prediction.tolist(), radius.tolist())
        for row, (y, p, r) in enumerate(zip(*columns, strict=True)):
            text = f"{r:.3}" if style == "three digits" else f"{r!r}"
            file.write(f"{row}\t{y}\t{p}\t{text}\t{int(y == p)}\t0:00:14.{row % 1000000:06d}\n")


def _measure(path: Path, what: str) -> tuple[float, float]:
    from pyrobust.evaluation import audit, read_certification_log

    start = time.process_time()
    log = read_certification_log(path)
    if what == "audit":
        report = audit(log)
        assert not report.faults, report.faults
    seconds = time.process_time() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
