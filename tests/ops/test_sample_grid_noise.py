"""sample_grid_noise against the reference, bit for bit, and the properties that its proof needs."""

from __future__ import annotations

import functools
import itertools
import random
from fractions import Fraction

import pytest
import torch
from op_inputs import BYTE, LAYOUTS, REALS, RUNS, channels, integers, same_bits
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.ops import grid_table

SIXTEENTH = Fraction(1, 16)
GRIDS = [(0.25, BYTE), (1.0, BYTE), (0.5, SIXTEENTH), (1e-3, BYTE), (40.0, Fraction(3, 7))]


@pytest.mark.parametrize(("sigma", "step"), GRIDS)
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
