"""The margin along segments in the ball: the change that its gradient predicts, and the actual change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .subject import ExaminedModel, margin

# Number of points of a segment at which the gradient is taken.
_POINTS = 16
# Changes of the margin below this many units of rounding are not compared.
_ROUNDING_UNITS = 500


@dataclass(frozen=True)
class Segments:
    """The margin on the segment from each example to a random point on the surface of its ball; on the CPU, float64.

    Attributes:
        change: [N], the margin's change from end to end.
        slopes: [16, N], the margin's derivative along the segment, from the gradients at the midpoints of 16 equal
            parts.
        usable: [N], bool, whether the change can be distinguished from rounding.
    """

    change: Tensor
    slopes: Tensor
    usable: Tensor

    def unexplained(self, factor: float = 1.0) -> Tensor:
        """Return, for each usable example, the share of the change that ``factor`` times the gradient does not explain.

        For a model that is continuous and differentiable almost everywhere, such as a ReLU network, the change is the
        integral of the slope. Let s be the slopes multiplied by ``factor``, and s̄ their mean. The share is |change −
        s̄| / max(|change|, mean |s|): near 0 for a true gradient, and 1 if the gradient is zero or all change happens
        at jumps.
        """
        scale = torch.maximum(self.change.abs(), factor * self.slopes.abs().mean(0))
        return ((self.change - factor * self.slopes.mean(0)).abs() / scale)[self.usable]

    def factor(self) -> float:
        """Return the median ratio of the margin's change to the mean slope: how many times too small the slope is."""
        ratio = (self.change / self.slopes.mean(0))[self.usable]
        return float(ratio.nanmedian())

    def steadiness(self) -> Tensor:
        """Return |mean slope| / mean |slope| per usable example: 1 for one sign, near 0 for repeated sign changes."""
        steadiness = self.slopes.mean(0).abs() / self.slopes.abs().mean(0)
        return steadiness.nan_to_num(nan=1.0)[self.usable]


def measure_segments(subject: ExaminedModel) -> Segments:
    """Compute the margin and its gradients along one segment for each example."""
    x, corner = subject.x, subject.corner(subject.x)
    delta = corner.double() - x.double()
    logits, start, _ = subject.gradient(x, margin)
    _, stop, _ = subject.gradient(corner, margin)
    slopes = []
    for point in range(_POINTS):
        at = (x.double() + (point + 0.5) / _POINTS * delta).to(x.dtype)
        _, _, gradient = subject.gradient(at, margin)
        slopes.append((gradient.double() * delta.to(gradient.device)).flatten(1).sum(1))
    slope, change = torch.stack(slopes), stop - start
    size = torch.maximum(change.abs(), slope.abs().mean(0))
    unit = subject.queries.runner.unit * logits.double().abs().amax(1)
    usable = (size > _ROUNDING_UNITS * unit) & size.isfinite()
    return Segments(change.cpu(), slope.cpu(), usable.cpu())
