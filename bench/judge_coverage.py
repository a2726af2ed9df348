"""Coverage and width of success rates corrected for a judge's errors, beside intervals that ignore them.

python bench/judge_coverage.py [--replicates N] [--widths N] [--only TEXT] [--json FILE]

Runs of 1,000 prompts with a single attempt each; cluster_coverage.py has the others. "external": half of the labels on
successes, half on failures of other data; "at random" and "by verdict" (half of the labels for each) are labels of the
run. The probability that the true parameter is not rejected is summed over all tables, up to a mass below 1e-8: exact.
A true parameter that is not rejected makes the interval cover, so that ``coverage`` is a lower bound on that of the
interval; ``covered`` is the share of those that are computed for their width.

Beside it: intervals of the verdicts as if the judge never erred (Clopper-Pearson, Wald, Wilson, and the bootstrap of
garak's package for a detector taken as perfect), their coverage exact, too; ``garak_corrected``, its bootstrap of an
imperfect detector, which takes the estimated sensitivity and specificity as known, over ``--replicates`` samples;
``asymptotic_width``: Rogan and Gladen's interval or its two-phase counterpart, at the truth; ``bonferroni_width``: the
combination of three exact intervals at alpha / 3. That, ``width`` and ``garak_corrected_width`` are means over samples.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rate_intervals import OF_VERDICTS, garak_corrected
from run import write_rows
from scipy import special, stats

from pyrobust.threats.judges import JudgeLabels, prevalence_external, prevalence_from_run, region

ALPHA, N = 0.05, 1000
RATES = (0.0, 0.01, 0.1, 0.5, 0.99, 1.0)
JUDGES = ((1.0, 1.0), (0.95, 0.9), (0.9, 0.6), (0.6, 0.9), (0.75, 0.75), (0.6, 0.6))
CRITICAL = float(special.ndtri(ALPHA * region.TEST_SHARE))
# Tables with a smaller probability are left out, as not covered.
NEGLIGIBLE = 1e-13

# A weighted test at the truth: c_1 z_1 for all x [N + 1], c_2 z_2 + c_3 z_3 [A, B], and the length of the weights.
Test = tuple[Any, Any, float]


def weighted_z(c: float, k: Any, n: int, p: float, greater: bool) -> Any:
    """c Phi^-1 of the binomial tail, finite."""
    tail = stats.binom.sf(k - 1, n, p) if greater else stats.binom.cdf(k, n, p)
    return c * np.clip(special.ndtri(tail), -1e9, 1e9)


def middle(p: float, trials: float, step: float) -> float:
    """Middle of the partition's cell that holds p."""
    ends = region._partition(trials, step)
    place = min(max(int(np.searchsorted(ends, p, side="right")) - 1, 0), len(ends) - 2)
    return float(0.5 * (ends[place] + ends[place + 1]))


def verdict_error(q: float) -> tuple[float, float]:
    """Middle of the block of q and the standard error there, 0 in a block at an end."""
    ends = region._partition(N, region._BLOCK)
    place = min(max(int(np.searchsorted(ends, q, side="right")) - 1, 0), len(ends) - 2)
    mid = float(0.5 * (ends[place] + ends[place + 1]))
    return mid, 0.0 if place in (0, len(ends) - 2) else math.sqrt(mid * (1 - mid) / N)


def inside_box(k: Any, n: Any, p: float, below: float, above: float) -> Any:
    """Whether Clopper and Pearson's interval of the box contains p."""
    return (stats.binom.sf(k - 1, n, p) > below * ALPHA) & (stats.binom.cdf(k, n, p) > above * ALPHA)


def external_weights(q: float, s: float, f: float, n1: int, n0: int) -> tuple[float, float, float]:
    """Weights of the test at the true parameter."""
    (q_mid, error), s_mid, f_mid = verdict_error(q), middle(s, n1, region._CELL), middle(f, n0, region._CELL)
    p = min(1.0, max(0.0, (q_mid - f_mid) / max(s_mid - f_mid, 1e-9)))
    return error, p * float(region.deviation(s_mid, n1)), (1 - p) * float(region.deviation(f_mid, n0))


def external_tests(q: float, s: float, f: float, n1: int, n0: int) -> Iterator[Test]:
    x, a, b = np.arange(N + 1), np.arange(n1 + 1)[:, None], np.arange(n0 + 1)
    c1, c2, c3 = external_weights(q, s, f, n1, n0)
    labels = weighted_z(c2, a, n1, s, True) + weighted_z(c3, b, n0, f, True)
    yield weighted_z(c1, x, N, q, False), labels, math.hypot(c1, c2, c3)
    c1, c2, c3 = external_weights(1 - q, 1 - f, 1 - s, n0, n1)
    labels = weighted_z(c3, n1 - a, n1, 1 - s, True) + weighted_z(c2, n0 - b, n0, 1 - f, True)
    yield weighted_z(c1, N - x, N, 1 - q, False), labels, math.hypot(c1, c2, c3)


def run_tests(
    q: float, v: float, m: float, n1: int, n0: int, planned: Callable[[float], tuple[float, float]], total: int
) -> Iterator[Test]:
    x, a, b = np.arange(N + 1), np.arange(n1 + 1)[:, None], np.arange(n0 + 1)
    q_mid, error = verdict_error(q)
    of_v, of_m = planned(q_mid)
    few = of_v < region._FEWEST_LABELS, of_m < region._FEWEST_LABELS
    for mirrored in (False, True):
        if mirrored:
            v, m, a, b = 1 - v, 1 - m, n1 - a, n0 - b
        v_mid, m_mid = middle(v, total, region._CELL), middle(m, total, region._CELL)
        c2 = 0.0 if few[0] else q_mid * float(region.deviation(v_mid, of_v))
        c3 = 0.0 if few[1] else (1 - q_mid) * float(region.deviation(m_mid, of_m))
        slope, rising = (1.0, of_v < of_m) if any(few) else (abs(v_mid - m_mid), v_mid >= m_mid)
        labels = weighted_z(c2, a, n1, v, False) + weighted_z(c3, b, n0, m, False)
        yield weighted_z(slope * error, x, N, q, not rising), labels, math.hypot(slope * error, c2, c3)


def kept_probability(chances: Any, tests: Iterator[Test], boxed: Any, labels: Any) -> float:
    """Probability that no test rejects the truth and the box holds it.

    ``chances`` [N + 1] are those of x, ``labels`` [A, B] those of the labels' counts, ``boxed`` whether the box of the
    labels holds the truth.
    """
    rows, columns = (np.flatnonzero((labels > NEGLIGIBLE).any(axis=i)) for i in (1, 0))
    if not len(rows):
        return 0.0
    part = np.ix_(rows, columns)
    first, last = 0, N
    for z1, others, size in tests:
        least = CRITICAL * size - 1e-8 - np.broadcast_to(others, labels.shape)[part]
        if z1[-1] >= z1[0]:  # the first x that is kept, or the last one
            first = np.maximum(first, np.searchsorted(z1, least))
        else:
            last = np.minimum(last, N - np.searchsorted(z1[::-1], least))
    mass = np.concatenate([[0.0], np.cumsum(chances)])
    kept = np.where(first <= last, mass[np.clip(last + 1, 0, N + 1)] - mass[np.clip(first, 0, N + 1)], 0.0)
    return float((labels * boxed)[part].ravel() @ kept.ravel())


def coverage(design: str, q: float, high: float, low: float, labels: int, planned: Any) -> float:
    """Exact probability that neither test rejects the truth (q, high, low) and the box holds it."""
    x, half = np.arange(N + 1), labels // 2
    box_x = inside_box(x, N, q, region._BOX_VERDICTS / 2, region._BOX_VERDICTS / 2)
    chance = stats.binom.pmf(x, N, q)
    groups: list[tuple[Any, int, int]] = []
    if design == "external":
        groups.append((chance, half, half))
    elif design == "at random":
        rest = stats.binom.pmf(np.arange(N - labels + 1), N - labels, q)
        for n1 in range(labels + 1):
            among = stats.binom.pmf(n1, labels, q)
            if among > NEGLIGIBLE:
                groups.append((among * np.pad(rest, (n1, labels - n1)), n1, labels - n1))
    else:
        full = (x >= half) & (x <= N - half)
        groups.append((chance * full, half, half))
        groups += [
            (chance * (x == k), min(half, k), min(half, N - k)) for k in x[~full & (chance > NEGLIGIBLE)].tolist()
        ]
    total = 0.0
    for chances, n1, n0 in groups:
        a, b = np.arange(n1 + 1)[:, None], np.arange(n0 + 1)
        inner, outer = region._BOX_INNER, region._BOX_OUTER
        boxed = inside_box(a, n1, high, inner, outer) & inside_box(b, n0, low, outer, inner)
        tests = (
            external_tests(q, high, low, n1, n0)
            if design == "external"
            else run_tests(q, high, low, n1, n0, planned, labels)
        )
        of_labels = stats.binom.pmf(a, n1, high) * stats.binom.pmf(b, n0, low)
        total += kept_probability(chances * box_x, tests, boxed, of_labels)
    return total


def clipped(value: float) -> float:
    return min(1.0, max(0.0, value))


def bonferroni(estimate: str, x: int, labels: JudgeLabels) -> float:
    """Width of the interval from three exact intervals at alpha / 3."""

    def exact(k: int, n: int) -> tuple[float, float]:
        return region.box((k, n), ALPHA / 6, ALPHA / 6)

    q = exact(x, N)
    if estimate == "external":
        s, f = (
            exact(labels.true_positives, labels.successes),
            exact(labels.false_positives, labels.n - labels.successes),
        )
        if s[0] <= f[1]:
            return 1.0
        return clipped((q[1] - f[0]) / (s[0] - f[0])) - clipped((q[0] - f[1]) / (s[1] - f[1]))
    v, m = exact(labels.true_positives, labels.positives), exact(labels.false_negatives, labels.n - labels.positives)
    corners = [[w * v[i] + (1 - w) * m[i] for w in q] for i in (0, 1)]
    return max(corners[1]) - min(corners[0])


def simulate(
    rng: np.random.Generator, design: str, p: float, se: float, sp: float, labels: int, replicates: int
) -> Any:
    """Samples of a design: verdicts, labels and their numbers, arrays [replicates]."""
    f = 1 - sp
    q = p * se + (1 - p) * f
    v = p * se / q if q else 0.0
    m = p * (1 - se) / (1 - q) if q < 1 else 0.0
    if design == "external":
        n1 = np.full(replicates, labels // 2)
        return q, v, m, rng.binomial(N, q, replicates), rng.binomial(n1, se), rng.binomial(n1, f), n1, n1
    if design == "at random":
        n1 = rng.binomial(labels, q, replicates)
        x, n0 = n1 + rng.binomial(N - labels, q, replicates), labels - n1
    else:
        x = rng.binomial(N, q, replicates)
        n1, n0 = np.minimum(labels // 2, x), np.minimum(labels // 2, N - x)
    return q, v, m, x, rng.binomial(n1, v), rng.binomial(n0, m), n1, n0


def binary_cell(
    design: str, p: float, se: float, sp: float, labels: int, replicates: int, widths: int
) -> dict[str, Any]:
    seed = (round(p * 100), round(se * 100), round(sp * 100), labels, len(design))
    rng = np.random.default_rng(seed)
    q, v, m, x, t, b, n1, n0 = simulate(rng, design, p, se, sp, labels, replicates)
    half = labels // 2

    def planned(rate: float) -> tuple[float, float]:
        if design == "at random":
            return labels * rate, labels * (1 - rate)
        return min(half, N * rate), min(half, N * (1 - rate))

    def table(i: int) -> JudgeLabels:
        hit, miss, of1, of0 = int(t[i]), int(b[i]), int(n1[i]), int(n0[i])
        if design == "external":
            return JudgeLabels(hit, of1 - hit, miss, of0 - miss)
        return JudgeLabels(hit, miss, of1 - hit, of0 - miss)

    truth = (q, se, 1 - sp) if design == "external" else (q, v, m)
    row: dict[str, Any] = {"design": design, "rate": p, "se": se, "sp": sp, "labels": labels}
    row["coverage"] = min(1.0, coverage(design, *truth, labels, planned))
    found, boxes = [], []
    for i in range(widths):
        arguments = (int(x[i]), N, table(i))
        if design == "external":
            interval = prevalence_external(*arguments)
        elif design == "at random":
            interval = prevalence_from_run(*arguments)
        else:
            interval = prevalence_from_run(*arguments, drawn="by verdict", planned=(half, half))
        found.append((interval.lower <= p <= interval.upper, interval.width))
        boxes.append(bonferroni(design, *arguments[::2]))
    row["covered"], row["width"] = (float(value) for value in np.mean(found, axis=0))
    row["bonferroni_width"] = float(np.mean(boxes))
    if design == "external":
        errors = (q * (1 - q) / N, p * p * se * (1 - se) / half, (1 - p) ** 2 * sp * (1 - sp) / half)
        row["asymptotic_width"] = 2 * 1.96 * math.sqrt(sum(errors)) / (se + sp - 1)
    else:
        of = planned(q)
        errors = (
            (v - m) ** 2 * q * (1 - q) / N,
            q * q * v * (1 - v) / max(of[0], 1),
            (1 - q) ** 2 * m * (1 - m) / max(of[1], 1),
        )
        row["asymptotic_width"] = 2 * 1.96 * math.sqrt(sum(errors))
    chance = stats.binom.pmf(np.arange(N + 1), N, q)
    for name, interval_of in OF_VERDICTS.items():
        ends = np.array([interval_of(k, N) if chance[k] > NEGLIGIBLE else (2.0, 2.0) for k in range(N + 1)])
        row[f"{name}_coverage"] = float(chance @ ((ends[:, 0] <= p) & (p <= ends[:, 1])))
        row[f"{name}_width"] = float(chance @ (ends[:, 1] - ends[:, 0]))
    corrected = []
    for i in range(replicates):
        known = table(i)
        if known.successes and known.n > known.successes:
            specificity = 1 - known.false_positives / (known.n - known.successes)
            low, high = garak_corrected(int(x[i]), N, known.true_positives / known.successes, specificity)
            corrected.append((low <= p <= high, high - low))
    if corrected:
        row["garak_corrected_coverage"], row["garak_corrected_width"] = (float(v) for v in np.mean(corrected, axis=0))
    return row


def cells() -> Iterator[tuple[str, float, float, float, int]]:
    for design, sizes in (("external", (50, 500)), ("at random", (50, 500)), ("by verdict", (100,))):
        for labels, (se, sp), p in product(sizes, JUDGES, RATES):
            yield design, p, se, sp, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=5000)
    parser.add_argument("--widths", type=int, default=20)
    parser.add_argument("--only", default="", help="run the designs whose name contains this text")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for cell in cells():
        if arguments.only in cell[0]:
            rows.append(binary_cell(*cell, arguments.replicates, arguments.widths))
            print({key: round(value, 4) if isinstance(value, float) else value for key, value in rows[-1].items()})
    summary = {
        "cells": len(rows),
        "least_coverage": min(row["coverage"] for row in rows),
        "below": sum(row["coverage"] < 1 - ALPHA for row in rows),
    }
    print(summary)
    if arguments.json:
        write_rows(arguments.json, rows, summary=summary)


if __name__ == "__main__":
    main()
