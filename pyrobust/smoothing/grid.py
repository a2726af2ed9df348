"""Noise on a grid of pixel values, and how far the drawn noise is from exactly rounded Gaussian noise.

The noise is rounded to the grid of the pixels. It is added in integers, without floating-point rounding
(`pyrobust.ops.sample_grid_noise`). The grids themselves are defined in `pyrobust.grid`.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from pyrobust.ops.grid_table import grid_noise


def sample_delta(sigma: float, step: Fraction, elements: int) -> float:
    """Bound the total variation distance of drawn image noise from round(sigma·N(0, 1) / step); round the bound up.

    >>> 0 < sample_delta(0.25, Fraction(1, 255), 3 * 32 * 32) < 1e-15
    True
    """
    return math.nextafter(elements * grid_noise(sigma, step).delta, math.inf)


def lower_by(p_lower: npt.ArrayLike, delta: float) -> npt.NDArray[np.float64]:
    """Reduce a lower bound that holds for the drawn noise, so that it also holds for exact Gaussian noise on the grid.

    Computes ``max(0, p_lower - delta)``, rounded down. delta bounds the total variation distance between the exact and
    the drawn noise.

    >>> lower_by([0.0, 0.75], 0.25), lower_by([0.75], 0.0)
    (array([0. , 0.5]), array([0.75]))
    """
    p = np.asarray(p_lower, dtype=np.float64)
    return np.maximum(0.0, np.nextafter(p - delta, -np.inf)) if delta else p


def raise_by(p: npt.ArrayLike, delta: float) -> npt.NDArray[np.float64]:
    """Raise an upper bound or p-value that holds for drawn noise, so that it also holds for exact noise on the grid.

    Computes ``min(1, p + delta)``, rounded up.

    >>> raise_by([1.0], 0.25), raise_by([0.75], 0.0)
    (array([1.]), array([0.75]))
    """
    upper = np.asarray(p, dtype=np.float64)
    return np.minimum(1.0, np.nextafter(upper + delta, np.inf)) if delta else upper
