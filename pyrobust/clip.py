"""The argument ``clip`` of attacks, bounds and sweeps: the range of valid input values.

``clip=None`` always means that values have no limit. If ``clip`` is omitted, attacks use their arguments ``clip_min``
and ``clip_max``, by default 0 and 1. If an attack has no limit, its attributes ``clip_min`` and ``clip_max`` are -inf
and inf. A run stores the two ends, or null for no limit.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pyrobust.checks import array, clip_range, finite, first_wrong, shape_text
from pyrobust.errors import InputError
from pyrobust.late import numpy as np
from pyrobust.late import torch

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

#: An end of a clip range: a number, or numbers that broadcast to one example.
ClipEnd: TypeAlias = "float | Sequence[Any] | Tensor | npt.NDArray[Any]"
ClipRange: TypeAlias = "tuple[ClipEnd, ClipEnd]"


class Omitted(enum.Enum):
    """The default of an attack's argument ``clip``."""

    OMITTED = "(clip_min, clip_max)"

    def __repr__(self) -> str:
        return self.value


OMITTED: Final = Omitted.OMITTED
"""Stands for an omitted ``clip``, so that ``clip_min`` and ``clip_max`` apply."""

ClipArgument: TypeAlias = tuple[Any, Any] | Literal[Omitted.OMITTED] | None
"""The argument ``clip`` of an attack: (low, high), None for no limit, or OMITTED."""

LIMIT: Final = 2.0**120
"""Native code gets ±LIMIT for ±inf: LIMIT is finite in float32, and sums of its square are finite in float64."""


def attack_ends(clip_min: Any, clip_max: Any, clip: Any) -> tuple[Any, Any]:
    """Return the ends of an attack's clip range from its three arguments.

    The ends are two finite numbers, or -inf and inf for no limit, or two float64 tensors that broadcast to the shape of
    one example.

    >>> attack_ends(0.0, 1.0, OMITTED), attack_ends(0.0, 1.0, (-1, 1)), attack_ends(0.0, 1.0, None)
    ((0.0, 1.0), (-1.0, 1.0), (-inf, inf))
    >>> attack_ends(0.0, [1, 2], OMITTED)
    (tensor(0., dtype=torch.float64), tensor([1., 2.], dtype=torch.float64))
    """
    per_element = _is_array(clip_min) or _is_array(clip_max)
    if clip is OMITTED and not per_element:
        low, high = finite("clip_min", clip_min), finite("clip_max", clip_max)
        if not low < high:
            raise InputError("clip_max", f"a number above clip_min, {low}", high)
        return low, high
    ends = checked_clip((clip_min, clip_max) if clip is OMITTED else clip) or (-math.inf, math.inf)
    if clip is not OMITTED and (per_element or (clip_min, clip_max) not in ((0.0, 1.0), ends)):
        raise InputError("clip", "clip, or clip_min and clip_max", f"{clip} and {clip_min}, {clip_max}")
    if any(map(_is_array, ends)):
        lower, upper = (torch.tensor(side, dtype=torch.float64, device="cpu") for side in ends)
        return lower, upper
    return ends


def joined(low: Any, high: Any) -> tuple[Any, Any] | None:
    """Return the ends of an attack's clip range as its argument ``clip``: (low, high), or None for no limit.

    >>> joined(0.0, 1.0), joined(-math.inf, math.inf)
    ((0.0, 1.0), None)
    """
    return None if isinstance(low, float) and math.isinf(low) and math.isinf(high) else (low, high)


def finite_ends(low: float, high: float) -> tuple[float, float]:
    """Return the ends of a clip range, low at least -``LIMIT``, high at most ``LIMIT``: native code takes finite ends.

    >>> finite_ends(0.0, 1.0), finite_ends(-math.inf, math.inf) == (-LIMIT, LIMIT)
    ((0.0, 1.0), True)
    """
    return max(low, -LIMIT), min(high, LIMIT)


def need_range(what: str, clip: tuple[Any, Any] | None) -> None:
    """Raise InputError if ``clip`` is None; the message says that ``what`` needs a clip range.

    >>> need_range("HopSkipJump", None)
    Traceback (most recent call last):
    pyrobust.errors.InputError: clip: expected (low, high) for HopSkipJump, which needs a range, got None
    """
    if clip is None:
        raise InputError("clip", f"(low, high) for {what}, which needs a range", "None")


def stored_clip(clip: Sequence[Any] | None) -> list[Any] | None:
    """Return a clip range as runs store it: two numbers, or two nested lists of equal shape.

    >>> stored_clip((0.0, 1.0)), stored_clip((0.0, (1.0, 2.0))), stored_clip(None)
    ([0.0, 1.0], [[0.0, 0.0], [1.0, 2.0]], None)
    """
    return None if clip is None else [side.tolist() for side in np.broadcast_arrays(*map(np.asarray, clip))]


def checked_clip(clip: ClipRange | None) -> tuple[Any, Any] | None:
    """Return the ends of a clip range, each a float or an array as nested tuples, which compare by value."""
    if clip is None:
        return None
    per_element = isinstance(clip, tuple | list) and len(clip) == 2 and any(map(_is_array, clip))
    if not per_element:
        return clip_range("clip", clip)
    low, high = (
        array(
            "clip",
            side.detach().cpu().double() if isinstance(side, torch.Tensor) and side.is_floating_point() else side,
        )
        for side in clip
    )
    for side in (low, high):
        if not np.isfinite(side).all():
            raise InputError("clip", "finite numbers", first_wrong(side, ~np.isfinite(side)))
    try:
        below = low <= high
    except ValueError:
        sizes = " and ".join(shape_text(side.shape) for side in (low, high))
        raise InputError("clip", "ends of one shape", sizes) from None
    if not below.all():
        wrong = first_wrong(np.broadcast_to(low, below.shape), ~below)
        raise InputError("clip", "low <= high for every element", f"low {wrong}")
    return _nested(low.tolist()), _nested(high.tolist())


def clip_ends(
    clip: ClipRange | None, shape: tuple[int, ...], device: torch.device | str = "cpu"
) -> tuple[float, float] | tuple[Tensor, Tensor]:
    """Return the ends of a clip range: floats (±inf if clip is None), or tensors [n] for ``shape``'s n elements."""
    checked = checked_clip(clip)
    if checked is None:
        return -math.inf, math.inf
    low, high = (np.asarray(side, dtype=np.float64) for side in checked)
    if low.ndim == high.ndim == 0:
        return float(low), float(high)
    for side in (low, high):
        fits = all(size in (1, full) for size, full in zip(side.shape, shape, strict=False))
        if side.ndim not in (0, len(shape)) or not fits:
            raise InputError(
                "clip", f"numbers, or tensors that broadcast to {shape_text(shape)}", f"shape {shape_text(side.shape)}"
            )
    low, high = (np.broadcast_to(side, shape).reshape(-1) for side in (low, high))
    return torch.tensor(low, device=device), torch.tensor(high, device=device)


def _is_array(side: Any) -> bool:
    return isinstance(side, list | tuple) or (isinstance(side, torch.Tensor | np.ndarray) and side.ndim > 0)


def _nested(side: Any) -> Any:
    return tuple(map(_nested, side)) if isinstance(side, list) else side
