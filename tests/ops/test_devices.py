"""sample_noise and count_votes on every device against the reference on the CPU.

Uniform noise and votes agree in every bit, since their arithmetic is exact; the other families within 1e-6.
"""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from support.op_inputs import FAMILIES, LAYOUTS, REALS, RUNS, channels, images, same_bits, votes
from torch import Tensor

from pyrobust import ops, reference
from pyrobust.errors import InputError

# --- sample_noise


@pytest.mark.parametrize("noise", FAMILIES)
@pytest.mark.parametrize("shape", [(), (2, 0), (1,), (3,), (130,), (5, 7), (3, 5, 7), (33, 3, 3), (3, 32, 32)])
def test_noise(cuda: torch.cuda, shape: tuple[int, ...], noise: str) -> None:
    x = torch.zeros(3, *shape)
    for seed in (3, 2**64 - 1):
        got = ops.sample_noise(x.to(cuda), RUNS, sigma=1.0, noise=noise, seed=seed).cpu()
        want = reference.sample_noise(x, RUNS, sigma=1.0, noise=noise, seed=seed)
        if noise == "uniform":  # one rounding of the word itself
            assert same_bits(got, want)
        assert ((got - want).abs() <= 1e-6 * want.abs().clamp(min=1)).all()


@functools.cache
def uniform(shape: tuple[int, ...], real: torch.dtype, dtype: torch.dtype, normalized: bool) -> Tensor:
    normalize = channels(shape[0]) if normalized else None
    x = images(3, *shape, dtype=real)
    return reference.sample_noise(x, RUNS, sigma=0.37, noise="uniform", dtype=dtype, normalize=normalize)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 7), (33, 3, 3), (1, 28, 28), (2, 6, 6), (4, 8, 8), (3, 32, 32)])
def test_dtypes_and_layouts(cuda: torch.cuda, shape: tuple[int, ...], normalized: bool) -> None:
    normalize = channels(shape[0]) if normalized else None
    for real, dtype, layout in itertools.product(REALS, REALS, LAYOUTS):
        how = {"noise": "uniform", "dtype": dtype, "normalize": normalize, "memory_format": layout}
        got = ops.sample_noise(images(3, *shape, dtype=real).to(cuda), RUNS, sigma=0.37, **how)
        assert got.device == cuda
        assert got.is_contiguous(memory_format=layout)
        assert same_bits(got.cpu().contiguous(), uniform(shape, real, dtype, normalized)), (real, dtype, layout)


@pytest.mark.parametrize("count", [159, 160, 161, 320, 321, 1000])
@pytest.mark.parametrize(("shape", "layout"), [((5,), LAYOUTS[0]), ((3, 4, 4), LAYOUTS[0]), ((3, 4, 4), LAYOUTS[1])])
def test_more_runs_than_one_launch_takes(
    device: torch.device, shape: tuple[int, ...], layout: torch.memory_format, count: int
) -> None:
    x = images(count, *shape)
    runs = [(i, 7 * i, i % 5, i % 4) for i in range(count)]  # every fourth without a sample
    got = ops.sample_noise(x.to(device), runs, sigma=0.5, noise="uniform", memory_format=layout)
    want = reference.sample_noise(x, runs, sigma=0.5, noise="uniform")
    assert same_bits(got.cpu().contiguous(), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_any_float_in_16_bits(cuda: torch.cuda, dtype: torch.dtype) -> None:
    """Round subnormals, ties, infinities and NaN: a GPU has an instruction for it."""
    words = torch.randint(-(2**31), 2**31, (1, 2**18), generator=torch.Generator().manual_seed(1))
    words[0, :512] = (torch.arange(512) << 23) - 2**31  # powers of two, where they lie on either side of a tie
    words[0, 512:1024] = words[0, :512] + (1 << 15)
    words[0, 1024:1536] = words[0, :512] + (1 << 12)
    x = words.int().view(torch.float32)
    want = reference.sample_noise(x, [(0, 0, 0, 2)], sigma=1e-40, noise="uniform", dtype=dtype)
    got = ops.sample_noise(x.to(cuda), [(0, 0, 0, 2)], sigma=1e-40, noise="uniform", dtype=dtype)
    assert same_bits(got.cpu(), want)


def test_long_runs(device: torch.device) -> None:
    """Draw more samples than one launch has threads, so that each thread loops over several and across runs."""
    x = images(3, 4)
    runs = [(0, 1, 0, 100_003), (2, 2, 5, 1), (1, 3, 0, 99_998), (0, 1, 100_003, 2)]
    got = ops.sample_noise(x.to(device), runs, sigma=0.5, noise="uniform")
    assert same_bits(got.cpu(), reference.sample_noise(x, runs, sigma=0.5, noise="uniform"))


def placed(values: Tensor, offset: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Copy the values to ``offset`` elements into a buffer of 99s on the device, keeping their layout; return both."""
    room = torch.full((values.numel() + offset + 8,), 99.0, dtype=values.dtype, device=device)
    view = room[offset : offset + values.numel()].as_strided(values.shape, values.stride(), offset)
    view.copy_(values)
    return view, room


@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("dtype", REALS)
def test_memory_that_is_not_aligned(cuda: torch.cuda, dtype: torch.dtype, offset: int) -> None:
    """Place images and batches at addresses not aligned for vectors of four."""
    shape, total = (3, 8, 8), sum(run[3] for run in RUNS)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    want = uniform(shape, real, dtype, False)
    for x_offset, out_offset, layout in itertools.product((0, offset), (0, offset), LAYOUTS):
        x, _ = placed(images(3, *shape, dtype=real), x_offset, cuda)
        out, room = placed(torch.empty(total, *shape, dtype=dtype).contiguous(memory_format=layout), out_offset, cuda)
        assert x.storage_offset() == x_offset
        ops.sample_noise(x, RUNS, sigma=0.37, noise="uniform", out=out)
        assert same_bits(out.cpu().contiguous(), want), (x_offset, out_offset, layout)
        assert (room[:out_offset] == 99).all()
        assert (room[out_offset + out.numel() :] == 99).all()


# --- count_votes


@pytest.mark.parametrize("kind", ["plain", "ties", "special"])
@pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 7, 8, 10, 17, 33, 63, 64, 65, 128, 129, 1000])
def test_votes(device: torch.device, classes: int, kind: str) -> None:
    for images_ in (1, 5, 3000):
        logits, image = votes(1500 if classes < 100 else 200, classes, images_, kind)
        start = torch.arange(images_ * (classes + 1)).reshape(images_, -1)  # added to, not overwritten
        for rounded in map(logits.to, REALS):
            want = reference.count_votes(rounded, image, start.clone())
            got = ops.count_votes(rounded.to(device), image.to(device), start.to(device, copy=True))
            assert torch.equal(got.cpu(), want), (images_, rounded.dtype)


@pytest.mark.parametrize(("classes", "rows"), [(1, 2_200_000), (10, 300_000), (65, 70_000)])
def test_more_rows_than_the_threads_of_a_launch(device: torch.device, classes: int, rows: int) -> None:
    logits, image = votes(rows, classes, 6, "plain")
    logits[::1000] = math.nan
    got = ops.count_votes(
        logits.to(device), image.to(device), torch.zeros(6, classes + 1, dtype=torch.int64, device=device)
    ).cpu()
    assert got.sum() == rows
    assert torch.equal(got, reference.count_votes(logits, image, torch.zeros(6, classes + 1, dtype=torch.int64)))


def test_nothing_to_count(device: torch.device) -> None:
    none = torch.empty(0, dtype=torch.int64, device=device)
    counts = torch.ones(3, 11, dtype=torch.int64, device=device)
    assert ops.count_votes(torch.empty(0, 10, device=device), none, counts) is counts
    assert (counts == 1).all()
    assert ops.count_votes(torch.empty(0, 10, device=device), none, counts[:0]).shape == (0, 11)
    assert ops.sample_noise(torch.empty(2, 3, 4, device=device), [], sigma=1.0).shape == (0, 3, 4)
    assert ops.sample_noise(torch.empty(0, 3, 4, device=device), [], sigma=1.0).shape == (0, 3, 4)


# --- GPU only


def test_cuda_and_cpu_tensors_together_are_refused(cuda: torch.device) -> None:
    tensors = (*votes(7, 10, 2, "plain"), torch.zeros(2, 11, dtype=torch.int64))
    for there in ((0,), (1,), (2,), (0, 1)):
        with pytest.raises(InputError, match=r"^count_votes: expected one device, got .*cuda"):
            ops.count_votes(*(t.to(cuda) if i in there else t for i, t in enumerate(tensors)))
    x, runs = images(1, 4), [(0, 0, 0, 2)]
    for there, here in ((x.to(cuda), "cpu"), (x, cuda)):
        with pytest.raises(InputError, match=r"^sample_noise: out: expected x's device"):
            ops.sample_noise(there, runs, sigma=0.5, out=torch.empty(2, 4, device=here))
