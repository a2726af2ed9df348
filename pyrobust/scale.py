"""Warnings about balls and noise wider than the inputs, such as a radius of 8 where 8/255 was meant."""

from __future__ import annotations

import functools
import logging
import math
from typing import Any

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

# In practice the noise's standard deviation is at most the inputs' range; beyond this multiple a unit is likely wrong.
_NOISE = 2.0
_BYTE = 255


def warn_of_wide_ball(
    epsilon: npt.ArrayLike, norm: str, clip: tuple[Any, Any] | None, elements: int, name: str = "epsilon"
) -> None:
    """Warn, once for each message, if a ball of this radius reaches the whole clip range from every point in it.

    Args:
        epsilon: radius or radii. Infinite radii are taken to be intended and cause no warning.
        norm: "linf", "l2" or "l1"; balls in other norms are not checked.
        clip: clip range; None for no range. A range that varies between elements is not checked.
        elements: number of elements of an input.
        name: name of the argument.

    >>> warn_of_wide_ball(8 / 255, "linf", (0.0, 1.0), 64)
    """
    powers = {"linf": 0.0, "l2": 0.5, "l1": 1.0}
    if clip is None or norm not in powers or not all(isinstance(side, int | float) for side in clip):
        return
    diameter = (clip[1] - clip[0]) * max(1, elements) ** powers[norm]
    values = np.asarray(epsilon, dtype=np.float64)
    wide = values[np.isfinite(values) & (values > diameter * (1 + 1e-6))]
    if wide.size:
        radius = float(wide.min())
        whole = f"{norm} radius {radius:g} reaches every input in the clip range [{clip[0]:g}, {clip[1]:g}]"
        far = "" if norm == "linf" else f", whose diameter is {diameter:.4g}"
        _log(f"{name}: {whole}{far}{_advice(radius)}")


def warn_of_wide_noise(sigma: float, low: float, high: float) -> None:
    """Warn, once for each message, if the noise's standard deviation is more than twice the inputs' range.

    >>> warn_of_wide_noise(0.25, 0.0, 1.0)
    """
    width = high - low
    if math.isfinite(sigma) and width > 0 and sigma > _NOISE * width:
        _log(f"sigma: noise of {sigma:g} hides inputs in [{low:.3g}, {high:.3g}]{_advice(sigma)}")


def _advice(value: float) -> str:
    """Return advice to write k/255 if the value is an integer k from 1 to 255; for other values, an empty string."""
    return (
        f"; if it is in levels of bytes, write {value:g}/255 ({value / _BYTE:.4g})"
        if value in range(1, _BYTE + 1)
        else ""
    )


@functools.lru_cache(maxsize=1024)
def _log(text: str) -> None:
    logger.warning(text)
