"""The table of activations: one row per elementwise function, with everything that an engine needs to bound it."""

from pyrobust.bounds.graph.activations import (  # noqa: F401 - each adds its rows
    parametric,
    periodic,
    piecewise,
    powers,
    smooth,
)
from pyrobust.bounds.graph.activations.table import (
    ACTIVATIONS,
    LARGEST,
    ActivationRow,
    Differentiable,
    LinearRelaxation,
    RelaxationRule,
    Rounding,
    required,
    row_from_rule,
    row_of,
)

__all__ = [
    "ACTIVATIONS",
    "LARGEST",
    "ActivationRow",
    "Differentiable",
    "LinearRelaxation",
    "RelaxationRule",
    "Rounding",
    "required",
    "row_from_rule",
    "row_of",
]
