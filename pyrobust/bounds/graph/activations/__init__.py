"""The table of activations: one row per elementwise function, with everything that an engine needs to bound it."""

from pyrobust.bounds.graph.activations import piecewise, powers, smooth, softsign  # noqa: F401 - each adds its rows
from pyrobust.bounds.graph.activations.table import (
    ACTIVATIONS,
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
    "ActivationRow",
    "Differentiable",
    "LinearRelaxation",
    "RelaxationRule",
    "Rounding",
    "required",
    "row_from_rule",
    "row_of",
]
