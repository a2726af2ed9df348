"""Grid noise: tables against ball arithmetic, guides against thresholds; the op against its reference, bit for bit."""

from __future__ import annotations

import functools
import itertools
import math
import random
from fractions import Fraction
from typing import Any

import flint
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.op_inputs import LAYOUTS, REALS, RUNS, channels, integers, same_bits
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError
from pyrobust.ops import grid_noise, grid_table
from pyrobust.ops.grid_table import GridNoise, _guide, _positions
from pyrobust.ops.normal_tail import upper_tail
from pyrobust.reference.sample_grid_noise import thresholds as reference_thresholds

BYTE, SIXTEENTH = Fraction(1, 255), Fraction(1, 16)
GRIDS = [
    *((sigma, BYTE) for sigma in (0.12, 0.25, 0.5, 1.0)),
    *((sigma, SIXTEENTH) for sigma in (0.25, 1.0, 1e-3)),
    *((0.1, Fraction(3, 7)), (1e-300, Fraction(1))),
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
    place, entry = _positions(v), noise.guide.numpy().view(np.uint32).astype(np.int64)[_positions(v) >> low]
    inside, entry_place = place & ((1 << low) - 1), entry & ((1 << low) - 1)
    guided = (entry >> low) + (inside < entry_place)
    above = len(leading) - np.searchsorted(np.sort(leading), v, side="right")
    is_open = inside == entry_place
    assert is_open[np.isin(v, leading)].all(), "a draw at a threshold's own word must be left undecided"
    # The guide must decide most words; small words are exact integers, often equal.
    assert is_open[-40000:].mean() < 0.3
    return int((~is_open & (guided != above)).sum())


@given(st.floats(-6, 7), st.integers(1, 300), st.integers(1, 300))
def test_the_guide_decides_correctly(size: float, p: int, q: int) -> None:
    step = Fraction(p, q)
    assert wrong_words(grid_noise(float(step) * 2**size, step)) == 0


def test_the_largest_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tails of float64, which the guide takes like exact ones: the latter would take seconds."""
    tail = lambda z, bits: int(math.erfc(z / math.sqrt(2)) * 2.0 ** (bits - 1))
    monkeypatch.setattr(grid_table, "upper_tail", tail)
    monkeypatch.setattr(grid_table, "_build", grid_table._build.__wrapped__)  # without its cache
    noise = grid_table._checked(8192.0, Fraction(1), grid_table._REACH)
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


# --- sample_grid_noise


OP_GRIDS = [(0.25, BYTE), (1.0, BYTE), (0.5, SIXTEENTH), (1e-3, BYTE), (40.0, Fraction(3, 7))]


@pytest.mark.parametrize(("sigma", "step"), OP_GRIDS)
def test_every_grid(simd_level: str, sigma: float, step: Fraction) -> None:
    for shape in ((130,), (33, 3, 3), (3, 16, 16)):
        got, want = (
            module.sample_grid_noise(integers(3, *shape), RUNS, sigma=sigma, step=step) for module in (ops, reference)
        )
        assert same_bits(got[0], want[0])
        assert torch.equal(got[1], want[1])


# --- one float for each integer


def quotients(sums: Tensor, step: Fraction, dtype: torch.dtype, *, normalized: bool) -> Tensor:
    """Return the one float of each (integer, channel) of sums [N, 3, H, W]."""
    real = torch.float64 if dtype == torch.float64 else torch.float32
    # float64's quotient, rounded once more, is float32's own (Figueroa 1995)
    exact = (sums.double() * step.numerator / step.denominator).to(real)
    mean, std = (torch.tensor(values, dtype=real).view(3, 1, 1) for values in channels(3))
    return ((exact - mean) / std if normalized else exact).to(dtype)


def every_sum_everywhere(least: int, most: int) -> Tensor:
    """Return [S, 3, 9, 7] with every integer from least to most at each of the 189 places of an image."""
    count = most - least + 1
    return ((torch.arange(189) + torch.arange(count)[:, None]) % count + least).int().reshape(count, 3, 9, 7)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("step", [BYTE, SIXTEENTH])
def test_every_integer_has_one_float(simd_level: str, step: Fraction, normalized: bool) -> None:
    """Compare all sums possible at sigma = 0.5, everywhere, to exact division; noise too small to change them."""
    reach = ops.grid_noise(0.5, step).reach
    k = every_sum_everywhere(-reach, 1 // step + reach)
    how = {"sigma": 1e-6, "step": step, "normalize": channels(3) if normalized else None}
    for dtype, layout in itertools.product(REALS, LAYOUTS):
        runs = [(row, row, 0, 1) for row in range(len(k))]
        batch, tail = ops.sample_grid_noise(k, runs, dtype=dtype, memory_format=layout, **how)
        assert not tail.any()
        assert same_bits(batch.contiguous(), quotients(k, step, dtype, normalized=normalized)), (dtype, layout)


@functools.cache
def noise_of(image: int, step: Fraction) -> Tensor:
    return reference.grid_integers(image, 0, 300, 189, sigma=0.5, step=step).reshape(300, 3, 9, 7)


@pytest.mark.parametrize("step", [BYTE, SIXTEENTH])
def test_the_same_with_noise(simd_level: str, step: Fraction) -> None:
    k, runs = integers(2, 3, 9, 7, high=1 // step + 1), [(0, 0, 0, 300), (1, 1, 0, 300)]
    sums = torch.cat([noise_of(i, step) + k[i] for i in (0, 1)])
    for dtype, layout in itertools.product(REALS, LAYOUTS):
        how = {"sigma": 0.5, "step": step, "normalize": channels(3)}
        batch, _ = ops.sample_grid_noise(k, runs, dtype=dtype, memory_format=layout, **how)
        assert same_bits(batch.contiguous(), quotients(sums, step, dtype, normalized=True)), (dtype, layout)


@functools.cache
def beside_midpoints(q: int) -> list[int]:
    """Return sums with quotients next to midpoints of float32 numbers: M q = ±1 modulo 2^k, M odd, of 25 bits."""
    hard = []
    for k in range(max(q.bit_length(), 8), 25) if q % 2 else ():  # with fewer bits not close to a midpoint
        inverse = pow(q, -1, 1 << k)
        for middle in (inverse, -inverse % (1 << k)):
            largest = min(1 << 25, (1 << 23 + k) // q + 1)  # beyond it the sums are too large
            for m in range(middle + ((1 << 24) - middle + (1 << k) - 1 >> k << k), largest, 1 << k):
                hard += [m * q >> k, (m * q >> k) + 1]
    return hard


@pytest.mark.parametrize("q", [3, 255, 65535, 2**20 - 3, 2**20 - 1, 2**20, 2**20 + 7, 2**24 - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quotients_are_the_nearest_floats(simd_level: str, q: int, dtype: torch.dtype) -> None:
    hard = beside_midpoints(q)
    sums = [n for n in hard if n < 1 << 23]
    assert len(sums) > 10 or q % 2 == 0 or q > 1 << 20 or q < 256
    generator = torch.Generator().manual_seed(q)
    draws = torch.randint(-(2**23), 2**23, (5000,), generator=generator)
    integer = torch.cat([draws, torch.tensor([0, 1, -1, 2**23, -(2**23), *sums, *(-n for n in sums)])])
    step = Fraction(1, q)
    runs = [(0, 0, 0, 1)]  # noise of at most a hundredth of a step rounds to zero
    batch, tail = ops.sample_grid_noise(
        integer.int()[None], runs, sigma=float(step) / 100, step=step, dtype=dtype, normalize=None
    )
    assert not tail.any()
    assert same_bits(batch[0], (integer.to(dtype) / torch.tensor(q, dtype=dtype)))


# --- tails, and draws that one word does not decide


@pytest.fixture
def short_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start tails at 2.5 standard deviations, so that one element in 80 has one."""
    monkeypatch.setattr(grid_table, "_REACH", Fraction(5, 2))


@functools.cache
def drawn(count: int, elements: int) -> Tensor:
    return reference.grid_integers(5, 0, count, elements, sigma=0.5, step=SIXTEENTH)


@pytest.mark.parametrize("shape", [(3,), (17,), (3, 5, 7), (2100,)])
def test_tails_are_flagged(simd_level: str, threads: int, short_reach: None, shape: tuple[int, ...]) -> None:
    k, elements = integers(3, *shape), torch.Size(shape).numel()
    want = (drawn(200, elements).abs() > ops.grid_noise(0.5, SIXTEENTH).reach).any(1)
    assert want.any()
    assert elements > 1000 or not want.all()
    for layout in LAYOUTS[: 2 if len(shape) == 3 else 1]:
        _, tail = ops.sample_grid_noise(k, [(2, 5, 0, 200)], sigma=0.5, step=SIXTEENTH, memory_format=layout)
        assert torch.equal(tail, want)


def words_of(elements: int, seed: int) -> list[int]:
    """Return the 96 bits of each element of the first sample of image 0."""
    from pyrobust.reference.sample_grid_noise import _words

    leading, middle, last = (_words(0, 0, 1, elements, 256 + 3 + more, seed) for more in range(3))
    return [a << 64 | b << 32 | c for a, b, c in zip(leading, middle, last, strict=True)]


def drawn_by(table: list[int], leading: list[int], seed: int) -> tuple[list[float], bool]:
    """Draw 130 elements by a table of thresholds, and a guide to those with the leading words."""
    out, tail = torch.empty(1, 130), torch.zeros(1, dtype=torch.bool)
    words = torch.tensor([[t >> 64, t >> 32 & 0xFFFFFFFF, t & 0xFFFFFFFF] for t in table]).to(torch.int32)
    guide = torch.from_numpy(grid_table._guide(grid_table.np.array(leading)).view("int32"))
    k, runs, domain = torch.zeros(1, 130, dtype=torch.int32), [0, 0, 0, 1], 256 + 3
    torch.ops.pyrobust.sample_grid_noise(out, tail, k, runs, seed, domain, guide, words, 1, 1, None, None)
    return out[0].tolist(), bool(tail)


@pytest.mark.parametrize("move", [-(1 << 64), -(1 << 32), -1, 0, 1, 1 << 32, 1 << 64])
def test_draws_that_further_words_decide(simd_level: str, move: int) -> None:
    """Put a threshold at or next to the 96 bits of one element, and compare every element to the definition."""
    bits_of, draw = words_of(130, seed=5), random.Random(0)
    folded = [bits if not bits >> 95 else (1 << 96) - 1 - bits for bits in bits_of]
    sign = [1 if bits >> 95 else -1 for bits in bits_of]
    for element in range(0, 130, 3):
        threshold = folded[element] + move
        table = [threshold, threshold // 1024]
        want = [s * sum(v < t for t in table) for s, v in zip(sign, folded, strict=True)]
        assert drawn_by(table, [t >> 64 for t in table], seed=5) == (want, any(abs(j) == 2 for j in want)), element
        if threshold >> 64 != folded[element] >> 64:
            continue
        # Many thresholds of one leading word: the guide sends this element alone to all of them.
        table = sorted([threshold, *(threshold >> 64 << 64 | draw.getrandbits(64) for _ in range(20))], reverse=True)
        count = sum(folded[element] < t for t in table)
        assert drawn_by(table, [threshold >> 64], seed=5)[0][element] == sign[element] * count, element
