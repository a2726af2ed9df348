"""Directed rounding of float64 tensors."""

from __future__ import annotations

import torch
from torch import Tensor

#: Unit roundoff of float64.
ROUNDOFF = 2.0**-53

#: Added to magnitudes where a deployed forward pass may flush products or inputs below the smallest normal float to
#: zero: its share of any sum is at least 4·2^-53·2^-100, more than 2^-1022, or 4·2^-24·2^-100, more than 2^-126.
FLUSHED = 2.0**-100


class Outward:
    """Directed rounding, switched off for unsound bounds, which treat floats as real numbers.

    Every operation rounds to nearest, in float64, and its result is then moved up or down by at least one step to the
    next float. Each move is also at least ``TINY``, the smallest normal number, so that a device may keep smaller
    numbers or flush them to zero.
    """

    TINY = 2.0**-1022

    def __init__(self, sound: bool) -> None:
        self.sound = sound
        self._step = 2 * ROUNDOFF if sound else 0.0
        self._tiny = self.TINY if sound else 0.0

    def up(self, a: Tensor) -> Tensor:
        """Return an upper bound of the real number whose rounded value is a."""
        return a + (a.abs() * self._step + self._tiny)

    def down(self, a: Tensor) -> Tensor:
        """Return a lower bound of the real number whose rounded value is a."""
        return a - (a.abs() * self._step + self._tiny)

    def rounding_error(self, size: Tensor) -> Tensor:
        """Bound the rounding error of several sums and products with a total magnitude of at most ``size``."""
        return size * (8 * self._step) + self._tiny

    def gamma(self, n: int, roundoff: float = ROUNDOFF) -> float:
        """Bound (1 + u)^n − 1, for n roundings, by n u / (1 − n u) (Higham, 2002, lemma 3.1); infinite for n u ≥ ¼."""
        x = n * roundoff
        if not self.sound or x == 0:
            return 0.0
        return x / (1 - x) * (1 + 2.0**-50) if x < 0.25 else float("inf")

    def underflow(self, operations: int) -> float:
        """Bound the total error if the results of ``operations`` operations are below the smallest normal number."""
        return operations * self._tiny


def magnitude(lower: Tensor, upper: Tensor) -> Tensor:
    """Return the largest |z| in each range."""
    return torch.maximum(lower.abs(), upper.abs())
