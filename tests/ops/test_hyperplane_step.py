"""hyperplane_step: against the reference by sorting, in the ends of the box, in extreme numbers; errors."""

from __future__ import annotations

import math

import pytest
import torch
from op_inputs import REALS
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.attacks.minimum.fab_projection import step_to_hyperplane
from pyrobust.checks import NORMS
from pyrobust.errors import InputError, InputTypeError

STEP = torch.ops.pyrobust.hyperplane_step
#: Largest error of a step; of 16-bit ones, half a unit in the last place.
ERROR = {torch.float64: 1e-10, torch.float32: 1e-7, torch.bfloat16: 2**-9, torch.float16: 2**-12}


def planes(
    count: int, size: int, dtype: torch.dtype, share: float, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return two points for each plane, and planes that a share of the longest step reaches, some with tied weights."""
    draw = torch.Generator().manual_seed(seed)
    x, at = (torch.rand(*shape, size, generator=draw).to(dtype) for shape in ((2, count), (count,)))
    w = torch.randn(count, size, generator=draw).to(dtype)
    w[0, : size // 2] = 0
    w[1] = w[1].sign()
    sign = torch.where(torch.arange(count) % 2 == 0, 1.0, -1.0)
    gap = (
        sign * share * torch.where(w * sign[:, None] > 0, 1 - x[0].double(), x[0].double()).mul(w.double().abs()).sum(1)
    )
    return x, at, w, (w.double() * (at.double() - x[0].double())).sum(1) - gap


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", REALS)
def test_results_match_the_reference(device: torch.device, dtype: torch.dtype, norm: str) -> None:
    for size in (1, 2, 7, 33, 300):
        for share in (0.0, 1e-6, 0.3, 0.999, 1.5):
            arguments = planes(5, size, dtype, share, seed=size)
            got = ops.hyperplane_step(*(t.to(device) for t in arguments), norm)
            torch.testing.assert_close(
                got.cpu(), reference.hyperplane_step(*arguments, norm), rtol=0, atol=ERROR[dtype], msg=f"{size} {share}"
            )


@pytest.mark.parametrize("norm", NORMS)
def test_steps_are_those_of_the_attack_on_a_cpu(norm: str) -> None:
    x, at, w, value = planes(20, 200, torch.float64, 0.4)
    for points in x:
        gap = (w * (at - points)).sum(1) - value
        want = step_to_hyperplane(points, w, gap, norm, 0.0, 1.0)
        got = ops.hyperplane_step(points, at, w, value, norm)
        tied = torch.arange(len(w)) == 1  # in l1, equal weights may share a step in any way
        torch.testing.assert_close(got[~tied], want[~tied], rtol=0, atol=1e-9)
        torch.testing.assert_close(got.abs().sum(1), want.abs().sum(1))


@pytest.mark.parametrize("norm", NORMS)
def test_steps_reach_the_plane_in_the_box(norm: str) -> None:
    x, at, w, value = planes(6, 500, torch.float64, 0.7)
    moved = x[0] + ops.hyperplane_step(x[0], at, w, value, norm)
    assert float(moved.min()) >= -1e-15
    assert float(moved.max()) <= 1 + 1e-15
    torch.testing.assert_close(value + (w * (moved - at)).sum(1), torch.zeros(6).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_extreme_numbers(norm: str) -> None:
    x, w = torch.rand(3, 8).double(), torch.randn(3, 8).double()
    for scale in (5e-324, 1e-300, 1.0, 1e300):
        value = -0.2 * (w * scale).abs().sum(1)
        got = ops.hyperplane_step(x, x, w * scale, value, norm)
        torch.testing.assert_close(got, reference.hyperplane_step(x, x, w * scale, value, norm))
    w[0, 0], w[1, 1], w[2, 2] = math.inf, math.nan, -math.inf
    for value in ([math.nan, math.inf, -math.inf], [1e300, 1e-300, -0.0]):
        arguments = x, x, w, torch.tensor(value).double()
        got = ops.hyperplane_step(*arguments, norm)
        torch.testing.assert_close(got, reference.hyperplane_step(*arguments, norm))
        assert not got.diagonal().any()
        assert bool(got[0].any()) == (value[0] == 1e300)
    ends = ops.hyperplane_step(x.float(), x.float(), w.sign().float(), torch.full((3,), -math.inf), norm)
    assert bool(((ends == 0) | (ends == 1 - x.float()) | (ends == -x.float())).all())
    assert ops.hyperplane_step(x[:0], x[:0], w[:0], value=torch.zeros(0), norm=norm).shape == (0, 8)


@pytest.mark.parametrize(
    ("argument", "change", "error"),
    [
        ("x, w", {"x": torch.zeros(2, 4)}, InputError),
        ("x, w", {"x": torch.zeros(1, 1, 2, 3)}, InputError),
        ("x", {"x": torch.zeros(2, 3, dtype=torch.int64)}, InputTypeError),
        ("w", {"x": torch.zeros(2, 3).double()}, InputTypeError),
        ("at", {"at": torch.zeros(3, 3)}, InputError),
        ("value", {"value": torch.zeros(3)}, InputError),
        ("value", {"value": torch.zeros(2, dtype=torch.int64)}, InputTypeError),
        ("norm", {"norm": "l0"}, InputError),
        ("lower, upper", {"lower": 1.0, "upper": 0.0}, InputError),
    ],
)
def test_bad_arguments(argument: str, change: dict[str, object], error: type[Exception]) -> None:
    x = torch.zeros(2, 3)
    arguments = {"x": x, "at": x, "w": x, "value": torch.zeros(2), "norm": "l2"} | change
    with pytest.raises(error, match=rf"^hyperplane_step: {argument}: "):
        ops.hyperplane_step(**arguments)


def test_the_raw_op_checks_its_arguments() -> None:
    x, value = torch.zeros(4, 3), torch.zeros(2).double()
    for arguments, argument in (
        ((x[:3], x[:2], x[:2], value, 0), "w"),
        ((x, x[:2], x[:2].double(), value, 0), "at"),
        ((x, x[:2], x[:2], value.float(), 0), "value"),
        ((x, x[:2], x[:2], value, 3), "norm"),
        ((x, x[:0], x[:0], value[:0], 0), "w"),
    ):
        with pytest.raises(RuntimeError, match=f"hyperplane_step: {argument}: "):
            STEP(*arguments, 0.0, 1.0)
