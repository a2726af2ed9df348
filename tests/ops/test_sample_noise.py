"""The noise ops against their references, bit for bit, for every schedule, dtype and layout; what they refuse."""

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
from support.op_inputs import BYTE, FAMILIES, LAYOUTS, NOISES, REALS, RUNS, TOP, channels, drawn, images, same_bits
from torch import Tensor

from pyrobust import _C, ops, reference
from pyrobust.errors import InputError, InputTypeError

STAGES = ("select", "estimate", "predict", "attack", "train")
SIGMAS = st.floats(1e-3, 1e3) | st.sampled_from([1e-320, 1e-44, 1e-39, 1e-5, 1e5, 1e30])
SHAPES = [
    *((), (0,), (2, 0), (5, 7), (33, 3, 3), (3, 16, 16), (2, 3, 2, 5)),
    *((n,) for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 130)),
]


def agree(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> bool:
    """Whether batches, in any layout, and flags of tails are the same."""
    return same_bits(got[0].contiguous(), want[0].contiguous()) and all(map(torch.equal, got[1:], want[1:]))


@functools.cache
def expected(noise: str, shape: tuple[int, ...], real: torch.dtype = torch.float32, **how: Any) -> tuple[Tensor, ...]:
    normalize = channels(shape[0]) if how.pop("normalized", False) else None
    runs = how.pop("runs", RUNS)
    return drawn(reference, noise, images(3, *shape, dtype=real), runs, sigma=0.37, normalize=normalize, **how)


@pytest.mark.parametrize("noise", NOISES)
def test_every_shape(simd_level: str, noise: str) -> None:
    for shape, seed in zip(SHAPES, itertools.cycle((3, 2**64 - 1)), strict=False):
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
    small, large = images(1, 3, 5, 7), images(1, 3, 16, 16)
    for x, size, stop in ((small, 1, 40), (small, 256, 260), (large, 7, 260)):
        want, *_ = drawn(ops, noise, x, [(0, 8, 0, stop)], sigma=0.25)
        runs = [(0, 8, first, min(size, stop - first)) for first in range(0, stop, size)]
        calls = torch.cat([drawn(ops, noise, x, [run], sigma=0.25)[0] for run in runs])
        assert same_bits(calls, want), size
        pieces = drawn(ops, noise, x, runs[::-1], sigma=0.25)[0].split([run[3] for run in runs[::-1]])
        assert same_bits(torch.cat(pieces[::-1]), want), size


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("shape", [(3, 5, 7), (33, 3, 3), (1, 9, 9), (4, 8, 8), (2, 0, 3)])
def test_every_dtype_and_layout(simd_level: str, shape: tuple[int, ...], noise: str) -> None:
    dtypes = itertools.product((torch.float32, torch.float64), REALS) if noise == "uniform" else ()
    for number, (real, dtype) in enumerate((*((real, real) for real in REALS), *dtypes)):
        normalized = (number + shape[1]) % 2 == 0  # every dtype in some shapes, and in others not
        normalize = channels(shape[0]) if normalized else None
        x = images(3, *shape, dtype=real)
        for layout, step in itertools.product(LAYOUTS, (BYTE, Fraction(5, 77)) if noise == "grid" else (BYTE,)):
            how = {"runs": (RUNS[0], RUNS[4]), "step": step, "dtype": dtype}
            got = drawn(ops, noise, x, sigma=0.37, normalize=normalize, memory_format=layout, **how)
            assert got[0].is_contiguous(memory_format=layout)
            assert agree(got, expected(noise, shape, real, normalized=normalized, **how)), (real, dtype, layout)


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
    sizes = st.floats(1e-3, 15).map(lambda steps: float(step) * steps) if noise == "grid" else SIGMAS
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
    every = st.lists(st.integers(0, 2**64 - 1), min_size=len(runs), max_size=len(runs))
    keys = data.draw(st.none() | every, label="keys")  # of each run, in place of the seed
    x = images(rows, *shape)
    before = _C.simd_level()
    _C.set_simd_level(data.draw(st.sampled_from(_C.simd_levels()), label="simd"))
    try:
        whole = drawn(ops, noise, x, runs, keys=keys, **how)
        split = data.draw(st.integers(0, len(runs)), label="split")
        pieces = [
            drawn(ops, noise, x, runs[some], keys=keys and keys[some], **how)[0]
            for some in (slice(split), slice(split, None))
        ]
    finally:
        _C.set_simd_level(before)
    want = drawn(reference, noise, x, runs, keys=keys, **how)
    assert whole[0].stride() == want[0].stride()
    assert agree(whole, want)
    assert same_bits(torch.cat(pieces).contiguous(), want[0].contiguous())


# --- what sample_noise refuses


FEW_RUNS = [(1, 5, 0, 3), (0, 2**32 - 1, 9, 2), (1, 4, 2, 0)]


def test_there_is_no_gradient() -> None:
    x = images(2, 3, 4, 5).requires_grad_()
    with pytest.raises(InputError, match=r"^sample_noise: x: expected no gradient"):
        ops.sample_noise(x, FEW_RUNS, sigma=0.25)
    with torch.no_grad():
        assert not ops.sample_noise(x, FEW_RUNS, sigma=0.25).requires_grad
    with pytest.raises(InputError, match=r"^sample_noise: out: expected no gradient"):
        ops.sample_noise(x.detach(), FEW_RUNS, sigma=0.25, out=torch.empty(5, 3, 4, 5, requires_grad=True))
    with torch.inference_mode():
        assert torch.equal(
            ops.sample_noise(x, FEW_RUNS, sigma=0.25), ops.sample_noise(x.detach(), FEW_RUNS, sigma=0.25)
        )


def call(**changes: Any) -> Tensor:
    arguments: dict[str, Any] = {"x": images(2, 3, 4, 5), "runs": FEW_RUNS, "sigma": 0.25} | changes
    return ops.sample_noise(arguments.pop("x"), arguments.pop("runs"), **arguments)


INFINITE = (math.nan, math.inf, -math.inf)
BAD_VALUES = [
    *(("sigma", value, "sigma") for value in (0, 0.0, -0.1, *INFINITE, 1e38)),  # 1e38·6.7 is beyond float32
    *(("noise", value, "noise") for value in ("normal", "", "Gaussian", 0, None)),
    *(("stage", value, "stage") for value in ("test", "", 1, None)),
    *(("seed", value, "seed") for value in (-1, 2**64)),
    *(("runs", [run], "runs: row") for run in ((2, 0, 0, 1), (-1, 0, 0, 1), (2, 0, 0, 0))),
    *(("runs", [run], "runs: image") for run in ((0, -1, 0, 1), (0, 2**32, 0, 1), (0, 2**64, 0, 1))),
    *(
        ("runs", [(0, 0, first, count)], "runs: first, count")
        for first, count in ((-1, 2), (2**32, 1), (2**32 - 1, 2), (0, 2**32 + 1), (0, -1), (2**64, 1))
    ),
    ("runs", [(0, 0, 1)], "runs"),
    ("runs", [(0, 0, 0, 1), (1, 0, 0, 1, 5)], "runs"),
    ("x", torch.tensor(1.0), "x"),
    ("memory_format", torch.channels_last_3d, "memory_format"),
    ("out", torch.empty(4, 3, 4, 5), "out"),
    ("out", torch.empty(5, 3, 5, 4).transpose(2, 3), "out"),
    ("out", torch.empty(5, 3, 4, 10)[..., ::2], "out"),
    ("out", torch.empty(1, 3, 4, 5).expand(5, 3, 4, 5), "out"),
    ("out", torch.empty(5, 3, 4, 5, device="meta"), "out"),
    ("normalize", ([0.0] * 2, [1.0] * 3), "normalize"),
    ("normalize", ([0.0] * 3, [1.0] * 4), "normalize"),
    ("normalize", (0.0, 1.0), "normalize"),
    ("normalize", (torch.zeros(1, 3), torch.ones(1, 3)), "normalize"),
    *(("normalize", ([0.0] * 3, [1.0, value, 1.0]), "normalize") for value in (0.0, -0.0, -1.0, math.nan)),
]
BAD_TYPES = [
    *(
        ("x", torch.zeros(2, 3, 4, 5, dtype=dtype), "x")
        for dtype in (torch.uint8, torch.int64, torch.bool, torch.cfloat)
    ),
    ("x", [[0.0]], "x"),
    ("dtype", torch.int32, "dtype"),
    ("dtype", torch.complex64, "dtype"),
    ("out", torch.empty(5, 3, 4, 5, dtype=torch.int32), "(out|dtype)"),
]


@pytest.mark.parametrize(
    ("argument", "value", "named", "error"),
    [*((*case, InputError) for case in BAD_VALUES), *((*case, InputTypeError) for case in BAD_TYPES)],
)
def test_a_bad_argument_is_named(argument: str, value: object, named: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^sample_noise: {named}: expected .* got "):
        call(**{argument: value})


def test_channels_last_and_channels_take_dimensions() -> None:
    with pytest.raises(InputError, match=r"^sample_noise: memory_format: expected x of 4 dimensions .* got "):
        call(x=images(2, 3, 4), memory_format=torch.channels_last)
    with pytest.raises(InputError, match=r"^sample_noise: normalize: expected x of \[M, C, \.\.\.\], got "):
        call(x=images(2), normalize=([0.0], [1.0]))


def test_a_refused_call_writes_nothing() -> None:
    out, x = torch.full((5, 3, 4, 5), 99.0), images(5, 3, 4, 5)
    for changes in ({"sigma": 0.0}, {"runs": [*FEW_RUNS[:2], (9, 0, 0, 0)]}, {"normalize": ([0.0] * 3, [0.0] * 3)}):
        with pytest.raises(InputError):
            call(out=out, **changes)
    assert (out == 99).all()
    with pytest.raises(InputError, match=r"^sample_noise: out: expected "):  # the images themselves
        ops.sample_noise(x, [(0, 0, 0, 5)], sigma=0.25, out=x)
    assert torch.equal(x, images(5, 3, 4, 5))


BAD_RAW: list[dict[str, Any]] = [
    *({"out": torch.empty(shape)} for shape in ((4, 3, 4, 5), (6, 3, 4, 5), (5, 3, 4, 6), (5, 60))),
    *({"out": torch.empty(5, 3, 4, 5, dtype=dtype)} for dtype in (torch.int32, torch.float64)),
    {"out": torch.empty(5, 3, 5, 4).transpose(2, 3)},
    *({"x": x} for x in (images(2, 3, 4, 5).half(), images(2, 3, 4, 5).double(), images(2, 3, 5, 4).mT)),
    *({"runs": runs} for runs in ([0, 0, 0], [2, 0, 0, 5], [-1, 0, 0, 5], [0, 2**32, 0, 5], [0, -1, 0, 5])),
    *({"runs": [0, 0, first, 5]} for first in (2**32 - 4, -1, 2**63 - 1)),
    {"runs": [0, 0, 0, 6, 0, 0, 6, -1]},
    {"runs": [0, 0, 0, 2**62] * 4 + [0, 0, 0, 5]},  # a sum that wraps to 5
    *({"sigma": sigma} for sigma in (0.0, math.nan)),
    *({"domain": domain} for domain in (3, -1, 2**32)),
    {"mean": torch.zeros(3)},
    {"std": torch.ones(3)},
    {"mean": torch.zeros(2), "std": torch.ones(2)},
    {"mean": torch.zeros(3).double(), "std": torch.ones(3).double()},
    {"mean": torch.zeros(6)[::2], "std": torch.ones(3)},
]


def test_the_raw_op_refuses_what_could_write_out_of_bounds() -> None:
    runs = [number for run in FEW_RUNS for number in run]
    arguments = {"out": torch.empty(5, 3, 4, 5), "x": images(2, 3, 4, 5), "runs": runs, "seed": 0, "sigma": 0.25}
    arguments |= {"domain": 256, "mean": None, "std": None}
    torch.ops.pyrobust.sample_noise(*arguments.values())
    for changes in BAD_RAW:
        with pytest.raises(RuntimeError, match=r"sample_noise: \w+"):
            torch.ops.pyrobust.sample_noise(*(arguments | changes).values())
