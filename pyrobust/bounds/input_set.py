"""Input sets of bounds: a ball within a clip range, or a box."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import choice, clip_range, finite_values, first_wrong, float_tensor, radii, shape_text
from pyrobust.errors import InputError

CPU = torch.device("cpu")

#: Norms of balls.
NORMS = ("linf", "l2", "l1")


@dataclasses.dataclass(frozen=True, eq=False)
class InputSet:
    """B sets of inputs, in float64 on one device; boxes given in float32 stay in float32.

    Attributes:
        lower: [B, n], lower corner of a box around each set, rounded down.
        upper: [B, n], upper corner, rounded up.
        norm: norm of the balls; "linf" where the sets are the boxes themselves.
        center: [B, n], centers of the balls; None for boxes given by their corners.
        epsilon: [B], radii of the balls; None for boxes given by their corners.
    """

    lower: Tensor
    upper: Tensor
    norm: str
    center: Tensor | None
    epsilon: Tensor | None

    def __len__(self) -> int:
        return len(self.lower)

    def rows(self, chosen: Tensor | slice) -> InputSet:
        """Select sets by bool [B], indices or a slice."""
        center = None if self.center is None else self.center[chosen]
        epsilon = None if self.epsilon is None else self.epsilon[chosen]
        return InputSet(self.lower[chosen], self.upper[chosen], self.norm, center, epsilon)

    def cpu(self) -> InputSet:
        """Return the sets in host memory."""
        center = None if self.center is None else self.center.cpu()
        epsilon = None if self.epsilon is None else self.epsilon.cpu()
        return InputSet(self.lower.cpu(), self.upper.cpu(), self.norm, center, epsilon)


def ball(
    x: Tensor,
    epsilon: Any,
    norm: str,
    clip: tuple[float, float] | None,
    shape: tuple[int, ...],
    device: torch.device = CPU,
) -> InputSet:
    """Return the inputs within epsilon of x [B, *shape] and in the clip range, for sets on a device."""
    check_norm(norm)
    center = _elements("x", x, shape, device).double()
    radius = radii("epsilon", epsilon, len(center)).to(device)
    lowest, highest = clip_ends(clip)
    outside = (center < lowest) | (center > highest)
    if bool(outside.any()):
        value = first_wrong(center.reshape(-1, *shape), outside.reshape(-1, *shape))
        raise InputError(f"x: expected values in the clip range [{lowest}, {highest}], got {value}")
    wide = radius[:, None]
    infinity = torch.tensor(torch.inf, dtype=torch.float64, device=device)
    # x ± 0 is exact; any other sum may be rounded inward
    lower = torch.where(wide == 0, center, torch.nextafter(center - wide, -infinity)).clamp(min=lowest)
    upper = torch.where(wide == 0, center, torch.nextafter(center + wide, infinity)).clamp(max=highest)
    return InputSet(lower, upper, norm, center, radius)


def box(x_lower: Tensor, x_upper: Tensor, shape: tuple[int, ...], device: torch.device = CPU) -> InputSet:
    """Return the inputs between two tensors [B, *shape], on a device."""
    lower, upper = _elements("x_lower", x_lower, shape, device), _elements("x_upper", x_upper, shape, device)
    if lower.shape != upper.shape:
        raise InputError(f"x_upper: expected {len(lower)} examples as in x_lower, got {len(upper)}")
    if lower.dtype != upper.dtype:
        lower, upper = lower.double(), upper.double()
    above = lower > upper
    if bool(above.any()):
        place = int(above.reshape(-1).nonzero()[0])
        value = first_wrong(lower.reshape(-1, *shape), above.reshape(-1, *shape))
        raise InputError(f"x_lower: expected at most x_upper, got {value}, above {upper.reshape(-1)[place].item()}")
    return InputSet(lower, upper, "linf", None, None)


def check_norm(norm: str) -> None:
    """Refuse an unknown norm."""
    choice("norm", norm, NORMS)


def clip_ends(clip: tuple[float, float] | None) -> tuple[float, float]:
    """Return the ends of the clip range, ±inf for None."""
    return (-math.inf, math.inf) if clip is None else clip_range("clip", clip)


def _elements(name: str, x: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return x as [B, n] on a device, in float32 or float64, which hold every element exactly."""
    float_tensor(name, x)
    if tuple(x.shape[1:]) != shape or x.dim() != len(shape) + 1:
        raise InputError(f"{name}: expected shape {shape_text(('B', *shape))}, got {shape_text(x.shape)}")
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    flat = x.detach().to(device, dtype).reshape(len(x), math.prod(shape))
    # The minimum and maximum are NaN where any element is; isfinite would take several times the memory of x.
    if flat.numel() > 0 and not bool(torch.stack(flat.aminmax()).isfinite().all()):
        finite_values(name, x.detach())
    return flat
