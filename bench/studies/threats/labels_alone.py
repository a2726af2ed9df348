"""Success rates from labels alone, and from the judge's verdicts on all answers corrected by the same labels.

Widths of 95 % intervals for 1,000 behaviours of 1 or 5 attempts (beta-binomial, intraclass correlation 1/3), a judge
whose sensitivity and specificity are equal, and labels of whole behaviours. "labels": of the labels alone, as
``labelled_success_rate``. "difference": the mean verdict of the other behaviours plus the mean of label minus verdict
of the labelled ones (Angelopoulos et al., "Prediction-powered inference", 2023), each mean bounded with a quarter of
alpha, within the labels' interval at the other half.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import numpy as np
from study import Results, Row

from pyrobust.stats import bounded_mean_interval
from pyrobust.threats.rates import interval

ALPHA, BEHAVIOURS = 0.05, 1000
CELLS = list(product((1, 5), (20, 50, 100, 200, 500), (0.8, 0.9, 0.95, 0.99), (0.02, 0.1, 0.3, 0.5)))


def bounds(shares: Any, alpha: float) -> tuple[float, float]:
    """The interval of ``threat_success_rate`` for one share from each behaviour."""
    names = [str(i) for i in range(len(shares))]
    return interval(names, shares.tolist(), alpha, bool(np.isin(shares, (0.0, 1.0)).all()))


def widths(rng: np.random.Generator, attempts: int, labels: int, accuracy: float, p: float) -> tuple[float, float]:
    ease = rng.beta(2 * p, 2 * (1 - p), (BEHAVIOURS, 1)) if attempts > 1 else p
    truth = rng.random((BEHAVIOURS, attempts)) < ease
    verdicts = np.where(rng.random(truth.shape) < accuracy, truth, ~truth).mean(axis=1)
    labelled = truth[:labels].mean(axis=1)
    alone, half, unlabelled = bounds(labelled, ALPHA), bounds(labelled, ALPHA / 2), bounds(verdicts[labels:], ALPHA / 4)
    shift = bounded_mean_interval((1 + labelled - verdicts[:labels]) / 2, 1, ALPHA / 4)
    lower, upper = (unlabelled[side] + 2 * shift[side] - 1 for side in (0, 1))
    return alone[1] - alone[0], min(half[1], upper) - max(half[0], lower)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicates", type=int, default=5)


def measure(options: argparse.Namespace) -> Results:
    rows: list[Row] = []
    for number, (attempts, labels, accuracy, p) in enumerate(CELLS):
        rng = np.random.default_rng(number)
        means = np.mean([widths(rng, attempts, labels, accuracy, p) for _ in range(options.replicates)], axis=0)
        setting = {"attempts": attempts, "labels": labels, "accuracy": accuracy, "p": p}
        rows.append(setting | {"labels_width": round(means[0], 4), "difference_width": round(means[1], 4)})
        yield rows[-1]
    summary = {}
    for attempts in (1, 5):
        pairs = [(row["labels_width"], row["difference_width"]) for row in rows if row["attempts"] == attempts]
        summary[f"{attempts} attempts"] = {
            "cells": len(pairs),
            "difference narrower": sum(bool(difference < labels) for labels, difference in pairs),
            "mean widths": [round(float(mean), 4) for mean in np.mean(pairs, axis=0)],
        }
    return {"summary": summary}
