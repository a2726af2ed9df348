"""Proposals of attacks, square_window and hyperplane_step: against references, budgets, ends of the box, errors."""

from __future__ import annotations

import math

import pytest
import torch
from support.op_inputs import LAYOUTS, REALS
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.attacks.black_box.square_windows import pattern
from pyrobust.attacks.minimum.fab_projection import step_to_hyperplane
from pyrobust.checks import NORMS
from pyrobust.errors import InputError, InputTypeError

#: Largest error of an element; of 16-bit ones, a unit in the last place.
ERROR = {torch.float64: 1e-12, torch.float32: 1e-7, torch.bfloat16: 2**-7, torch.float16: 2**-10}
CASES = [
    ((3, 12, 10), (5, 5)),
    ((1, 6, 6), (3, 3)),
    ((2, 9, 9), (9, 9)),
    ((3, 8, 8), (1, 8)),
    ((40,), (1, 7)),
    ((1,), (1, 1)),
]


def proposal(
    shape: tuple[int, ...], dtype: torch.dtype, count: int = 6, layout: torch.memory_format = torch.contiguous_format
) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, clean images and random numbers; the first image is clean."""
    draw = torch.Generator().manual_seed(sum(shape))
    x = torch.rand(count, *shape, generator=draw).to(dtype)
    best = (x.double() + 0.1 * torch.randn(count, *shape, generator=draw)).clamp(0, 1).to(dtype)
    best[0] = x[0]
    channels = shape[0] if len(shape) == 3 else 1
    u = (torch.rand(count, 5 + channels, generator=draw) * 2 - 1).to(dtype)
    u[1, :4] = 1  # both windows in one corner
    if len(shape) == 3:
        best, x = best.contiguous(memory_format=layout), x.contiguous(memory_format=layout)
    return best, x, u


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_match_the_reference(
    device: torch.device, layout: torch.memory_format, dtype: torch.dtype, norm: str
) -> None:
    for shape, sides in CASES:
        images = proposal(shape, dtype, layout=layout)
        for radius in (0.0, 0.5, torch.linspace(0, 3, 6)):
            here = [t.to(device) for t in (*images, pattern(sides, norm))]
            got = ops.square_window(*here, radius if isinstance(radius, float) else radius.to(device), sides, norm)
            want = reference.square_window(*images, pattern(sides, norm), radius, sides, norm)
            assert got.stride() == images[1].stride()
            torch.testing.assert_close(got.cpu(), want, rtol=0, atol=ERROR[dtype], msg=f"{shape} {radius}")


def test_an_unclipped_window_spends_the_budget() -> None:
    best, x, u = proposal((3, 12, 10), torch.float64)
    x, best = 0.5 + 0.01 * x, 0.5 + 0.01 * best
    for norm, power, radius in (("l2", 2, 0.3), ("l1", 1, 4.0)):
        got = ops.square_window(best, x, u, pattern((5, 5), norm), radius, (5, 5), norm)
        change = got - x if norm == "l2" else got
        had = (best - x).flatten(1).norm(power, dim=1)
        outside = (change == best - x).flatten(1)
        kept = (change.flatten(1) * outside).norm(power, dim=1)
        length = change.flatten(1).norm(power, dim=1)
        if norm == "l2":
            torch.testing.assert_close(length, torch.maximum(had, torch.full_like(had, radius)))
        else:  # what both windows had, and what was left of the radius, once for every channel
            spent = 3 * (had - kept) + 3 * (radius - had).clamp(min=0)
            torch.testing.assert_close(length, kept + spent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_l2_proposals_stay_in_ball_and_box(dtype: torch.dtype) -> None:
    x = proposal((3, 12, 10), dtype)[1]
    best, draw = x, torch.Generator().manual_seed(0)
    for _ in range(200):
        u = torch.rand(6, 8, generator=draw, dtype=dtype) * 2 - 1
        best = ops.square_window(
            best, x, u, pattern((3, 3), "l2"), 1.5 * (1 - 4 * torch.finfo(dtype).eps), (3, 3), "l2"
        )
        assert 0 <= float(best.min()) <= float(best.max()) <= 1
        assert float((best.double() - x.double()).flatten(1).norm(dim=1).max()) <= 1.5
    assert (
        float((best.double() - x.double()).flatten(1).norm(dim=1).min()) > 1.4
    )  # what clipping took is spent by the next window


@pytest.mark.parametrize(
    ("argument", "change", "error"),
    [
        ("best", {"best": torch.zeros(2, 1, 4, 5)}, InputError),
        ("best", {"best": torch.zeros(2, 1, 4, 4).double()}, InputTypeError),
        ("x", {"x": torch.zeros(2, 1, 4, 4, dtype=torch.int64)}, InputTypeError),
        ("u", {"u": torch.zeros(2, 5)}, InputError),
        ("u", {"u": torch.zeros(2, 6).double()}, InputTypeError),
        ("patterns", {"sides": (2, 3)}, InputError),
        ("patterns", {"patterns": torch.zeros(2, 9)}, InputTypeError),
        ("tall, wide", {"sides": (9, 1)}, InputError),
        ("radius", {"radius": -1.0}, InputError),
        ("radius", {"radius": torch.ones(3)}, InputError),
        ("norm", {"norm": "linf"}, InputError),
        ("lower, upper", {"lower": 1.0, "upper": 0.0}, InputError),
    ],
)
def test_bad_arguments(argument: str, change: dict[str, object], error: type[Exception]) -> None:
    images = torch.zeros(2, 1, 4, 4)
    arguments = {"best": images, "x": images, "u": torch.zeros(2, 6), "patterns": torch.zeros(2, 9).double()}
    arguments |= {"radius": 1.0, "sides": (3, 3), "norm": "l2"} | change
    with pytest.raises(error, match=rf"^square_window: {argument}: "):
        ops.square_window(**arguments)


def test_no_images() -> None:
    none = torch.zeros(0, 1, 4, 4)
    assert (
        ops.square_window(none, none, torch.zeros(0, 6), pattern((3, 3), "l1"), 1.0, (3, 3), "l1").shape == none.shape
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_numbers_beyond_their_range_choose_a_window_of_the_image(value: float) -> None:
    best, x, _ = proposal((3, 12, 10), torch.float32)
    got = ops.square_window(best, x, torch.full((6, 8), value), pattern((5, 5), "l2"), 1.0, (5, 5), "l2")
    assert 0 <= float(got.min()) <= float(got.max()) <= 1


# --- hyperplane_step


STEP = torch.ops.pyrobust.hyperplane_step
#: Largest error of a step; of 16-bit ones, half a unit in the last place.
PLANE_ERROR = {torch.float64: 1e-10, torch.float32: 1e-7, torch.bfloat16: 2**-9, torch.float16: 2**-12}


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
def test_hyperplane_steps_match_the_reference(device: torch.device, dtype: torch.dtype, norm: str) -> None:
    for size in (1, 2, 7, 33, 300):
        for share in (0.0, 1e-6, 0.3, 0.999, 1.5):
            arguments = planes(5, size, dtype, share, seed=size)
            got = ops.hyperplane_step(*(t.to(device) for t in arguments), norm)
            torch.testing.assert_close(
                got.cpu(),
                reference.hyperplane_step(*arguments, norm),
                rtol=0,
                atol=PLANE_ERROR[dtype],
                msg=f"{size} {share}",
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
def test_bad_arguments_of_hyperplane_steps(argument: str, change: dict[str, object], error: type[Exception]) -> None:
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
