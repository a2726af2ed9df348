"""Binomial and normal bounds and confidence sequences, rounded outward: what a probabilistic certificate rests on."""

from pyrobust.stats.arguments import MAX_TRIALS
from pyrobust.stats.binomial import binomial_test, clopper_pearson_lower, clopper_pearson_upper
from pyrobust.stats.lattice import LatticeOutcome, exact_error, lattice_outcome
from pyrobust.stats.margin import MARGIN
from pyrobust.stats.normal import normal_quantile_lower
from pyrobust.stats.rule import SHARE_AT_END, SequentialRule, fixed_count
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
