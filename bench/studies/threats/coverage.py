"""Coverage and width of success rates of behaviours with several attempts each, beside intervals that ignore clusters.

``threat_success_rate``'s interval over 100 behaviours of 1, 5, 20 or 1 to 20 attempts, whose verdicts are true.
Attempts at a behaviour are beta-binomial; at the intraclass correlation 1 they are copies of one.

A sample's interval is computed for its width in the first ``--widths`` samples, and otherwise where it may miss: it can
only miss where the betting test of a mean rejects the true one, which one evaluation of the test shows instead of a
search over all means. The sampled widths confirm that. Needs garak.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy import special, stats
from studies.threats.rate_intervals import OF_VERDICTS, Interval
from study import Results, Row

from pyrobust.stats import bounded_mean, bounded_mean_interval
from pyrobust.threats.rates import interval as binary_interval

ALPHA = 0.05
RATES = (0.0, 0.01, 0.1, 0.5, 0.99, 1.0)
BEHAVIOURS = 100
SHAPES = [(1, 0.0), *product((5, 20, "1 to 20"), (0.0, 0.3, 1.0))]


def may_miss(totals: Any, sizes: Any, alpha: float, mean: float) -> Any:
    """Whether the interval may miss the mean, for samples of totals [R, N] of sizes [N]; True near the threshold."""
    if not 0 < mean < 1:
        return np.zeros(len(totals), dtype=bool)  # an end of [0, 1] is in every interval of possible samples
    return rejects(sizes - totals, sizes, alpha / 2, mean) | rejects(totals, sizes, alpha / 2, 1 - mean)


def rejects(zeros: Any, sizes: Any, alpha: float, u: float) -> Any:
    n, weights = zeros.shape[1], np.broadcast_to(sizes / sizes.max(), zeros.shape[1:])
    p0 = math.exp(-np.log1p(weights * u / (1 - u)).sum())
    if p0 >= alpha * 0.999:
        return np.full(len(zeros), p0 <= alpha * 1.001)
    edges = bounded_mean._EDGES
    edge = edges[max(int(np.searchsorted(edges, u, side="right")) - 1, 0)]
    scale = math.sqrt(2 * (math.log(1 / alpha) + 1) * (1 - edge) / (n * edge))
    parts = []
    for halvings, weight in zip(bounded_mean._HALVINGS, bounded_mean._WEIGHTS, strict=True):
        bet = min(1.0, scale * 2 ** (halvings / 2))
        with np.errstate(divide="ignore"):
            growth = np.log((1 - bet) + bet * (1 - weights) + bet * zeros / (sizes.max() * (1 - u)))
        parts.append(growth.sum(axis=1) + math.log(weight))
    nothing = (zeros == sizes).all(axis=1)  # rejected by its own probability
    return nothing | (special.logsumexp(parts, axis=0) + math.log(alpha - p0) >= -1e-6)


@dataclass
class Samples:
    """Samples of a cell."""

    positives: Any  # [R], verdicts
    attempts: int
    suspects: Any  # [R], True where the interval may miss
    interval: Callable[[int], Interval]


def draw(rng: np.random.Generator, rows: int, sizes: Any, icc: float, p: float) -> Any:
    """Successes of each behaviour, [rows, N]."""
    shape = (rows, len(sizes))
    if icc == 1:
        return (rng.random(shape) < p) * sizes
    strength = 1 / icc - 1 if icc else math.inf
    shares = rng.beta(p * strength, (1 - p) * strength, shape) if 0 < p < 1 and icc else np.full(shape, p)
    return rng.binomial(np.broadcast_to(sizes, shape), shares)


def rate_samples(rng: np.random.Generator, rows: int, size: int | str, icc: float, p: float) -> Samples:
    sizes = np.arange(BEHAVIOURS) % 20 + 1 if isinstance(size, str) else np.full(BEHAVIOURS, size)
    won = draw(rng, rows, sizes, icc, p)
    total = won.sum(axis=1)
    if size == 1:  # a single attempt at each behaviour
        names = [str(i) for i in range(BEHAVIOURS)]
        exact = [binary_interval(names, [1.0 * (i < x) for i in range(BEHAVIOURS)], ALPHA, True) for x in range(101)]
        return Samples(total, BEHAVIOURS, np.ones(rows, dtype=bool), lambda i: exact[total[i]])
    suspects = may_miss(won, sizes, ALPHA, p)
    return Samples(total, int(sizes.sum()), suspects, lambda i: bounded_mean_interval(won[i], sizes, ALPHA))


def cell(samples: Samples, p: float, widths: int) -> dict[str, Any]:
    """Coverage, its test and the widths, ours and others'."""
    rows = len(samples.suspects)
    covered, sizes = np.ones(rows, dtype=bool), []
    for i in np.flatnonzero(samples.suspects | (np.arange(rows) < widths)):
        low, high = samples.interval(i)
        covered[i] = low <= p <= high
        assert covered[i] or samples.suspects[i], (samples.positives[i], low, high)
        if i < widths:
            sizes.append(high - low)
    hits = int(covered.sum())
    row: dict[str, Any] = {
        "coverage": hits / rows,
        "p_value": float(stats.binomtest(hits, rows, 1 - ALPHA, alternative="less").pvalue),
        "width": float(np.mean(sizes)),
    }
    counts, inverse = np.unique(samples.positives, return_inverse=True)
    others: dict[str, Any] = {
        name: np.array([f(int(x), samples.attempts) for x in counts])[inverse] for name, f in OF_VERDICTS.items()
    }
    for name, intervals in others.items():
        low, high = np.array(intervals).T
        row[f"{name}_coverage"] = float(((low <= p) & (p <= high)).mean())
        row[f"{name}_width"] = round(float((high - low).mean()), 6)
    return row


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicates", type=int, default=5000)
    parser.add_argument("--widths", type=int, default=20)


def measure(options: argparse.Namespace) -> Results:
    rows: list[Row] = []
    for number, ((size, icc), p) in enumerate(product(SHAPES, RATES)):
        samples = rate_samples(np.random.default_rng(number), options.replicates, size, icc, p)
        rows.append({"size": size, "icc": icc, "p": p} | cell(samples, p, options.widths))
        yield rows[-1]
    summary = {
        "cells": len(rows),
        "replicates": options.replicates,
        "least_coverage": min(row["coverage"] for row in rows),
        "significantly_below": sum(row["p_value"] < ALPHA / len(rows) for row in rows),
    }
    return {"summary": summary}
