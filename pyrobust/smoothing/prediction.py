"""Which class a smoothed classifier predicts, of its votes."""

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
    """The leading classes that the two-sided binomial test of p = 1/2 holds for certain (Hung and Fithian, 2019).

    Args:
        counts: [B, K + 1], votes; column K holds those without a winner.
        alpha: probability that a prediction is wrong.
        delta: total variation between the distribution of all votes and the one that is asked about; added to the
            p-value.
        tails: whether a vote without a winner may be any class's, so that all of them go to the second.

    Returns:
        prediction [B], the class or ``ABSTAIN`` (also where votes without a winner lead), and p_value [B].

    >>> decide(np.array([[90, 10, 0], [55, 45, 0], [10, 10, 80]]), 0.001)[0]
    array([ 0, -1, -1])
    >>> decide(np.array([[60, 20, 20]]), 0.001)[0], decide(np.array([[60, 20, 20]]), 0.001, tails=True)[0]
    (array([0]), array([-1]))
    >>> decide(np.array([[600, 500, 550]]), 0.001, tails=True)  # 1050 votes may be the second's
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
    # Both sides of the test speak for the class that leads; one that is behind has nothing for it.
    p_value = raise_by(np.where(first > second, binomial_test(first, first + second), 1.0), delta)
    certain = (p_value <= alpha) & (order[:, 0] < classes)
    return np.where(certain, order[:, 0], ABSTAIN).astype(np.int64), p_value


def joint_delta(delta: float, n: int) -> float:
    """The total variation of n independent samples, at most n times that of one, rounded up.

    >>> joint_delta(0.0, 100), joint_delta(0.5, 100)
    (0.0, 1.0)
    """
    return min(1.0, math.nextafter(n * delta, math.inf)) if delta else 0.0
