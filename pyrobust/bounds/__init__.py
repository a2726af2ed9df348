"""Bound propagation, what a network can output for any input of a set, and Lipschitz constants."""

from .differentiable import DifferentiableBounds
from .ibp import compute_ibp_bounds
from .lipschitz import LipschitzBound, lipschitz_bound
from .lowering_elementwise import register_rule
from .model import BoundedModel
from .result import Bounds, Verdicts

__all__ = [
    "BoundedModel",
    "Bounds",
    "DifferentiableBounds",
    "LipschitzBound",
    "Verdicts",
    "compute_ibp_bounds",
    "lipschitz_bound",
    "register_rule",
]
