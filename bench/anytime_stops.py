"""False stops of intervals that hold at all times: sequences in which the true rate is outside at any look.

python bench/anytime_stops.py [--sequences N] [--looks N] [--json FILE]

Every number of prompts is a look. "mixture", "betting" and "population" get single attempts with a success rate, the
latter those of a list of as many prompts as looks; "betting" also the shares of successes in behaviours of 5 attempts,
beta-binomial with mean 0.3 and intraclass correlation 0.3. Beside them ``pointwise``: Wald's 95 % interval at each look
from the 31st on.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from run import write_rows
from scipy import stats

from pyrobust.stats import population_sequence, sequence_boundary
from pyrobust.threats.judges.means import bets, log_wealth

ALPHA = 0.05
RATES = (0.01, 0.1, 0.5, 0.99)
BLOCK = 250


def attempts(rng: np.random.Generator, shape: tuple[int, int], rate: float) -> Any:
    return rng.random(shape) < rate


def shares_of_clusters(rng: np.random.Generator, shape: tuple[int, int], mean: float) -> Any:
    strength = 1 / 0.3 - 1
    return rng.binomial(5, rng.beta(mean * strength, (1 - mean) * strength, shape)) / 5


def mixture_stops(hits: Any, rate: float) -> int:
    above, below = sequence_boundary(np.arange(1, hits.shape[1] + 1), rate, ALPHA)
    counts = np.cumsum(hits, axis=1, dtype=np.int32)
    return int(((counts >= above) | (counts <= below)).any(axis=1).sum())


def betting_stops(values: Any, mean: float) -> int:
    goal = math.log(2 / ALPHA)
    lower = log_wealth(values, bets(values, ALPHA / 2), mean) >= goal
    upper = log_wealth(1 - values, bets(1 - values, ALPHA / 2), 1 - mean) >= goal
    return int((lower | upper).any(axis=1).sum())


def pointwise_stops(values: Any, mean: float) -> int:
    n = np.arange(1, values.shape[1] + 1)
    means = np.cumsum(values, axis=1) / n
    half = 1.96 * np.sqrt(np.maximum(np.cumsum(values * values, axis=1) / n - means * means, 0) / n)
    return int((np.abs(means - mean) > half)[:, 30:].any(axis=1).sum())


def population_limits(size: int, won: int) -> list[Any]:
    """Counts beyond which the true number of successes is excluded, at each number seen."""
    n = np.arange(1, size + 1)
    limits = []
    for side in (1, -1):
        inside = np.clip((n * won) // size, np.maximum(0, n - (size - won)), np.minimum(n, won))
        outside = np.minimum(n, won) + 1 if side == 1 else np.maximum(0, n - (size - won)) - 1
        while (np.abs(outside - inside) > 1).any():
            middle = inside + np.fix((outside - inside) / 2).astype(np.int64)
            lower, upper = population_sequence(middle, n, size, ALPHA)
            missed = lower > won if side == 1 else upper < won
            moving = np.abs(outside - inside) > 1
            outside, inside = np.where(moving & missed, middle, outside), np.where(moving & ~missed, middle, inside)
        limits.append(outside)
    return limits


def population_stops(rng: np.random.Generator, shape: tuple[int, int], won: int, limits: list[Any]) -> int:
    order = rng.permuted(np.tile(np.arange(shape[1]) < won, (shape[0], 1)), axis=1)
    counts = np.cumsum(order, axis=1, dtype=np.int32)
    return int(((counts >= limits[0]) | (counts <= limits[1])).any(axis=1).sum())


def false_stops(rate: float, sequences: int, looks: int, clusters: bool = False) -> dict[str, int]:
    """Number of sequences with a false stop, by method."""
    rng = np.random.default_rng((round(rate * 100), sequences, looks, clusters))
    won = round(looks * rate)
    limits = [] if clusters else population_limits(looks, won)
    stops = dict.fromkeys(
        ("betting", "pointwise") if clusters else ("mixture", "betting", "population", "pointwise"), 0
    )
    for start in range(0, sequences, BLOCK):
        shape = min(BLOCK, sequences - start), looks
        values = shares_of_clusters(rng, shape, rate) if clusters else attempts(rng, shape, rate) * 1.0
        stops["betting"] += betting_stops(values, rate)
        stops["pointwise"] += pointwise_stops(values, rate)
        if not clusters:
            stops["mixture"] += mixture_stops(values > 0, rate)
            stops["population"] += population_stops(rng, shape, won, limits)
    return stops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=20_000)
    parser.add_argument("--looks", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for rate, clusters in [*((rate, False) for rate in RATES), (0.3, True)]:
        for method, stops in false_stops(rate, arguments.sequences, arguments.looks, clusters).items():
            p_value = stats.binomtest(stops, arguments.sequences, ALPHA, alternative="greater").pvalue
            row = {"values": "shares of 5 attempts" if clusters else "attempts", "rate": rate, "method": method}
            rows.append(row | {"stops": stops, "share": stops / arguments.sequences, "p_value": float(p_value)})
            print(rows[-1], flush=True)
    own = [row for row in rows if row["method"] != "pointwise"]
    summary = {
        "cells": len(own),
        "largest_share": max(row["share"] for row in own),
        "significantly_above": sum(row["p_value"] < ALPHA / len(own) for row in own),
    }
    print(summary)
    if arguments.json:
        head = {"alpha": ALPHA, "sequences": arguments.sequences, "looks": arguments.looks}
        write_rows(arguments.json, rows, **head, summary=summary)


if __name__ == "__main__":
    main()
