"""The noise ops against their references, bit for bit, for every schedule, dtype and layout."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from op_inputs import BYTE, FAMILIES, LAYOUTS, NOISES, REALS, RUNS, TOP, channels, drawn, images, same_bits
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


def agree(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> bool:
    """Whether batches, in any layout, and flags of tails are the same."""
    return same_bits(got[0].contiguous(), want[0].contiguous()) and all(map(torch.equal, got[1:], want[1:]))


@functools.cache
def expected(noise: str, shape: tuple[int, ...], real: torch.dtype = torch.float32, **how: Any) -> tuple[Tensor, ...]:
    normalize = channels(shape[0]) if how.pop("normalized", False) else None
    return drawn(reference, noise, images(3, *shape, dtype=real), RUNS, sigma=0.37, normalize=normalize, **how)


@pytest.mark.parametrize("noise", NOISES)
def test_every_shape(simd_level: str, noise: str) -> None:
    for shape, seed in itertools.product(SHAPES, (3, 2**64 - 1)):
        got = drawn(ops, noise, images(3, *shape), RUNS, sigma=0.37, seed=seed)
        assert agree(got, expected(noise, shape, seed=seed)), (shape, seed)


@functools.cache
def many(noise: str) -> Tensor:
    return reference.unit_noise(4, 0, 250, 2048, noise=noise, seed=99)


@pytest.mark.parametrize("noise", FAMILIES)
def test_half_a_million_draws(simd_level: str, noise: str) -> None:
    # An error in the last bit of a high coefficient changes about one draw in ten thousand.
    got = ops.sample_noise(torch.zeros(1, 2048), [(0, 4, 0, 250)], sigma=1.0, noise=noise, seed=99)
    assert same_bits(got, many(noise))


@pytest.mark.parametrize("noise", NOISES)
def test_every_split(simd_level: str, threads: int, noise: str) -> None:
    for x, size in itertools.product((images(1, 3, 5, 7), images(1, 3, 16, 16)), (1, 7, 256)):
        want, *_ = drawn(ops, noise, x, [(0, 8, 0, 260)], sigma=0.25)
        runs = [(0, 8, first, min(size, 260 - first)) for first in range(0, 260, size)]
        calls = torch.cat([drawn(ops, noise, x, [run], sigma=0.25)[0] for run in runs])
        assert same_bits(calls, want), size
        pieces = drawn(ops, noise, x, runs[::-1], sigma=0.25)[0].split([run[3] for run in runs[::-1]])
        assert same_bits(torch.cat(pieces[::-1]), want), size


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("shape", [(3, 5, 7), (33, 3, 3), (1, 9, 9), (4, 8, 8), (2, 0, 3)])
def test_every_dtype_and_layout(simd_level: str, shape: tuple[int, ...], noise: str, normalized: bool) -> None:
    normalize = channels(shape[0]) if normalized else None
    dtypes = itertools.product((torch.float32, torch.float64), REALS) if noise == "uniform" else ()
    for real, dtype in (*((real, real) for real in REALS), *dtypes):
        for layout, step in itertools.product(LAYOUTS, (BYTE, Fraction(5, 77)) if noise == "grid" else (BYTE,)):
            how = {"step": step, "dtype": dtype}
            x = images(3, *shape, dtype=real)
            got = drawn(ops, noise, x, RUNS, sigma=0.37, normalize=normalize, memory_format=layout, **how)
            assert got[0].is_contiguous(memory_format=layout)
            assert agree(got, expected(noise, shape, real, normalized=normalized, **how)), (real, dtype, layout)


@pytest.mark.parametrize("noise", NOISES)
def test_stages_and_seeds_share_no_draw(noise: str) -> None:
    seen, x = set(), images(1, 12)
    for stage, seed in itertools.product(STAGES, (0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)):
        got, want = (
            drawn(module, noise, x, [(0, 1, 0, 2)], sigma=1.0, stage=stage, seed=seed) for module in (ops, reference)
        )
        assert agree(got, want)
        seen |= {tuple(row) for row in got[0].tolist()}
    assert len(seen) == 5 * 7 * 2


@pytest.mark.parametrize("noise", ["gaussian", "grid"])
def test_images_that_are_not_contiguous(simd_level: str, noise: str) -> None:
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
        want = drawn(reference, noise, x.contiguous(), RUNS, sigma=0.5)
        for layout in LAYOUTS:
            got = drawn(ops, noise, x, RUNS, sigma=0.5, memory_format=layout)
            assert agree(got, want), name
            assert got[0].is_contiguous(memory_format=layout)


@pytest.mark.parametrize("noise", ["gaussian", "grid"])
def test_out_sets_dtype_and_layout_and_is_not_overrun(simd_level: str, noise: str) -> None:
    x, total = images(3, 3, 5, 7), sum(run[3] for run in RUNS)
    for dtype, layout in itertools.product(REALS, LAYOUTS):
        for module in (ops, reference):
            room = torch.full((total + 2, 3, 5, 7), 99.0, dtype=dtype).contiguous(memory_format=layout)
            got = drawn(module, noise, x, RUNS, sigma=0.37, out=room[1:-1])
            assert got[0].data_ptr() == room[1].data_ptr()
            assert agree(got, expected(noise, (3, 5, 7), dtype=dtype))
            assert (room[[0, -1]] == 99).all()


def test_out_of_a_single_channel_or_pixel() -> None:
    for shape in ((1, 5, 7), (5, 1, 1), (1, 1, 1)):  # both layouts have the same strides up to dimensions of one
        for layout in LAYOUTS:
            out = torch.empty(19, *shape).contiguous(memory_format=layout)
            assert agree(
                drawn(ops, "gaussian", images(3, *shape), RUNS, sigma=0.37, out=out), expected("gaussian", shape)
            )


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


@given(st.data())
def test_any_request(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), max_size=4), label="shape"))
    rows = data.draw(st.integers(1, 3), label="rows")
    index = st.one_of(st.integers(0, 20), st.integers(2**31 - 3, 2**31 + 3), st.integers(TOP - 20, TOP))
    runs = [
        (
            data.draw(st.integers(0, rows - 1)),
            data.draw(index),
            first,
            data.draw(st.integers(0, min(6, TOP + 1 - first))),
        )
        for first in data.draw(st.lists(index, max_size=5), label="runs")
    ]
    noise = data.draw(st.sampled_from(NOISES), label="noise")
    step = Fraction(data.draw(st.integers(1, 300), label="p"), data.draw(st.integers(1, 300), label="q"))
    sizes = st.floats(1e-3, 15).map(lambda steps: float(step) * steps) if noise == "grid" else st.floats(1e-3, 1e3)
    normalized = data.draw(st.booleans(), label="normalized") and len(shape) > 0
    how = {
        "sigma": data.draw(sizes, label="sigma"),
        "step": step,
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
        whole = drawn(ops, noise, x, runs, **how)
        split = data.draw(st.integers(0, len(runs)), label="split")
        pieces = [drawn(ops, noise, x, some, **how)[0] for some in (runs[:split], runs[split:])]
    finally:
        _C.set_simd_level(before)
    want = drawn(reference, noise, x, runs, **how)
    assert whole[0].stride() == want[0].stride()
    assert agree(whole, want)
    assert same_bits(torch.cat(pieces).contiguous(), want[0].contiguous())
