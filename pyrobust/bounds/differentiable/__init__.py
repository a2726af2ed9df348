"""Differentiable bounds for certified training."""

from pyrobust.bounds.differentiable.model import DifferentiableBounds

__all__ = ["DifferentiableBounds"]
