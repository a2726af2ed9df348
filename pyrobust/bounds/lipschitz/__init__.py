"""Upper bounds of Lipschitz constants."""

from pyrobust.bounds.lipschitz.bound import LipschitzBound, lipschitz_bound

__all__ = ["LipschitzBound", "lipschitz_bound"]
