"""CUDA kernels of rows, run on the host by fibers, and of elements and blocks: the CPU kernels' checks."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from ops import test_square_window as window
from support.emulation import ELEMENT_OPS, Blocks, Elements, Rows, build
from support.op_inputs import same_bits
from support.projection_inputs import BOXES, KINDS, OPS, PLAIN, REALS, arguments, check, faults, inputs, per_row
from torch import Tensor

from pyrobust import reference
from pyrobust.attacks.black_box.square_windows import pattern
from pyrobust.checks import NORMS

# One or two per group size; the largest rereads its row in every pass.
SIZES = [1, 3, 16, 17, 64, 100, 300, 1025]
LARGEST = 4100
FEW = 4


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", KINDS)
def test_projections(rows: Rows, kind: str, dtype: torch.dtype) -> None:
    every = 2 if dtype.itemsize > 2 else 4
    sizes = SIZES[list(KINDS).index(kind) % every :: every]
    for i, size in enumerate([*sizes, LARGEST] if kind in ("normal", "sums that round") else sizes):
        for op in OPS:
            for ends in (BOXES[0], BOXES[1 + i % 3]) if op == "project_l1_ball_box" else BOXES[:1]:
                operands = arguments(op, kind, size, dtype, FEW, ends)
                check(op, operands, rows.project(op, *operands))


@pytest.mark.parametrize("dtype", REALS)
def test_l1_step_matches_the_reference(rows: Rows, dtype: torch.dtype) -> None:
    for size in [*SIZES, LARGEST]:
        x_adv, gradient, x = inputs(FEW, size, dtype, seed=size)
        gradient[1] = 0
        gradient[2] = 0.5
        for share in {1, max(1, size // 20), size}:
            keep = torch.tensor([share, 1, max(1, size // 2), size])
            step = per_row(FEW, 0.0, 2.0, size)
            want = reference.l1_step(x_adv, gradient, x, step, keep)
            assert torch.equal(rows.l1_step(x_adv, gradient, x, step, keep), want), (size, share)


@pytest.mark.parametrize("dtype", REALS)
def test_hyperplane_step_matches_the_reference(rows: Rows, dtype: torch.dtype) -> None:
    sizes = [*itertools.product(SIZES, (0.0, 0.3, 1.5)), (LARGEST, 0.3)]
    for norm, (size, share) in itertools.product(NORMS, sizes):
        arguments = window.planes(FEW, size, dtype, share, seed=size)
        want = reference.hyperplane_step(*arguments, norm)
        got = rows.hyperplane_step(*arguments, norm)
        torch.testing.assert_close(got, want, rtol=0, atol=window.PLANE_ERROR[dtype], msg=f"{norm} {size} {share}")


@pytest.mark.parametrize("dtype", REALS)
def test_square_window_matches_the_reference(rows: Rows, dtype: torch.dtype) -> None:
    radius = torch.linspace(0, 3, FEW, dtype=torch.float64)
    cases = (*(case for case in window.CASES if len(case[0]) == 3), ((2, 24, 24), (7, 7)))
    layouts = (torch.contiguous_format, torch.channels_last)
    for norm, (shape, sides), layout in itertools.product(("l2", "l1"), cases, layouts):
        arguments = *window.proposal(shape, dtype, FEW, layout), pattern(sides, norm), radius, sides, norm
        want, got = reference.square_window(*arguments), rows.square_window(*arguments)
        torch.testing.assert_close(got, want, rtol=0, atol=window.ERROR[dtype], msg=f"{norm} {shape} {sides}")


@pytest.mark.parametrize("size", [10, 50, 200, 1000, 3072, 5000])
def test_bad_rows_are_nan_and_the_others_are_not(rows: Rows, size: int) -> None:
    v, x = torch.randn(3, size, generator=torch.Generator().manual_seed(size)), torch.full((3, size), 0.5)
    bad = v.clone()
    bad[1, size // 2], bad[2, -1] = math.nan, math.inf
    radii = torch.tensor([0.5, -1.0, math.nan])
    outside = x.clone()
    outside[1, 0], outside[2, -1] = 1.5, math.nan
    cases = [(op, operands) for op in PLAIN for operands in ((bad, 0.5), (v, radii))]
    cases += [("project_l1_ball_box", operands) for operands in ((bad, x, 0.5), (v, x, radii), (v, outside, 0.5))]
    for op, operands in cases:
        assert rows.project(op, *operands).isnan().sum(1).tolist() == [0, size, size], op


def test_sums_are_compared_exactly(rows: Rows) -> None:
    """Use rows whose sum equals the radius up to rounding, with terms of all magnitudes: too close for rounded sums."""
    draw = torch.Generator().manual_seed(0)
    seen = set()
    for trial in range(3000):
        size = int(torch.randint(1, 40, (1,), generator=draw))
        a = torch.randn(size, generator=draw, dtype=torch.float64)
        if trial % 3 == 1:
            a = a.sign() * 2.0 ** torch.randint(-1070, 900, (size,), generator=draw).double()
        if trial % 3 == 2:
            a[1:] = 2.0 ** -torch.randint(50, 120, (size - 1,), generator=draw).double()
        squares = trial % 2 == 0
        values = a.abs().tolist()
        radius = min(math.hypot(*values) if squares else math.fsum(values), 2.0**960)
        for near in (radius, math.nextafter(radius, math.inf), math.nextafter(radius, 0.0)):
            mine, exact = rows.at_most(a, near, squares=squares)
            assert mine == exact, (trial, near)
            seen.add(exact)
    assert seen == {False, True}


@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16])
def test_truncation_by_bits(rows: Rows, target: torch.dtype) -> None:
    """Check every 16-bit float, or float32 numbers with as many leading bits, and their float64 neighbours."""
    words = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    format = torch.float16 if target == torch.float16 else torch.bfloat16
    exact = words.view(format).double()
    exact = exact[exact.isfinite()]
    far = torch.tensor(math.inf, dtype=torch.float64)
    a = torch.cat([exact, exact.nextafter(far), exact.nextafter(-far), exact * (1 + 2.0**-12)]).contiguous()
    assert len(a) > 200_000
    assert rows.wrong_truncations(target, a) == 0


def test_rounding_to_nearest_is_detected(tmp_path: Path) -> None:
    wrong = Rows(build("rows.cpp", tmp_path, mutation="rounds to nearest"))
    for op, fault in (("project_linf_ball", "outside"), ("project_l1_ball_box", "outside the box")):
        operands = arguments(op, "normal", 100, torch.float32, FEW, BOXES[1])
        assert faults(op, operands, wrong.project(op, *operands))[fault].any()
    assert wrong.wrong_truncations(torch.float32, torch.rand(100, dtype=torch.float64)) > 0


def test_an_inexact_sum_is_detected(tmp_path: Path) -> None:
    wrong = Rows(build("rows.cpp", tmp_path, mutation="ends sums too early"))
    operands = arguments("project_l1_ball", "by less than a rounding", 100, torch.float32)
    assert faults("project_l1_ball", operands, wrong.project("project_l1_ball", *operands))["outside"].any()
    assert wrong.at_most(torch.ones(3, dtype=torch.float64), 3.0, squares=False) == (True, True)
    assert wrong.at_most(torch.tensor([1.0, 2.0**-60]).double(), 1.0, squares=False) == (True, False)


def test_a_thread_out_of_step_is_detected(tmp_path: Path) -> None:
    wrong = Rows(build("rows.cpp", tmp_path, mutation="a thread out of step"))
    with pytest.raises(AssertionError, match="threads"):
        wrong.project("project_l1_ball", *arguments("project_l1_ball", "by less than a rounding", 100, torch.float32))


# --- elements


BOX = (-0.1, 0.9)


def expected(
    op: str, x_adv: Tensor, gradient: Tensor, x: Tensor, before: Tensor, step: Tensor, epsilon: Tensor
) -> Tensor:
    if op == "add_perturbation":
        return reference.add_perturbation(x, gradient, *BOX)
    if op == "linf_step":
        return reference.linf_step(x_adv, gradient, x, step, epsilon, *BOX)
    return reference.linf_momentum_step(x_adv, gradient, x, before, step, epsilon, *BOX, share=0.75)


@pytest.mark.parametrize("dtype", REALS)
def test_any_place_in_memory_and_any_rows(elements: Elements, dtype: torch.dtype) -> None:
    """Vary alignment, rows that begin within a pack, shared or per-row radii, and packs per thread."""
    places = itertools.cycle(((0, 1), (1, 3), (4, 2)))  # not in step with the four kinds of radii
    for op, n, rows in itertools.product(ELEMENT_OPS, (1, 2, 3, 4, 5, 7, 64, 1001), (1, 17)):
        x_adv, gradient, x = inputs(rows, n, dtype, BOX, seed=n)
        before = inputs(rows, n, dtype, BOX, seed=n + 1)[0]
        for per_row_step, per_row_epsilon in itertools.product((False, True), repeat=2):
            step = per_row(rows if per_row_step else 1, 0.0, 0.2, 1)
            epsilon = per_row(rows if per_row_epsilon else 1, 0.0, 0.3, 2)
            case = (x_adv, gradient, x, before, step, epsilon)
            want = expected(op, x_adv, gradient, x, before, step.expand(rows), epsilon.expand(rows))
            offset, blocks = next(places)
            got = elements.run(op, *case, BOX, offset=offset, blocks=blocks)
            assert same_bits(got, want), (op, n, rows, offset)


@pytest.mark.parametrize("op", ELEMENT_OPS)
def test_bad_elements_and_rows_are_nan(elements: Elements, op: str) -> None:
    x_adv, gradient, x = inputs(4, 5, torch.float32, BOX)
    x[0, 0], x[3, 4] = 1.5, torch.nan
    step, epsilon = torch.tensor([0.1, torch.inf, 0.1, 0.1]), torch.tensor([0.1, 0.1, -1.0, 0.1])
    got = elements.run(op, x_adv, gradient, x, x_adv, step, epsilon, BOX, offset=0, blocks=1)
    rows = [1, 0, 0, 1] if op == "add_perturbation" else [1, 5, 5, 1]
    assert got.isnan().sum(1).tolist() == rows


# --- blocks

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def lines_of(images: int, n: int, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(4, images, n, generator=generator, dtype=torch.float64))


def coefficients(shape: tuple[int, ...], seed: int) -> Tensor:
    """Draw coefficients of both signs and zeros."""
    a = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a[..., ::5] = 0
    return a


@pytest.mark.parametrize("n", [0, 1, 31, 33, 255, 257, 600])
def test_relax_rows(blocks: Blocks, n: int) -> None:
    for lanes, (rows, images) in itertools.product((32, 256), ((1, 1), (19, 3), (40, 2))):
        a, image = coefficients((rows, n), n), torch.arange(rows) % images
        lines = lines_of(images, n, n + 1)
        got, want = a.clone(), a.clone()
        torch.testing.assert_close(
            blocks.relax_rows(lanes, got, image, *lines), reference.relax_rows(want, image, *lines), **CLOSE
        )
        assert same_bits(got, want)  # one product each
        least = blocks.relax_rows(lanes, a, image, *lines[2:])
        torch.testing.assert_close(least, reference.concretize_rows(a, image, *lines[2:]), **CLOSE)


@pytest.mark.parametrize("lanes", [32, 256])
def test_rows_of_no_image_and_nan(blocks: Blocks, lanes: int) -> None:
    a = coefficients((20, 40), 1)
    a[7, 3] = torch.nan
    image = torch.arange(20) % 2
    image[4], image[11] = -1, 2
    before = a.clone()
    constant = blocks.relax_rows(lanes, a, image, *lines_of(2, 40, 2))
    assert constant.isnan().nonzero()[:, 0].tolist() == [4, 7, 11]
    assert torch.equal(a[[4, 11]], before[[4, 11]]), "relaxations of an image out of range were read"


@pytest.mark.parametrize("n", [1, 40, 255, 300])
def test_relax_coefficients_and_gradients(blocks: Blocks, n: int) -> None:
    for batch, rows, slope in ((1, 1, 0.0), (3, 4, 0.0), (2, 5, 0.125)):
        a = coefficients((batch, rows, n), n)
        low, high = torch.randn(2, batch, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        lower, upper = torch.minimum(low, high), torch.maximum(low, high)
        inputs = tuple(tensor.clone().requires_grad_() for tensor in (a, lower, upper))
        want = reference.relax_coefficients(*inputs, slope)
        for got, expected in zip(blocks.relax_coefficients(a, lower, upper, slope), want, strict=True):
            torch.testing.assert_close(got, expected.detach(), **CLOSE)
        gradients = coefficients((batch, rows, n), n + 1), coefficients((batch, rows), n + 2)
        expected_gradients = torch.autograd.grad(want, inputs, gradients)
        result = blocks.relax_coefficients_backward(*gradients, a, lower, upper, slope)
        for got, expected in zip(result, expected_gradients, strict=True):
            torch.testing.assert_close(got, expected, **CLOSE)
