"""What sample_noise refuses, and that it has no gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from op_inputs import images
from torch import Tensor

from pyrobust import ops
from pyrobust.errors import InputError, InputTypeError

RUNS = [(1, 5, 0, 3), (0, 2**32 - 1, 9, 2), (1, 4, 2, 0)]


def test_there_is_no_gradient() -> None:
    x = images(2, 3, 4, 5).requires_grad_()
    with pytest.raises(InputError, match=r"^sample_noise: x: expected no gradient"):
        ops.sample_noise(x, RUNS, sigma=0.25)
    with torch.no_grad():
        assert not ops.sample_noise(x, RUNS, sigma=0.25).requires_grad
    with pytest.raises(InputError, match=r"^sample_noise: out: expected no gradient"):
        ops.sample_noise(x.detach(), RUNS, sigma=0.25, out=torch.empty(5, 3, 4, 5, requires_grad=True))
    with torch.inference_mode():
        assert torch.equal(ops.sample_noise(x, RUNS, sigma=0.25), ops.sample_noise(x.detach(), RUNS, sigma=0.25))


def call(**changes: Any) -> Tensor:
    arguments: dict[str, Any] = {"x": images(2, 3, 4, 5), "runs": RUNS, "sigma": 0.25} | changes
    return ops.sample_noise(arguments.pop("x"), arguments.pop("runs"), **arguments)


INFINITE = (math.nan, math.inf, -math.inf)
BAD_VALUES = [
    *(("sigma", value, "sigma") for value in (0, 0.0, -0.1, *INFINITE, 1e38)),  # 1e38·6.7 is beyond float32
    *(("noise", value, "noise") for value in ("normal", "", "Gaussian", 0, None)),
    *(("stage", value, "stage") for value in ("test", "", 1, None)),
    *(("seed", value, "seed") for value in (-1, 2**64)),
    *(("runs", [run], "runs: row") for run in ((2, 0, 0, 1), (-1, 0, 0, 1), (2, 0, 0, 0))),
    *(("runs", [run], "runs: image") for run in ((0, -1, 0, 1), (0, 2**32, 0, 1), (0, 2**64, 0, 1))),
    *(
        ("runs", [(0, 0, first, count)], "runs: first, count")
        for first, count in ((-1, 2), (2**32, 1), (2**32 - 1, 2), (0, 2**32 + 1), (0, -1), (2**64, 1))
    ),
    ("runs", [(0, 0, 1)], "runs"),
    ("runs", [(0, 0, 0, 1), (1, 0, 0, 1, 5)], "runs"),
    ("x", torch.tensor(1.0), "x"),
    ("memory_format", torch.channels_last_3d, "memory_format"),
    ("memory_format", torch.preserve_format, "memory_format"),
    ("out", torch.empty(4, 3, 4, 5), "out"),
    ("out", torch.empty(5, 3, 4, 6), "out"),
    ("out", torch.empty(5, 60), "out"),
    ("out", torch.empty(5, 3, 5, 4).transpose(2, 3), "out"),
    ("out", torch.empty(5, 3, 4, 10)[..., ::2], "out"),
    ("out", torch.empty(1, 3, 4, 5).expand(5, 3, 4, 5), "out"),
    ("out", torch.empty(5, 3, 4, 5, device="meta"), "out"),
    ("normalize", ([0.0] * 2, [1.0] * 3), "normalize"),
    ("normalize", ([0.0] * 3, [1.0] * 4), "normalize"),
    ("normalize", ([], []), "normalize"),
    ("normalize", ([0.0],), "normalize"),
    ("normalize", (0.0, 1.0), "normalize"),
    ("normalize", (torch.zeros(1, 3), torch.ones(1, 3)), "normalize"),
    *(("normalize", ([0.0] * 3, [1.0, value, 1.0]), "normalize") for value in (0.0, -0.0, -1.0, math.nan)),
]
BAD_TYPES = [
    *(
        ("x", torch.zeros(2, 3, 4, 5, dtype=dtype), "x")
        for dtype in (torch.uint8, torch.int64, torch.bool, torch.cfloat)
    ),
    ("x", [[0.0]], "x"),
    ("dtype", torch.int32, "dtype"),
    ("dtype", torch.complex64, "dtype"),
    ("out", torch.empty(5, 3, 4, 5, dtype=torch.int32), "(out|dtype)"),
]


@pytest.mark.parametrize(
    ("argument", "value", "named", "error"),
    [*((*case, InputError) for case in BAD_VALUES), *((*case, InputTypeError) for case in BAD_TYPES)],
)
def test_a_bad_argument_is_named(argument: str, value: object, named: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^sample_noise: {named}: expected .* got "):
        call(**{argument: value})


def test_channels_last_and_channels_take_dimensions() -> None:
    with pytest.raises(InputError, match=r"^sample_noise: memory_format: expected x of 4 dimensions .* got "):
        call(x=images(2, 3, 4), memory_format=torch.channels_last)
    with pytest.raises(InputError, match=r"^sample_noise: normalize: expected x of \[M, C, \.\.\.\], got "):
        call(x=images(2), normalize=([0.0], [1.0]))


def test_a_refused_call_writes_nothing() -> None:
    out, x = torch.full((5, 3, 4, 5), 99.0), images(5, 3, 4, 5)
    for changes in ({"sigma": 0.0}, {"runs": [*RUNS[:2], (9, 0, 0, 0)]}, {"normalize": ([0.0] * 3, [0.0] * 3)}):
        with pytest.raises(InputError):
            call(out=out, **changes)
    assert (out == 99).all()
    with pytest.raises(InputError, match=r"^sample_noise: out: expected "):  # the images themselves
        ops.sample_noise(x, [(0, 0, 0, 5)], sigma=0.25, out=x)
    assert torch.equal(x, images(5, 3, 4, 5))


def test_images_may_hold_anything() -> None:
    x = torch.tensor([[math.nan, math.inf, -math.inf, 1.0]])
    y = ops.sample_noise(x, [(0, 0, 0, 6)], sigma=0.5)
    assert y[:, 0].isnan().all()
    assert (y[:, 1] == math.inf).all()
    assert (y[:, 2] == -math.inf).all()
    assert y[:, 3].isfinite().all()


BAD_RAW: list[dict[str, Any]] = [
    *({"out": torch.empty(shape)} for shape in ((4, 3, 4, 5), (6, 3, 4, 5), (5, 3, 4, 6), (5, 60))),
    *({"out": torch.empty(5, 3, 4, 5, dtype=dtype)} for dtype in (torch.int32, torch.float64)),
    {"out": torch.empty(5, 3, 5, 4).transpose(2, 3)},
    *({"x": x} for x in (images(2, 3, 4, 5).half(), images(2, 3, 4, 5).double(), images(2, 3, 5, 4).mT)),
    *({"runs": runs} for runs in ([0, 0, 0], [2, 0, 0, 5], [-1, 0, 0, 5], [0, 2**32, 0, 5], [0, -1, 0, 5])),
    *({"runs": [0, 0, first, 5]} for first in (2**32 - 4, -1, 2**63 - 1)),
    {"runs": [0, 0, 0, 6, 0, 0, 6, -1]},
    {"runs": [0, 0, 0, 2**62] * 4 + [0, 0, 0, 5]},  # a sum that wraps to 5
    *({"sigma": sigma} for sigma in (0.0, math.nan)),
    *({"domain": domain} for domain in (3, -1, 2**32)),
    {"mean": torch.zeros(3)},
    {"std": torch.ones(3)},
    {"mean": torch.zeros(2), "std": torch.ones(2)},
    {"mean": torch.zeros(3).double(), "std": torch.ones(3).double()},
    {"mean": torch.zeros(6)[::2], "std": torch.ones(3)},
]


def test_the_raw_op_refuses_what_could_write_out_of_bounds() -> None:
    runs = [number for run in RUNS for number in run]
    arguments = {"out": torch.empty(5, 3, 4, 5), "x": images(2, 3, 4, 5), "runs": runs, "seed": 0, "sigma": 0.25}
    arguments |= {"domain": 256, "mean": None, "std": None}
    torch.ops.pyrobust.sample_noise(*arguments.values())
    for changes in BAD_RAW:
        with pytest.raises(RuntimeError, match=r"sample_noise: \w+"):
            torch.ops.pyrobust.sample_noise(*(arguments | changes).values())
