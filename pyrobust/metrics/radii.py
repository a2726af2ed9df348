"""Radii at which tables report certified accuracy."""

from __future__ import annotations

import math


def quarters(largest: float) -> list[float]:
    """Return 0, 0.25, … up to the finite largest radius; the steps are wider if there would be more than twelve.

    >>> quarters(0.6), quarters(4)[:3]
    ([0.0, 0.25, 0.5], [0.0, 0.5, 1.0])
    """
    step = 0.25
    while largest >= 12 * step:
        step *= 2
    return [step * i for i in range(1 + math.floor(largest / step))]


def rising(largest: float) -> list[float]:
    """Return five to twelve round numbers in (0, largest]; none if ``largest`` is 0.

    >>> rising(0.0), len(rising(0.1)), rising(0.7)[-2:]
    ([], 10, [0.6, 0.7])
    """
    if not largest > 0:
        return []
    step = 10.0 ** math.floor(math.log10(largest))
    step = next(width for width in (step / 10, step / 5, step / 4, step / 2, step) if largest <= 12 * width)
    rounded = [float(f"{step * i:.12g}") for i in range(1, 2 + math.floor(largest / step))]
    return [radius for radius in rounded if radius <= largest]


def usual_radii(largest: float) -> list[float]:
    """Return 0 and the radii of ``rising`` if the largest radius is below 0.75, otherwise the radii of ``quarters``.

    >>> usual_radii(0.9), usual_radii(0.0)
    ([0.0, 0.25, 0.5, 0.75], [0.0])
    >>> [round(radius, 2) for radius in usual_radii(0.3)][:4]
    [0.0, 0.03, 0.05, 0.07]
    """
    return quarters(largest) if largest >= 0.75 else [0.0, *rising(largest)]
