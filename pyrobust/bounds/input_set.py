"""Input sets of bounds: a ball within a clip range, a box, or a product of finite sets."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobust.checks import (
    NormLike,
    exact_cast,
    finite_values,
    first_wrong,
    float_tensor,
    integer,
    kind,
    norm_name,
    radii,
    shape_text,
)
from pyrobust.clip import ClipRange, clip_ends
from pyrobust.errors import InputError, InputTypeError

CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True, eq=False)
class Around:
    """Boxes given by centers, radii and a clip range; for most models, engines process this form faster than corners.

    Attributes:
        center: [B, n], float32 or float64.
        radius: [B], float64, finite.
        lowest: lower end of the clip range.
        highest: upper end of the clip range.
    """

    center: Tensor
    radius: Tensor
    lowest: float
    highest: float

    def corners(self) -> tuple[Tensor, Tensor]:
        """Return the corners of the boxes, rounded outward."""
        return _corners(self.center.double(), self.radius[:, None], self.lowest, self.highest)


@dataclasses.dataclass(frozen=True, eq=False)
class Choices:
    """B products of finite sets: an input consists of parts along its first axis, and each part is one of K points.

    If the parts are words, each product holds the texts that result if words are replaced by their substitutes, as in
    Jia et al., "Certified robustness to adversarial word substitutions" (2019).

    Args:
        points: [B, K, P, ...], float32 or float64, finite: ``points[b, k, p]`` is the k-th point of part p. The first
            point, ``points[b, 0, p]``, is part p of the example itself. A part with fewer than K points repeats one of
            them.
        changes: largest number of parts that may differ from their first points: an integer for all examples, or an
            integer tensor [B] with one for each example; None for no limit.

    Attributes:
        points: as given.
        changes: int64 [B], at most P.

    Raises:
        InputError: no points, elements that are not finite, or a negative number of changes.
        InputTypeError: points that are not a float tensor, or changes that are neither an integer nor an integer
            tensor.

    >>> from torch import nn
    >>> from pyrobust.bounds import BoundedModel
    >>> points = torch.tensor([[[[0.0], [0.0]], [[1.0], [2.0]]]])  # a part 0 or 1, another 0 or 2
    >>> bounded = BoundedModel(nn.Sequential(nn.Flatten(), nn.Linear(2, 1, bias=False)).eval(), points[:, 0])
    >>> _ = nn.init.ones_(bounded.model[1].weight)
    >>> bounded.refresh()
    >>> [round(bounded.bounds(choices=Choices(points, d)).upper.item(), 9) for d in (0, 1, 2)]
    [0.0, 2.0, 3.0]
    """

    points: Tensor
    changes: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", float_tensor("points", self.points))
        if self.points.dim() < 3 or 0 in self.points.shape[1:]:
            raise InputError("points", "shape (B, K, P, ...), K and P above 0", shape_text(self.points.shape))
        finite_values("points", self.points.detach())
        sets, _, parts = self.points.shape[:3]
        object.__setattr__(self, "changes", _changes(self.changes, sets, parts))

    def __len__(self) -> int:
        return len(self.points)

    def mapped(self, f: Callable[[Tensor], Tensor]) -> Choices:
        """Apply a function to the tensors."""
        return Choices(f(self.points), f(self.changes))


def _changes(changes: Any, sets: int, parts: int) -> Tensor:
    """Return the largest number of changes in each set, int64 [B], at most the number of its parts."""
    if changes is None:
        changes = parts
    if not isinstance(changes, Tensor):
        return torch.full((sets,), min(integer("changes", changes, 0), parts), dtype=torch.int64)
    if changes.shape != (sets,):
        raise InputError("changes", f"a number or a tensor [{sets}]", f"shape {shape_text(changes.shape)}")
    if changes.is_floating_point() or changes.is_complex() or changes.dtype == torch.bool:
        raise InputTypeError("changes", "integers", changes.dtype)
    if bool((changes < 0).any()):
        raise InputError("changes", "at least 0", first_wrong(changes, changes < 0))
    return changes.detach().to(torch.int64).clamp(max=parts)


@dataclasses.dataclass(frozen=True, eq=False)
class InputSet:
    """A batch of B input sets on one device; each set lies in a box.

    Attributes:
        boxes: the lower and upper corners [B, n] of the boxes, rounded outward, or an ``Around``, which stores centers
            and radii instead. Corners are float64, or float32 if given as float32; they are -inf and inf for unbounded
            elements.
        norm: norm of the balls; "linf" where the sets are the boxes themselves.
        center: [B, n], centers of the balls, float64 unless the norm is "linf"; None for boxes given by their corners.
        epsilon: [B], radii of balls that contain the sets; None for boxes given by their corners.
        bounded: whether all corners are finite.
        choices: the sets, if they are products of finite sets; the norm is then "linf".
    """

    boxes: tuple[Tensor, Tensor] | Around
    norm: str
    center: Tensor | None
    epsilon: Tensor | None
    bounded: bool = True
    choices: Choices | None = None

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
        """Return one point of each set, in the form of ``boxes``: the ball's center, or the middle of the box."""
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
        choices = None if self.choices is None else self.choices.mapped(f)
        return InputSet(boxes, self.norm, center, epsilon, self.bounded, choices)


def ball(
    x: Tensor,
    epsilon: Any,
    norm: NormLike,
    clip: ClipRange | None,
    shape: tuple[int, ...],
    device: torch.device = CPU,
) -> InputSet:
    """Return the sets of inputs within epsilon of x [B, *shape] and in the clip range, on a device.

    An epsilon of shape [B, *shape] gives boxes, with a radius for each element. If there is a clip range, radii may be
    infinite.
    """
    norm = norm_name("norm", norm)
    center, extremes = _elements("x", x, shape, device)
    lowest, highest = clip_ends(clip, shape, device)
    if clip is not None:
        _check_inside(center, extremes, lowest, highest, shape)
    radius = check_radii(epsilon, norm, clip, len(center), shape).to(device)
    exact = center if norm == "linf" else center.double()
    finite = clip is None or bool(radius.isfinite().all())
    if finite and radius.dim() == 1 and isinstance(lowest, float) and isinstance(highest, float):
        return InputSet(Around(center, radius, lowest, highest), norm, exact, radius)
    center = center.double()
    wide = radius[:, None] if radius.dim() == 1 else radius.flatten(1)
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
        raise InputError("x", f"values in the clip range {ends}", value)


def _corners(center: Tensor, radius: Tensor, lowest: float | Tensor, highest: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the corners of boxes around float64 centers, rounded outward and clipped to the range."""
    infinity = torch.tensor(torch.inf, dtype=torch.float64, device=center.device)
    # x ± 0 is exact; other sums may be rounded inward
    lower = torch.where(radius == 0, center, torch.nextafter(center - radius, -infinity))
    upper = torch.where(radius == 0, center, torch.nextafter(center + radius, infinity))
    return lower.clamp(min=lowest), upper.clamp(max=highest)


def of_examples(radius: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape radii [B] to [B, 1, ...], so that they are not mistaken for radii of elements."""
    return radius.reshape(-1, *(1,) * len(shape)) if radius.dim() == 1 else radius


def check_radii(epsilon: Any, norm: str, clip: ClipRange | None, examples: int, shape: tuple[int, ...]) -> Tensor:
    """Return radii of balls [B], or of the elements of boxes [B, *shape]: float64 on the CPU."""
    radius = radii("epsilon", epsilon, examples, shape, infinite=clip is not None)
    if norm == "linf" and np.ndim(epsilon) == 1 and shape == (examples,) and examples > 1 and len(epsilon) > 1:
        raise InputError(
            "epsilon",
            f"shape ({examples}, 1) for one radius for each example or (1, {examples}) for one for each element",
            f"({examples},), which may be either",
        )
    if radius.dim() > 1 and norm != "linf":
        raise InputError(
            "epsilon",
            f'a number or a tensor [{examples}] with norm "{norm}"',
            "one for each element",
            'boxes have norm "linf"',
        )
    return radius


def _farthest(lower: Tensor, center: Tensor, upper: Tensor, norm: str) -> Tensor:
    """Return an upper bound of the distance from the center to any point of a box, [B]."""
    infinity = torch.tensor(torch.inf, dtype=torch.float64, device=center.device)
    reach = torch.nextafter(torch.maximum(upper - center, center - lower), infinity)
    if not reach.shape[1]:
        return reach.sum(1)
    above = 1 + (reach.shape[1] + 4) * 2.0**-52
    largest = reach.amax(1)
    if norm == "l1":
        return reach.sum(1) * above
    if norm == "linf":
        return largest
    # Squares of shares cannot overflow, and are negligible where they underflow; an infinite share is NaN.
    return (largest * (reach / largest[:, None]).square().sum(1).sqrt() * above).nan_to_num(torch.inf)


def box(x_lower: Tensor, x_upper: Tensor, shape: tuple[int, ...], device: torch.device = CPU) -> InputSet:
    """Return the sets of inputs between two tensors [B, *shape], whose elements may be infinite, on a device."""
    lower, (least, _) = _elements("x_lower", x_lower, shape, device, -torch.inf)
    upper, (_, most) = _elements("x_upper", x_upper, shape, device, torch.inf)
    if lower.shape != upper.shape:
        raise InputError("x_upper", f"{len(lower)} examples as in x_lower", len(upper))
    if lower.dtype != upper.dtype:
        lower, upper = lower.double(), upper.double()
    above = lower > upper
    if bool(above.any()):
        position = int(above.reshape(-1).nonzero()[0])
        value = first_wrong(lower.reshape(-1, *shape), above.reshape(-1, *shape))
        raise InputError("x_lower", "at most x_upper", f"{value}, above {upper.reshape(-1)[position].item()}")
    return InputSet((lower, upper), "linf", None, None, least > -math.inf and most < math.inf)


def product_of(choices: Choices, shape: tuple[int, ...], device: torch.device = CPU) -> InputSet:
    """Return products of finite sets as an ``InputSet`` on a device; their inputs have the given shape."""
    if not isinstance(choices, Choices):
        raise InputTypeError("choices", "Choices", kind(choices))
    points = choices.points.detach()
    if tuple(points.shape[2:]) != shape:
        raise InputError("choices", f"points {shape_text(('B', 'K', *shape))}", shape_text(points.shape))
    on_device = choices.mapped(lambda t: t.detach().to(device))
    points = on_device.points.flatten(2)
    points = points if points.dtype == torch.float64 else points.float()
    return InputSet((points.amin(1), points.amax(1)), "linf", None, None, choices=on_device)


def exact_input(name: str, x: Any, dtype: torch.dtype) -> Tensor:
    """Return examples for a model of this dtype: float64 examples become float32 unless the model is float64."""
    x = float_tensor(name, x, "verify_dataset", dtype)
    return x if dtype == torch.float64 or x.dtype != torch.float64 else exact_cast(name, x, torch.float32)


def _elements(
    name: str, x: Tensor, shape: tuple[int, ...], device: torch.device, unbounded: float | None = None
) -> tuple[Tensor, tuple[float, float]]:
    """Return x as [B, n] on a device, not rounded, in float64 if x is float64, else in float32; and its extremes.

    All elements are finite, or equal to ``unbounded`` if that is given.
    """
    x = float_tensor(name, x)
    if tuple(x.shape[1:]) != shape or x.dim() != len(shape) + 1:
        raise InputError(name, f"shape {shape_text(('B', *shape))}", shape_text(x.shape))
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    flat = x.detach().to(device, dtype).reshape(len(x), math.prod(shape))
    if flat.numel() == 0:
        return flat, (math.inf, -math.inf)
    # The minimum and maximum are NaN if any element is; isfinite would take several times the memory of x.
    least, most = torch.stack(flat.aminmax()).tolist()
    if not (math.isfinite(least) and math.isfinite(most)):
        values = x.detach()
        finite_values(name, values if unbounded is None else values.where(values != unbounded, 0))
    return flat, (least, most)
