"""Plans agree with exact outcomes and with what a run does."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import pytest
from scipy import stats

from pyrobust.errors import InputError, InputTypeError
from pyrobust.smoothing import Plan, pilot_probabilities, plan, required_probability
from pyrobust.stats import SequentialRule, clopper_pearson_lower, lattice_outcome

P = np.concatenate([np.linspace(0.3, 1.0, 60), np.full(20, 0.9999)])
RADII = (0.1, 0.25, 0.5)


@pytest.fixture(scope="module")
def comparison() -> Plan:
    return plan(P, 0.25, RADII, n_max=5000, n0=50, alpha=0.01, draws=4000)


def test_fixed_n_equals_the_binomial_tail(comparison: Plan) -> None:
    fixed = comparison["fixed"]
    assert fixed.samples == 5050.0
    assert fixed.samples_alone == (5050.0,) * 3
    for radius, share, error in zip(RADII, fixed.certified, fixed.error, strict=True):
        p0 = required_probability(radius, 0.25)
        least = least_count(p0, 5000, 0.01)
        assert share == pytest.approx(stats.binom.sf(least - 1, 5000, P).mean(), rel=1e-9)
        assert error == pytest.approx(stats.binom.sf(least - 1, 5000, p0), rel=1e-6)
        assert error <= 0.01


@pytest.mark.parametrize(("name", "hybrid"), [("sequential", 0.01), ("hybrid", 0.5)])
def test_simulation_agrees_with_the_exact_lattice(comparison: Plan, name: str, hybrid: float) -> None:
    rule, method = SequentialRule(5000, 0.01, hybrid), comparison[name]
    for i, radius in enumerate(RADII):
        p0 = required_probability(radius, 0.25)
        certified, given_up = rule.counts(p0)
        before_last_look = np.append(given_up[:-1], -1)  # at the last look the other images are undecided
        exact = [lattice_outcome(p, rule.looks, certified, before_last_look) for p in P]
        samples = np.mean([outcome.samples for outcome in exact])
        # Tolerances: five standard errors of shares, and of samples in [0, 5000], at 4000 draws.
        assert method.samples_alone[i] == pytest.approx(50 + samples, abs=5 * 2500 / math.sqrt(4000))
        for simulated, true in [
            (method.certified[i], np.mean([outcome.certified for outcome in exact])),
            (method.undecided[i], np.mean([outcome.undecided for outcome in exact])),
        ]:
            assert simulated == pytest.approx(true, abs=5 * math.sqrt(max(true * (1 - true), 1e-4) / 4000))
        worst = lattice_outcome(p0, rule.looks, *rule.counts(p0))
        assert method.error[i] == worst.certified_at_most <= 0.01
    # Deciding all radii takes at least as long as the slowest, and less than deciding each separately.
    assert max(method.samples_alone) < method.samples < sum(method.samples_alone)
    assert 0 < method.standard_error < 150


def test_cheapest_method_with_little_loss_is_recommended(comparison: Plan) -> None:
    assert comparison.recommended == "hybrid"
    assert "fewer)" in comparison.reason
    assert comparison["sequential"].samples < comparison["hybrid"].samples < comparison["fixed"].samples / 3
    easy = plan([0.6, 0.99], 0.25, [0.25], n_max=10_000)
    assert easy.recommended == "sequential"
    # Just within reach of 5000 samples: only fixed n certifies it.
    p = required_probability(0.25, 0.25)
    hard = plan([p + 4.0 * math.sqrt(p * (1 - p) / 5000)], 0.25, [0.25], n_max=5000, hybrid=0.01)
    assert hard["fixed"].certified[0] > 0.5
    assert hard.recommended == "fixed"


def test_unreachable_radius_is_given_up_at_the_first_look() -> None:
    unreachable = plan([1.0, 0.99], 0.25, [5.0], n_max=1000)
    for name in ("sequential", "hybrid"):
        assert unreachable[name].samples == 100 + SequentialRule(1000).looks[0]
    for method in unreachable.methods:
        assert method.certified == (0.0,)
        assert method.undecided == (0.0,)
        assert method.error[0] < 1e-20  # mass dropped by the lattice counts as error


def test_unanimous_votes_are_certified_at_the_first_look_that_can() -> None:
    rule = SequentialRule(1000)
    certified, _ = rule.counts(required_probability(0.5, 0.25))
    first = min(look for look, count in zip(rule.looks, certified, strict=True) if count <= look)
    assert plan([1.0], 0.25, [0.5], n_max=1000, n0=100)["sequential"].samples == 100 + first


def test_plan_is_reproducible_by_its_seed() -> None:
    again = [plan([0.8, 0.9, 0.95], 0.25, [0.2], n_max=500, draws=300, seed=seed) for seed in (3, 3, 4)]
    assert again[0] == again[1]
    assert again[0] != again[2]
    assert again[0].draws == 300
    assert Plan(**{**again[0].__dict__}) == again[0]


def test_images_for_a_budget(comparison: Plan) -> None:
    images = comparison.images_for(1_000_000)
    assert images["fixed"] == 198
    assert images["sequential"] == int(1_000_000 // comparison["sequential"].samples)
    with pytest.raises(InputError, match="budget: expected a finite number"):
        comparison.images_for(math.nan)
    with pytest.raises(InputTypeError, match="budget: expected a number, got '1000'"):
        comparison.images_for("1000")
    with pytest.raises(InputError, match="name: expected one of fixed, sequential, hybrid"):
        comparison["other"]
    assert comparison.to_dict()["methods"][0]["name"] == "fixed"


def test_plan_with_uniform_noise() -> None:
    comparison = plan([0.9, 0.7], 0.5, [0.2], n_max=1000, noise="uniform", norm="l1")
    p0 = required_probability(0.2, 0.5, noise="uniform", norm="l1")
    fewer_images = plan([0.9], 0.5, [0.2], n_max=1000, noise="uniform", norm="l1")
    assert comparison["sequential"].error == fewer_images["sequential"].error
    assert comparison["fixed"].certified[0] == pytest.approx(
        np.mean([stats.binom.sf(least_count(p0, 1000) - 1, 1000, p) for p in (0.9, 0.7)])
    )


def least_count(p0: float, n: int, alpha: float = 0.001) -> int:
    """The least count of n samples whose lower bound reaches p0."""
    return bisect_left(range(n + 1), p0, key=lambda count: clopper_pearson_lower(count, n, alpha))


def test_pilot_probabilities() -> None:
    np.testing.assert_allclose(pilot_probabilities([0, 1, 50, 100], 100), [0.5, 1.5 / 101, 0.5, 100.5 / 101])
    each = pilot_probabilities([0, 16, 60], [32, 16, 96])
    np.testing.assert_allclose(each, [0.5, 16.5 / 17, 60.5 / 97])
    for votes in ([], [[1]], [0.5], [-1], [101]):
        with pytest.raises(InputError, match="votes: expected"):
            pilot_probabilities(votes, 100)
    for n in ([16], [16, 0], [[16, 96]], 0, 10**9 + 1):
        with pytest.raises(InputError, match="n: expected one integer in"):
            pilot_probabilities([1, 1], n)
    for wrong in (1.5, True, [16.0, 96.0]):
        with pytest.raises(InputTypeError, match="n: expected an integer"):
            pilot_probabilities([1, 1], wrong)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"p": []}, InputError, "p: expected a list"),
        ({"p": [1.5]}, InputError, "p: expected a list"),
        ({"p": [math.nan]}, InputError, "p: expected a list"),
        ({"radii": []}, InputError, "radii: expected at least one"),
        ({"radii": [-1.0]}, InputError, "radii: expected finite numbers of at least 0"),
        ({"sigma": 0.0}, InputError, "sigma: expected a positive number"),
        ({"alpha": 1.0}, InputError, "alpha: expected"),
        ({"hybrid": 0.0}, InputError, "hybrid: expected"),
        ({"n_max": 0}, InputError, "n_max: expected at least 1"),
        ({"draws": 0}, InputError, "draws: expected at least 1"),
        ({"n0": 1.5}, InputTypeError, "n0: expected an integer"),
    ],
)
def test_invalid_arguments_are_rejected(changes: dict, error: type[Exception], match: str) -> None:
    arguments = {"p": [0.9], "sigma": 0.25, "radii": [0.25], "n_max": 100, "draws": 10} | changes
    with pytest.raises(error, match=match):
        plan(arguments.pop("p"), arguments.pop("sigma"), arguments.pop("radii"), **arguments)


def test_standard_errors_cover_the_sampling_of_a_run() -> None:
    """Means over as many images vary as much as the standard error says."""
    random = np.random.default_rng(0)
    p = random.beta(4.0, 0.8, 100)
    comparison = plan(p, 0.25, [0.25], n_max=5000, pilot_n=500)
    said = comparison["sequential"].standard_error
    means = [plan(random.beta(4.0, 0.8, 100), 0.25, [0.25], n_max=5000, draws=100, seed=i)["sequential"].samples
             for i in range(12)]  # fmt: skip
    assert 0.6 * np.std(means) < said < 1.7 * np.std(means)
    assert plan(p, 0.25, [0.25], n_max=5000)["sequential"].standard_error <= 1.05 * said
