"""Intervals and specification rows in the batch-last layout: oracle, gradients, bits."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from op_inputs import graded, lowest_level, same_bits
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
        given = arguments(name, inputs(*shape, dtype, shared=shared), slope)
        got, want = (graded(getattr(module, name), given) for module in (ops, reference))
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
    given = inputs(4, 3, 20, torch.float32, shared=False)
    moved = tuple(t.movedim(-1, 0).contiguous().movedim(0, -1) for t in given)
    for actual, expected in zip(
        graded(getattr(ops, name), arguments(name, moved, 0.1)),
        graded(getattr(ops, name), arguments(name, given, 0.1)),
        strict=True,
    ):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name: str, shared: bool) -> None:
    a, center, radius = inputs(4, 2, 5, torch.float64, shared=shared)
    a = torch.where(a.abs() < 0.05, 0.05, a)  # away from kinks
    radius = radius + 0.06
    for end in (-1, 0, 1):
        center = torch.where((center + end * radius).abs() < 0.02, center + 0.1, center)
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
    given = {"a": torch.zeros(2, 3, 4), "center": torch.zeros(2, 4), "radius": torch.zeros(2, 4), "slope": 0.0} | change
    with pytest.raises(InputError, match=f"batch_last_relax: {message}"):
        ops.batch_last_relax(**given)
    rest = {name: value for name, value in given.items() if name != "a"}
    if "a" not in change:
        with pytest.raises(InputError, match=f"batch_last_relu_intervals: {message}"):
            ops.batch_last_relu_intervals(**rest)
