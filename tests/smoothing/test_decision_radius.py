"""Probability required by a radius, and the two-class radius."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError
from pyrobust.smoothing import certified_radius, required_probability, two_class_radius

flint = pytest.importorskip("flint", reason="python-flint provides the ball arithmetic")
arb, ctx = flint.arb, flint.ctx

KINDS = [("gaussian", "l2"), ("laplace", "l1"), ("uniform", "l1")]


@pytest.mark.parametrize(("noise", "norm"), KINDS)
@pytest.mark.parametrize("radius", [0.0, 1e-9, 0.25, 0.4, 1.0, 1.9])
def test_required_probability_is_the_smallest_that_reaches_the_radius(noise, norm, radius):
    p = required_probability(radius, 0.5, noise=noise, norm=norm)
    assert 0.5 < p <= 1.0
    assert p == 1.0 or certified_radius(p, 0.5, noise=noise, norm=norm) >= radius
    before = math.nextafter(p, 0.0)
    assert before == 0.5 or certified_radius(before, 0.5, noise=noise, norm=norm) < radius


def test_unreachable_and_invalid_radii():
    assert required_probability(10.0, 0.25) == 1.0
    assert required_probability(1.0, 0.25, noise="uniform", norm="l1") == 1.0
    for radius in (-0.1, math.nan, math.inf):
        with pytest.raises(InputError, match="radius: expected a finite number of at least 0"):
            required_probability(radius, 0.25)
    for radius in ("1", None, [0.5, 1.0], True):
        with pytest.raises(InputTypeError, match="radius: expected a number, got"):
            required_probability(radius, 0.25)


def at_most_quantile(z, p):
    """Whether z is proved to be at most the normal quantile of the ball p."""
    return (-z / arb(2).sqrt()).erfc() / 2 <= p


@given(st.floats(0.01, 1 - 2.0**-40), st.floats(1e-6, 0.99), st.sampled_from([0.25, 0.1, 3.0]))
def test_two_class_radius_is_sound_and_tight(a, b, sigma):
    radius = float(two_class_radius(a, b, sigma))
    if a <= b:
        assert radius == 0.0
        return
    before, ctx.prec = ctx.prec, 160
    try:
        # Φ⁻¹ by bisection in balls, using the erfc that flint encloses.
        def quantile(p):
            low, high = arb(-10), arb(10)
            for _ in range(120):
                middle = ((low + high) / 2).mid()
                low, high = (middle, high) if at_most_quantile(middle, arb(p)) else (low, middle)
            return low.union(high)

        exact = arb(float(np.float32(sigma))).min(arb(sigma)) / 2 * (quantile(a) - quantile(b))
        assert arb(radius) < exact
        assert radius >= float(exact.mid()) * (1 - 1e-9) - 1e-11 * sigma
    finally:
        ctx.prec = before


def test_tiny_runner_up_probability_is_rounded_towards_smaller_radius():
    # 1 - p_B has few significant digits here, so the radius is smaller than the exact one, never larger.
    exact = 0.25 * (0.0 + 7.034484)  # the quantile of 1e-12 is -7.034484
    assert 0.999 * exact < two_class_radius(0.5, 1e-12, 0.5) < exact


def test_two_class_bounds_without_a_certificate():
    assert two_class_radius([0.3, math.nan, 0.0, 0.9], [0.4, 0.1, 0.5, 1.0], 0.5).tolist() == [0.0] * 4
    assert two_class_radius(0.3, [0.1, 0.2], 0.5).shape == (2,)
    with pytest.raises(InputError, match="p_a_lower: expected probabilities in"):
        two_class_radius(1.0, 0.1, 0.5)
    with pytest.raises(InputError, match="p_b_upper: expected probabilities in"):
        two_class_radius(0.9, 0.0, 0.5)
    with pytest.raises(InputError, match="expected shapes that broadcast"):
        two_class_radius([0.5, 0.6], [0.1, 0.2, 0.3], 0.5)
    with pytest.raises(InputTypeError, match="sigma"):
        two_class_radius(0.9, 0.1, "0.5")
