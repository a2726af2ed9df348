"""Stopping for futility against exact dynamic programming over every count."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from scipy import stats

from pyrobust.stats import SequentialRule, sequence_boundary, stopping


@cache
def next_count_pmf(a, n, step):
    return stats.betabinom.pmf(np.arange(step + 1), step, a + 0.5, n - a + 0.5)


def exact_value(looks, certified, price, given_up=None):
    """Expected certificates less the price of samples, from the first look on, and the counts given up.

    Computed for every count with the beta-binomial distribution of the next count under Jeffreys' prior. Counts without
    a positive value are given up, or those of the table ``given_up``.
    """
    values, table = None, []
    for j in reversed(range(len(looks))):
        n = looks[j]
        counts = np.arange(n + 1)
        if values is None:
            value = np.zeros(n + 1)
        else:
            step = looks[j + 1] - n
            value = np.full(n + 1, -price * step)
            for a in counts.tolist():
                value[a] += next_count_pmf(a, n, step) @ values[a : a + step + 1]
        stop = value <= 0 if given_up is None else counts <= given_up[j]
        values = np.where(counts >= certified[j], 1.0, np.where(stop, 0.0, value))
        table.append(int(np.flatnonzero(stop & (counts < certified[j])).max(initial=-1)))
    first = stats.betabinom.pmf(np.arange(looks[0] + 1), looks[0], 0.5, 0.5)
    return float(first @ values), table[::-1]


@pytest.mark.parametrize(("p0", "price"), [(0.5, 0.1), (0.5, 1.0), (0.84, 0.5), (0.93, 0.1), (0.93, 1.0)])
def test_table_value_is_close_to_the_optimum(p0, price):
    rule = SequentialRule(320, 0.01, 0.1, price)
    certified, given_up = rule.counts(p0)
    assert rule.target(p0) < 1
    best, table = exact_value(rule.looks, certified, rule.sample_price)
    value, _ = exact_value(rule.looks, certified, rule.sample_price, given_up)
    assert 0.0 <= best - value <= 2e-4 * best
    assert best > 0.01
    # The table uses a discretised prior, so a count may be off by one.
    assert np.abs(given_up - table).max() <= 1
    assert (given_up == table).mean() > 0.7
    # A shifted table has a clearly lower value, so the comparison is sensitive enough.
    for shift in (-4, 4):
        shifted, _ = exact_value(rule.looks, certified, rule.sample_price, np.clip(given_up + shift, -1, certified - 1))
        assert best - shifted > max(1e-5, 10 * (best - value))


@pytest.mark.parametrize("p0", [0.5, 0.999])
def test_interpolated_counts_are_close_to_evaluating_every_count(p0, monkeypatch):
    rule = SequentialRule(100_000)
    certified, coarse = rule.counts(p0)
    monkeypatch.setattr(stopping, "_MAX_NODES", 4000)
    fine = stopping.futility_counts(rule.looks, certified, rule.target(p0), rule.sample_price)
    deviation = np.sqrt(np.array(rule.looks) * p0 * (1 - p0))
    assert (np.abs(coarse - fine) <= np.maximum(1, 0.03 * deviation)).all()


def test_a_higher_price_gives_up_sooner():
    looks = np.array(SequentialRule(20_000).looks)
    certified, _ = sequence_boundary(looks, 0.84, 0.001)
    target = certified[-1] / looks[-1]
    tables = [stopping.futility_counts(looks, certified, target, price / 20_000) for price in (0.01, 0.1, 1.0, 1e9)]
    for cheap, expensive in itertools.pairwise(tables):
        assert (cheap <= expensive).all()
        assert (cheap < expensive).any()
    # At the highest price every image is given up, except one without failures.
    assert (tables[-1] == np.minimum(certified, looks) - 1).all()


@pytest.mark.parametrize(
    ("n_max", "p0"),
    [*itertools.product([1, 2, 16, 17], [1e-9, 0.5, 0.9999, 1 - 2.0**-50]), (10**6, 0.5), (10**9, 0.9999)],
)
def test_tables_exist_for_every_n_max(n_max, p0):
    rule = SequentialRule(n_max, 0.01, 0.5)
    certified, given_up = rule.counts(p0)
    if rule.target(p0) > 1:
        assert (given_up == rule.looks).all()
        return
    assert ((given_up >= -1) & (given_up < certified)).all()
    assert given_up[-1] == certified[-1] - 1  # no samples follow the last look
    with pytest.raises(ValueError, match="read-only"):
        given_up[0] = 0
