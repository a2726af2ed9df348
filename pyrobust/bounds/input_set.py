"""The inputs that bounds are to hold for: a ball, cut by a clip range, or a box."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import radii
from pyrobust.errors import InputError, InputTypeError

CPU = torch.device("cpu")

#: The norms of balls.
NORMS = ("linf", "l2", "l1")


@dataclasses.dataclass(frozen=True, eq=False)
class InputSet:
    """B sets of inputs, in float64 on one device; boxes that were given in float32 stay in it.

    Attributes:
        lower: [B, n], the lower corner of a box around each set, rounded down.
        upper: [B, n], the upper one, rounded up.
        norm: "linf" where the sets are the boxes themselves.
        center: [B, n], the centers of the balls; None for boxes that were given as such.
        epsilon: [B], their radii; None likewise.
    """

    lower: Tensor
    upper: Tensor
    norm: str
    center: Tensor | None
    epsilon: Tensor | None

    def __len__(self) -> int:
        return len(self.lower)

    def rows(self, chosen: Tensor | slice) -> InputSet:
        """Some of the sets: chosen is bool [B], indices or a slice."""
        center = None if self.center is None else self.center[chosen]
        epsilon = None if self.epsilon is None else self.epsilon[chosen]
        return InputSet(self.lower[chosen], self.upper[chosen], self.norm, center, epsilon)

    def cpu(self) -> InputSet:
        """The sets in the host's memory."""
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
    """The inputs within epsilon of x, in the clip range.

    Args:
        x: [B, *shape], floating-point, in the clip range.
        epsilon: a number of at least 0, or one for each example.
        norm: "linf", "l2" or "l1".
        clip: (lowest, highest) value of any element; None for no limits.
        shape: of one input.
        device: where the sets are to be.

    Raises:
        InputError: another shape, NaN, a negative epsilon, x outside the clip range, an unknown norm.
        InputTypeError: x is no floating-point tensor.
    """
    check_norm(norm)
    center = _elements("x", x, shape, device).double()
    radius = radii("epsilon", epsilon, len(center)).to(device)
    lowest, highest = clip_range(clip)
    if bool(((center < lowest) | (center > highest)).any()):
        raise InputError(f"x: expected elements in the clip range [{lowest}, {highest}], got others")
    wide = radius[:, None]
    infinity = torch.tensor(torch.inf, dtype=torch.float64, device=device)
    # x ± 0 is exact; any other sum may have been rounded inward
    lower = torch.where(wide == 0, center, torch.nextafter(center - wide, -infinity)).clamp(min=lowest)
    upper = torch.where(wide == 0, center, torch.nextafter(center + wide, infinity)).clamp(max=highest)
    return InputSet(lower, upper, norm, center, radius)


def box(x_lower: Tensor, x_upper: Tensor, shape: tuple[int, ...], device: torch.device = CPU) -> InputSet:
    """The inputs between two tensors [B, *shape], on a device.

    Raises:
        InputError: shapes that differ, NaN, x_lower above x_upper.
    """
    lower, upper = _elements("x_lower", x_lower, shape, device), _elements("x_upper", x_upper, shape, device)
    if lower.shape != upper.shape:
        raise InputError(f"x_upper: expected {len(lower)} examples as in x_lower, got {len(upper)}")
    if lower.dtype != upper.dtype:
        lower, upper = lower.double(), upper.double()
    if bool((lower > upper).any()):
        raise InputError("x_lower: expected at most x_upper everywhere, got larger elements")
    return InputSet(lower, upper, "linf", None, None)


def check_dense(name: str, tensor: Tensor) -> None:
    """Raises InputTypeError for a sparse tensor, one in a library's own layout, or one without data."""
    if tensor.layout != torch.strided or tensor.is_meta:
        raise InputTypeError(f"{name}: expected a dense tensor with data, got {tensor.layout} on {tensor.device}")


def check_norm(norm: str) -> None:
    """Raises InputError for an unknown norm."""
    if not isinstance(norm, str) or norm not in NORMS:
        raise InputError(f"norm: expected one of {', '.join(NORMS)}, got {norm!r}")


def clip_range(clip: tuple[float, float] | None) -> tuple[float, float]:
    """The ends of the clip range, ±inf for none.

    Raises:
        InputError: not two numbers, the lower first.
        InputTypeError: a string.
    """
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
    """X as [B, n] on a device, in float32 or float64, which holds every element exactly."""
    if not isinstance(x, Tensor) or not x.dtype.is_floating_point:
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise InputTypeError(f"{name}: expected a floating-point tensor, got {kind}")
    check_dense(name, x)
    if tuple(x.shape[1:]) != shape or x.dim() != len(shape) + 1:
        raise InputError(f"{name}: expected shape {('B', *shape)}, got {tuple(x.shape)}")
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    flat = x.detach().to(device, dtype).reshape(len(x), math.prod(shape))
    # The least and the largest, which are NaN where any element is: isfinite would take several times x's memory.
    if flat.numel() > 0 and not bool(torch.stack(flat.aminmax()).isfinite().all()):
        raise InputError(f"{name}: expected finite elements, got NaN or infinite ones")
    return flat
