"""Bound propagation: what a network can output for any input of a set."""

from .differentiable import DifferentiableBounds
from .lowering_elementwise import register_rule
from .model import BoundedModel, compute_ibp_bounds
from .result import Bounds, Verdicts

__all__ = ["BoundedModel", "Bounds", "DifferentiableBounds", "Verdicts", "compute_ibp_bounds", "register_rule"]
