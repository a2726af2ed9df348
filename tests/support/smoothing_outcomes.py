"""Exact outcomes of smoothing: distances, vote counts and their probabilities, shared by the tests of soundness."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from scipy import stats

from pyrobust import RandomizedSmoothing

NORMS = {"gaussian": "l2", "uniform": "l1", "laplace": "l1"}


def distance_of(p, noise, sigma):
    """Distance to the threshold of an example whose class has probability p under the noise."""
    if noise == "gaussian":
        return sigma * stats.norm.ppf(p)
    if noise == "laplace":
        return -sigma / math.sqrt(2) * np.log(2 * (1 - p))
    assert noise == "uniform"
    return 2 * math.sqrt(3) * sigma * (p - 0.5)


def outcomes(total, parts):
    """All ways to distribute votes."""
    if parts == 1:
        return [(total,)]
    return [(k, *others) for k in range(total + 1) for others in outcomes(total - k, parts - 1)]


@lru_cache(maxsize=1 << 18)
def probability_of(votes, p):
    """Exact multinomial probability of the votes."""
    value, remaining = Fraction(1), sum(votes)
    for k, share in zip(votes, p, strict=True):
        value *= math.comb(remaining, k) * share**k
        remaining -= k
    return value


def smoother_with_votes(classes, votes_of_stage):
    """Smoother whose samples in each stage have the given votes."""
    smoother = RandomizedSmoothing(lambda x: x, classes, 1.0, grid=None)
    smoother.sampler.votes = lambda x, noise, samples, report, *, one_example: [
        votes_of_stage[stage] for stage, _ in samples
    ]
    return smoother


def wrong_predictions(decided, p):
    """Probability of a wrong prediction, given (votes, predicted class) of all outcomes that do not abstain.

    At a tie of the leading classes no prediction is correct, nor is one if samples without a winner are likelier than
    every class.
    """
    leaders = [c for c in range(len(p)) if p[c] == max(p)]
    correct = leaders[0] if len(leaders) == 1 else None
    return sum((probability_of(votes, p) for votes, label in decided if label != correct), Fraction(0))
