"""Grid-noise tables against ball arithmetic, and the guide table against its thresholds."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from typing import Any

import flint
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError
from pyrobust.ops import grid_noise
from pyrobust.ops.grid_table import GridNoise, _guide, _place
from pyrobust.ops.normal_tail import upper_tail
from pyrobust.reference.sample_grid_noise import thresholds as reference_thresholds

BYTE, SIXTEENTH = Fraction(1, 255), Fraction(1, 16)
GRIDS = [
    (0.12, BYTE),
    (0.25, BYTE),
    (0.5, BYTE),
    (1.0, BYTE),
    (0.25, SIXTEENTH),
    (1.0, SIXTEENTH),
    (0.1, Fraction(3, 7)),
    (1e-3, SIXTEENTH),
    (1e-300, Fraction(1)),
]


@pytest.fixture(autouse=True)
def precision() -> Any:
    before, flint.ctx.prec = flint.ctx.prec, 400
    yield
    flint.ctx.prec = before


def exact_tail(z: Fraction) -> flint.arb:
    return (flint.arb(flint.fmpq(z.numerator, z.denominator)) / flint.arb(2).sqrt()).erfc() / 2


@pytest.mark.parametrize(("sigma", "step"), GRIDS)
def test_thresholds_and_distribution(sigma: float, step: Fraction) -> None:
    """Every threshold is the floor of the exact one; P(J = j) of 96 uniform bits is close, in total within delta."""
    noise, unit = grid_noise(sigma, step), step / Fraction(sigma)
    assert len(noise.thresholds) == noise.reach + 1
    edges = [exact_tail((k + Fraction(1, 2)) * unit) for k in range(noise.reach + 1)]
    for k, (edge, threshold) in enumerate(zip(edges, noise.thresholds, strict=True)):
        gap = edge * flint.arb(2) ** 96 - threshold  # z up to 10^299: floor() is exact, and the result not zero
        assert gap > 0 or (k + Fraction(1, 2)) * unit > 100, k
        assert gap < 1, k
    above = [Fraction(t, 1 << 96) for t in noise.thresholds]  # P(J > k), P(J < -k)
    drawn = [1 - 2 * above[0], *(a - b for a, b in itertools.pairwise(above)), above[-1]]
    exact = [1 - 2 * edges[0], *(a - b for a, b in itertools.pairwise(edges)), edges[-1]]
    gaps = [abs(flint.arb(flint.fmpq(p.numerator, p.denominator)) - q) for p, q in zip(drawn, exact, strict=True)]
    assert sum(gaps[1:], gaps[0] / 2) < noise.delta < 1e-24  # both signs, halved for the total variation
    assert 2 * edges[-1] < 2.6e-12


def test_tails_of_the_normal_everywhere() -> None:
    draw = random.Random(0)
    for _ in range(500):
        z = Fraction(draw.choice([draw.uniform(0, 12.2), draw.uniform(0, 1e-6), 2.0 ** draw.uniform(-200, 3)]))
        for bits in (1, 24, 96, 107):
            assert upper_tail(z, bits) == int((exact_tail(z) * flint.arb(2) ** bits).floor().unique_fmpz()), (z, bits)
    assert upper_tail(Fraction(0), 96) == 1 << 95
    with pytest.raises(InputError, match="bits: expected at most 107, got 108"):
        upper_tail(Fraction(1), 108)


def test_the_reference_has_the_same_thresholds() -> None:
    for sigma, step in GRIDS:
        ours = grid_noise(sigma, step).thresholds
        assert reference_thresholds(sigma, step) == (*ours[::-1], *((1 << 96) - t for t in ours))


def wrong_words(noise: GridNoise) -> int:
    """Count the words that the guide decides wrongly."""
    leading = np.array([threshold >> 64 for threshold in noise.thresholds])
    draw = np.random.default_rng(0)
    v = np.concatenate(
        [
            *(np.clip(leading + d, 0, 2**31 - 1) for d in (-300, -2, -1, 0, 1, 2, 300)),
            np.arange(2000),
            2**31 - 1 - np.arange(10),
            draw.integers(0, 2**31, 20000),
            draw.integers(0, 2**31, 20000) >> draw.integers(0, 31, 20000),
        ]
    )
    size = len(noise.guide)
    low = 23 - (size // 32).bit_length() + 1
    assert size == 32 << (23 - low)
    place, entry = _place(v), noise.guide.numpy().view(np.uint32).astype(np.int64)[_place(v) >> low]
    inside, entry_place = place & ((1 << low) - 1), entry & ((1 << low) - 1)
    guided = (entry >> low) + (inside < entry_place)
    above = len(leading) - np.searchsorted(np.sort(leading), v, side="right")
    is_open = inside == entry_place
    assert is_open[np.isin(v, leading)].all(), "a draw at a threshold's own word must be left undecided"
    # The guide must decide most words; small words are exact integers, often equal.
    assert is_open[-40000:].mean() < 0.3
    return int((~is_open & (guided != above)).sum())


@given(st.floats(-6, 10), st.integers(1, 300), st.integers(1, 300))
def test_the_guide_decides_correctly(size: float, p: int, q: int) -> None:
    step = Fraction(p, q)
    assert wrong_words(grid_noise(float(step) * 2**size, step)) == 0


def test_the_largest_table() -> None:
    noise = grid_noise(8192.0, Fraction(1))
    assert noise.reach == 57344
    assert wrong_words(noise) == 0


def test_a_wrong_guide_is_detected() -> None:
    noise = grid_noise(0.25, BYTE)
    leading = np.array([threshold >> 64 for threshold in noise.thresholds])
    leading[100] += 5000
    other = GridNoise(0.25, BYTE, noise.reach, noise.delta, noise.thresholds, noise.words, noise.guide.clone())
    other.guide.numpy().view(np.uint32)[:] = _guide(leading)
    with pytest.raises(AssertionError, match="left undecided"):
        wrong_words(other)


def test_words_are_the_thresholds() -> None:
    noise = grid_noise(0.5, BYTE)
    words = noise.words.numpy().view(np.uint32).astype(object)
    assert [a << 64 | b << 32 | c for a, b, c in words] == list(noise.thresholds)
    assert sorted(noise.thresholds, reverse=True) == list(noise.thresholds)
    assert noise.thresholds[0] < 1 << 95


def test_a_table_is_made_once_and_depends_on_the_ratio_alone() -> None:
    assert grid_noise(0.25, BYTE) is grid_noise(0.25, Fraction(2, 510))
    assert grid_noise(63.75, Fraction(1)).thresholds == grid_noise(0.25, BYTE).thresholds
    assert grid_noise(0.25, BYTE).thresholds != grid_noise(math.nextafter(0.25, 1), BYTE).thresholds


@pytest.mark.parametrize(
    ("argument", "values", "error"),
    [
        ("sigma", (0.0, -1.0, math.nan, math.inf, math.nextafter(8192 / 255, 100)), InputError),
        ("sigma", ("a", None, True), InputTypeError),
        ("step", (Fraction(0), Fraction(-1, 255), Fraction(1 << 24), Fraction(1, 1 << 24)), InputError),
        ("step", (1 / 255, "1/255"), InputTypeError),
    ],
)
def test_bad_arguments(argument: str, values: tuple[Any, ...], error: type[Exception]) -> None:
    for value in values:
        with pytest.raises(error, match=rf"^grid_noise: {argument}: expected .* got "):
            grid_noise(**{"sigma": 0.25, "step": BYTE} | {argument: value})
