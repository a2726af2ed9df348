"""The batch-last layout: intervals and specification rows, convolutions; oracle, gradients, bits."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.op_inputs import graded, lowest_level, same_bits
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError

DTYPES = (torch.float32, torch.float64)
NAMES = ("batch_last_relu_intervals", "batch_last_relax", "batch_last_concretize")
#: neurons, rows, examples: around SIMD vectors (8, 16), blocks of examples (128) and of terms (64), and empty.
SHAPES = [
    *[(3, 2, lanes) for lanes in (1, 7, 8, 9, 15, 16, 17, 33, 127, 129, 300)],
    *[(n, 3, 5) for n in (1, 63, 64, 65, 200)],
    (0, 3, 4),
    (3, 0, 4),
    (3, 2, 0),
]


def inputs(n: int, rows: int, lanes: int, dtype: torch.dtype, *, shared: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Draw coefficients of both signs and 0; boxes across zero, on either side of it, and of width 0."""
    generator = torch.Generator().manual_seed(n + lanes)
    a = torch.randn(n, rows, lanes, generator=generator, dtype=torch.float64)
    a[..., ::5] = 0
    center = torch.randn(n, lanes, generator=generator, dtype=torch.float64)
    radius = torch.rand(n, 1 if shared else lanes, generator=generator, dtype=torch.float64)
    radius[::4] = 0
    return a.to(dtype), center.to(dtype), radius.to(dtype)


def arguments(name: str, tensors: tuple[Tensor, ...], slope: float) -> tuple[Any, ...]:
    return {
        "batch_last_relu_intervals": (*tensors[1:], slope),
        "batch_last_relax": (*tensors, slope),
        "batch_last_concretize": tensors,
    }[name]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_the_reference(dtype: torch.dtype, name: str, shared: bool, simd_level: str) -> None:
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    for shape, slope in zip(SHAPES, itertools.cycle((0.0, 0.1, 1.0)), strict=False):
        taken = arguments(name, inputs(*shape, dtype, shared=shared), slope)
        got, want = (graded(getattr(module, name), taken) for module in (ops, reference))
        for actual, expected in zip(got, want, strict=True):
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_is_not_lost(name: str) -> None:
    for index in range(1 if name == "batch_last_relu_intervals" else 0, 3):
        tensors = [t.clone() for t in inputs(2, 2, 20, torch.float32, shared=False)]
        tensors[0][1] = -1
        tensors[index][1] = torch.nan
        results = getattr(ops, name)(*arguments(name, tuple(tensors), 0.0))
        for result in results if isinstance(results, tuple) else (results,):
            assert result[-1].isnan().all()  # the second neuron, or what sums over both


@functools.cache
def lowest(name: str, shape: tuple[int, int, int], dtype: torch.dtype) -> list[Tensor]:
    with lowest_level():
        return graded(getattr(ops, name), arguments(name, inputs(*shape, dtype, shared=True), 0.1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_at_every_level_and_thread_count(
    dtype: torch.dtype, name: str, simd_level: str, threads: int
) -> None:
    for shape in SHAPES:
        got = graded(getattr(ops, name), arguments(name, inputs(*shape, dtype, shared=True), 0.1))
        assert all(map(same_bits, got, lowest(name, shape, dtype))), shape


@pytest.mark.parametrize("name", NAMES)
def test_tensors_that_are_not_contiguous(name: str) -> None:
    tensors = inputs(4, 3, 20, torch.float32, shared=False)
    moved = tuple(t.movedim(-1, 0).contiguous().movedim(0, -1) for t in tensors)
    for actual, expected in zip(
        graded(getattr(ops, name), arguments(name, moved, 0.1)),
        graded(getattr(ops, name), arguments(name, tensors, 0.1)),
        strict=True,
    ):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name: str, shared: bool) -> None:
    a, center, radius = inputs(4, 2, 5, torch.float64, shared=shared)
    a = torch.where(a.abs() < 0.05, 0.05, a)  # away from kinks
    radius = radius + 0.06
    for sign in (-1, 0, 1):
        center = torch.where((center + sign * radius).abs() < 0.02, center + 0.1, center)
    tensors = tuple(t.clone().requires_grad_() for t in (a, center, radius))
    torch.autograd.gradcheck(lambda *t: getattr(ops, name)(*arguments(name, t, 0.1)), tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.zeros(2, 3)}, r"a: expected \[2, S, 4\], got \[2, 3\]"),
        ({"a": torch.zeros(2, 3, 5)}, r"a: expected \[2, S, 4\], got \[2, 3, 5\]"),
        ({"a": torch.zeros(2, 3, 4).double()}, "a: expected one dtype"),
        ({"center": torch.zeros(2, 4).half()}, "center: expected float32 or float64"),
        ({"center": torch.zeros(2, 3, 4)}, r"center: expected \[n, N\]"),
        ({"radius": torch.zeros(2, 3)}, r"radius: expected \[2, 4 or 1\], got \[2, 3\]"),
        ({"slope": 1.5}, r"slope: expected a number in \[0, 1\], got 1.5"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    taken = {"a": torch.zeros(2, 3, 4), "center": torch.zeros(2, 4), "radius": torch.zeros(2, 4), "slope": 0.0} | change
    with pytest.raises(InputError, match=f"batch_last_relax: {message}"):
        ops.batch_last_relax(**taken)
    options = {name: value for name, value in taken.items() if name != "a"}
    if "a" not in change:
        with pytest.raises(InputError, match=f"batch_last_relu_intervals: {message}"):
            ops.batch_last_relu_intervals(**options)


# --- convolutions

#: examples, groups, inputs and outputs of a group, size, kernel, stride, padding, dilation: around vectors (8, 16),
#: chunks of examples (144) and blocks of planes (8, 4), with rows and columns outside every window; kernels of 1 to 5.
CASES = [
    *[
        (lanes, 1, 2, 3, (5, 6), (3, 3), (2, 2), (1, 1), (1, 1))
        for lanes in (1, 7, 8, 9, 15, 16, 17, 33, 143, 145, 300)
    ],
    *[(20, 1, 5, outputs, (7, 4), (2, 4), (1, 2), (1, 1), (1, 1)) for outputs in (1, 2, 5, 7, 8, 11, 16)],
    (18, 3, 2, 4, (8, 9), (3, 2), (3, 1), (0, 2), (2, 3)),
    (18, 2, 5, 8, (6, 30), (1, 5), (1, 1), (0, 4), (1, 1)),
    (40, 1, 3, 8, (9, 9), (4, 4), (5, 5), (3, 3), (1, 1)),
    (0, 1, 2, 3, (5, 6), (3, 3), (1, 1), (0, 0), (1, 1)),
]


def case(number: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
    """Return x, weight, bias, scale and options."""
    lanes, groups, inputs, outputs, size, kernel, stride, padding, dilation = CASES[number]
    generator = torch.Generator().manual_seed(number)
    shapes = [(groups * inputs, *size, lanes), (groups * outputs, inputs, *kernel), (groups * outputs,), (lanes,)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return *tensors, {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}  # type: ignore[return-value]  # always four tensors


def close(got: Tensor, want: Tensor) -> None:
    tolerance = 1e-4 if got.dtype == torch.float32 else 1e-11
    torch.testing.assert_close(got, want.contiguous(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions_agree_with_the_reference(dtype: torch.dtype, simd_level: str) -> None:
    for number in range(len(CASES)):
        x, weight, bias, scale, options = case(number, dtype)
        y = ops.batch_last_conv(x, weight, **options)
        if y.numel() == 0:
            assert y.shape[0] == len(weight)
            assert y.shape[3] == 0
            assert not ops.batch_last_conv_weight(x, y, weight.shape[2:], **options).any()
            continue
        close(y, reference.batch_last_conv(x, weight, **options))
        for more in ((bias,), (bias, scale)):
            close(
                ops.batch_last_conv(x, weight, *more, **options), reference.batch_last_conv(x, weight, *more, **options)
            )
        args = (y, weight, x.shape[1:3])
        close(ops.batch_last_conv_transposed(*args, **options), reference.batch_last_conv_transposed(*args, **options))
        args = (x, y / 10, weight.shape[2:])
        close(ops.batch_last_conv_weight(*args, **options), reference.batch_last_conv_weight(*args, **options))


sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(
    st.integers(1, 20), st.integers(1, 9), st.integers(1, 9), sizes, sizes, sizes, sizes, sizes, st.integers(0, 2**31)
)
def test_the_three_maps_are_one_bilinear_form(
    lanes: int, inputs: int, outputs: int, size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, seed: int
) -> None:
    """<y, conv(x, w)> = <transposed(y, w), x> = <weight(x, y), w>, in integers that float64 adds up exactly."""
    size = tuple(max(s, d * (k - 1) + 1) for s, k, d in zip(size, kernel, dilation, strict=True))
    generator = torch.Generator().manual_seed(seed)
    options = {"stride": stride, "padding": padding, "dilation": dilation}

    def integers(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape, generator=generator).double()

    x, weight = integers(inputs, *size, lanes), integers(outputs, inputs, *kernel)
    result = ops.batch_last_conv(x, weight, **options)
    y = integers(*result.shape)
    form = (y * result).sum()
    assert torch.equal(result, reference.batch_last_conv(x, weight, **options))
    assert (ops.batch_last_conv_transposed(y, weight, size, **options) * x).sum() == form
    assert (ops.batch_last_conv_weight(x, y, kernel, **options) * weight).sum() == form


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions_have_the_same_bits_at_every_thread_count(dtype: torch.dtype) -> None:
    before = torch.get_num_threads()
    for number in range(len(CASES) - 1):
        x, weight, _, _, options = case(number, dtype)
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            y = ops.batch_last_conv(x, weight, **options)
            back = ops.batch_last_conv_transposed(y, weight, x.shape[1:3], **options)
            results.append((y, back, ops.batch_last_conv_weight(x, y, weight.shape[2:], **options)))
        torch.set_num_threads(before)
        assert all(same_bits(first, second) for first, second in zip(*results, strict=True)), CASES[number]


def test_convolutions_of_tensors_that_are_not_contiguous() -> None:
    x, weight, _, _, options = case(0, torch.float32)
    x = torch.randn(30, *x.shape[:3]).movedim(0, -1)
    weight = weight.transpose(2, 3).contiguous().transpose(2, 3)
    close(ops.batch_last_conv(x, weight, **options), reference.batch_last_conv(x, weight, **options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 5, 5)}, r"batch_last_conv: x: expected 4 dimensions, got \[2, 5, 5\]"),
        ({"x": torch.zeros(2, 5, 5, 3).half()}, "batch_last_conv: x: expected float32 or float64"),
        ({"x": torch.zeros(4, 5, 5, 3)}, "batch_last_conv: x: expected 2 planes, got 4"),
        ({"x": torch.zeros(2, 2, 5, 3)}, "batch_last_conv: size: expected room for the kernel, got 2"),
        ({"weight": torch.zeros(3, 2, 3, 3).double()}, "batch_last_conv: weight: expected the dtype of the planes"),
        ({"bias": torch.zeros(4)}, r"batch_last_conv: bias: expected \[3\], got \[4\]"),
        ({"scale": torch.zeros(4)}, r"batch_last_conv: scale: expected \[3\], got \[4\]"),
        ({"stride": (0, 1)}, "batch_last_conv: stride: expected positive"),
        ({"stride": (1,)}, "batch_last_conv: stride: expected two numbers, got 1"),
        ({"padding": (-1, 0)}, "batch_last_conv: padding: expected 0 to 2147483647, got -1"),
        ({"padding": (2**62, 0)}, "batch_last_conv: padding: expected 0 to 2147483647, got"),
        (
            {"stride": (2**60, 2**60), "padding": (2**61, 2**61)},
            "batch_last_conv: stride: expected 0 to 2147483647, got",
        ),
        ({"groups": 2, "x": torch.zeros(4, 5, 5, 3)}, "batch_last_conv: groups: expected a divisor of 3, got 2"),
    ],
)
def test_refused_convolutions(change: dict[str, Any], message: str) -> None:
    arguments = {"x": torch.zeros(2, 5, 5, 3), "weight": torch.zeros(3, 2, 3, 3)} | change
    with pytest.raises(InputError, match=message):
        ops.batch_last_conv(**arguments)


def test_refused_results() -> None:
    x, weight, y = torch.zeros(2, 5, 5, 3), torch.zeros(3, 2, 3, 3), torch.zeros(3, 2, 3, 3)
    with pytest.raises(InputError, match=r"batch_last_conv_transposed: y: expected \[3, 3, 3, 3\], got \[3, 2, 3, 3\]"):
        ops.batch_last_conv_transposed(y, weight, (5, 5))
    with pytest.raises(InputError, match=r"batch_last_conv_weight: y: expected \[3, 3, 3, 3\], got \[3, 2, 3, 3\]"):
        ops.batch_last_conv_weight(x, y, (3, 3))
    with pytest.raises(InputError, match="batch_last_conv_transposed: size: expected 0 to 2147483647, got -1"):
        ops.batch_last_conv_transposed(y[:, :1], weight, (-1, 5), padding=(2, 0))
    # Twice the dilation wraps to -2: the third kernel column would fall on x, the second would read out of bounds.
    x, y = torch.ones(2, 5, 5, 4), torch.ones(3, 3, 11, 4)
    with pytest.raises(InputError, match="batch_last_conv_weight: dilation: expected 0 to 2147483647, got"):
        ops.batch_last_conv_weight(x, y, (3, 3), padding=(0, 2), dilation=(1, 2**63 - 1))
