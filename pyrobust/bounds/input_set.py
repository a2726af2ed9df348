"""Input sets of bounds: a ball within a clip range, or a box."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import radii
from pyrobust.errors import InputError, InputTypeError

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
    lowest, highest = clip_range(clip)
    if bool(((center < lowest) | (center > highest)).any()):
        raise InputError(f"x: expected elements in the clip range [{lowest}, {highest}], got elements outside")
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
    if bool((lower > upper).any()):
        raise InputError("x_lower: expected at most x_upper everywhere, got larger elements")
    return InputSet(lower, upper, "linf", None, None)


def check_dense(name: str, tensor: Tensor) -> None:
    """Refuse a sparse tensor, one in a library's own layout, or one without data."""
    if tensor.layout != torch.strided or tensor.is_meta:
        raise InputTypeError(f"{name}: expected a dense tensor with data, got {tensor.layout} on {tensor.device}")


def check_norm(norm: str) -> None:
    """Refuse an unknown norm."""
    if not isinstance(norm, str) or norm not in NORMS:
        raise InputError(f"norm: expected one of {', '.join(NORMS)}, got {norm!r}")


def clip_range(clip: tuple[float, float] | None) -> tuple[float, float]:
    """Return the ends of the clip range, ±inf for None."""
    if clip is None:
        return -math.inf, math.inf
    if isinstance(clip, str):
        raise InputTypeError(f"clip: expected two numbers or None, got {clip!r}")
    try:
        lowest, highest = (float(end) for end in clip)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"clip: expected two numbers or None, got {clip!r}") from None
    if not lowest <= highest:
        raise InputError(f"clip: expected the lower end first, got {clip!r}")
    return lowest, highest


def _elements(name: str, x: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return x as [B, n] on a device, in float32 or float64, which hold every element exactly."""
    if not isinstance(x, Tensor) or not x.dtype.is_floating_point:
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputTypeError(f"{name}: expected a floating-point tensor, got {kind}")
    check_dense(name, x)
    if tuple(x.shape[1:]) != shape or x.dim() != len(shape) + 1:
        raise InputError(f"{name}: expected shape {('B', *shape)}, got {tuple(x.shape)}")
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    flat = x.detach().to(device, dtype).reshape(len(x), math.prod(shape))
    # The minimum and maximum are NaN where any element is; isfinite would take several times the memory of x.
    if flat.numel() > 0 and not bool(torch.stack(flat.aminmax()).isfinite().all()):
        raise InputError(f"{name}: expected finite elements, got NaN or infinite ones")
    return flat
