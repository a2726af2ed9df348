"""Several tests at once: Holm's step-down correction."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from pyrobust.checks import numbers
from pyrobust.errors import InputError


def holm(p_values: Iterable[float]) -> list[float]:
    """Adjust the p-values of several tests so that P(any false rejection) ≤ alpha if all values ≤ alpha are rejected.

    Let p₍₁₎ ≤ … ≤ p₍ₘ₎ be the p-values in ascending order. The i-th adjusted value is the maximum, over j ≤ i, of
    min(1, (m − j + 1)·p₍ⱼ₎) (Holm, 1979). Whatever the dependence between the tests, the probability that any true
    hypothesis is rejected is at most alpha.

    Args:
        p_values: [m], in [0, 1]; each is a valid p-value of its own test.

    Returns:
        The adjusted values [m], in the order of ``p_values``, rounded up. Reject a hypothesis if its adjusted value is
        at most alpha.

    Raises:
        InputError: a value is NaN or out of range.
        InputTypeError: values that are not numbers.

    >>> holm([0.015625, 0.25, 0.0625])
    [0.046875, 0.25, 0.125]
    """
    values = numbers("p_values", p_values)
    for index, value in enumerate(values):
        if not 0 <= value <= 1:
            raise InputError("p_values", "numbers in [0, 1]", f"{value} at index {index}")
    adjusted, least = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        least = max(least, _product(len(values) - rank, values[index]))
        adjusted[index] = min(1.0, least)
    return adjusted


def _product(factor: int, value: float) -> float:
    """Return ``factor · value``, rounded up."""
    product = factor * value
    return product if Fraction(product) >= factor * Fraction(value) else math.nextafter(product, math.inf)
