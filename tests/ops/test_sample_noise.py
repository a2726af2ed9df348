"""sample_noise against the reference, bit for bit, for every schedule, dtype and layout."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from op_inputs import FAMILIES, LAYOUTS, REALS, RUNS, TOP, channels, images, same_bits
from torch import Tensor

from pyrobust import _C, ops, reference

STAGES = ("select", "estimate", "predict", "attack", "train")
SHAPES = [
    (),
    (0,),
    (2, 0),
    *((n,) for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 130)),
    (5, 7),
    (33, 3, 3),
    (3, 16, 16),
    (2, 3, 2, 5),
]


@functools.cache
def expected(shape: tuple[int, ...], noise: str, seed: int) -> Tensor:
    return reference.sample_noise(images(3, *shape), RUNS, sigma=0.37, noise=noise, seed=seed)


@pytest.mark.parametrize("noise", FAMILIES)
def test_every_shape(simd_level: str, noise: str) -> None:
    for shape, seed in itertools.product(SHAPES, (3, 2**64 - 1)):
        got = ops.sample_noise(images(3, *shape), RUNS, sigma=0.37, noise=noise, seed=seed)
        assert same_bits(got, expected(shape, noise, seed)), (shape, seed)


@functools.cache
def many(noise: str) -> Tensor:
    return reference.unit_noise(4, 0, 250, 2048, noise=noise, seed=99)


@pytest.mark.parametrize("noise", FAMILIES)
def test_half_a_million_draws(simd_level: str, noise: str) -> None:
    # An error in the last bit of a high coefficient changes about one draw in ten thousand.
    got = ops.sample_noise(torch.zeros(1, 2048), [(0, 4, 0, 250)], sigma=1.0, noise=noise, seed=99)
    assert same_bits(got, many(noise))


@pytest.mark.parametrize("noise", FAMILIES)
def test_every_split(simd_level: str, threads: int, noise: str) -> None:
    for x, size in itertools.product((images(1, 3, 5, 7), images(1, 3, 16, 16)), (1, 7, 256)):
        want = ops.sample_noise(x, [(0, 8, 0, 260)], sigma=0.25, noise=noise)
        runs = [(0, 8, first, min(size, 260 - first)) for first in range(0, 260, size)]
        calls = torch.cat([ops.sample_noise(x, [run], sigma=0.25, noise=noise) for run in runs])
        assert same_bits(calls, want), size
        one_call = ops.sample_noise(x, runs[::-1], sigma=0.25, noise=noise)
        pieces = one_call.split([run[3] for run in runs[::-1]])
        assert same_bits(torch.cat(pieces[::-1]), want), size


@functools.cache
def expected_in(shape: tuple[int, ...], real: torch.dtype, dtype: torch.dtype, noise: str, normalized: bool) -> Tensor:
    normalize = channels(shape[0]) if normalized else None
    x = images(3, *shape, dtype=real)
    return reference.sample_noise(x, RUNS, sigma=0.37, noise=noise, dtype=dtype, normalize=normalize)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("noise", FAMILIES)
@pytest.mark.parametrize("shape", [(3, 5, 7), (33, 3, 3), (1, 9, 9), (4, 8, 8), (2, 0, 3)])
def test_every_dtype_and_layout(simd_level: str, shape: tuple[int, ...], noise: str, normalized: bool) -> None:
    normalize = channels(shape[0]) if normalized else None
    dtypes = itertools.product((torch.float32, torch.float64), REALS) if noise == "uniform" else ()
    for real, dtype in (*((real, None) for real in REALS), *dtypes):
        x = images(3, *shape, dtype=real)
        want = expected_in(shape, real, dtype or real, noise, normalized)
        for layout in LAYOUTS:
            got = ops.sample_noise(
                x, RUNS, sigma=0.37, noise=noise, dtype=dtype, normalize=normalize, memory_format=layout
            )
            assert got.is_contiguous(memory_format=layout)
            assert same_bits(got.contiguous(), want), (real, dtype, layout)


@pytest.mark.parametrize("noise", FAMILIES)
def test_stages_and_seeds(noise: str) -> None:
    seen = set()
    for stage, seed in itertools.product(STAGES, (0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)):
        x = images(1, 6)
        got = ops.sample_noise(x, [(0, 1, 0, 2)], sigma=1.0, noise=noise, stage=stage, seed=seed)
        assert same_bits(got, reference.sample_noise(x, [(0, 1, 0, 2)], sigma=1.0, noise=noise, stage=stage, seed=seed))
        seen.add(tuple(got.flatten().tolist()))
    assert len(seen) == 5 * 7


def test_images_that_are_not_contiguous(simd_level: str) -> None:
    base = images(6, 8, 9, 10)
    views = {
        "transposed": base.transpose(2, 3),
        "permuted": base.permute(1, 3, 0, 2),
        "strided": base[::2, 1::3, :, ::2],
        "channels_last": base.to(memory_format=torch.channels_last),
        "expanded": base[:1].expand(3, 8, 9, 10),
        "broadcast pixels": base[:, :1, :1, :1].expand(6, 3, 4, 5),
        "offset": base.flatten()[3 : 3 + 3 * 140].view(3, 4, 5, 7),
    }
    for name, x in views.items():
        for layout in LAYOUTS:
            got = ops.sample_noise(x, RUNS, sigma=0.5, memory_format=layout)
            assert same_bits(got.contiguous(), reference.sample_noise(x.contiguous(), RUNS, sigma=0.5)), name
            assert got.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("dtype", REALS)
def test_out_sets_dtype_and_layout_and_is_not_overrun(simd_level: str, dtype: torch.dtype) -> None:
    x = images(3, 3, 5, 7)
    total = sum(run[3] for run in RUNS)
    want = reference.sample_noise(x, RUNS, sigma=0.5, dtype=dtype)
    for layout in LAYOUTS:
        room = torch.full((total + 2, 3, 5, 7), 99.0, dtype=dtype).contiguous(memory_format=layout)
        out = room[1:-1]
        assert ops.sample_noise(x, RUNS, sigma=0.5, out=out) is out
        assert same_bits(out.contiguous(), want)
        assert (room[0] == 99).all()
        assert (room[-1] == 99).all()


def test_out_of_a_single_channel_or_pixel() -> None:
    for shape in ((1, 5, 7), (5, 1, 1), (1, 1, 1)):  # both layouts have the same strides up to dimensions of one
        for layout in LAYOUTS:
            x, out = images(3, *shape), torch.empty(19, *shape).contiguous(memory_format=layout)
            want = reference.sample_noise(x, RUNS, sigma=0.5)
            assert same_bits(ops.sample_noise(x, RUNS, sigma=0.5, out=out), want)


@pytest.mark.parametrize("dtype", REALS)
def test_rounding_of_the_result(simd_level: str, dtype: torch.dtype) -> None:
    # The noise is too small to matter, which leaves the rounding of x at ties, overflow and subnormals.
    bits = torch.arange(0, 0x7F80_0000, 0x7F80_0000 // 4000) & ~0xFFFF
    halves = torch.cat([(bits + low) for low in (0, 0x1000, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001)])
    x = halves.to(torch.int32).view(torch.float32)
    limits = [65504.0, 65519.0, 65520.0, 3.3895314e38, 3.4028235e38, 2.0**-24, 2.0**-25, 2.0**-149, math.inf, math.nan]
    x = torch.cat([x, torch.tensor(limits)])
    x = torch.cat([x, -x])
    got = ops.sample_noise(x[None], [(0, 0, 0, 1)], sigma=1e-44, dtype=dtype)[0]
    large = x.abs() >= 1e-20
    assert same_bits(got[large], x[large].to(dtype))
    assert got[x.isnan()].isnan().all()
    assert same_bits(got, reference.sample_noise(x[None], [(0, 0, 0, 1)], sigma=1e-44, dtype=dtype)[0])


@pytest.mark.parametrize("noise", FAMILIES)
@pytest.mark.parametrize("sigma", [1e-320, 1e-44, 1e-39, 1e-5, 0.1, 1.0, 3.0, 1e5, 1e30])
def test_every_size_of_sigma(simd_level: str, noise: str, sigma: float) -> None:
    x = images(1, 40)
    for dtype in REALS:
        got = ops.sample_noise(x, [(0, 0, 0, 5)], sigma=sigma, noise=noise, dtype=dtype)
        assert same_bits(got, reference.sample_noise(x, [(0, 0, 0, 5)], sigma=sigma, noise=noise, dtype=dtype)), dtype


def test_torch_random_state_is_unchanged() -> None:
    before = torch.get_rng_state()
    ops.sample_noise(images(1, 8), [(0, 0, 0, 8)], sigma=1.0)
    assert torch.equal(torch.get_rng_state(), before)


@st.composite
def runs_of(draw: st.DrawFn, rows: int) -> list[tuple[int, int, int, int]]:
    index = st.one_of(st.integers(0, 20), st.integers(2**31 - 3, 2**31 + 3), st.integers(TOP - 20, TOP))
    runs = []
    for _ in range(draw(st.integers(0, 5))):
        first = draw(index)
        count = draw(st.integers(0, min(6, 2**32 - first)))
        runs.append((draw(st.integers(0, rows - 1)), draw(index), first, count))
    return runs


@given(st.data())
def test_any_request(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=0, max_size=4), label="shape"))
    rows = data.draw(st.integers(1, 3), label="rows")
    runs = data.draw(runs_of(rows), label="runs")
    normalized = data.draw(st.booleans(), label="normalized") and len(shape) > 0
    how = {
        "sigma": data.draw(st.floats(1e-3, 1e3), label="sigma"),
        "noise": data.draw(st.sampled_from(FAMILIES), label="noise"),
        "stage": data.draw(st.sampled_from(STAGES), label="stage"),
        "seed": data.draw(st.integers(0, 2**64 - 1), label="seed"),
        "dtype": data.draw(st.sampled_from(REALS), label="dtype"),
        "memory_format": data.draw(st.sampled_from(LAYOUTS if len(shape) == 3 else LAYOUTS[:1]), label="layout"),
        "normalize": channels(shape[0]) if normalized else None,
    }
    x = images(rows, *shape)
    before = _C.simd_level()
    _C.set_simd_level(data.draw(st.sampled_from(_C.simd_levels()), label="simd"))
    try:
        whole = ops.sample_noise(x, runs, **how)
        split = data.draw(st.integers(0, len(runs)), label="split")
        parts = [ops.sample_noise(x, part, **how) for part in (runs[:split], runs[split:])]
    finally:
        _C.set_simd_level(before)
    want = reference.sample_noise(x, runs, **how)
    assert whole.stride() == want.stride()
    assert same_bits(whole, want)
    assert same_bits(torch.cat(parts), want)
