"""Certified accuracy and average radii: areas, published logs, bootstrap, confidence, and random subsets."""

from __future__ import annotations

import json
import math
import os
from fractions import Fraction
from functools import partial
from itertools import combinations, product
from math import comb
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust import metrics
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import estimate as module

RADIUS = np.array([0.5, 0.25, 0.9, 0.0, 0.3])
CORRECT = np.array([True, True, False, False, True])


def test_forms_of_radii():
    rates = metrics.certified_accuracy(RADIUS, CORRECT, [0.25, 0.3], alpha=0.01)
    assert rates == [metrics.estimate_rate(3, 5, 0.01), metrics.estimate_rate(2, 5, 0.01)]
    assert math.isnan(metrics.average_radius(RADIUS, ~CORRECT & (RADIUS > 1)))
    tensors = torch.from_numpy(RADIUS), torch.from_numpy(CORRECT)
    assert metrics.certified_accuracy(*tensors, [0.25, 0.3], alpha=0.01) == rates
    assert metrics.average_certified_radius(*tensors) == metrics.average_certified_radius(RADIUS, CORRECT)
    correct = torch.tensor([True])
    # The float32 number nearest to 0.3 is above it, the one nearest to 0.7 below.
    assert metrics.certified_accuracy(torch.tensor([0.3]), correct, [0.3])[0].successes == 1
    assert metrics.certified_accuracy(torch.tensor([0.7]), correct, [0.7])[0].successes == 0
    assert metrics.average_radius(torch.tensor([0.5], dtype=torch.bfloat16, requires_grad=True), correct) == 0.5


@given(st.lists(st.tuples(st.floats(0, 4), st.booleans()), min_size=1, max_size=30))
def test_area_under_certified_accuracy_is_the_average_radius(rows):
    radius, correct = (np.array(column) for column in zip(*rows, strict=True))
    ends = np.unique(np.append(radius, 0.0))
    counts = [rate.successes for rate in metrics.certified_accuracy(radius, correct, ends)]
    assert counts == [int((correct & (radius >= r)).sum()) for r in ends]
    area = sum(count * (b - a) for count, a, b in zip(counts[1:], ends[:-1], ends[1:], strict=True)) / len(rows)
    acr = metrics.average_certified_radius(radius, correct, resamples=100)
    assert acr.value == pytest.approx(area, rel=1e-12, abs=1e-12)
    assert acr.lower <= acr.value <= acr.upper
    if correct.any():
        assert metrics.average_radius(radius, correct) * counts[0] / len(rows) == pytest.approx(acr.value, abs=1e-12)


def test_published_counts():
    if not os.environ.get("PYROBUST_DATA"):
        pytest.skip("PYROBUST_DATA is not set")
    log = Path(os.environ["PYROBUST_DATA"]) / "logs" / "cifar10" / "cohen_sigma0.25.tsv"
    label, prediction, radius = np.loadtxt(log, skiprows=1, usecols=(1, 2, 3), unpack=True)
    correct = (label == prediction) & (prediction >= 0)
    rates = metrics.certified_accuracy(radius, correct, [0, 0.25, 0.5, 0.75, 1.0])
    assert [rate.successes for rate in rates] == [7665, 6116, 4225, 2506, 0]
    acr = metrics.average_certified_radius(radius, correct)
    assert f"{acr.value:.4f}" == "0.4240"
    assert acr.lower < 0.424 < acr.upper
    assert acr.upper - acr.lower < 0.02
    # Every twentieth image, as in the papers.
    lower, upper = metrics.subset_average_certified_radius(radius, correct, 500)
    assert lower < float(metrics.average_certified_radius(radius[::20], correct[::20])) < upper
    for rate, subset_rate in zip(
        rates[:4], metrics.certified_accuracy(radius[::20], correct[::20], [0, 0.25, 0.5, 0.75]), strict=True
    ):
        lower, upper = metrics.subset_accuracy(rate.successes, rate.n, 500)
        assert lower <= subset_rate.value <= upper


# --- the bootstrap


def test_bootstrap_matches_all_resamples():
    """Three examples have 27 resamples, whose quantiles are known."""
    values = np.array([0.0, 1.0, 4.0])
    means = np.sort([sum(triple) / 3 for triple in product(values, repeat=3)])
    for alpha in (1 / 9, 7 / 27, 11 / 27):  # each end is in the middle of a resample's share
        estimate = metrics.average_certified_radius(values, values >= 0, alpha, resamples=20_000)
        assert estimate.lower == pytest.approx(means[math.ceil(27 * alpha / 2) - 1])
        assert estimate.upper == pytest.approx(means[math.ceil(27 * (1 - alpha / 2)) - 1])


def test_seeds_and_blocks(monkeypatch):
    values, right = np.random.default_rng(0).random(100), np.ones(100, dtype=bool)
    estimate = metrics.average_certified_radius(values, right)
    assert metrics.average_certified_radius(values, right) == estimate
    assert metrics.average_certified_radius(values, right, seed=1) != estimate
    monkeypatch.setattr(module, "_BLOCK", 700)
    assert metrics.average_certified_radius(values, right) == estimate


def test_expansion_is_the_limit_of_the_bootstrap(monkeypatch):
    """A skewed distribution, for which the normal interval is clearly wrong."""
    values, right = np.random.default_rng(2).exponential(size=400) ** 2, np.ones(400, dtype=bool)
    sampled = metrics.average_certified_radius(values, right, resamples=40_000)
    monkeypatch.setattr(module, "_LARGEST_SAMPLED", 0)
    expanded = metrics.average_certified_radius(values, right)
    assert (sampled.resamples, expanded.resamples) == (40_000, 0)
    width = sampled.upper - sampled.lower
    assert expanded.lower == pytest.approx(sampled.lower, abs=0.015 * width)
    assert expanded.upper == pytest.approx(sampled.upper, abs=0.015 * width)
    normal = 1.959964 * values.std() / 20
    assert abs(expanded.value + normal - sampled.upper) > 0.02 * width


def test_intervals_of_many_examples():
    values = np.random.default_rng(3).random(100_000)
    estimate = metrics.average_certified_radius(values, values > 0.5)
    assert estimate.resamples == 0
    assert estimate.lower < estimate.value < estimate.upper < estimate.lower + 0.01
    assert json.loads(json.dumps(estimate.to_dict()))["n"] == 100_000
    for n in (7, 100_000):
        same = metrics.average_certified_radius(np.full(n, 0.1), np.ones(n, dtype=bool))
        assert same.lower <= same.value <= same.upper < same.lower + 1e-15
    for n in (40_000, 400_000):  # by the moments alone the lower end were below zero or above the mean
        radius = np.append(np.zeros(n - 1), 3.0)
        estimate = metrics.average_certified_radius(radius, np.ones(n, dtype=bool))
        assert estimate.resamples == 0
        assert 0 <= estimate.lower <= estimate.value < estimate.upper <= 3


# --- certified accuracy of the whole data set, with confidence


def most_false(n, alpha, delta):
    """min {q : P(Bin(n, alpha) > q) ≤ delta}, in rationals."""
    p, limit = Fraction(alpha), Fraction(delta)
    tail, q = Fraction(0), n
    while q >= 0:
        tail += comb(n, q) * p**q * (1 - p) ** (n - q)
        if tail > limit:
            return q
        q -= 1
    return 0


@pytest.mark.parametrize("n", [1, 2, 5, 20, 60])
def test_false_certificates_against_rationals(n):
    for alpha, delta in product([1e-6, 0.001, 0.05, 0.3, 0.9], [1e-9, 0.001, 0.05, 0.5]):
        bound = metrics.certified_accuracy_with_confidence(n, n, alpha, delta)
        # If the tail equals delta, one more may be counted, never one fewer.
        assert most_false(n, alpha, delta) <= bound.false <= most_false(n, alpha, delta * (1 - 1e-9))
        assert bound.lower == (n - bound.false) / n


@pytest.mark.parametrize(("n", "alpha", "delta"), [(10_000, 0.001, 0.001), (50_000, 0.001, 1e-6), (500, 0.001, 0.05)])
def test_false_certificates_of_real_sizes(n, alpha, delta):
    false = metrics.certified_accuracy_with_confidence(n, n, alpha, delta).false
    with mpmath.workdps(60):
        p = mpmath.mpf(alpha)
        mass = [mpmath.binomial(n, k) * p**k * (1 - p) ** (n - k) for k in range(false + 1)]
        assert 1 - mpmath.fsum(mass) <= mpmath.mpf(delta)
        assert 1 - mpmath.fsum(mass[:-1]) > mpmath.mpf(delta)


def test_bound_worked_by_hand():
    bound = metrics.certified_accuracy_with_confidence(4225, 10_000, 0.001, 0.001)
    assert bound == metrics.CertifiedAccuracyBound(0.4225, 0.4204, 4225, 21, 10_000, 0.001, 0.001)
    assert float(bound) == 0.4204
    assert json.loads(json.dumps(bound.to_dict()))["false"] == 21
    assert metrics.certified_accuracy_with_confidence(3, 10_000, 0.001).lower == 0.0


# --- random subsets


@given(st.data(), st.integers(1, 40), st.sampled_from([0.5, 0.05, 0.001, 1e-9]))
def test_hypergeometric_ends_in_rationals(data, n, alpha):
    successes, size = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    low, high = max(0, size + successes - n), min(size, successes)
    mass = {
        k: Fraction(comb(successes, k) * comb(n - successes, size - k), comb(n, size)) for k in range(low, high + 1)
    }
    lower, upper = (round(bound * size) for bound in metrics.subset_accuracy(successes, n, size, alpha))
    half = Fraction(alpha) / 2
    slack = 1 - Fraction(1, 10**8)
    assert low <= lower <= upper <= high
    assert sum(p for k, p in mass.items() if k < lower) <= half
    assert sum(p for k, p in mass.items() if k <= lower) > half * slack
    assert sum(p for k, p in mass.items() if k > upper) <= half
    assert sum(p for k, p in mass.items() if k >= upper) > half * slack


def test_subset_accuracy_of_large_sets():
    assert metrics.subset_accuracy(0, 10_000, 500) == (0.0, 0.0)
    assert metrics.subset_accuracy(10_000, 10_000, 500) == (1.0, 1.0)
    assert metrics.subset_accuracy(4225, 10_000, 10_000) == (0.4225, 0.4225)
    n, successes, size = 10_000, 2_200, 500
    lower, upper = (round(bound * size) for bound in metrics.subset_accuracy(successes, n, size))
    total = comb(n, size)

    def tail(counts):
        return Fraction(sum(comb(successes, k) * comb(n - successes, size - k) for k in counts), total)

    half = Fraction(0.05) / 2
    assert tail(range(lower)) <= half < tail(range(lower + 1))
    assert tail(range(upper + 1, size + 1)) <= half < tail(range(upper, size + 1))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
def test_moments_match_all_subsets(size):
    radius = np.array([0.0, 0.1, 0.7, 0.2, 3.0, 0.4, 1.0])
    correct = np.array([True, True, True, False, True, True, True])
    means = np.array([np.mean(subset) for subset in combinations(np.where(correct, radius, 0), size)])
    middle = means.mean()
    moments = [((means - middle) ** power).mean() for power in (2, 3)]
    expected = module.interval_from_moments(middle, *moments, 0.5)
    interval = metrics.subset_average_certified_radius(radius, correct, size, 0.5)
    assert interval == pytest.approx((max(expected[0], 0.0), min(expected[1], 3.0)), rel=1e-10)


def test_subset_intervals_stay_within_the_values():
    radius, correct = np.array([0.0, 0.0, 0.0, 9.0]), np.ones(4, dtype=bool)
    lower, upper = metrics.subset_average_certified_radius(radius, correct, 1, 0.001)
    assert lower == 0
    assert upper == 9
    assert metrics.subset_average_certified_radius(radius, correct, 4) == (2.25, 2.25)
    assert metrics.subset_average_certified_radius(np.full(9, 0.5), np.ones(9, dtype=bool), 3) == (0.5, 0.5)
    assert metrics.subset_average_certified_radius(np.array([0.5, 1.5]), correct[:2], 1, 0.5)[0] >= 0.5


# --- wrong arguments


def test_bad_columns():
    for radius, correct, error, match in [
        (RADIUS.astype(int), CORRECT, InputTypeError, "radius: expected a float tensor or array, got int64"),
        (RADIUS, CORRECT.astype(int), InputTypeError, "correct: expected bool, got int64; compare predictions"),
        (RADIUS, CORRECT[:4], InputError, "correct: expected one for each of the 5 examples, got 4"),
        (RADIUS[:0], CORRECT[:0], InputError, "radius: expected at least one example, got none"),
        (RADIUS[None], CORRECT, InputError, r"radius: expected shape \(N,\), got \(1, 5\)"),
        (RADIUS - 1, CORRECT, InputError, "radius: expected finite numbers of at least 0, got -0.5"),
        (RADIUS * math.nan, CORRECT, InputError, "got nan at index 0; use 0 for an abstention"),
        (RADIUS + math.inf, CORRECT, InputError, "radius: expected finite numbers of at least 0, got inf"),
    ]:
        for call, options in (
            (metrics.certified_accuracy, ([0.5],)),
            (metrics.average_radius, ()),
            (metrics.average_certified_radius, ()),
            (metrics.subset_average_certified_radius, (1,)),
        ):
            with pytest.raises(error, match=match):
                call(radius, correct, *options)


def test_bad_numbers():
    certified, average = (
        partial(function, RADIUS, CORRECT)
        for function in (metrics.certified_accuracy, metrics.average_certified_radius)
    )
    subset = partial(metrics.subset_average_certified_radius, RADIUS, CORRECT)
    bound, gap = metrics.certified_accuracy_with_confidence, metrics.certification_gap
    for call, error, match in [
        (lambda: certified(0.5), InputTypeError, "radii: expected a sequence"),
        (lambda: certified([0.5], alpha=1), InputError, "alpha: expected"),
        (lambda: average(0.0), InputError, "alpha: expected"),
        (lambda: average(resamples=9), InputError, "resamples: .* got 9"),
        (lambda: average(seed=-1), InputError, "seed: .* got -1"),
        (lambda: gap(1.5, 0.5), InputError, r"empirical: expected a number in \[0, 1\], got 1.5"),
        (lambda: gap(0.5, None), InputTypeError, "certified: expected a number, got None"),
        (lambda: bound(3, 2, 0.1), InputError, r"count: expected 0 to 2, got 3"),
        (lambda: bound(0, 0, 0.1), InputError, "n_images: .* got 0"),
        (lambda: bound(1, 2, 0.0), InputError, "alpha: expected"),
        (lambda: bound(1, 2, 0.1, 1.0), InputError, "delta: expected"),
        (lambda: metrics.subset_accuracy(5, 4, 1), InputError, r"successes: expected 0 to 4, got 5"),
        (lambda: metrics.subset_accuracy(1, 4, 5), InputError, r"size: expected 1 to 4, got 5"),
        (lambda: subset(6), InputError, "size: .* got 6"),
    ]:
        with pytest.raises(error, match=match):
            call()
