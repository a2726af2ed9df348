"""Certification logs that tests make up."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pyrobust.evaluation import CertificationLog
from pyrobust.metrics.votes import attainable_radii

CLASSES = 10


def log_of(
    votes: list[int],
    right: list[bool],
    *,
    name: str = "net",
    n: int = 1000,
    sigma: float = 0.25,
    alpha: float = 0.001,
    folder: str = "logs",
) -> CertificationLog:
    """Make a log with radii as the reference script prints them for these votes; labels cycle through the classes."""
    count = len(votes)
    exact = attainable_radii(n, alpha, sigma)[np.array(votes)]
    radius = np.floor(exact * 1e4) / 1e4
    label = np.arange(count) % CLASSES
    prediction = np.where(right, label, (label + 1) % CLASSES)
    prediction = np.where(radius > 0, prediction, -1)
    return CertificationLog(
        path=Path(folder, f"{name}.tsv"),
        name=name,
        kind="certify",
        index=np.arange(count),
        label=label,
        prediction=prediction,
        radius=radius,
        correct=(prediction == label).astype(float),
        seconds=None,
        decimals=np.full(count, 4),
        n=n,
        alpha=alpha,
        sigma=sigma,
        origins=dict.fromkeys(("n", "alpha", "sigma"), "given"),
    )


def write(log: CertificationLog, path: Path) -> Path:
    """Write the log as text, as a script would."""
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime"]
    columns = (log.index, log.label, log.prediction, log.radius, log.correct)
    for index, label, prediction, radius, correct in zip(*(column.tolist() for column in columns), strict=True):
        lines.append(f"{index}\t{label}\t{prediction}\t{radius:.4f}\t{correct:.0f}\t0:00:14.1")
    path.write_text("\n".join(lines) + "\n")
    return path


GOOD = log_of([1000, 999, 950, 900, 800, 700, 650, 990, 1000, 400], [True] * 8 + [False, True], name="good")
POOR = log_of([700, 999, 650, 900, 600, 700, 650, 600, 1000, 400], [True] * 8 + [False, True], name="poor")
# Always the same class, whatever the noise: right about one image in ten, with all votes.
CONSTANT = log_of([1000] * 10, [i == 0 for i in range(10)], name="constant", sigma=1e6)
ABSTAINS = log_of([500] * 6, [True] * 6, name="abstains")
