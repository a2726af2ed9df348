"""Losses and verdicts of logits, and vote histograms, against references; their argument errors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.op_inputs import REALS, SPECIAL, same_bits, votes
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError
from pyrobust.ops.logits import LOSSES

LOSS = torch.ops.pyrobust.logit_loss
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
        assert_same(tuple(tensor.cpu() for tensor in got), want, **CLOSE_TO[dtype])
        verdict = ops.logit_verdict(logits.to(cuda), y.to(cuda), tolerance=1e-3)
        assert torch.equal(verdict.cpu(), ops.logit_verdict(logits, y, tolerance=1e-3))


# --- count_votes


RAW = torch.ops.pyrobust.count_votes


def both(logits: Tensor, image: Tensor, images: int) -> tuple[list[list[int]], list[list[int]]]:
    start = torch.arange(images * (logits.shape[1] + 1)).reshape(images, -1)  # added to, not overwritten
    got = ops.count_votes(logits, image, start.clone())
    want = reference.count_votes(logits, image, start.clone())
    assert int((got - start).sum()) == len(logits)
    return got.tolist(), want.tolist()


@pytest.mark.parametrize("dtype", REALS)
def test_each_special_value_in_each_place(dtype: torch.dtype) -> None:
    for classes in (1, 2, 7, 16, 19, 40):
        rows = []
        for background in (0.0, -math.inf, 3.0):
            for value in SPECIAL.tolist():
                rows.append(torch.full((classes, classes), background).fill_diagonal_(value))
        logits = torch.cat(rows).to(dtype)
        image = torch.arange(len(logits))
        got, want = both(logits, image, len(logits))
        assert got == want, classes


@pytest.mark.parametrize("images", [1, 3, 40_000])
def test_large_batches_and_threads(threads: int, images: int) -> None:
    logits, image = votes(40_000, 10, images, "special")
    got, want = both(logits, image, images)
    assert got == want


def test_counts_exceed_32_bits_and_accumulate_over_calls() -> None:
    logits, image = votes(1000, 10, 4, "plain")
    whole = ops.count_votes(logits.requires_grad_(), image, torch.full((4, 11), 2**40))
    assert not whole.requires_grad
    parts = torch.full((4, 11), 2**40)
    for rows in (slice(0, 1), slice(1, 8), slice(8, 264), slice(264, 1000)):
        assert ops.count_votes(logits[rows], image[rows], parts) is parts
    assert torch.equal(parts, whole)


def test_logits_and_images_that_are_not_contiguous() -> None:
    base = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    twice = torch.arange(60).remainder(4)
    for logits in (base.T, base[::2, 1::3], base[:1].expand(20, 30), base[:, 3:17], base.flatten()[1:-9].view(-1, 10)):
        image = twice[::2][: len(logits)].expand(len(logits)) if len(logits) <= 30 else twice[: len(logits)]
        got, want = both(logits, image, 4)
        assert got == want
    got, want = both(base, torch.tensor(2).expand(20), 4)
    assert got == want


@given(st.data())
def test_any_votes(data: st.DataObject) -> None:
    classes, rows, images = (data.draw(st.integers(1, top)) for top in (40, 30, 4))
    value = st.sampled_from(SPECIAL.tolist())
    flat = data.draw(st.lists(value, min_size=classes * rows, max_size=classes * rows))
    logits = torch.tensor(flat).reshape(rows, classes).to(data.draw(st.sampled_from(REALS)))
    if data.draw(st.booleans()):  # otherwise nearly every row holds a NaN
        logits = torch.where(logits.isfinite(), logits, 0)
    image = torch.tensor(data.draw(st.lists(st.integers(0, images - 1), min_size=rows, max_size=rows)))
    got, want = both(logits, image, images)
    assert got == want


# --- wrong arguments

ARGUMENTS = {"logits": torch.zeros(4, 3), "image": torch.tensor([0, 1, 1, 0]), "counts": torch.zeros(2, 4).long()}
BAD_VALUES = [
    *(("logits", torch.zeros(shape)) for shape in ((4,), (), (4, 3, 1), (4, 0))),
    *(("image", torch.zeros(shape).long()) for shape in ((3,), (5,), (4, 1), ())),
    *(("image", torch.tensor([0, 1, bad, 0])) for bad in (2, -1, 2**40, -(2**63), 2**63 - 1)),
    *(("counts", torch.zeros(shape).long()) for shape in ((2, 3), (2, 5), (4,), (1, 2, 4))),
    ("counts", torch.zeros(4, 2).long().T),
    ("counts", torch.zeros(2, 8).long()[:, ::2]),
    ("counts", torch.zeros(1, 4).long().expand(2, 4)),
    ("counts", torch.zeros(0, 4).long()),
]
BAD_TYPES = [
    *(("logits", torch.zeros(4, 3, dtype=dtype)) for dtype in (torch.int64, torch.uint8, torch.bool, torch.cfloat)),
    *(("image", torch.zeros(4, dtype=dtype)) for dtype in (torch.int32, torch.float32, torch.bool)),
    *(("counts", torch.zeros(2, 4, dtype=dtype)) for dtype in (torch.int32, torch.float32, torch.float64)),
]


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [*((*case, InputError) for case in BAD_VALUES), *((*case, InputTypeError) for case in BAD_TYPES)],
)
def test_a_bad_argument_is_named_and_nothing_is_counted(argument: str, value: Tensor, error: type[Exception]) -> None:
    arguments = {name: tensor.clone() for name, tensor in ARGUMENTS.items()} | {argument: value}
    before = arguments["counts"].clone()
    named = "(counts|image)" if value.shape == (0, 4) else argument
    with pytest.raises(error, match=rf"^count_votes: {named}: expected .*(got|contiguous)"):
        ops.count_votes(**arguments)
    with pytest.raises(RuntimeError, match=r"count_votes: \w+"):
        RAW(*arguments.values())
    assert torch.equal(arguments["counts"], before)


def test_mixed_devices_are_refused() -> None:
    with pytest.raises(InputError, match=r"^count_votes: expected one device, got .* meta"):
        ops.count_votes(ARGUMENTS["logits"], ARGUMENTS["image"], ARGUMENTS["counts"].to("meta"))
