"""Seconds and peak memory of auditing a certification log of a million rows. Linux only.

The log is synthetic: votes for a class drawn from a beta distribution, radii at n = 100,000, alpha = 0.001 and sigma =
0.25, printed as the reference script prints them (three significant digits) and in full (as Python prints a double).
Each measurement runs in a separate process. "read" is reading alone, "audit" reading and auditing. Seconds are CPU
time without imports, megabytes the peak resident size with imports; the lowest of the repeats counts.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from study import Results, separately

N, ALPHA, SIGMA = 100_000, 0.001, 0.25


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the log")
    parser.add_argument("--repeats", type=int, default=3, help="processes per measurement; the lowest counts")


def measure(options: argparse.Namespace) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        for style in ("three digits", "in full"):
            path = Path(folder, f"{style.replace(' ', '_')}_sigma{SIGMA:g}.tsv")
            separately(write_log, path, options.rows, style)
            for what in ("read", "audit"):
                measured = [separately(_measure, path, what) for _ in range(options.repeats)]
                seconds, megabytes = (min(column) for column in zip(*measured, strict=True))
                yield f"{what}, {style}", {"seconds": seconds, "peak_megabytes": megabytes}
    return {"rows": options.rows}


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
