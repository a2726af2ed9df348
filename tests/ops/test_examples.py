"""put_rows and count_changed against the reference."""

from __future__ import annotations

import pytest
import torch
from support.op_inputs import LAYOUTS, REALS, images, same_bits
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError

SHAPES = [(1,), (7,), (4, 0), (0, 4), (5, 1), (6, 3073), (3, 70000), (9, 3, 5, 7), (2, 2, 2, 2, 2)]


def flags(rows: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < 0.5


def pair(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return two batches that agree in half of their coordinates."""
    a, b = images(*shape, dtype=dtype, seed=1), images(*shape, dtype=dtype, seed=2)
    return a, torch.where(images(*shape, seed=3) < 0.5, a, b)


@pytest.mark.parametrize("dtype", REALS)
def test_results_match_the_reference(dtype: torch.dtype, threads: int) -> None:
    for shape in SHAPES:
        source, target = pair(shape, dtype)
        for chosen in (flags(shape[0]), torch.zeros(shape[0]).bool(), torch.ones(shape[0]).bool()):
            mine, theirs = target.clone(), target.clone()
            assert ops.put_rows(chosen, source, mine) is mine
            assert same_bits(mine, reference.put_rows(chosen, source, theirs))
        if shape != (1,) and shape != (7,):
            got = ops.count_changed(source, target)
            assert got.dtype == torch.int64
            assert torch.equal(got, reference.count_changed(source, target))


@pytest.mark.parametrize("of_source", LAYOUTS)
@pytest.mark.parametrize("of_target", [*LAYOUTS, None])
def test_layouts(of_target: torch.memory_format | None, of_source: torch.memory_format) -> None:
    """Include a target whose examples are not contiguous, and a target without its last examples."""
    source, target = pair((9, 3, 5, 7), torch.float32)
    source = source.contiguous(memory_format=of_source)
    wanted = torch.where(flags(9).view(-1, 1, 1, 1), source, target)
    target = (
        target.transpose(0, 1).contiguous().transpose(0, 1)
        if of_target is None
        else target.contiguous(memory_format=of_target)
    )
    assert torch.equal(ops.count_changed(source, target), reference.count_changed(source, target))
    strides = target.stride()
    last = target[6:].clone()
    ops.put_rows(flags(9)[:6], source[:6], target[:6])
    assert target.stride() == strides
    assert torch.equal(target[:6], wanted[:6])
    assert torch.equal(target[6:], last)


def test_special_values() -> None:
    x_adv = torch.tensor([[0.0, -0.0, torch.nan, torch.inf, 1e-45]])
    x = torch.tensor([[-0.0, -0.0, torch.nan, torch.inf, 0.0]])
    assert ops.count_changed(x_adv, x).tolist() == [2]  # NaN != NaN
    assert ops.count_changed(x_adv.half(), x.half()).tolist() == [1]
    target = torch.zeros(1, 5)
    assert same_bits(ops.put_rows(torch.tensor([True]), x_adv, target), x_adv)


X, YES = torch.zeros(3, 4), torch.tensor([True, False, True])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((YES, X, 1.0), InputTypeError, r"put_rows: target: expected a tensor, got float"),
        ((YES, X.int(), X), InputTypeError, r"put_rows: source: expected a float tensor, got torch.int32"),
        ((YES, X[:2], X), InputError, r"put_rows: source: expected target's \(3, 4\), .* on cpu, got \(2, 4\), .*"),
        ((YES, X.double(), X), InputError, r"put_rows: source: expected target's .*, got .*, torch.float64 on cpu"),
        ((YES.int(), X, X), InputTypeError, r"put_rows: chosen: expected a bool tensor, got torch.int32"),
        (([True], X, X), InputTypeError, r"put_rows: chosen: expected a bool tensor, got list"),
        ((YES[:2], X, X), InputError, r"put_rows: chosen: expected shape \(3,\), got \(2,\)"),
        ((X[:2], X), InputError, r"count_changed: x_adv: expected the shape of x, \(3, 4\), got \(2, 4\)"),
        ((X, X.long()), InputTypeError, r"count_changed: x: expected a float tensor, got torch.int64"),
        ((X[0, 0], X[0, 0]), InputError, r"count_changed: x: expected \[B, ...\], got a scalar"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"^{message}$"):
        (ops.put_rows if len(arguments) == 3 else ops.count_changed)(*arguments)


@pytest.mark.parametrize("dtype", REALS)
def test_cuda_matches_the_cpu(cuda: torch.device, dtype: torch.dtype) -> None:
    for shape in SHAPES[2:]:
        source, target = pair(shape, dtype)
        chosen = flags(shape[0])
        got = ops.put_rows(chosen.to(cuda), source.to(cuda), target.to(cuda))
        assert torch.equal(ops.count_changed(source.to(cuda), target.to(cuda)).cpu(), ops.count_changed(source, target))
        assert same_bits(got.cpu(), ops.put_rows(chosen, source, target))
