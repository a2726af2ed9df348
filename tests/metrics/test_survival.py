"""The survival curve of p_A against rationals, its summaries and its ranks."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust import metrics
from pyrobust.errors import InputError, InputTypeError


def true(n):
    return np.ones(n, dtype=np.bool_)


def test_survival_curve_by_hand():
    votes, correct = np.array([100, 90, 75, 50, 49, 100]), np.array([True] * 5 + [False])
    curve = metrics.survival_curve(votes, 100, correct)
    assert curve.thresholds.tolist() == [i / 1000 for i in range(500, 1001)]
    assert curve.p_a.tolist() == [1.0, 0.9, 0.75, 0.5, 0.49, 0.0]
    assert curve.share_below_half == 2 / 6
    assert curve.hard_samples().tolist() == [3, 2]
    assert curve.hard_samples(1.0).tolist() == [3, 2, 1]
    assert curve.hard_share() == 2 / 6
    assert curve.quantiles([0, 1 / 6, 0.5, 1]) == [0.0, 0.0, 0.5, 1.0]
    assert (curve.share == curve.lower).all()
    assert (curve.share == curve.upper).all()
    assert len(curve) == 6
    assert metrics.survival_curve(np.array([9, 90]), np.array([10, 100]), true(2)).p_a.tolist() == [0.9, 0.9]
    tensors = torch.from_numpy(votes).int(), torch.tensor(100), torch.from_numpy(correct)
    curve = metrics.survival_curve(*tensors, least=tensors[0] - 1, most=votes.clip(max=99) + 1)
    assert curve.p_a_lower.tolist() == [0.99, 0.89, 0.74, 0.49, 0.48, 0.0]
    result = json.loads(json.dumps(curve.to_dict()))
    for name in ("thresholds", "share", "lower", "upper"):
        assert result[name] == getattr(curve, name).tolist()
    for name in ("area", "area_lower", "area_upper", "share_below_half"):
        assert result[name] == getattr(curve, name)
    assert (result["n_examples"], result["quantiles"]["0.5"], result["hard_share"]) == (6, 0.5, 2 / 6)


@pytest.mark.parametrize("n", [1, 7, 10, 1000, 12_345])
def test_thresholds_are_exact_for_every_count(n):
    votes = np.arange(n + 1)
    curve = metrics.survival_curve(votes, n, true(n + 1))
    for i in range(500, 1001):
        smallest = -(-i * n // 1000)  # k / n >= i / 1000 from here on
        assert curve.share[i - 500] == (n + 1 - smallest) / (n + 1), i


@given(
    st.integers(1, 3000).flatmap(
        lambda n: st.tuples(
            st.just(n), st.lists(st.tuples(st.integers(0, n), st.integers(0, n), st.booleans()), min_size=1)
        )
    )
)
def test_curves_are_non_increasing_and_inside_their_bands(drawn):
    n, rows = drawn
    a, b, correct = (np.array(column) for column in zip(*rows, strict=True))
    votes, most = np.minimum(a, b), np.maximum(a, b)
    curve = metrics.survival_curve(votes, n, correct, least=votes // 2, most=most)
    for share in (curve.lower, curve.share, curve.upper):
        assert (np.diff(share) <= 0).all()
    assert (curve.lower <= curve.share).all()
    assert (curve.share <= curve.upper).all()
    assert curve.area_lower <= curve.area <= curve.area_upper
    for i in (500, 501, 667, 750, 999, 1000):
        for share, counts in ((curve.lower, votes // 2), (curve.share, votes), (curve.upper, most)):
            reached = sum(
                bool(c) and Fraction(int(k), n) >= Fraction(i, 1000) for k, c in zip(counts, correct, strict=True)
            )
            assert share[i - 500] == reached / len(rows)
    # The integral of a falling function lies between its sums from the right and from the left.
    assert curve.share[1:].mean() - 1e-12 <= curve.area <= curve.share[:-1].mean() + 1e-12
    exact = sum(max(Fraction(0), Fraction(2 * int(k), n) - 1) for k, c in zip(votes, correct, strict=True) if c)
    assert curve.area == pytest.approx(float(exact / len(rows)), rel=1e-12, abs=1e-15)
    assert curve.share[0] == pytest.approx(1 - curve.share_below_half, abs=1e-12)
    assert curve.hard_share() <= curve.share[0]


def test_order_is_irrelevant_and_classes_add_up():
    generator = np.random.default_rng(0)
    votes, labels = generator.integers(0, 1001, 500), generator.integers(0, 4, 500)
    correct = generator.random(500) < 0.8
    curve = metrics.survival_curve(votes, 1000, correct)
    order = generator.permutation(500)
    other = metrics.survival_curve(votes[order], 1000, correct[order])
    assert (other.share == curve.share).all()
    assert other.area == pytest.approx(curve.area, rel=1e-14)
    classes = curve.per_class(labels)
    assert [summary.label for summary in classes] == [0, 1, 2, 3]
    sizes = np.array([summary.n_examples for summary in classes])
    assert sizes.sum() == 500
    for name in ("area", "share_below_half"):
        parts = np.array([getattr(summary, name) for summary in classes])
        assert (parts * sizes).sum() / 500 == pytest.approx(getattr(curve, name), rel=1e-12)
    assert sum(summary.hard_share * summary.n_examples for summary in classes) / 500 == pytest.approx(
        curve.hard_share(), rel=1e-12
    )
    single = metrics.survival_curve(votes[labels == 2], 1000, correct[labels == 2])
    assert classes[2].median == single.quantiles([0.5])[0]
    assert json.dumps([dataclasses.asdict(summary) for summary in classes])


def test_area_estimate_interval():
    generator = np.random.default_rng(4)
    curve = metrics.survival_curve(generator.integers(0, 101, 300), 100, generator.random(300) < 0.8)
    estimate = curve.area_estimate(0.1, seed=5)
    assert estimate.value == pytest.approx(curve.area, rel=1e-14)
    contributions = np.maximum(0, 2 * curve.p_a - 1)
    error = contributions.std() / np.sqrt(300)
    assert estimate.lower == pytest.approx(estimate.value - 1.645 * error, abs=0.15 * error)
    assert estimate.upper == pytest.approx(estimate.value + 1.645 * error, abs=0.15 * error)
    assert estimate == curve.area_estimate(0.1, seed=5) != curve.area_estimate(0.1, seed=6)


def test_band_of_each_count_is_its_binomial_interval():
    """(k / 49) * 49 in float64 is below k for some k: the counts must not lose one."""
    n = 49
    curve = metrics.survival_curve(500 + 10 * np.arange(n), 1000, true(n), most=505 + 10 * np.arange(n))
    counts = n - np.ceil(np.arange(501) / 10).clip(max=n).astype(int)
    most = n - np.ceil((np.arange(501) - 5) / 10).clip(0, n).astype(int)
    lower, upper = curve.band(0.1)
    assert lower.tolist() == [metrics.estimate_rate(count, n, 0.1).lower for count in counts.tolist()]
    assert upper.tolist() == [metrics.estimate_rate(count, n, 0.1).upper for count in most.tolist()]


def test_rank_by_area_then_by_share_below_half_then_by_order():
    half_certain = metrics.survival_curve(np.array([100, 0]), 100, true(2))
    all_moderate = metrics.survival_curve(np.array([75, 75]), 100, true(2))
    assert half_certain.area == all_moderate.area
    best = metrics.survival_curve(np.array([100, 55]), 100, true(2))
    assert metrics.rank_by_survival([half_certain, all_moderate, best, all_moderate]) == [2, 1, 3, 0]


# --- wrong arguments


def test_bad_columns():
    for change, error, match in [
        ({"votes": np.array([11, 0])}, InputError, "expected least <= votes <= most <= n, got 11, 11, 11 of 10"),
        ({"votes": np.array([-1, 0])}, InputError, "expected numbers of at least 0, got -1 to 0"),
        ({"votes": np.array([1.0, 0])}, InputTypeError, "expected integers, got float64"),
        ({"n": 0}, InputError, "n: expected at least 1, got 0"),
        ({"n": np.array([10, 0])}, InputError, "n: expected at least 1, got 0"),
        ({"n": 10.0}, InputTypeError, "n: expected an integer, got 10.0"),
        ({"correct": np.array([1, 0])}, InputTypeError, "correct: expected bool, got int64"),
        ({"least": np.array([4, 1])}, InputError, "got 4, 3, 3 of 10 at position 0"),
        ({"most": np.array([3, 0])}, InputError, "got 1, 1, 0 of 10 at position 1"),
        ({"most": np.array([3, 11])}, InputError, "got 1, 1, 11 of 10 at position 1"),
    ]:
        with pytest.raises(error, match=match):
            metrics.survival_curve(**({"votes": np.array([3, 1]), "n": 10, "correct": true(2)} | change))


def test_bad_arguments_of_curves():
    curve, labels = metrics.survival_curve(np.array([3]), 10, true(1)), np.array([0, 1])
    for call, error, match in [
        (lambda: curve.hard_samples(0.5), InputError, r"below: expected a number in \(0.5, 1\]"),
        (lambda: curve.hard_samples(float("nan")), InputError, r"below: expected a number in \(0.5, 1\]"),
        (lambda: curve.hard_share("0.9"), InputTypeError, "below: expected a number"),
        (lambda: curve.per_class(labels), InputError, "labels: expected one for each of the 1 examples, got 2"),
        (lambda: metrics.rank_by_survival([]), InputError, "curves: expected at least one"),
        (lambda: metrics.rank_by_survival([0.5]), InputTypeError, "curves: .* of SurvivalCurve, got float"),
    ]:
        with pytest.raises(error, match=match):
            call()
