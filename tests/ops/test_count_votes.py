"""The native vote histogram against the reference, and its argument errors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from op_inputs import REALS, SPECIAL, votes
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError, InputTypeError

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


# --- torch


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
