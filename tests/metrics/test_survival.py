"""The survival curve of p_A against rationals; votes behind printed radii survive printing by any program."""

from __future__ import annotations

import dataclasses
import json
import math
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyrobust import metrics
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import votes as module
from pyrobust.smoothing import certified_radius
from pyrobust.stats import clopper_pearson_lower


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
    upper_counts = n - np.ceil((np.arange(501) - 5) / 10).clip(0, n).astype(int)
    lower, upper = curve.band(0.1)
    assert lower.tolist() == [metrics.estimate_rate(count, n, 0.1).lower for count in counts.tolist()]
    assert upper.tolist() == [metrics.estimate_rate(count, n, 0.1).upper for count in upper_counts.tolist()]


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
        ({"n": 0}, InputError, "n: expected at least 1, got 0"),
        ({"n": np.array([10, 0])}, InputError, "n: expected at least 1, got 0"),
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
        *(
            (lambda b=b: curve.hard_samples(b), InputError, r"below: expected a number in \(0.5, 1\]")
            for b in (0.5, 1.5)
        ),
        (lambda: curve.hard_share("0.9"), InputTypeError, "below: expected a number"),
        (lambda: curve.per_class(labels), InputError, "labels: expected one for each of the 1 examples, got 2"),
        (lambda: metrics.rank_by_survival([]), InputError, "curves: expected at least one"),
        (lambda: metrics.rank_by_survival([0.5]), InputTypeError, "curves: .* of SurvivalCurve, got float"),
    ]:
        with pytest.raises(error, match=match):
            call()


# --- votes behind printed radii


ALPHA = 0.001
TOLERANCE = 2.0**-23


def script_radii(k, n, sigma):
    """Radii as reference scripts compute them: scipy's beta and normal quantiles, in float64."""
    return sigma * stats.norm.ppf(stats.beta.ppf(ALPHA, k, n - k + 1))


def printed(radii, decimals, rounding):
    unit = Decimal(1).scaleb(-decimals)
    return np.array([float(Decimal(radius).quantize(unit, rounding)) for radius in radii.tolist()])


@pytest.mark.parametrize(("n", "alpha"), [(1, ALPHA), (10, 1e-9), (1000, ALPHA), (1000, 0.5), (999_999, ALPHA)])
def test_radii_match_the_proved_bounds(n, alpha):
    radii = metrics.attainable_radii(n, alpha, 0.25)
    k = np.arange(n + 1) if n <= 1000 else np.linspace(n // 2, n, 23).astype(np.int64)
    proved = certified_radius(clopper_pearson_lower(k, n, alpha), 0.25)
    assert radii.dtype == np.float64
    assert radii[k] == pytest.approx(proved, rel=1e-9, abs=1e-9)
    assert (np.diff(radii) >= 0).all()
    assert metrics.maximum_radius(n, alpha, 0.25) == pytest.approx(radii[-1], rel=1e-12)


@pytest.mark.parametrize("n", [10, 100, 1000, 100_000])
@pytest.mark.parametrize("rounding", [ROUND_FLOOR, ROUND_HALF_EVEN])
@pytest.mark.parametrize("decimals", [3, 5])
def test_votes_round_trip_through_printed_radii(n, rounding, decimals):
    sigma = 0.5
    k = np.arange(n // 2 + 1, n + 1)
    radii = script_radii(k, n, sigma)
    k, radii = k[radii > 0], radii[radii > 0]
    shown = printed(radii, decimals, rounding)
    point, least, most = metrics.votes_for_radius(shown, n, ALPHA, sigma, decimals=decimals)
    positive = shown > 0
    assert positive.any()
    assert ((least <= k) & (k <= most))[positive].all()
    assert ((least <= point) & (point <= most)).all()
    assert metrics.is_attainable(shown, n, ALPHA, sigma, decimals=decimals).all()
    for votes in (point, least, most):
        assert votes.dtype == np.int64
        assert (votes[~positive] == 0).all()

    # The range is as wide as the unit allows, and the point is the first count in it that reaches the printed radius.
    table = np.append(metrics.attainable_radii(n, ALPHA, sigma), np.inf)
    unit, tolerance = 10.0**-decimals, shown * TOLERANCE
    low, high = shown - unit / 2 - tolerance, shown + unit + tolerance
    assert (table[least] >= low)[positive].all()
    assert ((table[least - 1] < low) | (table[least - 1] == 0))[positive].all()
    assert (table[most] < high)[positive].all()
    assert (table[most + 1] >= high)[positive].all()
    reaches = table[point] >= shown - tolerance
    assert (reaches | (point == most))[positive].all()
    assert ((table[point - 1] < shown - tolerance) | (point == least))[positive].all()
    if rounding == ROUND_FLOOR:
        assert (reaches & (point <= k))[positive].all()


@pytest.mark.parametrize("n", [100, 1000, 100_000])
def test_three_significant_digits(n):
    k = np.arange(n // 2 + 1, n + 1)
    radii = script_radii(k, n, 1.0)
    k, texts = k[radii > 0], [f"{radius:.3}" for radius in radii[radii > 0].tolist()]
    shown = np.array([float(text) for text in texts])
    assert shown.max() > 1
    decimals = metrics.significant_decimals(shown, 3)
    point, least, most = metrics.votes_for_radius(shown, n, ALPHA, 1.0, decimals=decimals)
    assert ((least <= k) & (k <= most)).all()
    assert ((least <= point) & (point <= most)).all()
    if n == 100_000:  # Three decimals throughout would miss counts.
        _, least, most = metrics.votes_for_radius(shown, n, ALPHA, 1.0, decimals=3)
        assert not ((least <= k) & (k <= most)).all()


@given(
    n=st.integers(1, 10**9),
    share=st.floats(0.5, 1),
    alpha=st.sampled_from([1e-12, 0.001, 0.05, 0.5]),
    sigma=st.floats(0.01, 10),
    decimals=st.integers(0, 9),
)
def test_vote_ranges_hold_for_any_count_and_n(n, share, alpha, sigma, decimals):
    k = min(n, max(1, round(share * n)))
    radius = sigma * float(stats.norm.ppf(stats.beta.ppf(alpha, k, n - k + 1)))
    for rounding in (ROUND_FLOOR, ROUND_HALF_EVEN):
        shown = printed(np.array([max(0.0, radius)]), decimals, rounding)
        for form in (shown, torch.from_numpy(shown), shown.astype(np.float32)):
            point, least, most = metrics.votes_for_radius(form, n, alpha, sigma, decimals=torch.tensor([decimals]))
            if form[0] == 0:
                assert (point[0], least[0], most[0]) == (0, 0, 0)
            else:
                assert least[0] <= k <= most[0]
                assert least[0] <= point[0] <= most[0]


@pytest.mark.parametrize("alpha", [0.5, 0.1, ALPHA, 1e-30])
@pytest.mark.parametrize("n", [1, 7, 10, 1000, 4999, 100_000])
def test_inversion_matches_the_table(n, alpha):
    radii = metrics.attainable_radii(n, alpha, 1.0)
    radii = radii[:: max(1, n // 500)]
    asked = np.unique(np.concatenate([[1e-300, 9.0, 1e300], radii, np.nextafter(radii, 9), np.nextafter(radii, 0)]))
    asked = asked[asked > 0]
    table = module._first_reaching(n, alpha, 1.0, 10**9)(asked)
    assert (module._first_reaching(n, alpha, 1.0, 0)(asked) == table).all()
    assert table.max() == n + 1


def test_radii_that_no_count_reaches():
    n, sigma = 10, 1.0
    radii = metrics.attainable_radii(n, 0.3, sigma)
    between = np.array([(radii[-2] + radii[-1]) / 2, radii[-1] + 1])
    assert metrics.is_attainable(between, n, 0.3, sigma, decimals=6).tolist() == [False, False]
    point, least, most = metrics.votes_for_radius(between, n, 0.3, sigma, decimals=6)
    assert (point.tolist(), least.tolist(), most.tolist()) == ([10, 10], [9, 10], [10, 10])
    top = metrics.maximum_radius(100_000, ALPHA, 0.25)
    shown = np.array([top, top + 4e-4, top + 6e-4])
    assert metrics.is_attainable(shown, 100_000, ALPHA, 0.25, decimals=3).tolist() == [True, True, False]
    # If no count that prints like this reaches a radius that was rounded up, the point is the largest of them.
    radius = metrics.attainable_radii(n, 0.3, 1.05)[9]
    shown = np.ceil(radius * 10) / 10
    assert shown - radius < 0.05
    assert [int(v[0]) for v in metrics.votes_for_radius(np.array([shown]), n, 0.3, 1.05, decimals=1)] == [9, 9, 9]


def test_radii_near_the_largest_float():
    largest = np.array([np.finfo(np.float64).max])
    for n, sigma in [(1000, 1e-300), (1000, 1e308)]:
        point, least, most = metrics.votes_for_radius(largest, n, 0.001, sigma, decimals=0)
        assert 0 < least[0] <= point[0] <= most[0] <= n
    assert metrics.attainable_radii(1000, 0.001, 1e308)[-1] == np.inf


def test_decimals_of_significant_digits():
    shown = np.array([0.0, 1e-5, 0.00999, 0.01, 0.1, 0.999, 1.0, 9.99, 10.0, 123456.0])
    assert metrics.significant_decimals(shown, 3).tolist() == [3, 7, 5, 4, 3, 3, 2, 2, 1, 0]
    assert metrics.significant_decimals(shown[:2], 1).tolist() == [1, 5]


def test_bad_arguments():
    arguments = {"radius": np.array([0.5]), "n": 1000, "alpha": 0.001, "sigma": 0.5, "decimals": 3}
    for change, error, match in [
        ({"radius": ["0.5"]}, InputTypeError, "radius: expected a tensor, an array or a list, got list"),
        ({"radius": np.array([0.1, -0.1])}, InputError, "radius: expected finite numbers of at least 0, got -0.1"),
        ({"n": 0}, InputError, r"n: expected 1 to 1000000000, got 0"),
        ({"alpha": 0.0}, InputError, r"alpha: expected a number in \[1e-30, 0.5\], got 0.0"),
        ({"alpha": 0.6}, InputError, "alpha: expected a number in"),
        ({"alpha": math.nan}, InputError, "alpha: expected a number in"),
        ({"sigma": 0}, InputError, "sigma: expected a finite number above 0, got 0"),
        ({"decimals": 18}, InputError, r"decimals: expected 0 to 17, got 18"),
        ({"decimals": np.array([3, 3])}, InputError, "decimals: expected one for each of the 1 examples, got 2"),
        ({"decimals": np.array([18])}, InputError, "decimals: expected 0 to 17"),
        ({"decimals": np.array([3.0])}, InputTypeError, "decimals: expected integers, got float64"),
    ]:
        for function in (metrics.votes_for_radius, metrics.is_attainable):
            with pytest.raises(error, match=match):
                function(**(arguments | change))
    with pytest.raises(InputError, match="n: expected at most 1000000 for a table, got 1000001"):
        metrics.attainable_radii(10**6 + 1, ALPHA, 1.0)
    with pytest.raises(InputError, match=r"digits: expected 1 to 17, got 0"):
        metrics.significant_decimals(np.array([0.5]), 0)
