"""Bounds at all times: false stops at any of thousands of looks, by simulation at the true rate."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pyrobust.errors import InputError
from pyrobust.threats.judges import anytime_rate

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
simulation = pytest.importorskip("anytime_stops", reason="bench is not beside the tests")

ALPHA = simulation.ALPHA


def assert_valid(stops, sequences):
    """Not significantly more false stops than alpha, and some: the simulation can fail."""
    assert stats.binomtest(stops, sequences, ALPHA, alternative="greater").pvalue > 0.01
    assert stops > 0


@pytest.mark.parametrize(("rate", "clusters"), [(0.3, False), (0.3, True)])
def test_false_stops(rate, clusters):
    for method, stops in simulation.false_stops(rate, 1000, 1000, clusters).items():
        if method != "pointwise":
            assert_valid(stops, 1000)
        else:  # the reason for all this
            assert stops > 250


@pytest.mark.full
@pytest.mark.parametrize(("rate", "clusters"), [(0.01, False), (0.1, False), (0.5, False), (0.99, False), (0.3, True)])
def test_false_stops_of_ten_thousand_looks(rate, clusters):
    """20,000 sequences for each method."""
    for method, stops in simulation.false_stops(rate, 20_000, 10_000, clusters).items():
        if method != "pointwise":
            assert_valid(stops, 20_000)


def test_stopping_when_decided():
    rng = np.random.default_rng(1)
    hits = rng.random(3000) < 0.2
    by_mixture, by_betting = anytime_rate(hits, binary=True), anytime_rate(hits)
    for rate in (by_mixture, by_betting):
        stop = rate.decided(0.3)
        assert stop is not None
        assert stop < 1000
        assert rate.decided(0.2) is None
        assert (np.diff(rate.lower) >= 0).all()
        assert (np.diff(rate.upper) <= 0).all()
        assert rate.lower[-1] < 0.2 < rate.upper[-1]
    assert (by_mixture.method, by_betting.method) == ("mixture", "betting")


def test_betting_follows_the_variance():
    rng = np.random.default_rng(2)
    narrow = anytime_rate(0.3 + 0.05 * (rng.random(1000) - 0.5), looks=[1000])
    assert narrow.upper[0] - narrow.lower[0] < 0.03
    assert narrow.lower[0] < 0.3 < narrow.upper[0]


def test_a_finite_list_closes():
    rng = np.random.default_rng(3)
    hits = rng.permutation(np.arange(200) < 60)
    rate = anytime_rate(hits, population=200)
    assert (rate.lower[-1], rate.upper[-1], rate.values[-1]) == (0.3, 0.3, 0.3)
    part = anytime_rate(hits[:150], population=200)
    endless = anytime_rate(hits[:150], binary=True)
    assert part.upper[-1] - part.lower[-1] < 0.6 * (endless.upper[-1] - endless.lower[-1])
    assert part.to_dict()["method"] == "population"


def test_extremes():
    for values, end in ((np.zeros(100), 0), (np.ones(100), 1)):
        for binary in (True, False):
            rate = anytime_rate(values, binary=binary)
            assert (rate.lower[-1] == 0.0) if end == 0 else (rate.upper[-1] == 1.0)
            assert rate.upper[-1] - rate.lower[-1] < 0.15


def test_bad_input():
    with pytest.raises(InputError, match=r"^values: expected 0 or 1, got 0.5 at index 1"):
        anytime_rate([0, 0.5], binary=True)
    with pytest.raises(InputError, match=r"^values: expected numbers in \[0, 1\], got 2.0 at index 0"):
        anytime_rate([2])
    with pytest.raises(InputError, match=r"^alpha: expected a number whose half is above 0"):
        anytime_rate([0, 0.5], 5e-324)
    with pytest.raises(InputError, match=r"^population: expected 2 to"):
        anytime_rate([1, 0], population=1)
    with pytest.raises(InputError, match=r"^looks: expected increasing numbers of prompts"):
        anytime_rate([1, 0], looks=[2, 1])
    with pytest.raises(InputError, match=r"^looks: expected 1 to 2, got 3"):
        anytime_rate([1, 0], looks=[3])
