"""relax_coefficients, the linear relaxation of ReLU: soundness, oracle, gradients, bits."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.op_inputs import graded, lowest_level, same_bits
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError

RAW = torch.ops.pyrobust.relax_coefficients
DTYPES = (torch.float32, torch.float64)
#: Around SIMD lanes (8, 16) and blocks (512) of neurons; without examples, rows or neurons.
SHAPES = [
    *[(2, 3, n) for n in (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 511, 512, 513, 1030)],
    (5, 1, 40),
    (1, 19, 64),
    (0, 3, 4),
    (3, 0, 4),
    (3, 2, 0),
]


def inputs(batch: int, rows: int, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Draw coefficients of both signs and 0; ranges across zero, on either side of it, and of width 0."""
    generator = torch.Generator().manual_seed(n)
    a = torch.randn(batch, rows, n, generator=generator, dtype=torch.float64)
    a[..., ::5] = 0
    lower = torch.randn(batch, n, generator=generator, dtype=torch.float64) - 0.7
    width = 2 * torch.rand(batch, n, generator=generator, dtype=torch.float64)
    width[:, ::4] = 0
    lower[:, ::8] = 0
    return a.to(dtype), lower.to(dtype), (lower + width).to(dtype)


@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_the_reference(dtype: torch.dtype, slope: float, simd_level: str) -> None:
    for shape in SHAPES:
        arguments = (*inputs(*shape, dtype), slope)
        got, want = (graded(module.relax_coefficients, arguments) for module in (ops, reference))
        for actual, expected in zip(got, want, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-12)


coordinates = st.integers(-64, 64).map(lambda k: k / 16)


@given(
    st.lists(st.tuples(coordinates, coordinates, coordinates, st.floats(0, 1)), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.25, 1.0]),
)
def test_the_sum_only_becomes_smaller(neurons: list[tuple[float, float, float, float]], slope: float) -> None:
    """Check any point of the ranges in exact arithmetic, up to float64 rounding."""
    a = torch.tensor([[[neuron[0] for neuron in neurons]]], dtype=torch.float64)
    ends = torch.tensor([[sorted(neuron[1:3]) for neuron in neurons]], dtype=torch.float64)
    relaxed, bias = ops.relax_coefficients(a, ends[..., 0], ends[..., 1], slope)
    exact, line = Fraction(0), Fraction(bias.item())
    for (c, p, q, share), new in zip(neurons, relaxed[0, 0].tolist(), strict=True):
        z = Fraction(min(p, q)) + Fraction(share) * Fraction(abs(p - q))
        exact += Fraction(c) * max(z, Fraction(slope) * z)
        line += Fraction(new) * z
    assert line <= exact + Fraction(1, 10**12)
    if len(neurons) == 1 and neurons[0][0] < 0:  # the chord meets the function at both ends
        high = ends[0, 0, 1].item()
        assert relaxed.item() * high + bias.item() == pytest.approx(neurons[0][0] * max(high, slope * high), abs=1e-12)


def test_a_nan_is_not_lost() -> None:
    a, lower, upper = inputs(1, 2, 20)
    for index in range(3):
        tensors = [a.clone(), lower.clone(), upper.clone()]
        tensors[index][0, ..., 1] = torch.nan
        tensors[0][..., 1] = -1 if index else torch.nan
        relaxed, bias = ops.relax_coefficients(*tensors)
        assert relaxed[..., 1].isnan().all()
        assert bias.isnan().all()


@functools.cache
def lowest(shape: tuple[int, int, int], dtype: torch.dtype) -> list[Tensor]:
    with lowest_level():
        return graded(ops.relax_coefficients, (*inputs(*shape, dtype), 0.1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_at_every_level_and_thread_count(dtype: torch.dtype, simd_level: str, threads: int) -> None:
    for shape in SHAPES:
        got = graded(ops.relax_coefficients, (*inputs(*shape, dtype), 0.1))
        assert all(map(same_bits, got, lowest(shape, dtype))), shape


def test_tensors_that_are_not_contiguous() -> None:
    a, lower, upper = inputs(4, 3, 20)
    got = ops.relax_coefficients(a.mT.contiguous().mT, lower.T.contiguous().T, upper[:, :])
    want = ops.relax_coefficients(a, lower, upper)
    assert all(same_bits(actual, expected) for actual, expected in zip(got, want, strict=True))
    shared = a[:1].expand(4, -1, -1).requires_grad_()
    graded(ops.relax_coefficients, (shared, lower, upper, 0.0))


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_gradcheck(slope: float) -> None:
    a, lower, upper = inputs(2, 3, 12, torch.float64)
    a = torch.where(a.abs() < 0.05, 0.05, a)  # away from kinks
    lower = torch.where(lower.abs() < 0.05, -0.05, lower)
    upper = torch.maximum(torch.where(upper.abs() < 0.05, 0.05, upper), lower + 0.03)
    upper = torch.where((upper + lower).abs() < 0.05, upper + 0.1, upper)
    tensors = tuple(t.clone().requires_grad_() for t in (a, lower, upper))
    torch.autograd.gradcheck(lambda *t: ops.relax_coefficients(*t, slope), tensors)


def test_gradcheck_of_one_result() -> None:
    """Leave the other result without a gradient."""
    a, lower, upper = (t.requires_grad_() for t in inputs(1, 2, 3, torch.float64))
    torch.autograd.grad(ops.relax_coefficients(a, lower, upper)[0].sum(), (a, lower, upper))
    torch.autograd.grad(ops.relax_coefficients(a, lower, upper)[1].sum(), (a, lower, upper))


@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_agrees_with_the_cpu(cuda: torch.device, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        tensors = inputs(*shape, dtype)
        want = graded(ops.relax_coefficients, (*tensors, 0.1))
        got = graded(ops.relax_coefficients, (*(t.to(cuda) for t in tensors), 0.1))
        for actual, expected in zip(got, want, strict=True):
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"a": torch.zeros(2, 3)}, InputError, r"a: expected \[B, S, n\], got \(2, 3\)"),
        ({"a": torch.zeros(2, 3, 4, dtype=torch.float16)}, InputTypeError, "a: expected float32 or float64"),
        ({"a": [1.0]}, InputTypeError, "a: expected a tensor, got list"),
        ({"lower": torch.zeros(2, 5)}, InputError, r"lower: expected shape \(2, 4\), got \(2, 5\)"),
        ({"upper": torch.zeros(3, 4)}, InputError, "upper: expected shape"),
        ({"upper": torch.zeros(2, 4).double()}, InputTypeError, "upper: expected float32 or float64 like a"),
        ({"slope": 1.5}, InputError, r"slope: expected a number in \[0, 1\], got 1.5"),
        ({"slope": float("nan")}, InputError, "slope: expected"),
    ],
)
def test_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"a": torch.zeros(2, 3, 4), "lower": torch.zeros(2, 4), "upper": torch.zeros(2, 4)}
    with pytest.raises(error, match=f"relax_coefficients: {message}"):
        ops.relax_coefficients(**(arguments | change))


def test_the_raw_op_checks_too() -> None:
    a, lower, upper = inputs(2, 3, 4)
    with pytest.raises(RuntimeError, match=r"relax_coefficients: lower: expected \[2, 4\], got \[2, 3\]"):
        RAW(a, lower[:, :3].contiguous(), upper, 0.0)
    with pytest.raises(RuntimeError, match="relax_coefficients: a: expected a contiguous tensor"):
        RAW(a.mT.contiguous().mT, lower, upper, 0.0)
    backward = torch.ops.pyrobust.relax_coefficients_backward
    with pytest.raises(RuntimeError, match=r"relax_coefficients: grad_bias: expected \[2, 3\]"):
        backward(a, a.sum(2)[:, :2].contiguous(), a, lower, upper, 0.0)
