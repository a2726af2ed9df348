"""Projections and steps on a GPU: exact constraints, agreement with the CPU; no op synchronizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from support.op_inputs import same_bits
from support.projection_inputs import (
    BOXES,
    KINDS,
    OPS,
    REALS,
    arguments,
    call,
    check_on,
    inputs,
    normal_values,
    per_row,
    rows_of,
    run,
)
from torch import Tensor

from pyrobust import ops

ROWS = 9
# Around the sizes where a row gets more threads, a block, a larger block.
SIZES = (1, 3, 4, 5, 10, 16, 17, 63, 64, 65, 256, 257, 1000, 1024, 1025, 3072, 4096, 4097, 20_000)
SHAPES = [(100_000, 10), (1000, 3072), (64, 150_528)]


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_every_kind_and_size(cuda: torch.device, op: str, kind: str, dtype: torch.dtype) -> None:
    for size in SIZES:
        for box in BOXES if op == "project_l1_ball_box" else BOXES[:1]:
            check_on(cuda, op, arguments(op, kind, size, dtype, ROWS, box))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", OPS)
def test_large_inputs(cuda: torch.device, op: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    v = normal_values(*shape, dtype=dtype)
    radius = v.double().abs().sum(1) * torch.linspace(0.001, 1.1, shape[0], dtype=torch.float64)
    radius /= {"project_l2_ball": math.sqrt(shape[1]), "project_linf_ball": shape[1]}.get(op, 1)
    case = (v, torch.full_like(v, 0.5), radius, -0.25, 1.0) if op == "project_l1_ball_box" else (v, radius)
    check_on(cuda, op, case, run(op, case))


@pytest.mark.parametrize("op", OPS)
def test_a_row_does_not_depend_on_the_other_rows(cuda: torch.device, op: str) -> None:
    for size in (10, 200, 1000, 3072, 5000):
        v, radius = (t.to(cuda) for t in rows_of("normal", 50, size, torch.float32))
        whole = call(op, v, radius)
        assert same_bits(call(op, v, radius), whole)
        parts = [call(op, a, b) for a, b in zip(v.split([1, 30, 19]), radius.split([1, 30, 19]), strict=True)]
        assert same_bits(torch.cat(parts), whole)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("op", OPS)
def test_bad_rows_become_nan(cuda: torch.device, op: str, dtype: torch.dtype) -> None:
    for size in (1, 10, 50, 200, 1000, 3072, 5000):
        v = normal_values(5, size, dtype=dtype)
        v[1, size // 2], v[2, -1], v[3, 0] = math.nan, math.inf, -math.inf
        z = call(op, v.to(cuda), 0.5).cpu()
        assert z.isnan().all(1).tolist() == z.isnan().any(1).tolist() == [False, True, True, True, False]
        radius = torch.tensor([0.5, -1.0, math.nan, math.inf, 2.0**961], dtype=torch.float64)
        z = call(op, normal_values(5, size, dtype=dtype).to(cuda), radius.to(cuda)).cpu()
        assert z.isnan().all(1).tolist() == z.isnan().any(1).tolist() == [False, True, True, True, True]


def test_examples_outside_the_box_become_nan(cuda: torch.device) -> None:
    for size in (1, 10, 200, 3072, 5000):
        x = torch.full((4, size), 0.5)
        x[1, 0], x[2, -1], x[3, size // 2] = 1.0000001, -1e-45, math.nan
        z = ops.project_l1_ball_box(normal_values(4, size).to(cuda), x.to(cuda), 0.5).cpu()
        assert z.isnan().all(1).tolist() == z.isnan().any(1).tolist() == [False, True, True, True]


# --- steps: the bits of the CPU


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("box", [(0.0, 1.0), (-0.5, 1.5)])
def test_steps_match_the_bits_of_the_cpu(cuda: torch.device, dtype: torch.dtype, box: tuple[float, float]) -> None:
    for size in SIZES:
        x_adv, gradient, x = inputs(ROWS, size, dtype, box)
        here = [t.to(cuda) for t in (x_adv, gradient, x)]
        step, epsilon, length = per_row(ROWS, 0.0, 0.2), per_row(ROWS, 0.0, 0.3), per_row(ROWS, 0.0, 2.0)
        for by, within in ((step, epsilon), (torch.tensor([0.01]), epsilon), (torch.tensor([0.01]), 8 / 255)):
            there = within.to(cuda) if isinstance(within, Tensor) else within
            got = ops.linf_step(*here, by.to(cuda), there, *box)
            assert same_bits(got.cpu(), ops.linf_step(x_adv, gradient, x, by, within, *box)), size
        for share in {1, max(1, size // 20), max(1, size // 3), size}:
            keep = torch.tensor([share, 1, size, share, 1, size, share, 1, size])
            got = ops.l1_step(*here, length.to(cuda), keep.to(cuda), *box)
            assert same_bits(got.cpu(), ops.l1_step(x_adv, gradient, x, length, keep, *box)), (size, share)


@pytest.mark.parametrize("shape", SHAPES)
def test_large_steps(cuda: torch.device, shape: tuple[int, int]) -> None:
    x_adv, gradient, x = inputs(*shape, torch.float32)
    here = [t.to(cuda) for t in (x_adv, gradient, x)]
    step, keep = per_row(shape[0], 0.0, 0.1), torch.arange(shape[0]) * (shape[1] - 1) // shape[0] + 1
    got = ops.linf_step(*here, step.to(cuda), 8 / 255)
    assert same_bits(got.cpu(), ops.linf_step(x_adv, gradient, x, step, 8 / 255))
    got = ops.l1_step(*here, step.to(cuda), keep.to(cuda))
    assert same_bits(got.cpu(), ops.l1_step(x_adv, gradient, x, step, keep))
    got = ops.linf_momentum_step(*here, here[2], step.to(cuda), 8 / 255)
    assert same_bits(got.cpu(), ops.linf_momentum_step(x_adv, gradient, x, x, step, 8 / 255))
    delta = ops.l1_step(*here, step.to(cuda), keep.to(cuda))
    want = ops.add_perturbation(here[2], ops.project_l1_ball_box(delta, here[2], 0.5))
    assert same_bits(ops.l1_step_in_ball(*here, step.to(cuda), keep.to(cuda), 0.5), want)
    z = 0.1 * gradient
    assert same_bits(ops.add_perturbation(here[2], z.to(cuda)).cpu(), ops.add_perturbation(x, z))


@pytest.mark.parametrize("dtype", REALS)
def test_elements_that_are_not_aligned(cuda: torch.device, dtype: torch.dtype) -> None:
    for size in (1, 2, 3, 5, 63, 1001):
        rows = [t.flatten() for t in inputs(1, size + 3, dtype)]
        for start in (0, 1, 2, 3):
            x_adv, gradient, x = (t[start : start + size].view(1, size) for t in rows)
            here = [t.to(cuda)[start : start + size].view(1, size) for t in rows]
            got = ops.linf_step(*here, torch.tensor([0.1], device=cuda), 0.2)
            assert same_bits(got.cpu(), ops.linf_step(x_adv, gradient, x, torch.tensor([0.1]), 0.2))
            got = ops.linf_momentum_step(*here, here[2], torch.tensor([0.1], device=cuda), 0.2)
            assert same_bits(got.cpu(), ops.linf_momentum_step(x_adv, gradient, x, x, torch.tensor([0.1]), 0.2))
            got = ops.add_perturbation(here[2], here[1])
            assert same_bits(got.cpu(), ops.add_perturbation(x, gradient))
            got = ops.project_l1_ball(here[1], 0.5)
            assert same_bits(got.cpu(), ops.project_l1_ball(here[1].clone(), 0.5).cpu())


def test_bad_steps_become_nan(cuda: torch.device) -> None:
    for size in (10, 3072):
        x_adv, gradient, x = (t.to(cuda) for t in inputs(4, size, torch.float32))
        step = torch.tensor([0.1, math.nan, math.inf, 0.1], device=cuda)
        z = ops.linf_step(x_adv, gradient, x, step, torch.tensor([0.1, 0.1, 0.1, -1.0], device=cuda))
        assert z.isnan().all(1).tolist() == z.isnan().any(1).tolist() == [False, True, True, True]
        keep = torch.tensor([1, 1, 0, size + 1], device=cuda)
        z = ops.l1_step(x_adv, gradient, x, torch.tensor([0.1, math.nan, 0.1, 0.1], device=cuda), keep)
        assert z.isnan().all(1).tolist() == z.isnan().any(1).tolist() == [False, True, True, True]
        outside = x.clone()
        outside[1, size // 2] = 1.5
        z = ops.linf_step(x_adv, gradient, outside, step[:1], 0.1)
        assert z.isnan().nonzero().tolist() == [[1, size // 2]]


# --- streams and devices


def every_op(v: Tensor, x_adv: Tensor, gradient: Tensor, x: Tensor, radius: Tensor, keep: Tensor) -> list[Tensor]:
    """Run all ops in sequence on arguments that are already on their device."""
    results = [op(v, radius) for op in (ops.project_simplex, ops.project_l1_ball)]
    results += [op(v, radius) for op in (ops.project_l2_ball, ops.project_linf_ball)]
    results.append(ops.project_l1_ball_box(v, x, radius))
    results.append(ops.add_perturbation(x, results[-1]))
    results.append(ops.linf_step(x_adv, gradient, x, radius, radius))
    results.append(ops.l1_step(x_adv, gradient, x, radius, keep))
    results.append(ops.linf_momentum_step(x_adv, gradient, x, x, radius, radius))
    results.append(ops.l1_step_in_ball(x_adv, gradient, x, radius, keep, radius))
    results.append(ops.sample_noise(x, [(0, 7, 0, 30), (1, 8, 5, 10)], sigma=0.25))
    counts = torch.zeros(1, x.shape[1] + 1, dtype=torch.int64, device=x.device)
    results.append(ops.count_votes(results[-1], keep - keep, counts))
    return results


def inputs_of_every_op(device: torch.device, size: int) -> tuple[Tensor, ...]:
    v, radius = rows_of("normal", 40, size, torch.float32)
    keep = torch.full((40,), max(1, size // 10))
    return tuple(t.to(device) for t in (v, *inputs(40, size, torch.float32), radius, keep))


def for_sizes(device: torch.device, compare: Callable[[tuple[Tensor, ...]], None]) -> None:
    for size in (10, 50, 200, 1000, 3072, 20_000):
        compare(inputs_of_every_op(device, size))


def test_ops_follow_the_current_stream(cuda: torch.device) -> None:
    def compare(tensors: tuple[Tensor, ...]) -> None:
        want = every_op(*tensors)
        late = [torch.zeros_like(t) for t in tensors]
        late[-1].fill_(1)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)  # on another stream the ops would have read the zeros
            for to, value in zip(late, tensors, strict=True):
                to.copy_(value)
            got = every_op(*late)
        stream.synchronize()
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))

    for_sizes(cuda, compare)


def test_ops_do_not_wait_for_the_device(cuda: torch.device) -> None:
    def compare(tensors: tuple[Tensor, ...]) -> None:
        every_op(*tensors)  # loads the kernels, and the allocator has the memory
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream()
        torch.cuda._sleep(1_000_000_000)
        torch.cuda.set_sync_debug_mode("error")
        try:
            every_op(*tensors)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert not stream.query()
        stream.synchronize()

    for_sizes(cuda, compare)


def test_devices_other_than_the_current_one(cuda: torch.device, second_cuda: torch.device) -> None:
    current = torch.cuda.current_device()

    def compare(tensors: tuple[Tensor, ...]) -> None:
        got, want = every_op(*(t.to(second_cuda) for t in tensors)), every_op(*tensors)
        assert all(z.device == second_cuda for z in got)
        assert all(same_bits(a.cpu(), b.cpu()) for a, b in zip(got, want, strict=True))

    for_sizes(cuda, compare)
    assert torch.cuda.current_device() == current != second_cuda.index
