"""Directed rounding against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.bounds.engines.tensor.directed_rounding import Outward

NUMBERS = st.floats(-1e300, 1e300) | st.floats(-2, 2) | st.sampled_from([0.0, 5e-324, -1e-310, 1.0, 2.0**52])


@given(NUMBERS)
def test_bounds_enclose_all_numbers_that_round_to_a_float(a: float) -> None:
    number, out = torch.tensor(a, dtype=torch.float64), Outward(True)
    lower, upper = Fraction(float(out.down(number))), Fraction(float(out.up(number)))
    assert lower <= (Fraction(math.nextafter(a, -math.inf)) + Fraction(a)) / 2
    assert upper >= (Fraction(math.nextafter(a, math.inf)) + Fraction(a)) / 2
    assert Outward(False).up(number) == Outward(False).down(number) == number


@pytest.mark.parametrize("n", [1, 2, 64, 10**4])
@pytest.mark.parametrize("bits", [53, 24])
def test_gamma_bounds_the_growth_by_n_roundings(n: int, bits: int) -> None:
    growth = (1 + Fraction(1, 2**bits)) ** n - 1
    gamma = Outward(True).gamma(n, 2.0**-bits) if bits != 53 else Outward(True).gamma(n)
    assert growth <= Fraction(gamma) <= growth * Fraction(101, 100)
    assert Outward(False).gamma(n) == 0
    assert Outward(True).gamma(1 << 51) == math.inf
