"""Input sets of bounds: a ball within a clip range, or a box."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import (
    NormLike,
    array,
    clip_range,
    finite_values,
    first_wrong,
    float_tensor,
    norm_name,
    radii,
    shape_text,
)
from pyrobust.errors import InputError

CPU = torch.device("cpu")

#: An end of a clip range: a number, or numbers that broadcast to one example.
ClipEnd: TypeAlias = "float | Sequence[Any] | Tensor | npt.NDArray[Any]"
ClipRange: TypeAlias = "tuple[ClipEnd, ClipEnd]"


@dataclasses.dataclass(frozen=True, eq=False)
class Around:
    """Boxes around centers, in a clip range: for most models cheaper to read than their corners.

    Attributes:
        center: [B, n], float32 or float64.
        radius: [B], float64, finite.
        lowest: lower end of the clip range.
        highest: upper end.
    """

    center: Tensor
    radius: Tensor
    lowest: float
    highest: float

    def corners(self) -> tuple[Tensor, Tensor]:
        """The corners of the boxes, rounded outward."""
        return _corners(self.center.double(), self.radius[:, None], self.lowest, self.highest)


@dataclasses.dataclass(frozen=True, eq=False)
class InputSet:
    """B sets of inputs, on one device, each in a box.

    Attributes:
        boxes: their lower and upper corners [B, n], in float64 or as given in float32, rounded outward, with -inf and
            inf for elements without an end; or their centers.
        norm: norm of the balls; "linf" where the sets are the boxes themselves.
        center: [B, n], centers of the balls, float64 unless the norm is "linf"; None for boxes given by their corners.
        epsilon: [B], radii of balls that contain the sets; None for boxes given by their corners.
        bounded: whether all corners are finite.
    """

    boxes: tuple[Tensor, Tensor] | Around
    norm: str
    center: Tensor | None
    epsilon: Tensor | None
    bounded: bool = True

    @functools.cached_property
    def _corners(self) -> tuple[Tensor, Tensor]:
        return self.boxes.corners() if isinstance(self.boxes, Around) else self.boxes

    @property
    def lower(self) -> Tensor:
        """The lower corners [B, n]."""
        return self._corners[0]

    @property
    def upper(self) -> Tensor:
        """The upper corners [B, n]."""
        return self._corners[1]

    def points(self) -> tuple[Tensor, Tensor] | Around:
        """A point of each set, in the form of ``boxes``: its center, or the middle of its box."""
        if isinstance(self.boxes, Around):
            return dataclasses.replace(self.boxes, radius=torch.zeros_like(self.boxes.radius))
        middle = self.lower / 2 + self.upper / 2
        return middle, middle

    def __len__(self) -> int:
        return len(self.boxes.center if isinstance(self.boxes, Around) else self.boxes[0])

    def rows(self, chosen: Tensor | slice) -> InputSet:
        """Select sets by bool [B], indices or a slice."""
        return self._mapped(lambda t: t[chosen])

    def cpu(self) -> InputSet:
        """Return the sets in host memory."""
        return self._mapped(Tensor.cpu)

    def _mapped(self, f: Callable[[Tensor], Tensor]) -> InputSet:
        boxes = self.boxes
        if isinstance(boxes, Around):
            boxes = Around(f(boxes.center), f(boxes.radius), boxes.lowest, boxes.highest)
        else:
            boxes = f(boxes[0]), f(boxes[1])
        center, epsilon = (None if t is None else f(t) for t in (self.center, self.epsilon))
        return InputSet(boxes, self.norm, center, epsilon, self.bounded)


def ball(
    x: Tensor,
    epsilon: Any,
    norm: NormLike,
    clip: ClipRange | None,
    shape: tuple[int, ...],
    device: torch.device = CPU,
) -> InputSet:
    """Return the inputs within epsilon of x [B, *shape] and in the clip range, for sets on a device.

    Radii of elements, epsilon [B, *shape], are those of boxes; a radius may be infinite where there is a clip range.
    """
    norm = norm_name("norm", norm)
    center, extremes = _elements("x", x, shape, device)
    lowest, highest = clip_ends(clip, shape, device)
    if clip is not None:
        _check_inside(center, extremes, lowest, highest, shape)
    radius = check_radii(epsilon, norm, clip, len(center), shape).to(device)
    exact = center if norm == "linf" else center.double()
    if radius.dim() == 1 and isinstance(lowest, float) and isinstance(highest, float) and bool(radius.isfinite().all()):
        return InputSet(Around(center, radius, lowest, highest), norm, exact, radius)
    center = center.double()
    wide = radius[:, None] if radius.dim() == 1 else radius.reshape(len(center), -1)
    lower, upper = _corners(center, wide, lowest, highest)
    if radius.dim() > 1:
        radius = wide.amax(1) if wide.shape[1] else wide.sum(1)
    if clip is not None and bool(radius.isinf().any()):
        radius = torch.where(radius.isinf(), _farthest(lower, center, upper, norm), radius)
    return InputSet((lower, upper), norm, exact, radius)


def _check_inside(
    center: Tensor,
    extremes: tuple[float, float],
    lowest: float | Tensor,
    highest: float | Tensor,
    shape: tuple[int, ...],
) -> None:
    """Raise InputError where an element is outside the clip range."""
    if isinstance(lowest, float) and isinstance(highest, float) and lowest <= extremes[0] and extremes[1] <= highest:
        return
    outside = (center.double() < lowest) | (center.double() > highest)
    if bool(outside.any()):
        value = first_wrong(center.reshape(-1, *shape), outside.reshape(-1, *shape))
        ends = f"[{lowest}, {highest}]" if isinstance(lowest, float) else "of its element"
        raise InputError(f"x: expected values in the clip range {ends}, got {value}")


def _corners(center: Tensor, radius: Tensor, lowest: float | Tensor, highest: float | Tensor) -> tuple[Tensor, Tensor]:
    """The corners of boxes around float64 centers, rounded outward, in a clip range."""
    infinity = torch.tensor(torch.inf, dtype=torch.float64, device=center.device)
    # x ± 0 is exact; any other sum may be rounded inward
    lower = torch.where(radius == 0, center, torch.nextafter(center - radius, -infinity))
    upper = torch.where(radius == 0, center, torch.nextafter(center + radius, infinity))
    return lower.clamp(min=lowest), upper.clamp(max=highest)


def check_radii(epsilon: Any, norm: str, clip: ClipRange | None, examples: int, shape: tuple[int, ...]) -> Tensor:
    """Return radii of balls [B], or of the elements of boxes [B, *shape]: float64 on the CPU."""
    radius = radii("epsilon", epsilon, examples, shape, infinite=clip is not None)
    if radius.dim() > 1 and norm != "linf":
        raise InputError(
            f'epsilon: expected a number or a tensor [{examples}] with norm "{norm}", got one for each element; boxes '
            'have norm "linf"'
        )
    return radius


def _farthest(lower: Tensor, center: Tensor, upper: Tensor, norm: str) -> Tensor:
    """At least the distance from the center to any point of a box: [B]; the l1 distance serves for l2."""
    infinity = torch.tensor(torch.inf, dtype=torch.float64, device=center.device)
    reach = torch.nextafter(torch.maximum(upper - center, center - lower), infinity)
    if not reach.shape[1]:
        return reach.sum(1)
    return reach.amax(1) if norm == "linf" else reach.sum(1) * (1 + (reach.shape[1] + 2) * 2.0**-52)


def box(x_lower: Tensor, x_upper: Tensor, shape: tuple[int, ...], device: torch.device = CPU) -> InputSet:
    """Return the inputs between two tensors [B, *shape], on a device; elements may lack an end, -inf or +inf."""
    lower, (least, _) = _elements("x_lower", x_lower, shape, device, -torch.inf)
    upper, (_, most) = _elements("x_upper", x_upper, shape, device, torch.inf)
    if lower.shape != upper.shape:
        raise InputError(f"x_upper: expected {len(lower)} examples as in x_lower, got {len(upper)}")
    if lower.dtype != upper.dtype:
        lower, upper = lower.double(), upper.double()
    above = lower > upper
    if bool(above.any()):
        place = int(above.reshape(-1).nonzero()[0])
        value = first_wrong(lower.reshape(-1, *shape), above.reshape(-1, *shape))
        raise InputError(f"x_lower: expected at most x_upper, got {value}, above {upper.reshape(-1)[place].item()}")
    return InputSet((lower, upper), "linf", None, None, least > -math.inf and most < math.inf)


def checked_clip(clip: ClipRange | None) -> tuple[Any, Any] | None:
    """Return a clip range as two floats, or as two arrays in the form of nested tuples, which compare by value."""
    if clip is None:
        return None
    per_element = isinstance(clip, tuple | list) and len(clip) == 2 and any(map(_is_array, clip))
    if not per_element:
        return clip_range("clip", clip)
    low, high = (
        array("clip", end.detach().cpu().double() if isinstance(end, Tensor) and end.is_floating_point() else end)
        for end in clip
    )
    for end in (low, high):
        if not np.isfinite(end).all():
            raise InputError(f"clip: expected finite numbers, got {first_wrong(end, ~np.isfinite(end))}")
    try:
        below = low < high
    except ValueError:
        sizes = " and ".join(shape_text(end.shape) for end in (low, high))
        raise InputError(f"clip: expected ends of one shape, got {sizes}") from None
    if not below.all():
        wrong = first_wrong(np.broadcast_to(low, below.shape), ~below)
        raise InputError(f"clip: expected low < high for every element, got low {wrong}")
    return _nested(low.tolist()), _nested(high.tolist())


def clip_ends(
    clip: ClipRange | None, shape: tuple[int, ...], device: torch.device = CPU
) -> tuple[float, float] | tuple[Tensor, Tensor]:
    """Return the ends of the clip range, ±inf for None: two floats, or two tensors [n] for one example of a shape."""
    checked = checked_clip(clip)
    if checked is None:
        return -math.inf, math.inf
    low, high = (np.asarray(end, dtype=np.float64) for end in checked)
    if low.ndim == high.ndim == 0:
        return float(low), float(high)
    for end in (low, high):
        fits = all(size in (1, full) for size, full in zip(end.shape, shape, strict=False))
        if end.ndim not in (0, len(shape)) or not fits:
            raise InputError(
                f"clip: expected numbers, or tensors that broadcast to {shape_text(shape)}, got shape "
                f"{shape_text(end.shape)}"
            )
    low, high = (np.broadcast_to(end, shape).reshape(-1) for end in (low, high))
    return torch.tensor(low, device=device), torch.tensor(high, device=device)


def _is_array(end: Any) -> bool:
    return isinstance(end, list | tuple) or (isinstance(end, Tensor | np.ndarray) and end.ndim > 0)


def _nested(end: Any) -> Any:
    return tuple(map(_nested, end)) if isinstance(end, list) else end


def _elements(
    name: str, x: Tensor, shape: tuple[int, ...], device: torch.device, unbounded: float | None = None
) -> tuple[Tensor, tuple[float, float]]:
    """Return x as [B, n] on a device, in float32 or float64, which hold every element exactly, and its extremes.

    Elements are finite, or ``unbounded`` where that is allowed.
    """
    float_tensor(name, x)
    if tuple(x.shape[1:]) != shape or x.dim() != len(shape) + 1:
        raise InputError(f"{name}: expected shape {shape_text(('B', *shape))}, got {shape_text(x.shape)}")
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    flat = x.detach().to(device, dtype).reshape(len(x), math.prod(shape))
    if flat.numel() == 0:
        return flat, (math.inf, -math.inf)
    # The minimum and maximum are NaN where any element is; isfinite would take several times the memory of x.
    least, most = torch.stack(flat.aminmax()).tolist()
    if not (math.isfinite(least) and math.isfinite(most)):
        values = x.detach()
        finite_values(name, values if unbounded is None else values.where(values != unbounded, 0))
    return flat, (least, most)
