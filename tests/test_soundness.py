"""Rate of false certificates, by simulation and by exact enumeration: at most alpha, and not far below it.

The simulated classifiers are thresholds, for which the theorems are tight: a certificate is false exactly where the
lower confidence bound exceeds the true probability. That probability is known, and so is the expected number of false
certificates. The observed number must match it from both sides, so a bound that is too loose fails as well.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from support.smoothing_outcomes import (
    NORMS,
    distance_of,
    outcomes,
    probability_of,
    smoother_with_votes,
    wrong_predictions,
)

from pyrobust import ABSTAIN, RandomizedSmoothing

EXAMPLES = 20_000


@lru_cache
def lower_bounds(n, alpha):
    """Clopper-Pearson lower bounds of every count, from scipy, accurate to 1e-10 here."""
    k = np.arange(1, n + 1)
    return np.concatenate([[0.0], stats.beta.ppf(alpha, k, n - k + 1)])


def false_certificate_probability(p, n0, n, alpha):
    """Probability of a false certificate for two classes, class 0 having probability p ≥ 1/2, over all counts."""
    bounds = lower_bounds(n, alpha)
    select = stats.binom.sf((n0 - 1) // 2, n0, p)  # a tie selects class 0
    too_high = stats.binom.sf(np.searchsorted(bounds, p, side="right") - 1, n, p)
    wrong_class = stats.binom.sf(np.searchsorted(bounds, 0.5, side="right") - 1, n, 1 - p)
    return select * too_high + (1 - select) * wrong_class


def hard_probabilities(count, n, alpha):
    """Probabilities just below the bound of some count, where the false rate reaches alpha; then 1/2 and a range."""
    bounds = lower_bounds(n, alpha)
    hard = bounds[bounds > 0.62] * (1 - 1e-5)
    others = np.concatenate([np.full(count // 20, 0.5), np.linspace(0.5, 0.999, count // 20)])
    return np.concatenate([np.resize(hard, count - len(others)), others])


def probability_at(distance, noise, sigma):
    if noise == "gaussian":
        return stats.norm.cdf(distance / sigma)
    if noise == "laplace":
        return 1 - np.exp(-distance / (sigma / math.sqrt(2))) / 2
    assert noise == "uniform"
    return 0.5 + distance / (2 * math.sqrt(3) * sigma)


def assert_count(false, probabilities, alpha):
    """The number of errors is within five standard deviations of the expected one, and compatible with alpha."""
    expected, deviation = probabilities.sum(), math.sqrt((probabilities * (1 - probabilities)).sum())
    assert abs(false - expected) <= 5 * deviation + 1, f"{false} false certificates, expected {expected:.1f}"
    allowed = alpha * len(probabilities)
    assert false <= allowed + 4 * math.sqrt(allowed)


@pytest.mark.parametrize(
    ("noise", "weights", "bias", "alpha", "examples"),
    [
        ("gaussian", [1.0], 0.0, 0.05, 8000),
        ("gaussian", [3.0, -4.0, 12.0], 2.5, 0.05, 8000),
        ("uniform", [0.0, 2.0], 0.0, 0.05, 8000),
        ("laplace", [4.0, 0.0, 0.0], 0.0, 0.05, 8000),
        ("gaussian", [1.0], 0.0, 0.001, EXAMPLES),
    ],
)
def test_false_certificates_of_linear_classifiers(noise, weights, bias, alpha, examples):
    sigma, n0, n = 0.25, 11, 150
    p = hard_probabilities(examples, n, alpha)
    w = np.array(weights)
    norm = np.linalg.norm(w)
    foot = -bias * w / norm**2
    # float32 examples near the intended distances, and then their exact distances.
    x = torch.tensor(foot + distance_of(p, noise, sigma)[:, None] * w / norm, dtype=torch.float32)
    distance = (x.double().numpy() @ w + bias) / norm
    probabilities = false_certificate_probability(probability_at(np.abs(distance), noise, sigma), n0, n, alpha)
    assert 0.7 * alpha < probabilities.mean() <= alpha, "the simulation must be able to notice a loose bound"

    row = torch.tensor(weights)

    def model(batch):
        score = (batch * row).sum(1) + bias
        return torch.stack([score, -score], 1)

    smoother = RandomizedSmoothing(model, 2, sigma, noise=noise, norm=NORMS[noise], seed=17, batch_size=20_000)
    result = smoother.certify_batch(x, n0=n0, n=n, alpha=alpha, indices=range(len(x)))
    certified = result.prediction != ABSTAIN
    # The base classifier is computed with rounding, so examples at the threshold may fall on either side.
    wrong = certified & (result.prediction == 1) & (distance > 1e-6)
    false = wrong | (result.radius > np.abs(distance) + 1e-7)
    assert_count(int(false.sum()), probabilities, alpha)
    assert certified.mean() > 0.5


def test_false_certificates_of_two_seeds_are_independent():
    n, alpha = 100, 0.05
    p = hard_probabilities(EXAMPLES, n, alpha)[: EXAMPLES // 2]
    x = torch.tensor(stats.norm.ppf(p), dtype=torch.float32)[:, None]
    false = []
    for seed in (0, 1):
        smoother = RandomizedSmoothing(lambda b: torch.cat([b, -b], 1), 2, 1.0, seed=seed, batch_size=20_000)
        false.append(
            smoother.certify_batch(x, n0=10, n=n, alpha=alpha, indices=range(len(x))).radius
            > x[:, 0].double().numpy() + 1e-7
        )
    both = int((false[0] & false[1]).sum())
    expected = false[0].mean() * false[1].mean() * len(p)
    assert abs(both - expected) <= 5 * math.sqrt(expected)


CUTS = np.array([-0.5, 0.0, 0.7])


def class_probabilities(x, sigma):
    """Probabilities [len(x), 4] of the classes, which are the intervals between the cuts."""
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    return np.diff(stats.norm.cdf((edges - np.asarray(x)[:, None]) / sigma), axis=1)


def test_false_certificates_of_four_classes():
    sigma, n0, n, alpha = 0.4, 10, 150, 0.05
    x = torch.linspace(-1.6, 1.9, EXAMPLES)
    position = x.double().numpy()
    # Decision boundaries of the smoothed classifier: crossings of the two leading classes, to 1e-12.
    grid = np.linspace(-4, 4, 4001)
    leader = class_probabilities(grid, sigma).argmax(1)
    changes = []
    for i in np.flatnonzero(np.diff(leader)):
        a, b = leader[i], leader[i + 1]

        def lead(t, a=a, b=b):
            values = class_probabilities([t], sigma)[0]
            return values[a] - values[b]

        changes.append(optimize.brentq(lead, grid[i], grid[i + 1], xtol=1e-12))
    changes = np.array(changes)
    assert len(changes) == 3
    truth = class_probabilities(position, sigma)
    distance = np.abs(position[:, None] - changes).min(1)

    def model(batch):
        index = torch.bucketize(batch[:, 0].contiguous(), torch.tensor(CUTS, dtype=torch.float32))
        return torch.nn.functional.one_hot(index, 4).float()

    result = RandomizedSmoothing(model, 4, sigma, seed=23, batch_size=20_000).certify_batch(
        x[:, None], n0=n0, n=n, alpha=alpha, indices=range(len(x))
    )
    certified = result.prediction != ABSTAIN
    false = certified & ((result.prediction != truth.argmax(1)) | (result.radius > distance + 1e-9))
    allowed = alpha * EXAMPLES
    assert false.sum() <= allowed + 4 * math.sqrt(allowed)
    # The lower bound exceeds the probability of the selected class as often as the Clopper-Pearson bound does.
    top = result.counts0[:, :4].argmax(1)
    p = truth[np.arange(EXAMPLES), top]
    probabilities = stats.binom.sf(np.searchsorted(lower_bounds(n, alpha), p, side="right") - 1, n, p)
    assert_count(int((result.p_lower > p).sum()), probabilities, alpha)
    assert {0, 1, 2, 3} <= set(result.prediction.tolist())


@pytest.mark.parametrize("alpha", [0.1, 0.002])
def test_wrong_predictions(alpha):
    n, sigma = 120, 0.5
    p = np.concatenate([np.full(EXAMPLES // 2, 0.5 + 1e-5), np.linspace(0.5 + 1e-5, 0.7, EXAMPLES // 2)])
    x = torch.tensor(sigma * stats.norm.ppf(p), dtype=torch.float32)[:, None]
    result = RandomizedSmoothing(lambda b: torch.cat([b, -b], 1), 2, sigma, seed=29, batch_size=20_000).predict_batch(
        x, n=n, alpha=alpha, indices=range(len(x))
    )
    significant = np.array([stats.binomtest(k, n).pvalue for k in range(n // 2)]) <= alpha
    votes = int(significant.sum()) - 1  # largest number of votes of class 0 with which class 1 is predicted
    wrong = stats.binom.cdf(votes, n, p)
    assert_count(int((result.prediction == 1).sum()), wrong, alpha)
    correct = stats.binom.cdf(votes, n, 1 - p)
    observed, expected = (result.prediction == 0).sum(), correct.sum()
    assert abs(observed - expected) <= 5 * math.sqrt((correct * (1 - correct)).sum())


# Exact enumeration: every outcome with its probability, in rationals, and the decision of the smoother.


@lru_cache
def all_certificates(classes, n0, n, alpha):
    """(votes of the selection, votes of the estimation, class, bound, radius) for every pair of outcomes."""
    pairs = list(itertools.product(outcomes(n0, classes + 1), outcomes(n, classes + 1)))
    stages = {"select": np.array([a for a, _ in pairs]), "estimate": np.array([b for _, b in pairs])}
    result = smoother_with_votes(classes, stages).certify_batch(torch.zeros(len(pairs), 1), n0=n0, n=n, alpha=alpha)
    rows = zip(pairs, result.prediction.tolist(), result.p_lower.tolist(), result.radius.tolist(), strict=True)
    return [(a, b, label, Fraction(bound), radius) for (a, b), label, bound, radius in rows]


def exact_false_rate(certificates, p):
    """Probability of a false certificate, a bound above p, for the worst classifier with class probabilities p."""
    total = Fraction(0)
    for a, b, label, bound, radius in certificates:
        assert label < len(p) - 1, "samples without a winner must not be predicted"
        assert (label == ABSTAIN) == (bound <= Fraction(1, 2))
        assert (radius > 0) == (label != ABSTAIN)
        if label != ABSTAIN and bound > p[label]:
            total += probability_of(a, p) * probability_of(b, p)
    return total


@pytest.mark.parametrize(
    ("classes", "n0", "n", "alpha"),
    [
        *((2, *stages, alpha) for alpha in (0.4, 0.1, 0.01) for stages in ((1, 1), (1, 4), (2, 3), (3, 7), (4, 5))),
        *((3, 2, 5, alpha) for alpha in (0.3, 0.05)),
    ],
)
def test_every_outcome(classes, n0, n, alpha):
    certificates = all_certificates(classes, n0, n, alpha)
    if classes == 2:  # and 0, 1 or 4 twelfths of the samples without a winner
        shares = [(i * (12 - lost), (12 - i) * (12 - lost), 12 * lost) for i in range(13) for lost in (0, 1, 4)]
    else:
        shares = [(4, 4, 4, 0), (6, 6, 0, 0), (7, 3, 2, 0), (9, 1, 1, 1), (3, 3, 3, 3), (11, 1, 0, 0), (0, 5, 7, 0)]
    for parts in shares:
        assert exact_false_rate(certificates, tuple(Fraction(count, sum(parts)) for count in parts)) <= Fraction(alpha)


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.001])
@pytest.mark.parametrize("n", [4, 12, 40])
def test_error_reaches_alpha_in_the_worst_case(n, alpha):
    """With one class just below a bound and the rest without a winner, the false rate is alpha to eight digits."""
    certificates = all_certificates(1, 1, n, alpha)
    bounds = sorted({bound for _, _, label, bound, _ in certificates if label != ABSTAIN})
    assert n < 10 or bounds
    for bound in bounds:
        p = bound - Fraction(1, 10**18)
        false = sum(probability_of(b, (p, 1 - p)) for a, b, label, low, _ in certificates if a == (1, 0) and low > p)
        assert Fraction(alpha) * (1 - Fraction(1, 10**8)) < false <= Fraction(alpha)


@pytest.mark.parametrize("alpha", [0.5, 0.2, 0.05])
@pytest.mark.parametrize(("classes", "n"), [(2, 1), (2, 6), (2, 12), (3, 5), (3, 8)])
def test_every_outcome_of_a_prediction(classes, n, alpha):
    votes = outcomes(n, classes + 1)
    result = smoother_with_votes(classes, {"predict": np.array(votes)}).predict_batch(
        torch.zeros(len(votes), 1), n=n, alpha=alpha
    )
    decided = [(v, label) for v, label in zip(votes, result.prediction.tolist(), strict=True) if label != ABSTAIN]
    assert n < 6 or decided
    for parts in outcomes(6, classes + 1):
        wrong = wrong_predictions(decided, tuple(Fraction(sixths, 6) for sixths in parts))
        assert wrong <= Fraction(alpha), f"p = {parts}: wrong with probability {float(wrong)}"
