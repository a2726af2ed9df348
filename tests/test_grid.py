"""Grids of pixel values: detection, and conversion to integer multiples of a step."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError
from pyrobust.grid import find_grid, read_grid, simplest_fraction, to_grid
from pyrobust.zoo import load_data

BYTE = Fraction(1, 255)
steps = st.builds(Fraction, st.integers(1, 1000), st.integers(1, 70_000))


def nearest(value: Fraction) -> np.float32:
    """Float32 nearest to a fraction, by comparing neighbours in exact arithmetic; ties do not occur here."""
    guess = np.float32(float(value))
    candidates = (np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf)))
    return min(candidates, key=lambda candidate: abs(Fraction(float(candidate)) - value))


@given(steps, st.lists(st.integers(-(1 << 22), 1 << 22), min_size=1, max_size=5))
def test_nearest_floats_convert_to_their_multiples(step, multiples):
    multiples = [k for k in multiples if abs(k * step.numerator) < 1 << 24]
    x = torch.tensor([float(nearest(k * step)) for k in multiples], dtype=torch.float32)
    assert to_grid(x, step).tolist() == multiples
    doubles = torch.tensor([float(k * step) for k in multiples], dtype=torch.float64)
    assert to_grid(doubles, step).tolist() == multiples
    assert to_grid(x.double(), step).tolist() == multiples


@given(steps, st.integers(1, 1 << 22), st.sampled_from([-math.inf, math.inf]), st.booleans())
def test_neighbouring_floats_are_off_the_grid(step, k, towards, double):
    if abs(k * step.numerator) >= 1 << 24:
        return
    dtype = torch.float64 if double else torch.float32
    x = torch.tensor([float(k * step) if double else float(nearest(k * step))], dtype=dtype)
    x = torch.nextafter(x, torch.full_like(x, towards))
    if double and float(x.float().double()) == float(x):
        return
    with pytest.raises(InputError, match="expected the floats nearest to multiples"):
        to_grid(x, step)


def test_every_byte_is_on_the_grid():
    levels = torch.arange(256)
    assert to_grid(levels.float() / 255, BYTE).equal(levels.int())
    assert to_grid(torch.from_numpy(np.arange(256, dtype=np.float32) / np.float32(255)), BYTE).equal(levels.int())
    with pytest.raises(InputError, match="expected the floats nearest"):
        to_grid(levels * torch.tensor(1 / 255), BYTE)  # rounded twice, which gives another float for some bytes


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30, 0.5, float(1 << 23)])
def test_error_names_the_first_value_off_the_grid(bad):
    x = torch.zeros(2, 3, 4, 5)
    x[1, 0, 2, 3] = bad
    x[1, 2, 0, 0] = 0.3
    with pytest.raises(InputError) as error:
        to_grid(x, BYTE)
    assert "[1, 0, 2, 3]" in str(error.value)
    if bad == 0.5:
        assert "got 0.5" in str(error.value)
        assert "the nearest multiple is 128/255 = 0.501960784" in str(error.value)


def test_multiples_too_large_to_be_distinct_are_rejected():
    last = (1 << 23) - 1
    assert to_grid(torch.tensor([last]) / torch.tensor(255.0), BYTE).tolist() == [last]
    with pytest.raises(InputError, match="expected the floats nearest"):
        to_grid(torch.tensor([last + 1]) / torch.tensor(255.0), BYTE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("position", [0, 1023, 1024, 2999])
def test_values_of_every_block_are_read(dtype, position):
    x = (torch.arange(3000) % 256).reshape(10, 10, 30).to(dtype) / 255
    assert to_grid(x.transpose(0, 2), BYTE).equal((torch.arange(3000) % 256).reshape(10, 10, 30).transpose(0, 2).int())
    assert find_grid(x) == BYTE
    x.view(-1)[position] += 1e-3
    with pytest.raises(InputError, match=rf"at \[{position // 300}, {position // 30 % 10}, {position % 30}\]"):
        to_grid(x, BYTE)
    assert find_grid(x) is None


def test_empty_and_scalar_tensors():
    assert to_grid(torch.zeros(0, 3), BYTE).shape == (0, 3)
    assert to_grid(torch.tensor(0.2), BYTE).item() == 51


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_other_dtypes_are_rejected(dtype):
    with pytest.raises(InputTypeError, match="expected a float32 or float64 tensor"):
        to_grid(torch.zeros(3, dtype=dtype), BYTE)


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
def test_usual_grids_are_detected(x, step):
    assert find_grid(x) == step


def test_bundled_digits_are_multiples_of_a_sixteenth():
    x = load_data("digits").x
    assert find_grid(x) == Fraction(1, 16)
    assert int(to_grid(x, Fraction(1, 16)).max()) == 16


def test_valid_grid_arguments():
    assert [read_grid(value) for value in (None, "auto", 1, "0.0625")] == [None, "auto", 1, Fraction(1, 16)]
    assert {read_grid(value) for value in (BYTE, "1/255", "2/510")} == {BYTE}


@pytest.mark.parametrize("value", [1 / 255, 0.0625, np.float32(0.5), True, [1], object()])
def test_inexact_steps_are_rejected(value):
    with pytest.raises(InputTypeError, match="grid: expected a Fraction"):
        read_grid(value)


@pytest.mark.parametrize(
    "value",
    ["", "none", "0", "-1/255", "1/0", "1/16777216", "16777216", "1e999999999", "1/" + "9" * 5000, Fraction(-1, 2)],
)
def test_invalid_steps_are_rejected(value):
    with pytest.raises(InputError, match="grid: expected a positive fraction"):
        read_grid(value)


@given(st.integers(0, 5000), st.integers(1, 5000), st.sampled_from([np.float64, np.float32]))
def test_fractions_are_read_back_from_their_floats(numerator, denominator, dtype):
    fraction = Fraction(numerator, denominator)
    value = float(nearest(fraction)) if dtype is np.float32 else numerator / denominator
    assert simplest_fraction(value) == fraction
    assert simplest_fraction(-value) == -fraction


@given(st.floats(1e-30, 1e30))
def test_simplest_fraction_rounds_to_the_float_and_none_is_simpler(value):
    fraction = simplest_fraction(value)
    if float(np.float32(value)) != value:
        assert float(fraction) == value
    for denominator in range(1, min(fraction.denominator, 300)):
        assert float(Fraction(round(Fraction(value) * denominator), denominator)) != value


@pytest.mark.parametrize("value", [0.0, 5e-324, 1.7976931348623157e308, 0.5, 3.0, 1 / 3])
def test_simplest_fraction_of_extreme_floats(value):
    assert float(simplest_fraction(value)) == value


def test_negated_views_and_gradients_convert():
    negated = torch.complex(torch.zeros(2), torch.tensor([0.2, 1.0])).conj().imag
    assert negated.is_neg()
    assert to_grid(negated, BYTE).tolist() == [-51, -255]
    assert to_grid(torch.tensor([0.2], requires_grad=True), BYTE).tolist() == [51]
