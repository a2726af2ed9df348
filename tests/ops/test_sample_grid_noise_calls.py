"""Refusals of sample_grid_noise; the same bits on every device."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.op_inputs import BYTE, integers
from torch import Tensor

from pyrobust import ops
from pyrobust.errors import InputError, InputTypeError

RUNS = [(0, 0, 0, 3), (1, 1, 0, 2)]
CHANNELS = ([0.1, 0.2, 0.3], [0.5, 0.4, 0.3])
RAW = torch.ops.pyrobust.sample_grid_noise


def raw_arguments(**changes: Any) -> list[Any]:
    noise = ops.grid_noise(0.25, BYTE)
    arguments: dict[str, Any] = {
        "out": torch.empty(5, 3, 4, 5),
        "tail": torch.zeros(5, dtype=torch.bool),
        "k": integers(2, 3, 4, 5),
        "runs": [number for run in RUNS for number in run],
        "seed": -1,
        "domain": 256 + 3,
        "guide": noise.guide,
        "thresholds": noise.words,
        "numerator": 1,
        "denominator": 255,
        "mean": None,
        "std": None,
    }
    return list((arguments | changes).values())


def test_devices_agree(device: torch.device) -> None:
    """Expect equal bits: the op is integers, one division and the normalisation's two operations."""
    k = integers(2, 3, 9, 8)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for layout in (torch.contiguous_format, torch.channels_last):
            how = {"sigma": 0.5, "step": BYTE, "dtype": dtype, "memory_format": layout, "normalize": CHANNELS}
            got, tail = ops.sample_grid_noise(k.to(device), [(1, 5, 0, 40)], **how)
            want, _ = ops.sample_grid_noise(k, [(1, 5, 0, 40)], **how)
            assert torch.equal(got.cpu(), want)
            assert tail.device == device


# --- wrong arguments


def call(**changes: Any) -> tuple[Tensor, Tensor]:
    arguments: dict[str, Any] = {"k": integers(2, 3, 4, 5), "runs": RUNS, "sigma": 0.25, "step": BYTE} | changes
    return ops.sample_grid_noise(arguments.pop("k"), arguments.pop("runs"), **arguments)


REACH = ops.grid_noise(0.25, BYTE).reach
BAD_VALUES = [
    *(("sigma", value, "sigma") for value in (0, -0.1, math.nan, math.inf, 33.0)),
    *(("step", value, "step") for value in (Fraction(0), Fraction(-1, 255), Fraction(1, 1 << 24), Fraction(1 << 24))),
    # test_sample_noise.py lists the refusals of what both ops check by noise_arguments.py.
    ("stage", "test", "stage"),
    ("seed", -1, "seed"),
    ("runs", [(2, 0, 0, 1)], "runs: row"),
    ("k", torch.tensor(1, dtype=torch.int32), "k"),
    *(("k", torch.full((2, 3, 4, 5), v, dtype=torch.int32), "k") for v in (2**24 - REACH, -(2**24) + REACH, 2**31 - 1)),
    ("memory_format", torch.channels_last_3d, "memory_format"),
    ("out", torch.empty(4, 3, 4, 5), "out"),
    ("out", torch.empty(5, 3, 4, 5, requires_grad=True), "out"),
    *(("normalize", ([0.0] * 3, [1.0, value, 1.0]), "normalize") for value in (0.0, -1.0, math.nan)),
]
BAD_TYPES = [
    *(("k", torch.zeros(2, 3, 4, 5, dtype=dtype), "k") for dtype in (torch.uint8, torch.int64, torch.float32)),
    ("k", [[0]], "k"),
    *(("step", value, "step") for value in (1 / 255, "1/255", 1)),
    ("sigma", "a", "sigma"),
    ("seed", 0.5, "seed"),
    ("dtype", torch.int32, "dtype"),
    ("out", torch.empty(5, 3, 4, 5, dtype=torch.int32), "dtype"),
]


@pytest.mark.parametrize(
    ("argument", "value", "named", "error"),
    [*((*case, InputError) for case in BAD_VALUES), *((*case, InputTypeError) for case in BAD_TYPES)],
)
def test_a_bad_argument_is_named(argument: str, value: object, named: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^sample_grid_noise: {named}: expected .*(got |no gradient)"):
        call(**{argument: value})


def test_sums_representable_in_float32_are_accepted() -> None:
    largest = 2**24 - REACH - 1
    for sign in (1, -1):
        batch, _ = call(k=torch.full((2, 3, 4, 5), sign * largest, dtype=torch.int32), step=Fraction(1), sigma=63.75)
        assert (batch.abs() <= 2**24).all()
    with pytest.raises(InputError, match=r"k: expected .* numerator, 7,"):
        call(k=torch.full((2, 3, 4, 5), 2**22, dtype=torch.int32), step=Fraction(7))
    # Noise integers up to 256: 256 * 65536 is the largest product that float32 represents.
    wide = {"k": torch.zeros(2, 3, 4, 5, dtype=torch.int32), "sigma": 36.5 * 65537}
    assert (
        ops.grid_noise(36.5 * 65537, Fraction(65537)).reach
        == ops.grid_noise(36.5 * 65536, Fraction(65536)).reach
        == 255
    )
    with pytest.raises(InputError, match=r"step: expected a numerator of at most 65536, .* up to 256, .* got 65537;"):
        call(**wide, step=Fraction(65537))
    assert call(**wide, step=Fraction(65537), dtype=torch.float64)[0].dtype == torch.float64
    call(**wide | {"sigma": 36.5 * 65536}, step=Fraction(65536))
    assert call(k=torch.full((2, 3, 4, 5), 2**30, dtype=torch.int32), dtype=torch.float64)[0].dtype == torch.float64


@given(
    st.sampled_from(["sigma", "step", "stage", "seed", "normalize", "dtype", "memory_format", "k", "runs"]),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=3),
        st.fractions(),
        st.lists(st.tuples(st.integers(-2, 3), st.integers(-2, 3), st.integers(-2, 3), st.integers(-2, 3)), max_size=2),
    ),
)
@example("step", Fraction(65794))
def test_any_value_is_accepted_or_refused_by_name(argument: str, value: object) -> None:
    # A step with a large numerator is allowed; the image is then out of range.
    blamed = {argument, "k"} if argument == "step" else {argument}
    try:
        batch, tail = call(**{argument: value})
    except (InputError, InputTypeError) as error:
        refusal = str(error)
    else:
        assert len(batch) == len(tail)
        return
    assert refusal.startswith(tuple(f"sample_grid_noise: {name}: " for name in blamed))


BAD_RAW: list[dict[str, Any]] = [
    {"out": torch.empty(4, 3, 4, 5)},
    {"out": torch.empty(5, 3, 4, 5, dtype=torch.int32)},
    {"out": torch.empty(5, 3, 5, 4).transpose(2, 3)},
    *({"tail": tail} for tail in (torch.zeros(4).bool(), torch.zeros(5), torch.zeros(10).bool()[::2])),
    *({"k": k} for k in (torch.zeros(2, 3, 4, 5), integers(2, 3, 5, 4).transpose(2, 3))),
    *({"runs": runs} for runs in ([0, 0, 0], [2, 0, 0, 5], [0, 0, 0, 6])),
    *({"domain": domain} for domain in (256, 2**32 + 3)),
    *({"guide": torch.zeros(size, dtype=torch.int32)} for size in (31, 33)),
    *({"guide": guide} for guide in (torch.zeros(64), torch.zeros(128, dtype=torch.int32)[::2])),
    *({"thresholds": torch.zeros(shape, dtype=torch.int32)} for shape in ((0, 3), (3,), (4, 2))),
    {"thresholds": torch.zeros(4, 3)},
    {"numerator": 0},
    *({"denominator": denominator} for denominator in (0, 2**24)),
    {"mean": torch.zeros(3)},
    {"mean": torch.zeros(2), "std": torch.ones(2)},
]


def test_the_raw_op_refuses_what_could_write_out_of_bounds() -> None:
    RAW(*raw_arguments())
    for changes in BAD_RAW:
        with pytest.raises(RuntimeError, match=r"sample_grid_noise: \w+"):
            RAW(*raw_arguments(**changes))


def test_a_random_table_stays_in_bounds(simd_level: str) -> None:
    draw = torch.Generator().manual_seed(0)
    for cells in (32, 32 << 9):
        guide, thresholds = (
            torch.randint(-(2**31), 2**31, shape, generator=draw, dtype=torch.int64).int()
            for shape in ((cells,), (40, 3))
        )
        RAW(*raw_arguments(guide=guide, thresholds=thresholds))
