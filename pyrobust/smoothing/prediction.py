"""Prediction of the smoothed classifier from the votes of the base classifier."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pyrobust.stats import binomial_test

from .certificates import ABSTAIN
from .grid import raise_by


def decide(
    counts: npt.NDArray[np.int64], alpha: float, *, delta: float = 0.0, tails: bool = False
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Predict the class with the most votes if it has significantly more than the runner-up, else ``ABSTAIN``.

    The two classes with the most votes are compared by the two-sided binomial test of p = 1/2 (Hung and Fithian, 2019).
    ``counts`` are votes [B, K + 1]; column K holds samples without a winner. ``delta`` bounds the total variation
    distance between the n drawn samples and exact ones, and is added to the p-value. With ``tails``, samples with noise
    in the tails, whose magnitude is not drawn, have no winner. A sample without a winner may then belong to any class,
    so all such samples are counted for the runner-up. Returns the predictions [B] and the p-values [B]. The prediction
    is ``ABSTAIN`` where the test is not significant, and also where column K has the most votes.

    >>> decide(np.array([[90, 10, 0], [55, 45, 0], [10, 10, 80]]), 0.001)[0]
    array([ 0, -1, -1])
    >>> decide(np.array([[60, 20, 20]]), 0.001)[0], decide(np.array([[60, 20, 20]]), 0.001, tails=True)[0]
    (array([0]), array([-1]))
    >>> decide(np.array([[600, 500, 550]]), 0.001, tails=True)  # the runner-up may have 1050 votes
    (array([-1]), array([1.]))
    """
    classes = counts.shape[1] - 1
    order = np.argsort(-counts, axis=1, kind="stable")
    rows = np.arange(len(counts))
    first, second = counts[rows, order[:, 0]], counts[rows, order[:, 1]]
    if tails:
        others = counts.copy()
        others[rows, order[:, 0]] = 0
        second = others[:, :classes].max(axis=1) + others[:, classes]
    # Both tails of the test count for the leading class. With ``tails`` the runner-up may be ahead; the p-value is then
    # 1.
    p_value = raise_by(np.where(first > second, binomial_test(first, first + second), 1.0), delta)
    certain = (p_value <= alpha) & (order[:, 0] < classes)
    return np.where(certain, order[:, 0], ABSTAIN).astype(np.int64), p_value


def joint_delta(delta: float, n: int) -> float:
    """Bound the total variation distance of n independent samples by n times the bound for one, rounded up.

    >>> joint_delta(0.0, 100), joint_delta(0.5, 100)
    (0.0, 1.0)
    """
    return min(1.0, math.nextafter(n * delta, math.inf)) if delta else 0.0
