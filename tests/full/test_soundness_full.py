"""Soundness of smoothing with more classifiers and outcomes and smaller alpha than test_soundness.py. Takes minutes."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from support.smoothing_outcomes import (
    NORMS,
    distance_of,
    outcomes,
    probability_of,
    smoother_with_votes,
    wrong_predictions,
)

from pyrobust import ABSTAIN, RandomizedSmoothing

pytestmark = pytest.mark.full

EXAMPLES = 200_000


@pytest.mark.parametrize("alpha", [0.05, 0.001, 0.0001])
@pytest.mark.parametrize("n", [30, 400])
@pytest.mark.parametrize("noise", list(NORMS))
def test_false_certificates_of_200_000_threshold_classifiers(noise, n, alpha):
    """Every example lies just within the bound of some count, where the rate of false certificates is all of alpha."""
    sigma, n0 = 0.5, 25
    k = np.arange(1, n + 1)
    bounds = stats.beta.ppf(alpha, k, n - k + 1)
    hard = bounds[bounds > 0.7] * (1 - 1e-5)
    if not len(hard):
        pytest.skip("no count certifies at this alpha and n")
    p = np.resize(hard, EXAMPLES)
    x = torch.tensor(distance_of(p, noise, sigma), dtype=torch.float32)[:, None]
    distance = x[:, 0].double().numpy()
    smoother = RandomizedSmoothing(
        lambda b: torch.cat([b, -b], 1), 2, sigma, noise=noise, norm=NORMS[noise], seed=101, batch_size=50_000
    )
    result = smoother.certify_batch(x, n0=n0, n=n, alpha=alpha)
    false = int(((result.prediction == 1) | (result.radius > distance + 1e-7)).sum())
    select = stats.binom.sf((n0 - 1) // 2, n0, p)
    certifying = np.searchsorted(np.concatenate([[0.0], bounds]), [[0.5]], side="right")[0, 0]
    too_high = stats.binom.sf(np.searchsorted(np.concatenate([[0.0], bounds]), p, side="right") - 1, n, p)
    probabilities = select * too_high + (1 - select) * stats.binom.sf(certifying - 1, n, 1 - p)
    expected = probabilities.sum()
    assert 0.9 * alpha * EXAMPLES < expected <= alpha * EXAMPLES
    assert abs(false - expected) <= 5 * math.sqrt(expected) + 1


@pytest.mark.parametrize("alpha", [0.4, 0.1, 0.02, 0.001])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_every_outcome_of_certify(classes, alpha):
    for n0, n in ((1, 2), (2, 6), (3, 4), (3, 9)):
        pairs = list(itertools.product(outcomes(n0, classes + 1), outcomes(n, classes + 1)))
        stages = {"select": np.array([a for a, _ in pairs]), "estimate": np.array([b for _, b in pairs])}
        result = smoother_with_votes(classes, stages).certify_batch(torch.zeros(len(pairs), 1), n0=n0, n=n, alpha=alpha)
        certified = [
            (a, b, label, Fraction(low))
            for (a, b), label, low in zip(pairs, result.prediction.tolist(), result.p_lower.tolist(), strict=True)
            if label != ABSTAIN
        ]
        assert all(label < classes for _, _, label, _ in certified)
        for parts in outcomes(8, classes + 1):
            p = tuple(Fraction(eighths, 8) for eighths in parts)
            false = sum(
                (probability_of(a, p) * probability_of(b, p) for a, b, label, low in certified if low > p[label]),
                Fraction(0),
            )
            assert false <= Fraction(alpha), f"n0={n0}, n={n}, p={parts}: {float(false)}"


@pytest.mark.parametrize("alpha", [0.5, 0.2, 0.05, 0.001])
@pytest.mark.parametrize(("classes", "n"), [(2, 25), (3, 12), (4, 7)])
def test_every_outcome_of_predict(classes, n, alpha):
    votes = outcomes(n, classes + 1)
    result = smoother_with_votes(classes, {"predict": np.array(votes)}).predict_batch(
        torch.zeros(len(votes), 1), n=n, alpha=alpha
    )
    decided = [(v, label) for v, label in zip(votes, result.prediction.tolist(), strict=True) if label != ABSTAIN]
    for parts in outcomes(8, classes + 1):
        wrong = wrong_predictions(decided, tuple(Fraction(eighths, 8) for eighths in parts))
        assert wrong <= Fraction(alpha), f"p = {parts}: wrong with probability {float(wrong)}"
