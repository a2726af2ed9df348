"""Bound propagation (what a network can output over sets of inputs) and Lipschitz constants."""

from pyrobust.bounds.differentiable.model import DifferentiableBounds
from pyrobust.bounds.graph.activations.curves import Curve
from pyrobust.bounds.graph.lowering.elementwise import register_rule
from pyrobust.bounds.ibp import compute_ibp_bounds
from pyrobust.bounds.input_set import Choices
from pyrobust.bounds.lipschitz.bound import LipschitzBound, lipschitz_bound
from pyrobust.bounds.model import BoundedModel
from pyrobust.bounds.options import BoundOptions
from pyrobust.bounds.result import Bounds, LinearBounds, Verdicts

__all__ = [
    "BoundOptions",
    "BoundedModel",
    "Bounds",
    "Choices",
    "Curve",
    "DifferentiableBounds",
    "LinearBounds",
    "LipschitzBound",
    "Verdicts",
    "compute_ibp_bounds",
    "lipschitz_bound",
    "register_rule",
]
