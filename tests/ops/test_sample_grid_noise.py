"""sample_grid_noise against the reference, bit for bit, and the properties that its proof needs."""

from __future__ import annotations

import functools
import itertools
import random
from fractions import Fraction

import pytest
import torch
from grid_inputs import BYTE, SIXTEENTH, bits, integers, with_several_floats
from hypothesis import given
from hypothesis import strategies as st
from op_inputs import LAYOUTS, REALS, RUNS, TOP, channels, same_bits
from torch import Tensor

from pyrobust import _C, ops, reference
from pyrobust.ops import grid_table

SHAPES = [(), (0,), (2, 0), *((n,) for n in (1, 3, 4, 15, 63, 64, 65, 130)), (5, 7), (3, 5, 7), (33, 3, 3), (3, 16, 16)]
GRIDS = [(0.25, BYTE), (1.0, BYTE), (0.5, SIXTEENTH), (1e-3, BYTE), (40.0, Fraction(3, 7))]


@functools.cache
def expected(shape: tuple[int, ...], sigma: float, step: Fraction, seed: int) -> tuple[Tensor, Tensor]:
    return reference.sample_grid_noise(integers(3, *shape), RUNS, sigma=sigma, step=step, seed=seed)


@pytest.mark.parametrize(("sigma", "step"), GRIDS)
def test_every_shape(simd_level: str, sigma: float, step: Fraction) -> None:
    for shape, seed in zip(SHAPES, itertools.cycle((3, 2**64 - 1)), strict=False):
        got = ops.sample_grid_noise(integers(3, *shape), RUNS, sigma=sigma, step=step, seed=seed)
        want = expected(shape, sigma, step, seed)
        assert same_bits(got[0], want[0]), (shape, seed)
        assert torch.equal(got[1], want[1]), (shape, seed)


@functools.cache
def expected_in(shape: tuple[int, ...], dtype: torch.dtype, step: Fraction, normalized: bool) -> Tensor:
    normalize = channels(shape[0]) if normalized else None
    k = integers(3, *shape)
    return reference.sample_grid_noise(k, RUNS, sigma=0.37, step=step, dtype=dtype, normalize=normalize)[0]


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 7), (33, 3, 3), (1, 9, 9), (4, 8, 8), (2, 0, 3)])
def test_every_dtype_and_layout(simd_level: str, shape: tuple[int, ...], normalized: bool) -> None:
    normalize = channels(shape[0]) if normalized else None
    for dtype, layout, step in itertools.product(REALS, LAYOUTS, (BYTE, Fraction(5, 77))):
        got, _ = ops.sample_grid_noise(
            integers(3, *shape), RUNS, sigma=0.37, step=step, dtype=dtype, normalize=normalize, memory_format=layout
        )
        assert got.is_contiguous(memory_format=layout)
        assert same_bits(got.contiguous(), expected_in(shape, dtype, step, normalized)), (dtype, layout)


# --- one float for each integer


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
    runs = [(row, row, 0, 1) for row in range(len(k))]
    mean, std = channels(3)
    for dtype, layout in itertools.product(REALS, LAYOUTS):
        normalize = (mean, std) if normalized else None
        batch, tail = ops.sample_grid_noise(
            k, runs, sigma=1e-6, step=step, dtype=dtype, memory_format=layout, normalize=normalize
        )
        assert not tail.any()
        assert with_several_floats(k, batch) == 0.0
        real = torch.float64 if dtype == torch.float64 else torch.float32
        # float64's quotient, rounded once more, is float32's own (Figueroa 1995)
        want = (k.double() * step.numerator / step.denominator).to(real)
        if normalized:
            want = (want - torch.tensor(mean, dtype=real).view(3, 1, 1)) / torch.tensor(std, dtype=real).view(3, 1, 1)
        assert same_bits(batch.contiguous(), want.to(dtype)), (dtype, layout)


@functools.cache
def noise_of(image: int, step: Fraction) -> Tensor:
    return reference.grid_integers(image, 0, 300, 189, sigma=0.5, step=step)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("step", [BYTE, SIXTEENTH])
def test_the_same_with_noise(simd_level: str, step: Fraction, dtype: torch.dtype) -> None:
    k = integers(2, 3, 9, 7, high=1 // step + 1)
    runs = [(0, 0, 0, 300), (1, 1, 0, 300)]
    sums = [noise_of(i, step).reshape(300, 3, 9, 7) + k[i] for i in (0, 1)]
    for layout in LAYOUTS:
        batch, _ = ops.sample_grid_noise(
            k, runs, sigma=0.5, step=step, dtype=dtype, memory_format=layout, normalize=channels(3)
        )
        assert with_several_floats(torch.cat(sums), batch) == 0.0


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


def test_float_noise_has_several_floats_for_an_integer() -> None:
    """Check that the tests above can fail: float noise, rounded or not, gives several floats for an integer."""
    k = integers(2, 3, 9, 7)
    x, runs = k.float() / 255, [(0, 0, 0, 300), (1, 1, 0, 300)]
    noisy = ops.sample_noise(x, runs, sigma=0.5)
    assert with_several_floats((noisy.double() * 255).round(), noisy) > 0.9
    drawn = torch.cat([noise_of(i, BYTE) for i in (0, 1)])
    images = x.repeat_interleave(300, 0)
    added = images + drawn.reshape(images.shape).float() / 255
    sums = k.repeat_interleave(300, 0) + drawn.reshape(images.shape)
    assert with_several_floats(sums, added) > 0.5


# --- the same bits in any schedule


def test_every_split(simd_level: str, threads: int) -> None:
    for shape in ((3, 5, 7), (3, 16, 16)):
        k = integers(1, *shape)
        whole, _ = ops.sample_grid_noise(k, [(0, 8, 0, 300)], sigma=0.25, step=BYTE)
        for size in (1, 7, 256):
            runs = [(0, 8, first, min(size, 300 - first)) for first in range(0, 300, size)]
            calls = torch.cat([ops.sample_grid_noise(k, [run], sigma=0.25, step=BYTE)[0] for run in runs])
            assert same_bits(calls, whole), size
            packed, _ = ops.sample_grid_noise(k, runs[::-1], sigma=0.25, step=BYTE)
            pieces = packed.split([run[3] for run in runs[::-1]])
            assert same_bits(torch.cat(pieces[::-1]), whole), size


def test_stages_seeds_and_families_share_no_draw() -> None:
    k, seen = torch.zeros(1, 40, dtype=torch.int32), set()
    for stage, seed in itertools.product(ops.STAGES, (0, 1, 2**32, 2**63, 2**64 - 1)):
        how = {"sigma": 1.0, "step": BYTE, "stage": stage, "seed": seed}
        got, _ = ops.sample_grid_noise(k, [(0, 1, 0, 2)], **how)
        assert same_bits(got, reference.sample_grid_noise(k, [(0, 1, 0, 2)], **how)[0])
        seen |= {tuple(row) for row in got.tolist()}
    assert len(seen) == 5 * 5 * 2


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


# --- any request


@given(st.data())
def test_any_request(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=0, max_size=4), label="shape"))
    index = st.one_of(st.integers(0, 20), st.integers(2**31 - 3, 2**31 + 3), st.integers(TOP - 20, TOP))
    runs = [
        (data.draw(st.integers(0, 1)), data.draw(index), first, data.draw(st.integers(0, min(4, 2**32 - first))))
        for first in data.draw(st.lists(index, max_size=4), label="runs")
    ]
    normalized = data.draw(st.booleans(), label="normalized") and len(shape) > 0
    step = Fraction(data.draw(st.integers(1, 300), label="p"), data.draw(st.integers(1, 300), label="q"))
    how = {
        "sigma": float(step) * data.draw(st.floats(1e-3, 15), label="steps"),
        "step": step,
        "stage": data.draw(st.sampled_from(list(ops.STAGES)), label="stage"),
        "seed": data.draw(st.integers(0, 2**64 - 1), label="seed"),
        "dtype": data.draw(st.sampled_from(REALS), label="dtype"),
        "memory_format": data.draw(st.sampled_from(LAYOUTS if len(shape) == 3 else LAYOUTS[:1]), label="layout"),
        "normalize": channels(shape[0]) if normalized else None,
    }
    k = integers(2, *shape) - 100
    before = _C.simd_level()
    _C.set_simd_level(data.draw(st.sampled_from(_C.simd_levels()), label="simd"))
    try:
        got, tail = ops.sample_grid_noise(k, runs, **how)
    finally:
        _C.set_simd_level(before)
    want, want_tail = reference.sample_grid_noise(k, runs, **how)
    assert torch.equal(bits(got), bits(want))
    assert torch.equal(tail, want_tail)
