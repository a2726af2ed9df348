"""Binomial bounds and tests, normal quantiles and confidence sequences, all rounded outward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyrobust.late import import_lazily
from pyrobust.stats import arguments, decimals

if TYPE_CHECKING:
    from pyrobust.stats.binomial import (
        binomial_test as binomial_test,
        clopper_pearson_lower as clopper_pearson_lower,
        clopper_pearson_upper as clopper_pearson_upper,
        fixed_count as fixed_count,
    )
    from pyrobust.stats.bounded_mean import bounded_mean_interval as bounded_mean_interval
    from pyrobust.stats.holm import holm as holm
    from pyrobust.stats.lattice import (
        LatticeOutcome as LatticeOutcome,
        exact_error as exact_error,
        lattice_outcome as lattice_outcome,
    )
    from pyrobust.stats.normal import normal_quantile_lower as normal_quantile_lower
    from pyrobust.stats.population import population_sequence as population_sequence
    from pyrobust.stats.rule import (
        SequentialRule as SequentialRule,
        looks as looks,
    )
    from pyrobust.stats.sequence import (
        sequence_boundary as sequence_boundary,
        sequence_lower as sequence_lower,
        sequence_upper as sequence_upper,
    )

__all__ = import_lazily(
    __name__,
    {
        "pyrobust.stats.binomial": "binomial_test clopper_pearson_lower clopper_pearson_upper fixed_count",
        "pyrobust.stats.bounded_mean": "bounded_mean_interval",
        "pyrobust.stats.holm": "holm",
        "pyrobust.stats.lattice": "LatticeOutcome exact_error lattice_outcome",
        "pyrobust.stats.normal": "normal_quantile_lower",
        "pyrobust.stats.population": "population_sequence",
        "pyrobust.stats.rule": "SequentialRule looks",
        "pyrobust.stats.sequence": "sequence_boundary sequence_lower sequence_upper",
    },
    "MARGIN MAX_TRIALS SHARE_AT_END",
)

# Assigned here because the reference pages read docstrings below assignments, not below imports.
MARGIN: Final = decimals.MARGIN
"""Relative distance, 2^-40, from the first guess of a bound to the first value that is tried as the bound.

It is relative to min(p, 1 - p) for a proportion p, and to |z| for a normal quantile z. The returned bound lies within 4
such distances plus 8 units in the last place of the exact bound. Soundness does not depend on this distance.
"""

MAX_TRIALS: Final = arguments.MAX_TRIALS
"""Largest supported number of trials n: 10^9. The bounds on rounding errors in the proofs hold up to this n."""

SHARE_AT_END: Final = arguments.SHARE_AT_END
"""Default share of alpha that a sequential rule reserves for its bound at n_max: 0.01."""
