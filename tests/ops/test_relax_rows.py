"""relax_rows and concretize_rows on packed rows: soundness, oracle, bits."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.op_inputs import same_bits
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError

RELAX, LEAST = torch.ops.pyrobust.relax_rows, torch.ops.pyrobust.concretize_rows
DTYPES = (torch.float32, torch.float64)
#: Rows, images, neurons: around the CPU's accumulators (8), a GPU's warps (32), blocks (256) and short rows (1,024).
SHAPES = [
    *[(19, 3, n) for n in (1, 2, 7, 8, 9, 31, 33, 255, 257, 1023, 1024, 1025)],
    (1, 1, 40),
    (300, 2, 16),
    (0, 3, 4),
    (5, 2, 0),
]


def inputs(rows: int, images: int, n: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Draw coefficients of both signs and 0; images in any order; two slopes and two intercepts."""
    generator = torch.Generator().manual_seed(n)
    a = torch.randn(rows, n, generator=generator, dtype=torch.float64)
    a[:, ::5] = 0
    image = torch.randint(images, (rows,), generator=generator)
    lines = torch.randn(4, images, n, generator=generator, dtype=torch.float64)
    return a.to(dtype), image, *lines.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_agrees_with_the_reference(device: torch.device, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        a, image, *lines = (t.to(device) for t in inputs(*shape, dtype))
        got, want = a.clone(), a.clone()
        of_lines, expected = ops.relax_rows(got, image, *lines), reference.relax_rows(want, image, *lines)
        assert same_bits(got.cpu(), want.cpu())  # one product each
        rounding = {"rtol": 1e-5, "atol": 1e-4 if dtype == torch.float32 else 1e-11}
        torch.testing.assert_close(of_lines, expected, **rounding)
        least = ops.concretize_rows(a, image, *lines[:2])
        torch.testing.assert_close(least, reference.concretize_rows(a, image, *lines[:2]), **rounding)


coordinates = st.integers(-64, 64).map(lambda k: k / 16)


@given(st.lists(st.tuples(*[coordinates] * 6), min_size=1, max_size=8))
def test_the_sum_only_becomes_smaller(neurons: list[tuple[float, ...]]) -> None:
    """Check values between the relaxations in exact arithmetic: numbers this short are never rounded."""
    columns = torch.tensor(neurons, dtype=torch.float64).T.contiguous()
    a, z, lines = columns[:1].clone(), columns[1], columns[2:]
    ends = (torch.minimum(lines[0] * z + lines[2], lines[1] * z + lines[3]), lines[0] * z + lines[2])
    swapped = lines[0] * z + lines[2] > lines[1] * z + lines[3]
    low = [torch.where(swapped, lines[i + 1], lines[i])[None] for i in (0, 2)]
    high = [torch.where(swapped, lines[i], lines[i + 1])[None] for i in (0, 2)]
    value = ends[0]  # f(z) is the lower relaxation's value; a negative coefficient gets the larger upper one
    exact = sum(Fraction(c) * Fraction(v) for c, v in zip(a[0].tolist(), value.tolist(), strict=True))
    constant = ops.relax_rows(a, torch.tensor([0]), low[0], high[0], low[1], high[1])
    relaxed = sum(Fraction(c) * Fraction(v) for c, v in zip(a[0].tolist(), z.tolist(), strict=True))
    assert relaxed + Fraction(constant.item()) <= exact
    if (columns[0] >= 0).all():
        assert relaxed + Fraction(constant.item()) == exact


def test_a_nan_is_not_lost(device: torch.device) -> None:
    for which in range(5):
        a, image, *lines = inputs(3, 2, 20)
        a[:, 1] = torch.nan if which == 0 else -1 if which in (2, 4) else 1
        if which:
            lines[which - 1][:, 1] = torch.nan
        a, image, *lines = (t.to(device) for t in (a, image, *lines))
        constant = ops.relax_rows(a, image, *lines)
        assert (constant + a[:, 1]).isnan().all()


def test_threads_change_no_bit(threads: int) -> None:
    for shape in ((300, 2, 16), (40, 3, 1025)):
        a, image, *lines = inputs(*shape)
        each = zip(a.split(1), image.split(1), strict=True)
        alone = torch.cat([ops.concretize_rows(row, of, *lines[:2]) for row, of in each])
        assert same_bits(ops.concretize_rows(a, image, *lines[:2]), alone)


def test_tensors_that_are_not_contiguous() -> None:
    a, image, *lines = inputs(6, 2, 20)
    turned = [line.T.contiguous().T for line in lines]
    want, got = a.clone(), a.clone()
    every_other = torch.stack([image, image], 1).flatten()[::2]
    assert same_bits(ops.relax_rows(got, every_other, *turned), ops.relax_rows(want, image, *lines))
    assert same_bits(got, want)
    low, high = turned[:2]
    assert same_bits(
        ops.concretize_rows(a.T.contiguous().T, image, low, high), ops.concretize_rows(a, image, low, high)
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"a": torch.zeros(3)}, InputError, r"a: expected \[R, n\], got \(3,\)"),
        ({"a": torch.zeros(3, 4, dtype=torch.float16)}, InputTypeError, "a: expected float32 or float64"),
        ({"a": [1.0]}, InputTypeError, "a: expected a tensor, got list"),
        ({"a": torch.zeros(4, 3).T}, InputError, "a: expected a contiguous tensor"),
        ({"image": torch.zeros(3)}, InputTypeError, "image: expected int64, got torch.float32"),
        ({"image": torch.zeros(2).long()}, InputError, r"image: expected shape \(3,\), got \(2,\)"),
        ({"image": torch.tensor([0, 1, 2])}, InputError, "image: expected 0 to 1, got 2 at 2"),
        ({"image": torch.tensor([-1, 1, 0])}, InputError, "image: expected 0 to 1, got -1 at 0"),
        ({"lower_slope": torch.zeros(2, 5)}, InputError, r"lower_slope: expected shape \(B, 4\), got \(2, 5\)"),
        ({"upper_intercept": torch.zeros(3, 4)}, InputError, "upper_intercept: expected shape"),
        (
            {"upper_slope": torch.zeros(2, 4).double()},
            InputTypeError,
            "upper_slope: expected float32 or float64 like a",
        ),
    ],
)
def test_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    names = ("lower_slope", "upper_slope", "lower_intercept", "upper_intercept")
    arguments: dict[str, Any] = {"a": torch.zeros(3, 4), "image": torch.zeros(3).long()}
    arguments |= {name: torch.zeros(2, 4) for name in names}
    with pytest.raises(error, match=f"relax_rows: {message}"):
        ops.relax_rows(**(arguments | change))


def test_the_raw_ops_check_too() -> None:
    a, image, low, high, *_ = inputs(3, 2, 4)
    with pytest.raises(RuntimeError, match=r"concretize_rows: high: expected \[B, 4\], got \[2, 3\]"):
        LEAST(a, image, low, high[:, :3].contiguous())
    with pytest.raises(RuntimeError, match="concretize_rows: a: expected a contiguous tensor"):
        LEAST(a.T.contiguous().T, image, low, high)
    with pytest.raises(RuntimeError, match="relax_rows: lower_intercept: expected the dtype of a"):
        RELAX(a, image, low, high, low.float(), high)
