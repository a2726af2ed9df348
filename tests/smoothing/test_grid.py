"""Which grid numbers are on, and the integers that they are there."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust import RandomizedSmoothing
from pyrobust.errors import InputError, InputTypeError
from pyrobust.smoothing.grid import find_grid, lower_by, read_grid, sample_delta, to_grid, usual_grid
from pyrobust.zoo import load_data

BYTE = Fraction(1, 255)
steps = st.builds(Fraction, st.integers(1, 1000), st.integers(1, 70_000))


def nearest(value: Fraction) -> np.float32:
    """The float32 nearest to a fraction, by comparing its neighbours in exact arithmetic; ties do not occur here."""
    guess = np.float32(float(value))
    around = (np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf)))
    return min(around, key=lambda candidate: abs(Fraction(float(candidate)) - value))


@given(steps, st.lists(st.integers(-(1 << 22), 1 << 22), min_size=1, max_size=5))
def test_the_float_nearest_to_a_multiple_is_that_multiple(step, multiples):
    multiples = [k for k in multiples if abs(k * step.numerator) < 1 << 24]
    x = torch.tensor([float(nearest(k * step)) for k in multiples], dtype=torch.float32)
    assert to_grid(x, step).tolist() == multiples
    doubles = torch.tensor([float(k * step) for k in multiples], dtype=torch.float64)
    assert to_grid(doubles, step).tolist() == multiples
    assert to_grid(x.double(), step).tolist() == multiples


@given(steps, st.integers(1, 1 << 22), st.sampled_from([-math.inf, math.inf]), st.booleans())
def test_the_next_float_is_not(step, k, towards, double):
    if abs(k * step.numerator) >= 1 << 24:
        return
    kind = torch.float64 if double else torch.float32
    x = torch.tensor([float(k * step) if double else float(nearest(k * step))], dtype=kind)
    x = torch.nextafter(x, torch.full_like(x, towards))
    if double and float(x.float().double()) == float(x):
        return
    with pytest.raises(InputError, match="expected the floats nearest to multiples"):
        to_grid(x, step)


def test_all_bytes():
    every = torch.arange(256)
    assert to_grid(every.float() / 255, BYTE).equal(every.int())
    assert to_grid(torch.from_numpy(np.arange(256, dtype=np.float32) / np.float32(255)), BYTE).equal(every.int())
    with pytest.raises(InputError, match="expected the floats nearest"):
        to_grid(every * torch.tensor(1 / 255), BYTE)  # rounded twice: another number for some bytes


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30, 0.5, float(1 << 23)])
def test_the_first_offender_is_named(bad):
    x = torch.zeros(2, 3, 4, 5)
    x[1, 0, 2, 3] = bad
    x[1, 2, 0, 0] = 0.3
    with pytest.raises(InputError) as error:
        to_grid(x, BYTE)
    assert "[1, 0, 2, 3]" in str(error.value)
    if bad == 0.5:
        assert "got 0.5" in str(error.value)
        assert "the nearest multiple is 128/255 = 0.501960784" in str(error.value)


def test_multiples_that_one_float_may_be_nearest_to_two_of():
    last = (1 << 23) - 1
    assert to_grid(torch.tensor([last]) / torch.tensor(255.0), BYTE).tolist() == [last]
    with pytest.raises(InputError, match="expected the floats nearest"):
        to_grid(torch.tensor([last + 1]) / torch.tensor(255.0), BYTE)


def test_blocks_are_seams_of_nothing(monkeypatch):
    x = (torch.arange(1000) % 256).reshape(10, 10, 10).float() / 255
    whole = to_grid(x.transpose(0, 2), BYTE)
    monkeypatch.setattr("pyrobust.smoothing.grid._BLOCK", 7)
    assert torch.equal(to_grid(x.transpose(0, 2), BYTE), whole)
    assert find_grid(x) == BYTE
    x[9, 3, 1] += 1e-3
    with pytest.raises(InputError, match=r"at \[9, 3, 1\]"):
        to_grid(x, BYTE)
    assert find_grid(x) is None


def test_empty_and_scalar():
    assert to_grid(torch.zeros(0, 3), BYTE).shape == (0, 3)
    assert to_grid(torch.tensor(0.2), BYTE).item() == 51


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.int32])
def test_other_dtypes(kind):
    with pytest.raises(InputTypeError, match="expected a float32 or float64 tensor"):
        to_grid(torch.zeros(3, dtype=kind), BYTE)


@pytest.mark.parametrize(
    ("x", "step"),
    [
        (torch.arange(256).float() / 255, BYTE),
        (torch.arange(17).float() / 16, Fraction(1, 16)),
        (torch.arange(256).float() / 256, Fraction(1, 256)),
        (torch.arange(256).float(), Fraction(1)),
        (torch.arange(256).double() / 255, BYTE),
        ((torch.arange(256).float() / 255).double(), BYTE),
        (torch.zeros(4), BYTE),
        (torch.tensor([0.0, 1.0]), BYTE),
        (torch.tensor([0.1234]), None),
        (torch.tensor([0.2, 0.5]), None),
    ],
)
def test_the_usual_grids_are_found(x, step):
    assert find_grid(x) == step


def test_the_bundled_digits_are_on_sixteenths():
    x = load_data("digits").x
    assert find_grid(x) == usual_grid(x) == Fraction(1, 16)
    assert int(to_grid(x, Fraction(1, 16)).max()) == 16


def test_no_usual_grid():
    with pytest.raises(InputError, match="grid: expected x on one of the usual grids 1/255, 1/16, 1/256"):
        usual_grid(torch.tensor([0.1234]))


@pytest.mark.parametrize(
    ("value", "step"),
    [
        (None, None),
        ("auto", "auto"),
        ("1/255", BYTE),
        (BYTE, BYTE),
        (1, Fraction(1)),
        ("0.0625", Fraction(1, 16)),
        ("2/510", BYTE),
    ],
)
def test_what_a_grid_may_be(value, step):
    assert read_grid(value) == step


@pytest.mark.parametrize("value", [1 / 255, 0.0625, np.float32(0.5), True, [1], object()])
def test_what_is_no_exact_number(value):
    with pytest.raises(InputTypeError, match="grid: expected a Fraction"):
        read_grid(value)


@pytest.mark.parametrize(
    "value",
    ["", "none", "0", "-1/255", "1/0", "1/16777216", "16777216", "1e999999999", "1/" + "9" * 5000, Fraction(-1, 2)],
)
def test_what_is_no_step(value):
    with pytest.raises(InputError, match="grid: expected a positive fraction"):
        read_grid(value)


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_bound_is_lowered_at_least_by_delta(p, delta):
    found = float(lower_by(p, delta))
    assert found >= 0
    assert found == 0 or Fraction(found) <= Fraction(p) - Fraction(delta)
    assert found >= p - delta - 1e-15


def test_delta_grows_with_the_image():
    assert sample_delta(0.25, BYTE, 3072) >= 3072 * sample_delta(0.25, BYTE, 1) * (1 - 1e-12)
    with pytest.raises(InputError, match=r"at most 2\*\*13 steps"):
        sample_delta(100.0, BYTE, 1)


def test_a_step_that_no_image_fits_is_refused_before_there_is_one() -> None:
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
    # Of this grid there are images, and one that is not: it is the image's fault.
    with pytest.raises(InputError, match=r"k: expected at most 0 in size"):
        held.votes(torch.full((1, 3), 65536.0), n=10)
