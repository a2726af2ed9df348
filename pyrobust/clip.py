"""The argument ``clip``: the range of valid input values, of attacks, bounds and sweeps.

Everywhere ``clip=None`` means that values have no limit. Attacks have two numbers besides, ``clip_min`` and
``clip_max``, 0 and 1 by default, which hold where ``clip`` is omitted; without a limit these are -inf and inf. A run
stores the two ends, or null.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from pyrobust.checks import clip_range, finite
from pyrobust.errors import InputError


class Omitted(enum.Enum):
    """The default of an attack's argument ``clip``."""

    OMITTED = "(clip_min, clip_max)"

    def __repr__(self) -> str:
        return self.value


OMITTED: Final = Omitted.OMITTED
"""An omitted ``clip``: ``clip_min`` and ``clip_max`` hold."""

ClipArgument: TypeAlias = tuple[float, float] | Literal[Omitted.OMITTED] | None
"""The argument ``clip`` of an attack."""

LIMIT: Final = 2.0**120
"""Ends that native code gets in place of infinite ones: sums of squares of such values are finite in float64, and the
values themselves in float32."""


def attack_ends(clip_min: Any, clip_max: Any, clip: Any) -> tuple[float, float]:
    """Return the ends of an attack's clip range from its three arguments: finite, or -inf and inf for no limit.

    >>> attack_ends(0.0, 1.0, OMITTED), attack_ends(0.0, 1.0, (-1, 1)), attack_ends(0.0, 1.0, None)
    ((0.0, 1.0), (-1.0, 1.0), (-inf, inf))
    """
    if clip is None:
        low, high = -math.inf, math.inf
    elif clip is OMITTED:
        low, high = finite("clip_min", clip_min), finite("clip_max", clip_max)
        if not low < high:
            raise InputError("clip_max", f"a number above clip_min, {low}", high)
        return low, high
    else:
        low, high = clip_range("clip", clip)
    if (clip_min, clip_max) not in ((0.0, 1.0), (low, high)):
        raise InputError("clip", "clip, or clip_min and clip_max", f"{clip} and {clip_min}, {clip_max}")
    return low, high


def joined(low: float, high: float) -> tuple[float, float] | None:
    """Return the ends of an attack as its argument ``clip``.

    >>> joined(0.0, 1.0), joined(-math.inf, math.inf)
    ((0.0, 1.0), None)
    """
    return None if math.isinf(low) and math.isinf(high) else (low, high)


def finite_ends(low: float, high: float) -> tuple[float, float]:
    """Return the ends in numbers that native code takes.

    >>> finite_ends(0.0, 1.0), finite_ends(-math.inf, math.inf) == (-LIMIT, LIMIT)
    ((0.0, 1.0), True)
    """
    return max(low, -LIMIT), min(high, LIMIT)


def need_range(what: str, clip: tuple[float, float] | None) -> None:
    """Raise InputError without a clip range, for what needs one.

    >>> need_range("HopSkipJump", None)
    Traceback (most recent call last):
    pyrobust.errors.InputError: clip: expected (low, high) for HopSkipJump, which needs a range, got None
    """
    if clip is None:
        raise InputError("clip", f"(low, high) for {what}, which needs a range", "None")


def stored_clip(clip: Sequence[float] | None) -> list[float] | None:
    """Return a clip range in the form of a run's parameter.

    >>> stored_clip((0.0, 1.0)), stored_clip(None)
    ([0.0, 1.0], None)
    """
    return None if clip is None else list(clip)
