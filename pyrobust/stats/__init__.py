"""Binomial and normal bounds and confidence sequences, rounded outward: what a probabilistic certificate rests on."""

from typing import Final

from pyrobust.stats import arguments, margin, rule
from pyrobust.stats.binomial import binomial_test, clopper_pearson_lower, clopper_pearson_upper
from pyrobust.stats.lattice import LatticeOutcome, exact_error, lattice_outcome
from pyrobust.stats.normal import normal_quantile_lower
from pyrobust.stats.rule import SequentialRule, fixed_count
from pyrobust.stats.sequence import looks, sequence_boundary, sequence_lower, sequence_upper

__all__ = [
    "MARGIN",
    "MAX_TRIALS",
    "SHARE_AT_END",
    "LatticeOutcome",
    "SequentialRule",
    "binomial_test",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "exact_error",
    "fixed_count",
    "lattice_outcome",
    "looks",
    "normal_quantile_lower",
    "sequence_boundary",
    "sequence_lower",
    "sequence_upper",
]

# By assignment: the reference pages take what stands below one, not below an import.
MARGIN: Final = margin.MARGIN
"""How far below (or above) its guess a bound begins to be proved, relative to min(p, 1 - p), or to |z| for the normal
quantile: 2^-40. What is returned lies within 4 margins of the exact bound; soundness does not rest on it."""

MAX_TRIALS: Final = arguments.MAX_TRIALS
"""The largest n that bounds, and so certificates, are made for: 10^9. Error budgets of the proofs reach up to it."""

SHARE_AT_END: Final = rule.SHARE_AT_END
"""The share of alpha that a sequential rule keeps for its bound at n_max where none is given: 0.01."""
