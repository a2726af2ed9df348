"""Predictions of the smoothed classifier: abstentions and p-values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from pyrobust import ABSTAIN, RandomizedSmoothing


def predict_from(counts, alpha=0.05):
    """Predictions from given votes [B, K + 1], with the same total in each row."""
    counts = np.asarray(counts, dtype=np.int64)
    n = int(counts[0].sum())
    assert (counts.sum(1) == n).all()
    smoother = RandomizedSmoothing(lambda x: x, counts.shape[1] - 1, 1.0, grid=None)

    def votes(x, noise, samples, report, *, one_example):
        assert samples == [("predict", n)]
        return [counts]

    smoother.sampler.votes = votes
    return smoother.predict_batch(torch.zeros(len(counts), 1), n=n, alpha=alpha)


def test_leading_class_is_predicted_where_the_test_is_significant():
    result = predict_from([[90, 10, 0, 0], [10, 90, 0, 0], [0, 10, 90, 0], [55, 45, 0, 0], [34, 33, 33, 0]])
    assert result.prediction.tolist() == [0, 1, 2, ABSTAIN, ABSTAIN]


def test_p_value_is_the_sign_test_of_the_top_two_classes():
    counts = [[60, 30, 10, 0], [30, 10, 60, 0], [40, 20, 0, 40], [45, 0, 25, 30], [100, 0, 0, 0], [50, 50, 0, 0]]
    result = predict_from(counts)
    for row, p in zip(counts, result.p_value, strict=True):
        first, second = sorted(row, reverse=True)[:2]
        assert p == pytest.approx(stats.binomtest(first, first + second, 0.5).pvalue, rel=1e-9)


def test_abstains_at_a_tie_and_where_samples_without_a_winner_lead():
    result = predict_from([[50, 50, 0], [40, 20, 40], [10, 5, 85], [0, 0, 100], [0, 0, 100]])
    assert result.prediction.tolist() == [ABSTAIN] * 5
    # Also where they are a close second, whatever votes the real classes have.
    assert predict_from([[52, 0, 48], [100, 0, 0]]).prediction.tolist() == [ABSTAIN, 0]


def test_single_sample_is_never_significant():
    result = predict_from([[1, 0, 0]], alpha=0.999)
    assert (result.p_value.tolist(), result.prediction.tolist()) == ([1.0], [ABSTAIN])
    smoother = RandomizedSmoothing(lambda x: x, 2, 0.5)
    assert smoother.predict(torch.tensor([10.0, -10.0]), 1000, 0.001) == 0


def test_p_value_equal_to_alpha_is_significant():
    p = float(predict_from([[5, 0, 0]]).p_value[0])
    assert 1 / 16 <= p <= 1 / 16 * (1 + 1e-14)  # 2 / 32, rounded up
    assert predict_from([[5, 0, 0]], alpha=p).prediction.tolist() == [0]
    assert predict_from([[5, 0, 0]], alpha=np.nextafter(p, 0)).prediction.tolist() == [ABSTAIN]
