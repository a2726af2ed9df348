"""Whole files of CUDA kernels, launchers included, against the ops on the CPU: every bit."""

from __future__ import annotations

import itertools

import pytest
import torch
from ops.test_logits import inputs
from support.emulation import Launches
from support.op_inputs import FAMILIES, LAYOUTS, REALS, RUNS, channels, drawn, images, same_bits, votes
from torch import Tensor

from pyrobust import ops
from pyrobust.ops.logits import LOSSES

SEED = 2**64 - 5
SHAPES = [(), (3,), (130,), (3, 5, 7), (2, 6, 6), (3, 8, 8), (4, 4, 4), (5, 4, 4)]
SIGMAS = [*((noise, 0.37) for noise in FAMILIES), ("grid", 0.05), ("grid", 2.0)]


def batches(shape: tuple[int, ...], total: int, dtype: torch.dtype) -> list[Tensor]:
    """Return empty batches: in each layout, and one that is not aligned for wide stores."""
    made = [torch.full((total, *shape), 9.0, dtype=dtype)]
    made.append(torch.full((made[0].numel() + 1,), 9.0, dtype=dtype)[1:].view(total, *shape))
    if len(shape) == 3:
        made.append(made[0].contiguous(memory_format=torch.channels_last))
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_noise(launches: Launches, shape: tuple[int, ...]) -> None:
    normalizations = (None, channels(shape[0])) if len(shape) == 3 else (None,)
    for i, ((noise, sigma), dtype) in enumerate(itertools.product(SIGMAS, REALS)):
        normalize = normalizations[(i + i // len(REALS)) % len(normalizations)]
        x = images(3, *shape, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        want = drawn(ops, noise, x, RUNS, sigma=sigma, seed=SEED, dtype=dtype, normalize=normalize)
        for out in batches(shape, len(want[0]), dtype):
            got = launches.draw(noise, x, RUNS, sigma, SEED, out, normalize)
            assert same_bits(out.contiguous(), want[0]), (noise, dtype, out.stride())
            assert all(map(torch.equal, got[1:], want[1:]))


@pytest.mark.parametrize("sigma", [1e-7, 1e4, 1e30])
def test_sample_noise_at_the_ends_of_16_bits(launches: Launches, sigma: float) -> None:
    """Round to subnormals, to infinity, and NaN and infinity of the image itself."""
    x = torch.tensor([[0.0, -0.0, torch.nan, torch.inf, -torch.inf, 1e-30, 65504.0, -65520.0]]).repeat(1, 8)
    runs = [(0, 0, 0, 200)]
    for dtype in REALS[2:]:
        want = ops.sample_noise(x, runs, sigma=sigma, seed=SEED, dtype=dtype)
        got = launches.draw("gaussian", x, runs, sigma, SEED, torch.empty_like(want))[0]
        assert torch.equal(got.view(torch.int16), want.view(torch.int16))


@pytest.mark.parametrize("count", [2, 63, 65, 119, 120, 121, 1000])
@pytest.mark.parametrize("shape", [(5,), (3, 4, 4)])
def test_runs_of_several_launches(launches: Launches, shape: tuple[int, ...], count: int) -> None:
    x = images(count, *shape)
    runs = [(i, 7 * i, i % 5, i % 4 if count < 1000 else 1) for i in range(count)]  # every fourth without a sample
    for noise, layout in itertools.product(("gaussian", "grid"), LAYOUTS if len(shape) == 3 else LAYOUTS[:1]):
        want = drawn(ops, noise, x, runs, sigma=0.25, seed=3, memory_format=layout)
        got = launches.draw(noise, x, runs, 0.25, 3, torch.empty_like(want[0]))
        assert same_bits(got[0], want[0])
        assert all(map(torch.equal, got[1:], want[1:]))


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", ["plain", "ties", "special"])
@pytest.mark.parametrize("classes", [1, 4, 5, 10, 64, 65, 129, 1000])
def test_count_votes(launches: Launches, classes: int, kind: str, dtype: torch.dtype) -> None:
    for rows, batch in ((1, 1), (300, 5), (70, 3000)):
        logits, image = votes(rows, classes, batch, kind)
        start = torch.arange(batch * (classes + 1)).view(batch, -1)
        want = ops.count_votes(logits.to(dtype), image, start.clone())
        assert torch.equal(launches.count_votes(logits.to(dtype), image, start.clone()), want)


def test_votes_of_no_image(launches: Launches) -> None:
    logits, image = votes(200, 10, 4, "plain")
    bad = image.clone()
    bad[::10] = torch.tensor([-1, 4]).repeat(10)
    good, none = (bad == image).nonzero()[:, 0], torch.zeros(4, 11, dtype=torch.int64)
    want = ops.count_votes(logits[good], image[good], none.clone())
    assert torch.equal(launches.count_votes(logits, bad, none.clone()), want)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 255, 256, 257, 3072, 3073, 20000])
def test_examples(launches: Launches, n: int) -> None:
    for dtype, (rows, offset) in itertools.product(REALS, ((1, 0), (5, 0), (5, 1), (5, 2), (300, 0))):
        if rows * n > 100_000:
            continue
        held = [torch.full((rows * n + 16,), 9.0, dtype=dtype) for _ in range(2)]
        source, target = (memory[8 + offset : 8 + offset + rows * n].view(rows, n) for memory in held)
        a, b = images(rows, n, dtype=dtype, seed=1), images(rows, n, dtype=dtype, seed=2)
        source.copy_(a)
        target.copy_(torch.where(images(rows, n, seed=3) < 0.5, a, b))
        source[0, 0] = torch.nan
        chosen = images(rows, seed=4) < 0.5
        assert torch.equal(launches.count_changed(source, target), ops.count_changed(source, target))
        want = ops.put_rows(chosen, source.clone(), target.clone())
        assert same_bits(launches.put_rows(chosen, source, target), want)
        assert (held[1][: 8 + offset] == 9).all()
        assert (held[1][8 + offset + rows * n :] == 9).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["plain", "ties", "special"])
@pytest.mark.parametrize(("rows", "classes"), [(1, 4), (150, 10), (5, 63), (5, 64), (10, 65), (1, 1000), (5, 129)])
def test_logits(launches: Launches, rows: int, classes: int, kind: str, dtype: torch.dtype) -> None:
    logits, y, target = inputs(rows, classes, kind, dtype, seed=classes)
    for number, loss in enumerate(LOSSES):
        for got, want in zip(
            launches.logit_loss(logits, y, target, number), ops.logit_loss(logits, y, target, loss), strict=True
        ):
            assert same_bits(got, want), loss
    for targeted, tolerance, both in itertools.product((False, True), (0.0, 1e-3, 0.3), (False, True)):
        want = ops.logit_verdict(logits, y, targeted, tolerance=tolerance, both=both)
        assert torch.equal(launches.logit_verdict(logits, y, targeted, tolerance, both), want)


def test_rows_of_no_class(launches: Launches) -> None:
    logits, y, target = inputs(70, 100, "plain", torch.float32)
    y[3], target[5] = 100, -1
    value, slope, size = launches.logit_loss(logits, y, target, list(LOSSES).index("margin"))
    assert value.isnan().nonzero()[:, 0].tolist() == size.isnan().nonzero()[:, 0].tolist() == [3, 5]
    assert slope.isnan().all(1).nonzero()[:, 0].tolist() == [3, 5]
    assert launches.logit_verdict(logits, y, False, 0.0, False)[3] == 2
