"""Samples of sequential certification against a fixed n of 100,000, on the p_A behind published logs.

Each image's p_A is recovered from its radius (``votes_of``, ``pilot_probabilities``; 1/2 where it abstained), and
counts are drawn from it at the looks: `pyrobust.smoothing.plan`, whose decisions are those of a run. alpha = 0.001,
n0 = 100 on both sides. At one radius: images sampled until that radius is decided; on the grid: until all are. Radii
are the quarters up to the largest that 100,000 samples can prove; "with 0" adds radius 0, at which p_A = 1/2 is as hard
as it gets. Points: certified share of fixed n minus that of the method, in percentage points. "certifying alone" is the
ratio if nothing were given up and all that is not certified cost nothing.
Frontier: other prices and shares of alpha, each radius alone, all with the same counts. Needs PYROBUST_DATA.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import nets
import numpy as np
from study import Results

from pyrobust.auditing.votes import votes_of
from pyrobust.evaluation import read_certification_log
from pyrobust.metrics.votes import maximum_radius
from pyrobust.smoothing import Plan, pilot_probabilities, plan, required_probability
from pyrobust.stats import SequentialRule, fixed_count

N, ALPHA = 100_000, 0.001
METHODS = ("sequential", "hybrid")
RULES = {"sequential": SequentialRule(N, ALPHA), "hybrid": SequentialRule(N, ALPHA, 0.5)}
SHARES, PRICES = (0.0, 0.01, 0.1, 0.5), (0.1, 0.25, 0.5, 1.0)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draws", type=int, default=50_000, help="simulated images of each log")


def measure(options: argparse.Namespace) -> Results:
    started = time.process_time()
    paths = sorted(nets.folder().glob("logs/cifar10/*.tsv"))
    logs = []
    for path in paths:
        logs.append(compare(path, options.draws))
        yield logs[-1]
    return {
        "n": N,
        "alpha": ALPHA,
        "price": SequentialRule(N).price,
        "hybrid": {name: RULES[name].hybrid for name in METHODS},
        "looks": len(SequentialRule(N).looks),
        "summary": {name: summarise(logs, name) for name in METHODS},
        "frontier": frontier(paths),
        "seconds": time.process_time() - started,
    }


def recovered(path: Path) -> tuple[np.ndarray, float, list[float]]:
    """Return the probabilities behind a log, its sigma, and the radii that N samples can prove."""
    log = read_certification_log(path, n=N, alpha=ALPHA)
    votes = votes_of(log)
    assert votes is not None
    assert log.sigma is not None
    largest = maximum_radius(N, ALPHA, log.sigma)
    return pilot_probabilities(votes[0], N), log.sigma, [0.25 * i for i in range(1, 1 + int(largest / 0.25))]


def compare(path: Path, draws: int) -> dict[str, Any]:
    """Compare the methods on the probabilities of a log."""
    p, sigma, radii = recovered(path)
    made = plan(p, sigma, radii, n_max=N, alpha=ALPHA, hybrid=RULES["hybrid"].hybrid, draws=draws)
    with_zero = plan(p, sigma, [0.0, *radii], n_max=N, alpha=ALPHA, hybrid=RULES["hybrid"].hybrid, draws=draws)
    alone = [certifying_alone(p, required_probability(radius, sigma)) for radius in radii]
    fixed = made["fixed"]
    methods: dict[str, Any] = {}
    for name in METHODS:
        method = made[name]
        methods[name] = {
            "ratio": [fixed.samples / samples for samples in method.samples_alone],
            "points": [100 * (a - b) for a, b in zip(fixed.certified, method.certified, strict=True)],
            "undecided": list(method.undecided),
            "exact_error": list(method.error),
            "grid": grid(made, name),
            "grid_with_0": grid(with_zero, name),
        }
    return {
        "log": path.stem,
        "sigma": sigma,
        "images": len(p),
        "draws": made.draws,
        "radii": radii,
        "certified_fixed": list(fixed.certified),
        "certifying_alone": alone,
        "methods": methods,
    }


def frontier(paths: list[Path], copies: int = 3) -> list[dict[str, float]]:
    """Return the smallest ratio of samples and the most points lost at one radius, by share and price."""
    frontier_rows = []
    looks, rng = np.array(RULES["sequential"].looks), np.random.default_rng(2)
    drawn = []
    for path in paths:
        p, sigma, radii = recovered(path)
        steps = rng.binomial(np.diff(looks, prepend=0), np.tile(p, copies)[:, None])
        drawn.append((steps.cumsum(axis=1), [required_probability(radius, sigma) for radius in radii]))
    for hybrid in SHARES:
        for price in PRICES:
            rule = SequentialRule(N, ALPHA, hybrid, price)
            ratios, points = [], []
            for counts, needed in drawn:
                for p0 in needed:
                    certified, given_up = rule.counts(p0)
                    up, down = counts >= certified, counts <= given_up
                    done = up | down
                    first = np.where(done.any(axis=1), done.argmax(axis=1), len(looks) - 1)
                    ratios.append((100 + N) / (100 + looks[first].mean()))
                    gained = up[np.arange(len(up)), first].mean() - (counts[:, -1] >= fixed_count(N, p0, ALPHA)).mean()
                    points.append(-100 * float(gained))
            frontier_rows.append(
                {
                    "hybrid": hybrid,
                    "price": price,
                    "mean ratio": float(np.mean(ratios)),
                    "least": min(ratios),
                    "points": max(points),
                }
            )
    return frontier_rows


def grid(made: Plan, name: str) -> dict[str, float]:
    """Return the ratio of samples, its standard error, and the most points lost at one radius."""
    fixed, method = made["fixed"], made[name]
    ratio = fixed.samples / method.samples
    return {
        "ratio": ratio,
        "standard_error": ratio * method.standard_error / method.samples,
        "points": 100 * float(np.subtract(fixed.certified, method.certified).max()),
    }


def certifying_alone(p: np.ndarray, p0: float) -> float:
    """Return the ratio of samples if only certified images cost their samples, and all images n0."""
    rule = SequentialRule(N, ALPHA)
    looks, (certified, _) = np.array(rule.looks), rule.counts(p0)
    counts = np.random.default_rng(1).binomial(np.diff(looks, prepend=0), p[:, None]).cumsum(axis=1)
    reached = counts >= certified
    return (100 + N) / (100 + float((looks[reached.argmax(axis=1)] * reached.any(axis=1)).mean()))


def summarise(logs: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Summarise a method over all logs and radii."""
    results = [log["methods"][name] for log in logs]
    ratios = [ratio for method in results for ratio in method["ratio"]]
    # Radii in units of sigma measure the distance to saturation.
    near = [radius / log["sigma"] for log in logs for radius in log["radii"]]
    return {
        "mean ratio at one radius": float(np.mean(ratios)),
        "least": min(ratios),
        "least up to 2.5 sigma": min(r for r, z in zip(ratios, near, strict=True) if z <= 2.5),
        "most points lost at one radius": max(points for method in results for points in method["points"]),
        "mean ratio on the grid": float(np.mean([method["grid"]["ratio"] for method in results])),
        "least on the grid": min(method["grid"]["ratio"] for method in results),
        "least on the grid with 0": min(method["grid_with_0"]["ratio"] for method in results),
    }
