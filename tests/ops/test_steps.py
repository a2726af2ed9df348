"""Attack steps: the reference's bits, inside ball and box."""

from __future__ import annotations

import functools
import sys
from fractions import Fraction
from typing import Any

import pytest
import torch
from support.projection_inputs import REALS, STEP_SIZES, inputs, near, per_row
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError
from pyrobust.ops import linf_step

SHARES = (0.7, 0.0, 1.0)


# --- linf_step and linf_momentum_step


@functools.cache
def linf_case(size: int, dtype: torch.dtype, box: tuple[float, float]) -> tuple[tuple[Any, ...], list[Tensor]]:
    """Return the arguments of the step with momentum, and the reference's results: without it, and for each share."""
    x_adv, gradient, x = inputs(6, size, dtype, box, seed=size)
    before = inputs(6, size, dtype, box, seed=size + 1)[0]
    gradient[0, 0] = torch.nan
    arguments = (x_adv, gradient, x, before, per_row(6, 0.0, 0.2, 1), per_row(6, 0.0, 0.3, 2), *box)
    wanted = [reference.linf_step(*arguments[:3], *arguments[4:])]
    wanted += [reference.linf_momentum_step(*arguments, share=share) for share in SHARES]
    for want in wanted:
        assert near(want, x, arguments[5])
        assert ((want.double() >= box[0]) & (want.double() <= box[1])).all()
    return arguments, wanted


BOXES = [(0.0, 1.0), (-0.5, 0.75), (0.0, 255.0)]


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("box", BOXES)
def test_linf_steps_match_the_reference(
    box: tuple[float, float], dtype: torch.dtype, simd_level: str, threads: int
) -> None:
    for size in STEP_SIZES[(BOXES.index(box) + REALS.index(dtype)) % 3 :: 3]:  # each dtype has every size in a box
        arguments, (plain, *wanted) = linf_case(size, dtype, box)
        assert torch.equal(ops.linf_step(*arguments[:3], *arguments[4:]), plain), size
        for share, want in zip(SHARES, wanted, strict=True):
            got = ops.linf_momentum_step(*arguments, share=share)
            assert torch.equal(got, want), (size, share)
        assert torch.equal(got, plain)  # without momentum


def test_linf_step_by_hand() -> None:
    x = torch.tensor([[0.5, 0.5, 0.0, 1.0, 0.25]])
    gradient = torch.tensor([[3.0, -1e-30, -1.0, 1.0, 0.0]])
    got = ops.linf_step(x, gradient, x, torch.tensor([0.25]), 0.125)
    assert got.tolist() == [[0.625, 0.375, 0.0, 1.0, 0.25]]


def test_linf_momentum_step_by_hand() -> None:
    x = torch.full((1, 4), 0.5)
    gradient, before = torch.tensor([[1.0, -1.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.25, 0.75, 0.0]])
    got = ops.linf_momentum_step(x, gradient, x, before, torch.tensor([0.25]), 0.1875)
    # 0.5 + 0.75·(±0.1875 or 0) + 0.25·(0.5 - before), at most 0.1875 from 0.5
    assert got.tolist() == [[0.640625, 0.421875, 0.4375, 0.6875]]


# --- l1_step


@pytest.mark.parametrize("dtype", REALS)
def test_l1_step_matches_the_reference(dtype: torch.dtype, simd_level: str, threads: int) -> None:
    for size in STEP_SIZES:
        x_adv, gradient, x = inputs(7, size, dtype, seed=size)
        gradient[1] = 0
        gradient[2] = 0.5
        for share in {1, min(2, size), max(1, size // 20), max(1, size // 3), size}:
            keep = torch.tensor([share, 1, size, max(1, size // 2), share, 1, size])
            step = per_row(7, 0.0, 2.0, size)
            got = ops.l1_step(x_adv, gradient, x, step, keep)
            want = reference.l1_step(x_adv, gradient, x, step, keep)
            assert torch.equal(got, want), (size, share)


def test_l1_step_by_hand() -> None:
    x, gradient = torch.full((1, 6), 0.5), torch.tensor([[1.0, -4.0, 4.0, 0.5, 0.0, -2.0]])
    directions = {1: [0, -1, 1, 0, 0, 0], 2: [0, -1, 1, 0, 0, 0], 3: [0, -1, 1, 0, 0, -1], 6: [1, -1, 1, 1, 0, -1]}
    for keep, sign in directions.items():
        got = ops.l1_step(x, gradient, x, torch.tensor([3.0]), torch.tensor([keep]))
        torch.testing.assert_close(got, torch.tensor([sign]) * 3.0 / sum(map(abs, sign)))


def test_l1_step_skips_coordinates_that_cannot_move() -> None:
    x, gradient = torch.full((1, 4), 0.5), torch.tensor([[4.0, -3.0, 2.0, -1.0]])
    x_adv = torch.tensor([[1.0, 0.0, 0.5, 0.25]])
    got = ops.l1_step(x_adv, gradient, x, torch.tensor([1.0]), torch.tensor([1]))
    assert (got - (x_adv - x)).tolist() == [[0.0, 0.0, 1.0, 0.0]]
    got = ops.l1_step(x_adv, gradient, x, torch.tensor([1.0]), torch.tensor([1]), -1.0, 2.0)
    assert (got - (x_adv - x)).tolist() == [[1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", REALS)
def test_skewed_samples_do_not_fool_the_selection(dtype: torch.dtype, simd_level: str) -> None:
    """Use rows whose every 48th element, which the selection samples, differs from the others."""
    draw = torch.Generator().manual_seed(0)
    for factor in (1e-3, 1e3):
        gradient = torch.randn(3, 3072, generator=draw)
        gradient[:, ::48] *= factor
        gradient = gradient.to(dtype)
        x = torch.full((3, 3072), 0.5, dtype=dtype)
        for keep in (1, 30, 64, 65, 300, 700, 3072):
            arguments = (x, gradient, x, torch.tensor([1.0]), torch.tensor([keep]))
            assert torch.equal(ops.l1_step(*arguments), reference.l1_step(*arguments)), (factor, keep)


# --- torch


def test_layouts() -> None:
    x_adv, gradient, x = (t.view(4, 3, 5, 5) for t in inputs(4, 75, torch.float32))
    step, epsilon, keep = per_row(4, 0, 1), per_row(4, 0, 1), torch.tensor([1, 5, 20, 75])

    def results(x_adv: Tensor, gradient: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return (
            ops.linf_step(x_adv, gradient, x, step, epsilon),
            ops.linf_momentum_step(x_adv, gradient, x, x, step, epsilon),
            ops.l1_step(x_adv, gradient, x, step, keep),
            ops.l1_step_in_ball(x_adv, gradient, x, step, keep, epsilon),
        )

    want = results(x_adv, gradient, x)
    last = [t.contiguous(memory_format=torch.channels_last) for t in (x_adv, gradient, x)]
    for tensors in (last, [last[0], gradient, x], [t[:, :, ::1] for t in (x_adv, gradient, x)]):
        assert all(torch.equal(a, b) for a, b in zip(results(*tensors), want, strict=True))
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in results(*last))


def test_no_examples_and_no_gradient() -> None:
    none, step, counts = torch.zeros(0, 3), torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    assert ops.linf_step(none, none, none, step, 1.0).shape == (0, 3)
    assert ops.l1_step(none, none, none, step, counts).shape == (0, 3)
    assert ops.l1_step_in_ball(none, none, none, step, counts, 1.0).shape == (0, 3)
    assert ops.linf_momentum_step(none, none, none, none, step, 1.0).shape == (0, 3)
    x = torch.full((2, 3), 0.5, requires_grad=True)
    assert not ops.linf_step(x, x, x, torch.tensor([0.1]), 0.1).requires_grad


# --- wrong arguments

X = torch.full((2, 3), 0.5)
MATRIX: dict[str, Any] = {"x_adv": X, "gradient": X, "x": X, "step": torch.tensor([0.1])}
GOOD: dict[str, dict[str, Any]] = {
    "linf_step": {**MATRIX, "epsilon": 0.1},
    "linf_momentum_step": {**MATRIX, "epsilon": 0.1, "before": X},
    "l1_step": {**MATRIX, "keep": torch.tensor([1])},
    "l1_step_in_ball": {**MATRIX, "keep": torch.tensor([1]), "epsilon": 0.1},
}
# Of every op that has the argument.
BAD_VALUES: list[tuple[str, str, Any]] = [
    ("x", "x", torch.full((2, 3), 1.5)),
    ("x", "x(_adv)?", torch.full((2, 3), torch.nan)),
    *(("x_adv", "x_adv", torch.zeros(shape)) for shape in ((2, 4), (3, 3))),
    ("before", "before", torch.zeros(2, 4)),
    *(("step", "step", torch.tensor(values)) for values in ([0.0, 0.0, 0.0], [torch.nan], [torch.inf])),
    *(("epsilon", "radius", value) for value in (-1.0, torch.tensor([0.1, torch.nan]))),
    *(("keep", "keep", torch.tensor(counts)) for counts in ([0], [4], [1, 2, 3])),
    *(("share", "share", value) for value in (1.5, torch.nan)),
    *(("upper", "lower, upper", value) for value in (-0.5, torch.nan)),
]
BAD_TYPES: list[tuple[str, str, Any]] = [
    *(("gradient", "gradient", value) for value in (torch.zeros(2, 3, dtype=torch.float64), [1.0])),
    ("x", "x", torch.zeros(2, 3, dtype=torch.int64)),
    ("before", "before", torch.zeros(2, 3).half()),
    ("keep", "keep", torch.tensor([1.0])),
]


@pytest.mark.parametrize("op", GOOD)
def test_bad_arguments(op: str) -> None:
    for error, cases in ((InputError, BAD_VALUES), (InputTypeError, BAD_TYPES)):
        for argument, named, value in cases:
            outside = op == "l1_step" and argument == "x" and error is InputError  # which it does not look at
            if outside or argument not in (*GOOD[op], "upper", *(["share"] * (op == "linf_momentum_step"))):
                continue
            with pytest.raises(error, match=rf"^{op}: {named}: "):
                getattr(ops, op)(**GOOD[op] | {argument: value})


def test_an_iterate_of_nan_has_no_step_in_the_ball() -> None:
    with pytest.raises(InputError, match=r"^l1_step_in_ball: x_adv: "):
        ops.l1_step_in_ball(**GOOD["l1_step_in_ball"] | {"x_adv": torch.full((2, 3), torch.nan)})


# --- l1_step_in_ball

cached_inputs = functools.cache(inputs)


@pytest.mark.parametrize("dtype", REALS)
def test_l1_step_in_ball_matches_the_separate_ops(dtype: torch.dtype, simd_level: str, threads: int) -> None:
    """Compare bits at all row lengths: a few rows, many rows in a block, and a partial block."""
    box = (-0.5, 0.75)
    for rows, size in ((1, 1), (7, 33), (3, 3072), (23, 3072), (501, 100), (2, 50000)):
        x_adv, gradient, x = cached_inputs(rows, size, dtype, box, seed=size)
        step, epsilon = per_row(rows, 0.0, 2.0, 1), per_row(rows, 0.0, 1.5, 2)
        keep = torch.full((rows,), max(1, size // 20))
        got = ops.l1_step_in_ball(x_adv, gradient, x, step, keep, epsilon, *box)
        delta = ops.l1_step(x_adv, gradient, x, step, keep, *box)
        z = ops.project_l1_ball_box(delta, x, epsilon, *box)
        assert torch.equal(got, ops.add_perturbation(x, z, *box)), (rows, size)


@pytest.mark.parametrize("dtype", REALS)
def test_l1_step_in_ball_matches_the_reference(dtype: torch.dtype) -> None:
    x_adv, gradient, x = inputs(20, 300, dtype)
    step, keep = per_row(20, 0.0, 2.0, 1), torch.full((20,), 15)
    for epsilon in (0.0, 0.25, 2.0):
        got = ops.l1_step_in_ball(x_adv, gradient, x, step, keep, epsilon)
        want = reference.l1_step_in_ball(x_adv, gradient, x, step, keep, epsilon)
        torch.testing.assert_close(got, want, rtol=0, atol=max(4 * torch.finfo(dtype).eps, 1e-12))
        moved = zip(got.double().tolist(), x.double().tolist(), strict=True)
        for row, clean in moved:
            spent = sum(abs(Fraction(a) - Fraction(b)) for a, b in zip(row, clean, strict=True))
            assert spent <= Fraction(epsilon)
        assert ((got.double() >= 0) & (got.double() <= 1)).all()


def test_usual_calls_take_few_calls_of_python() -> None:
    """The calls around the op in one step of one example, counted rather than timed."""
    x = torch.rand(1, 3, 8, 8)
    step, epsilon = torch.full((1,), 0.1, dtype=torch.float64), torch.full((1,), 0.25, dtype=torch.float64)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    linf_step(x, x, x, step, epsilon)
    sys.setprofile(count)
    try:
        linf_step(x, x, x, step, epsilon)
    finally:
        sys.setprofile(None)
    assert calls <= 40  # 87 with the checks that name every reason
