"""The binary search for the constant between distance and success."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..state import AttackState

# A constant beyond this is not tried: the distance has long ceased to matter.
_LARGEST = 1e10


class Constant:
    """The constant c of each example, [B] float64: tenfold until a point fools, then bisected (Carlini and Wagner)."""

    def __init__(self, state: AttackState, first: float) -> None:
        self.value = torch.full_like(state.epsilon, first)
        self._low = torch.zeros_like(self.value)
        self._high = torch.full_like(self.value, math.inf)

    def update(self, fooled: Tensor) -> None:
        """Lower the constants of the examples that were fooled [B], bool, and raise the others."""
        self._high = torch.where(fooled, torch.minimum(self._high, self.value), self._high)
        self._low = torch.where(fooled, self._low, torch.maximum(self._low, self.value))
        middle = (self._low + self._high) / 2
        self.value = torch.where(self._high.isfinite(), middle, self.value * 10).clamp_(max=_LARGEST)
