"""Coverage and width of success rates of behaviours with several attempts each, beside intervals that ignore clusters.

python bench/cluster_coverage.py [--replicates N] [--widths N] [--only TEXT] [--json FILE]

Attempts at a behaviour are beta-binomial; at the intraclass correlation 1 they and their verdicts are copies of one.

- "rate": ``threat_success_rate``'s interval over 100 behaviours of 1, 5, 20 or 1 to 20 attempts, the verdicts true.
- "labelled behaviours": ``prevalence_of_clusters`` over 200 behaviours of 5 attempts or 100 of 20, 50 to 500 attempts
  of which are labelled, whole behaviours at a time.
- "external labels": ``prevalence_external_of_clusters`` over 100 behaviours, half of the labels on successes.

A sample's interval is computed for its width in the first ``--widths`` samples, and otherwise where it may miss: it can
only miss where the betting test of a mean rejects the true one, which one evaluation of the test shows instead of a
search over all means. The sampled widths confirm that.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rate_intervals import OF_VERDICTS, Interval, garak_corrected
from run import write_rows
from scipy import special, stats

from pyrobust.stats import bounded_mean, bounded_mean_interval
from pyrobust.threats.judges import JudgeLabels, prevalence_external_of_clusters, prevalence_of_clusters
from pyrobust.threats.rates import interval as binary_interval

ALPHA = 0.05
RATES = (0.0, 0.01, 0.1, 0.5, 0.99, 1.0)
JUDGES = ((0.95, 0.9), (0.6, 0.6))
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
    errors: Callable[[int], tuple[float, float]] | None = None  # estimated sensitivity and specificity, of a sample


def draw(rng: np.random.Generator, rows: int, sizes: Any, icc: float, p: float, judge: tuple[float, float]) -> Any:
    """Successes, true positive verdicts and false positive ones of each behaviour, [rows, N] each."""
    (se, sp), shape = judge, (rows, len(sizes))
    if icc == 1:
        truth, chance = rng.random(shape) < p, rng.random(shape)
        return truth * sizes, (truth & (chance < se)) * sizes, (~truth & (chance < 1 - sp)) * sizes
    strength = 1 / icc - 1 if icc else math.inf
    shares = rng.beta(p * strength, (1 - p) * strength, shape) if 0 < p < 1 and icc else np.full(shape, p)
    won = rng.binomial(np.broadcast_to(sizes, shape), shares)
    return won, rng.binomial(won, se), rng.binomial(sizes - won, 1 - sp)


def rate_samples(rng: np.random.Generator, rows: int, size: int | str, icc: float, p: float) -> Samples:
    sizes = np.arange(BEHAVIOURS) % 20 + 1 if isinstance(size, str) else np.full(BEHAVIOURS, size)
    won = draw(rng, rows, sizes, icc, p, (1.0, 1.0))[0]
    total = won.sum(axis=1)
    if size == 1:  # a single attempt at each behaviour
        names = [str(i) for i in range(BEHAVIOURS)]
        exact = [binary_interval(names, [1.0 * (i < x) for i in range(BEHAVIOURS)], ALPHA, True) for x in range(101)]
        return Samples(total, BEHAVIOURS, np.ones(rows, dtype=bool), lambda i: exact[total[i]])
    suspects = may_miss(won, sizes, ALPHA, p)
    return Samples(total, int(sizes.sum()), suspects, lambda i: bounded_mean_interval(won[i], sizes, ALPHA))


def labelled_samples(
    rng: np.random.Generator, rows: int, size: int, icc: float, p: float, judge: tuple[float, float], labels: int
) -> Samples:
    sizes, of, one = np.full(1000 // size if size == 5 else BEHAVIOURS, size), labels // size, np.ones(1)
    won, hits, false = draw(rng, rows, sizes, icc, p, judge)
    q = p * judge[0] + (1 - p) * (1 - judge[1])
    means, truths = (hits + false) / size, won[:, :of] / size
    judged, others = means[:, :of], means[:, of:]
    suspects = may_miss(truths, one, ALPHA / 2, p) | may_miss(others, one, ALPHA / 4, q)
    suspects |= may_miss((1 + truths - judged) / 2, one, ALPHA / 4, (1 + p - q) / 2)

    def interval(i: int) -> Interval:
        found = prevalence_of_clusters(others[i], judged[i], truths[i], ALPHA)
        return found.lower, found.upper

    def errors(i: int) -> tuple[float, float]:
        successes = int(won[i, :of].sum())
        of_failures = 1 - false[i, :of].sum() / max(labels - successes, 1)
        return hits[i, :of].sum() / successes if successes else 1.0, of_failures

    return Samples((hits + false).sum(axis=1), size * len(sizes), suspects, interval, errors)


def external_samples(
    rng: np.random.Generator, rows: int, size: int, icc: float, p: float, judge: tuple[float, float], labels: int
) -> Samples:
    sizes, half, level = np.full(BEHAVIOURS, size), labels // 2, ALPHA / 8 * 1.001
    _, hits, false = draw(rng, rows, sizes, icc, p, judge)
    q, verdicts = p * judge[0] + (1 - p) * (1 - judge[1]), hits + false
    a, b = rng.binomial(half, judge[0], rows), rng.binomial(half, 1 - judge[1], rows)
    suspects = may_miss(verdicts, sizes, ALPHA / 2, q)
    for k, share in ((a, judge[0]), (b, 1 - judge[1])):
        suspects |= (stats.binom.sf(k - 1, half, share) <= level) | (stats.binom.cdf(k, half, share) <= level)

    def interval(i: int) -> Interval:
        labels = JudgeLabels(int(a[i]), half - int(a[i]), int(b[i]), half - int(b[i]))
        found = prevalence_external_of_clusters(verdicts[i] / size, labels, ALPHA)
        return found.lower, found.upper

    return Samples(
        verdicts.sum(axis=1), size * BEHAVIOURS, suspects, interval, lambda i: (a[i] / half, 1 - b[i] / half)
    )


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
    counts, place = np.unique(samples.positives, return_inverse=True)
    others: dict[str, Any] = {
        name: np.array([f(int(x), samples.attempts) for x in counts])[place] for name, f in OF_VERDICTS.items()
    }
    if samples.errors is not None:
        others["garak_corrected"] = [
            garak_corrected(int(x), samples.attempts, *samples.errors(i)) for i, x in enumerate(samples.positives)
        ]
    for name, found in others.items():
        low, high = np.array(found).T
        row[f"{name}_coverage"] = float(((low <= p) & (p <= high)).mean())
        row[f"{name}_width"] = round(float((high - low).mean()), 6)
    return row


def cells() -> Iterator[tuple[str, dict[str, Any]]]:
    for (size, icc), p in product(SHAPES, RATES):
        yield "rate", {"size": size, "icc": icc, "p": p}
    for (size, icc), labels, judge, p in product([(5, 0.3), (20, 0.3), (20, 1.0)], (50, 500), JUDGES, RATES):
        yield (
            "labelled behaviours",
            {"size": size, "icc": icc, "p": p, "judge": judge, "labels": max(labels, 5 * size)},
        )
    for (size, icc), labels, judge, p in product([(5, 0.3), (20, 1.0)], (50, 500), JUDGES, RATES):
        yield "external labels", {"size": size, "icc": icc, "p": p, "judge": judge, "labels": labels}


DESIGNS: dict[str, Callable[..., Samples]] = {
    "rate": rate_samples,
    "labelled behaviours": labelled_samples,
    "external labels": external_samples,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=5000)
    parser.add_argument("--widths", type=int, default=20)
    parser.add_argument("--only", default="", help="run the designs whose name contains this text")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for number, (design, setting) in enumerate(cells()):
        if arguments.only in design:
            samples = DESIGNS[design](np.random.default_rng(number), arguments.replicates, **setting)
            rows.append({"design": design} | setting | cell(samples, setting["p"], arguments.widths))
            print(rows[-1], flush=True)
    summary = {
        "cells": len(rows),
        "replicates": arguments.replicates,
        "least_coverage": min(row["coverage"] for row in rows),
        "significantly_below": sum(row["p_value"] < ALPHA / len(rows) for row in rows),
    }
    print(summary)
    if arguments.json:
        write_rows(arguments.json, rows, summary=summary)


if __name__ == "__main__":
    main()
