"""Certified, attacked and undecided shares against brute force; confidence bins; paired tests and comparisons."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyrobust import metrics
from pyrobust.errors import InputError, InputTypeError

LOWER = np.array([0.3, 0.1, 0.0, np.nan, 0.5, 0.0])
UPPER = np.array([np.inf, 0.4, 0.0, 0.2, 0.5, np.nan])
SHARES, GROUPS = metrics.robustness_shares, metrics.robustness_shares_by_group
COMPARE = metrics.compare_at_radii

_grid = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 2.0])
_rows = st.lists(
    st.tuples(
        st.one_of(_grid, st.just(math.nan), st.floats(0, 3)),
        st.one_of(_grid, st.sampled_from([math.inf, math.nan]), st.floats(0, 3)),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=20,
)


def verdict(lower, upper, radius):
    """One example's verdict at one radius, from the definitions, in exact numbers."""
    if not math.isnan(upper) and upper != math.inf and Fraction(upper) <= Fraction(radius):
        return "attacked"
    if not math.isnan(lower) and Fraction(lower) >= Fraction(radius) and lower > 0:
        return "certified"
    return "undecided"


def test_shares_worked_by_hand():
    at = [0.0, 0.1, 0.2, math.nextafter(0.3, 1), 0.5]
    shares = SHARES(LOWER, UPPER, at)
    assert [rate.successes for rate in shares.attacked] == [1, 1, 2, 2, 4]
    # The example with lower = upper = 0.5 counts as attacked at 0.5, and as certified below.
    assert [rate.successes for rate in shares.certified] == [3, 3, 2, 1, 0]
    assert shares.n == 6
    assert json.dumps(shares.to_dict())
    assert shares.to_pandas().attacked_upper.tolist() == [rate.upper for rate in shares.attacked]
    assert shares.to_pandas().attrs["crossings"] == [4]
    assert "<td>0.5</td>" in shares._repr_html_()
    assert repr(shares).startswith("RobustnessShares(examples=6")


@given(_rows, st.lists(st.one_of(_grid, st.floats(0, 3)), max_size=4), st.sampled_from([0.05, 0.2]))
def test_shares_against_brute_force(rows, radii, alpha):
    lower, upper, groups = (np.array(column) for column in zip(*rows, strict=True))
    shares = SHARES(lower, upper, radii, alpha)
    for i, radius in enumerate(radii):
        verdicts = [verdict(low, up, radius) for low, up, _ in rows]
        for name in ("certified", "attacked", "undecided"):
            assert getattr(shares, name)[i] == metrics.estimate_rate(verdicts.count(name), len(rows), alpha)
        gap = metrics.certification_gap(1 - float(shares.attacked[i]), shares.certified[i])
        assert gap == pytest.approx(float(shares.undecided[i]), abs=1e-12)
    crossing = {i for i, (low, up, _) in enumerate(rows) if low > 0 and up <= low}
    assert set(shares.crossings.tolist()) == crossing
    # Only at a radius between the two does a crossing contradict itself; there it is not certified.
    for i in crossing:
        assert verdict(lower[i], upper[i], lower[i]) == "attacked"

    grouped = GROUPS(lower, upper, radii, groups.astype(np.int64), alpha)
    assert grouped.groups.tolist() == sorted(set(groups.tolist()))
    assert sum(share.n for share in grouped.shares) == len(rows)
    assert sorted(i for share in grouped.shares for i in share.crossings.tolist()) == sorted(crossing)
    for group, share in zip(grouped.groups, grouped.shares, strict=True):
        assert len(grouped) * Fraction(share.alpha) <= Fraction(alpha)
        assert share.alpha == pytest.approx(alpha / len(grouped), rel=1e-15)
        alone = SHARES(lower[groups == group], upper[groups == group], radii, share.alpha)
        assert (share.certified, share.attacked, share.undecided) == (alone.certified, alone.attacked, alone.undecided)


def test_group_table():
    grouped = GROUPS(LOWER, UPPER, [0.1, 0.2], torch.tensor([3, 3, 1, 1, 3, 1]))
    frame = grouped.to_pandas()
    assert (frame.group.tolist(), frame.examples.tolist()) == ([1, 1, 3, 3], [3] * 4)
    assert frame.certified.tolist() == [0.0, 0.0, 1.0, pytest.approx(2 / 3)]
    assert frame.attrs == {"alpha": 0.05, "correction": "bonferroni", "intervals": 2}
    assert json.dumps(grouped.to_dict())
    assert repr(grouped) == "GroupShares(groups=2, examples=6, alpha=0.05)"


@given(st.lists(st.one_of(st.sampled_from([0.5, 0.7]), st.floats(-5, 5)), min_size=1, max_size=40), st.integers(1, 8))
def test_confidence_bins(values, n_bins):
    confidence = np.array(values)
    bins, edges = metrics.confidence_bins(confidence, n_bins)
    assert len(edges) <= n_bins
    assert edges[-1] == max(values)
    below = np.append(-np.inf, edges)
    for value, position in zip(values, bins, strict=True):
        assert below[position] < value <= edges[position]
    assert set(bins.tolist()) == set(range(len(edges)))  # no bin is empty
    if len(set(values)) == len(values):
        sizes = np.bincount(bins)
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_paired_test_against_scipy(alternative):
    rng = np.random.default_rng(0)
    for n in (1, 5, 60, 1000):
        first, second = rng.random(n) < 0.6, rng.random(n) < 0.5
        result = metrics.paired_test(torch.from_numpy(first), second, alternative)
        b, c = int((first & ~second).sum()), int((second & ~first).sum())
        assert (result.only_first, result.only_second) == (b, c)
        assert (result.both, result.neither, result.n) == (int((first & second).sum()), n - b - c - result.both, n)
        assert result.difference == pytest.approx(first.mean() - second.mean())
        expected = stats.binomtest(b, b + c, alternative=alternative).pvalue if b + c else 1.0
        assert result.to_dict()["p_value"] == result.p_value == pytest.approx(expected, rel=1e-9)
        assert metrics.paired_test(first, first, alternative).p_value == 1.0  # no example differs


def test_comparisons_worked_by_hand():
    first, second = np.array([0.5] * 10), np.array([0.5] * 3 + [0.25] * 6 + [np.nan])
    result = COMPARE(first, second, [0.0, 0.25, 0.5, 0.75])
    assert result.adjusted == pytest.approx([1, 1, 4 * 2 * 0.5**7, 1])
    attributes = {"outcome": "certified", "alternative": "two-sided", "correction": "holm", "tests": 4}
    assert result.to_pandas().attrs == attributes
    assert json.dumps(result.to_dict())
    assert "tests=4, correction='holm'" in repr(result)
    first, second = np.array([np.inf, 0.3, 0.0, np.nan]), torch.tensor([0.3, 0.3, 0.0, 0.0], dtype=torch.float64)
    robust = COMPARE(first, second, [0.25, 0.3], "robust", "greater")
    assert [comparison.p_value for comparison in robust.comparisons] == pytest.approx([0.5, 0.25])


@given(_rows, st.lists(_grid, min_size=1, max_size=4), st.sampled_from(["certified", "robust"]))
def test_comparisons_against_single_tests(rows, radii, outcome):
    a, b, _ = (np.array(column) for column in zip(*rows, strict=True))
    if outcome == "certified":
        b = np.where(np.isinf(b), 0.0, b)
    result = COMPARE(a, b, radii, outcome)
    for radius, adjusted, comparison in zip(radii, result.adjusted, result.comparisons, strict=True):
        if outcome == "certified":
            counts = [[verdict(x, math.nan, radius) == "certified" for x in column] for column in (a, b)]
        else:
            counts = [[verdict(math.nan, x, radius) != "attacked" for x in column] for column in (a, b)]
        assert comparison == metrics.paired_test(*map(np.array, counts))
        assert comparison.p_value <= adjusted <= 1


TWO = np.array([True, False])
REFUSED = {
    InputError: [
        (SHARES, (LOWER[:2], UPPER[[0, 3]] - 1, [0.1]), "upper: expected numbers .*, or NaN, got -0.8 at index 1"),
        (SHARES, (UPPER, UPPER, [0.1]), "lower: expected finite numbers .*, or NaN, got inf at index 0"),
        (SHARES, (LOWER, UPPER[:5], [0.1]), "upper: expected one for each of the 6 examples, got 5"),
        (SHARES, (LOWER, UPPER, [math.inf]), "radii: expected finite numbers of at least 0, got inf at index 0"),
        (SHARES, (LOWER, UPPER, [], 1.0), r"alpha: expected a number in \(0, 1\)"),
        (GROUPS, (LOWER, UPPER, [0.1], np.array([0])), "groups: expected one for each of the 6 examples, got 1"),
        (metrics.confidence_bins, (LOWER,), "confidence: expected finite numbers, got nan at index 3"),
        (metrics.confidence_bins, (LOWER[:2], 0), "n_bins: expected at least 1, got 0"),
        (COMPARE, (UPPER, UPPER, [0.1]), "first: expected finite numbers of at least 0, or NaN, got inf"),
        (COMPARE, (LOWER, LOWER, []), "radii: expected at least one radius"),
        (COMPARE, (LOWER, LOWER, [0.1], "all"), "outcome: expected one of certified, robust, got 'all'"),
        (COMPARE, (LOWER, LOWER, [0.1], "robust", "larger"), "alternative: expected one of"),
        (metrics.paired_test, (TWO, TWO[:1]), "second: expected one for each of the 2 examples, got 1"),
        (metrics.paired_test, (TWO[:0], TWO[:0]), "first: expected at least one example"),
        (metrics.paired_test, (TWO, TWO, "larger"), "alternative: expected one of"),
    ],
    InputTypeError: [
        (SHARES, (np.array([1]), UPPER[:1], [0.1]), "lower: expected a float tensor or array, got int64"),
        (GROUPS, (LOWER, UPPER, [0.1], LOWER), "groups: expected integers, got float64"),
        (metrics.paired_test, (np.array([1, 0]), TWO), "first: expected bool, got int64"),
    ],
}


@pytest.mark.parametrize("error", REFUSED)
def test_bad_input(error):
    for function, arguments, match in REFUSED[error]:
        with pytest.raises(error, match=f"^{match}"):
            function(*arguments)
