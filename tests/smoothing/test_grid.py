"""How far the drawn noise of a certificate on a grid is from rounded Gaussian noise."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust import RandomizedSmoothing
from pyrobust.errors import InputError
from pyrobust.smoothing.grid import lower_by, sample_delta

BYTE = Fraction(1, 255)


@given(st.floats(0, 1), st.floats(0, 1))
def test_bound_is_lowered_by_at_least_delta(p, delta):
    lowered = float(lower_by(p, delta))
    assert lowered >= 0
    assert lowered == 0 or Fraction(lowered) <= Fraction(p) - Fraction(delta)
    assert lowered >= p - delta - 1e-15


def test_delta_is_proportional_to_the_image_size():
    assert sample_delta(0.25, BYTE, 3072) >= 3072 * sample_delta(0.25, BYTE, 1) * (1 - 1e-12)
    with pytest.raises(InputError, match=r"at most 2\*\*13 steps"):
        sample_delta(100.0, BYTE, 1)


def test_step_too_coarse_for_the_dtype_is_rejected_at_construction() -> None:
    sigma = 36.5 * 65537
    with pytest.raises(
        InputError, match=r"^grid: step: expected a numerator of at most 65536, so that float32 .* 65537"
    ):
        RandomizedSmoothing(lambda x: x, 3, sigma, grid=Fraction(65537))
    with pytest.raises(InputError, match=r"^grid: step: expected a numerator of at most 65536"):
        RandomizedSmoothing(lambda x: x, 3, sigma, grid=Fraction(65537), dtype=torch.float16)
    RandomizedSmoothing(lambda x: x, 3, sigma, grid=Fraction(65537), dtype=torch.float64)
    held = RandomizedSmoothing(lambda x: x, 3, 36.5 * 65536, grid=Fraction(65536))
    assert held.votes(torch.zeros(1, 3), n=10).sum() == 10
    # This grid has representable images; the error is about this image.
    with pytest.raises(InputError, match=r"k: expected at most 0 in size"):
        held.votes(torch.full((1, 3), 65536.0), n=10)
