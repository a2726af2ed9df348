"""logit_loss and logit_verdict against the reference, and their argument errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from op_inputs import SPECIAL, same_bits
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError
from pyrobust.ops.logits import LOSSES

LOSS, VERDICT = torch.ops.pyrobust.logit_loss, torch.ops.pyrobust.logit_verdict
EACH = pytest.mark.parametrize("loss", LOSSES)
BOTH_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
CLOSE_TO = {torch.float32: {"rtol": 1e-6, "atol": 1e-7}, torch.float64: {"rtol": 1e-12, "atol": 1e-14}}


def inputs(rows: int, classes: int, kind: str, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return (logits, y, target)."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=draw, dtype=torch.float64) * 10
    if kind == "ties":
        logits = torch.randint(3, (rows, classes), generator=draw).double()
    if kind == "special":
        rare = torch.rand(rows, classes, generator=draw) < 1.5 / classes
        logits = torch.where(rare, SPECIAL[torch.randint(len(SPECIAL), (rows, classes), generator=draw)], logits)
    y, target = (torch.randint(classes, (rows,), generator=draw) for _ in "yt")
    return logits.to(dtype), y, target


def assert_same(got: tuple[Tensor, ...], want: tuple[Tensor, ...], *, rtol: float, atol: float) -> None:
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)


@EACH
@BOTH_DTYPES
@pytest.mark.parametrize("kind", ["plain", "ties", "special"])
def test_losses_match_the_reference(kind: str, dtype: torch.dtype, loss: str, threads: int) -> None:
    for rows, classes in ((1, 4), (0, 5), (150, 10), (70, 7), (10, 1000)):
        logits, y, target = inputs(rows, classes, kind, dtype, seed=classes)
        before = logits.clone()
        got = ops.logit_loss(logits.requires_grad_(), y, target, loss)
        assert not any(result.requires_grad for result in got)
        assert same_bits(logits.detach_(), before)
        assert (got.value.dtype, got.slope.dtype, got.size.dtype) == (torch.float64, dtype, torch.float64)
        assert_same(got, reference.logit_loss(logits, y, target, loss), **CLOSE_TO[dtype])
        wide = torch.cat([logits, logits], 1)[:, ::2]
        if classes % 2 == 0 and rows:
            assert_same(
                ops.logit_loss(wide, y % (classes // 2), target % (classes // 2), loss),
                ops.logit_loss(wide.contiguous(), y % (classes // 2), target % (classes // 2), loss),
                rtol=0,
                atol=0,
            )


@BOTH_DTYPES
@pytest.mark.parametrize("kind", ["plain", "ties", "special"])
def test_verdicts_match_the_reference(kind: str, dtype: torch.dtype, threads: int) -> None:
    for rows, classes in ((1, 1), (0, 5), (1000, 3), (100, 10), (10, 1000)):
        logits, y, _ = inputs(rows, classes, kind, dtype, seed=classes)
        for targeted in (False, True):
            for tolerance in (0.0, 1e-3, 0.3):
                for both in (False, True):
                    options = {"tolerance": tolerance, "both": both}
                    got = ops.logit_verdict(logits, y, targeted, **options)
                    assert torch.equal(got, reference.logit_verdict(logits, y, targeted, **options))
    assert not ops.logit_verdict(logits.requires_grad_(), y).requires_grad


@given(data=st.data())
def test_any_row(data: st.DataObject) -> None:
    classes = data.draw(st.integers(4, 9))
    number = st.floats(width=32) | st.sampled_from([0.0, 1.0, 2.0])
    logits = torch.tensor([data.draw(st.lists(number, min_size=classes, max_size=classes))])
    y, target = (torch.tensor([data.draw(st.integers(0, classes - 1))]) for _ in "yt")
    for loss in LOSSES:
        got = ops.logit_loss(logits, y, target, loss)
        assert_same(got, reference.logit_loss(logits, y, target, loss), rtol=1e-6, atol=1e-7)
    assert torch.equal(ops.logit_verdict(logits, y), reference.logit_verdict(logits, y))


LOGITS, Y = torch.zeros(3, 4), torch.tensor([0, 1, 3])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": [1.0]}, InputTypeError, r"logits: expected a tensor, got list"),
        ({"logits": LOGITS.half()}, InputTypeError, r"logits: expected float32 or float64, got torch.float16"),
        ({"logits": LOGITS[0]}, InputError, r"logits: expected \[B, K\] with K >= 1, got \(4,\)"),
        ({"logits": LOGITS[:, :0]}, InputError, r"logits: expected \[B, K\] with K >= 1, got \(3, 0\)"),
        ({"y": Y.int()}, InputTypeError, r"y: expected int64, got torch.int32"),
        ({"y": Y[:2]}, InputError, r"y: expected shape \(3,\), got \(2,\)"),
        ({"y": Y.to("meta")}, InputError, r"y: expected it on cpu, got meta"),
        ({"y": Y + 1}, InputError, r"y: expected classes, 0 to 3, got 4 in row 2"),
        ({"y": Y - 1}, InputError, r"y: expected classes, 0 to 3, got -1 in row 0"),
    ],
)
def test_both_ops_refuse_bad_arguments(change: dict, error: type[Exception], message: str) -> None:
    arguments = {"logits": LOGITS, "y": Y, **change}
    with pytest.raises(error, match=rf"^logit_loss: {message}$"):
        ops.logit_loss(**arguments, target=Y, loss="margin")
    with pytest.raises(error, match=rf"^logit_verdict: {message}$"):
        ops.logit_verdict(**arguments)


def test_each_op_refuses_its_own_bad_arguments() -> None:
    with pytest.raises(InputError, match=r"^logit_loss: target: expected classes, 0 to 3, got 4 in row 2$"):
        ops.logit_loss(LOGITS, Y, Y + 1, "margin")
    with pytest.raises(InputError, match=r"^logit_loss: loss: expected one of cross_entropy, .*, got 'ce'$"):
        ops.logit_loss(LOGITS, Y, Y, "ce")
    for loss, least in LOSSES.items():
        ops.logit_loss(LOGITS[:, :least], Y * 0, Y * 0, loss)
        if least > 1:
            with pytest.raises(InputError, match=rf"expected at least {least} classes for {loss}, got {least - 1}$"):
                ops.logit_loss(LOGITS[:, : least - 1], Y * 0, Y * 0, loss)
    for tolerance in (-1.0, torch.nan):
        with pytest.raises(InputError, match=rf"^logit_verdict: tolerance: expected at least 0, got {tolerance}$"):
            ops.logit_verdict(LOGITS, Y, tolerance=tolerance)
    with pytest.raises(RuntimeError, match=r"^logit_loss: loss: expected 0 to 7, got 8$"):
        LOSS(LOGITS, Y, Y, 8)
    with pytest.raises(RuntimeError, match=r"^logit_loss: logits: expected at least 4 classes for this loss, got 3$"):
        LOSS(LOGITS[:, :3].contiguous(), Y * 0, Y * 0, 7)


@EACH
@BOTH_DTYPES
def test_cuda_matches_the_cpu(cuda: torch.device, dtype: torch.dtype, loss: str) -> None:
    for kind in ("plain", "ties", "special"):
        logits, y, target = inputs(3000, 10, kind, dtype)
        got = ops.logit_loss(logits.to(cuda), y.to(cuda), target.to(cuda), loss)
        want = ops.logit_loss(logits, y, target, loss)
        assert_same(tuple(part.cpu() for part in got), want, **CLOSE_TO[dtype])
        verdict = ops.logit_verdict(logits.to(cuda), y.to(cuda), tolerance=1e-3)
        assert torch.equal(verdict.cpu(), ops.logit_verdict(logits, y, tolerance=1e-3))


def test_no_class_on_cuda(cuda: torch.device) -> None:
    value, slope, size = ops.logit_loss(LOGITS.to(cuda), Y.to(cuda) + 1, Y.to(cuda), "margin")
    assert value.isnan().tolist() == size.isnan().tolist() == slope.isnan().all(1).tolist() == [False, False, True]
    assert ops.logit_verdict(LOGITS.to(cuda), Y.to(cuda) + 1).tolist() == [2, 2, 2]
