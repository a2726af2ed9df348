"""Smoothing on every device: counts, noise bits, memory and layouts agree with the CPU.

``elementwise`` computes nothing, so its counts can agree to the last vote. Uniform noise has the same bits on every
device; Gaussian noise may differ by 1e-6, which changes a vote only where two logits are nearly equal.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from pyrobust import _C, ABSTAIN, RandomizedSmoothing, reference
from pyrobust.errors import InputError, ModelError
from pyrobust.smoothing import blocks

NORMS = {"gaussian": "l2", "uniform": "l1", "laplace": "l1"}
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
INDICES = [7, 0, 2**32 - 1, 123456, 8, 9]
SEED = 2**63 + 11
SHAPE = (3, 5, 8)


def elementwise(batch: Tensor) -> Tensor:
    """Return the first three elements as logits."""
    return batch.flatten(1)[:, :3]


def images(count: int = 6, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


class Recorder:
    """Model that records its inputs."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, batch: Tensor) -> Tensor:
        self.seen.append(batch.clone(memory_format=torch.contiguous_format))
        return elementwise(batch)

    def rows(self) -> Tensor:
        return torch.cat(self.seen)


class Net(nn.Module):
    """Small network that records the device, dtype, autocast state, layout and mode of each call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
        self.layers[-1].weight.data *= 3.0
        self.seen: list[tuple[Any, ...]] = []

    def forward(self, batch: Tensor) -> Tensor:
        last = batch.is_contiguous(memory_format=torch.channels_last)
        self.seen.append((batch.device, batch.dtype, torch.is_autocast_enabled(batch.device.type), last, self.training))
        return self.layers(batch)


def smooth(model: Callable[[Tensor], Any], classes: int = 3, **options: Any) -> RandomizedSmoothing:
    options = {"seed": SEED, "noise": "gaussian", "sigma": 0.3} | options
    return RandomizedSmoothing(model, classes, norm=NORMS[options["noise"]], **options)


@functools.cache
def expected(noise: str, stage: str, n: int) -> npt.NDArray[np.int64]:
    """Votes [6, 4] by the reference implementation, one image at a time on the CPU."""
    counts = torch.zeros(6, 4, dtype=torch.int64)
    x = images()
    for row, index in enumerate(INDICES):
        batch = reference.sample_noise(x, [(row, index, 0, n)], sigma=0.3, noise=noise, stage=stage, seed=SEED)
        reference.count_votes(elementwise(batch), torch.full((n,), row), counts)
    return counts.numpy()


@pytest.mark.parametrize("batch_size", [1, 7, None])
@pytest.mark.parametrize("noise", list(NORMS))
def test_counts_equal_the_reference(device: torch.device, noise: str, batch_size: int | None) -> None:
    smoother = smooth(elementwise, noise=noise, batch_size=batch_size)
    x = images().to(device)
    certified = smoother.certify_batch(x, n0=20, n=90, alpha=0.05, indices=INDICES)
    predicted = smoother.predict_batch(x, n=90, alpha=0.05, indices=INDICES)
    assert smoother.runner.device == device
    moved = 0 if noise == "uniform" or device.type == "cpu" else 2  # votes that the last bits of the noise may change
    for got, want in (
        (certified.counts0, expected(noise, "select", 20)),
        (certified.counts, expected(noise, "estimate", 90)),
        (predicted.counts, expected(noise, "predict", 90)),
        (smoother.votes(x, n=90, indices=INDICES), expected(noise, "estimate", 90)),
    ):
        assert np.abs(got - want).sum() <= 2 * moved
        assert got.sum(1).tolist() == want.sum(1).tolist()
    assert (certified.prediction != ABSTAIN).any()
    assert len(np.unique(certified.counts[:, :3].argmax(1))) > 1


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("noise", list(NORMS))
def test_noise_bits_do_not_depend_on_the_batch(device: torch.device, noise: str, dtype: torch.dtype) -> None:
    rows = []
    for size, layout in ((64, torch.contiguous_format), (7, torch.channels_last)):
        recorder = Recorder()
        smoother = smooth(recorder, noise=noise, dtype=dtype, memory_format=layout, batch_size=size)
        smoother.certify_batch(images().to(device), n0=10, n=45, alpha=0.05, indices=INDICES)
        rows.append(recorder.rows().cpu())
    assert rows[0].dtype == dtype
    assert len(rows[0]) == 6 * 55
    assert torch.equal(rows[0].view(torch.uint8), rows[1].view(torch.uint8))


def test_more_images_than_one_launch_takes(device: torch.device) -> None:
    """Sample more images than the native op takes in one launch, with few samples each."""
    x = images(200)
    smoother = smooth(elementwise, noise="uniform", batch_size=600)
    counts = torch.zeros(200, 4, dtype=torch.int64)
    batch = reference.sample_noise(x, [(i, i, 0, 3) for i in range(200)], sigma=0.3, noise="uniform", seed=SEED)
    reference.count_votes(elementwise(batch), torch.arange(600) // 3, counts)
    np.testing.assert_array_equal(smoother.votes(x.to(device), n=3, indices=range(200)), counts.numpy())


def test_images_on_any_device_and_of_any_dtype(device: torch.device) -> None:
    model = Net().to(device)
    smoother = smooth(model, 4, batch_size=50)
    assert smoother.runner.device == device
    base = smoother.certify_batch(images().to(device), n0=10, n=100, indices=INDICES)
    for x in (images(), images().to(device).double(), images().requires_grad_()):
        result = smoother.certify_batch(x, n0=10, n=100, indices=INDICES)
        np.testing.assert_array_equal(result.counts, base.counts)
        np.testing.assert_array_equal(result.counts0, base.counts0)
        np.testing.assert_array_equal(result.radius, base.radius)
    assert {call[0] for call in model.seen} == {device}


def test_module_is_moved_to_the_device(device: torch.device) -> None:
    here = smooth(Net(), 4).votes(images(), n=500, indices=INDICES)
    model = Net()
    there = smooth(model, 4, device=device).votes(images(), n=500, indices=INDICES)
    assert {parameter.device for parameter in model.parameters()} == {device}
    # GPU convolutions round in another order, and to TF32 where torch allows it.
    assert np.abs(here - there).sum() <= 0.02 * here.sum()
    assert len(np.unique(here.argmax(1))) > 1


@pytest.mark.parametrize(
    ("dtype", "layout"), [(torch.bfloat16, torch.contiguous_format), (torch.float16, torch.channels_last)]
)
def test_autocast_and_layouts(device: torch.device, dtype: torch.dtype, layout: torch.memory_format) -> None:
    model = Net().to(device).train()
    full = smooth(model, 4).votes(images(), n=300)
    model.seen.clear()
    counts = smooth(model, 4, dtype=dtype, memory_format=layout, batch_size=100).votes(images(), n=300)
    # At eight bits of precision, up to a twentieth of the votes may change.
    assert np.abs(counts - full).sum() <= 0.1 * full.sum()
    assert set(model.seen) == {(device, dtype, True, layout == torch.channels_last, False)}
    assert not torch.is_autocast_enabled(device.type)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.layers[0].weight.is_contiguous(memory_format=layout)
    assert all(module.training for module in model.modules())


def test_models_of_other_dtypes(device: torch.device) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        model = Net().to(device, dtype)
        assert smooth(model, 4, batch_size=64).votes(images(), n=50).sum() == 300
        assert set(model.seen) == {(device, dtype, False, False, False)}


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_normalize_equals_a_layer_in_front_of_the_model(device: torch.device, layout: torch.memory_format) -> None:
    layer, inside = Recorder(), Recorder()
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))
    options: dict[str, Any] = {"memory_format": layout, "batch_size": 32}
    want = smooth(lambda batch: layer((batch - mean) / std), **options).votes(images().to(device), n=40)
    got = smooth(inside, normalize=(MEAN, STD), **options).votes(images().to(device), n=40)
    np.testing.assert_array_equal(got, want)
    assert torch.equal(inside.rows().view(torch.int32), layer.rows().view(torch.int32))


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_samples_without_a_winner_are_counted(device: torch.device, bad: float) -> None:
    def model(batch: Tensor) -> Tensor:
        logits = elementwise(batch).clone()
        logits[batch.flatten(1)[:, 3] > 0.5, 1] = bad
        return logits

    seen = Recorder()
    smooth(seen, batch_size=64).votes(images().to(device), n=100)
    lost = (seen.rows().flatten(1)[:, 3] > 0.5).view(6, 100).sum(1).tolist()
    assert 100 < sum(lost) < 500
    result = smooth(model).certify_batch(images().to(device), n0=10, n=100)
    assert result.counts[:, 3].tolist() == lost


@pytest.mark.parametrize("how", ["lost", "of no image"])
def test_missing_votes_raise_an_error(device: torch.device, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image index out of range is rejected by the CPU's kernel; a GPU's skips the row, and the total reveals it."""
    count = blocks.count_votes

    def spoiled(logits: Tensor, image: Tensor, counts: Tensor) -> Tensor:
        if how == "lost":
            return count(logits[1:], image[1:], counts)
        return count(logits, image.index_fill(0, torch.zeros_like(image[:1]), len(counts)), counts)

    monkeypatch.setattr(blocks, "count_votes", spoiled)
    error: type[Exception] = ModelError
    match = r"smoothing: expected \[50, 50, 50, .*\] votes, got"
    if how == "of no image" and (device.type == "cpu" or _C.build_info()["cuda"] is None):
        error, match = InputError, "count_votes: image: expected rows of counts, 0 to 5, got 6"
    with pytest.raises(error, match=match):
        smooth(elementwise).votes(images().to(device), n=50)


# --- memory


def test_chosen_batch_size_fits_in_memory(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    if device.type == "cuda" and not torch.version.cuda:
        pytest.skip("a GPU that is not there has no memory to fill")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).to(device)
    smoother, shape = smooth(model, 32, grid=None), (3, 128, 128)
    size = smoother.runner.batch_size(shape)
    assert 1 <= size <= 4096
    if device.type == "cpu":
        assert size == 16
    else:
        assert size > 64  # a row takes 4 MB at most
    with caplog.at_level(logging.WARNING):
        counts = smoother.votes(images(2, shape), n=size)
    assert counts.sum() == 2 * size
    assert smoother.runner.batch_size(shape) == size
    assert not caplog.records


class Hungry(nn.Module):
    """Model that runs out of memory on batches of more than ``room`` rows."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[int, int]] = []

    def forward(self, batch: Tensor) -> Tensor:
        if len(batch) > self.room:
            torch.empty(1 << 50, dtype=torch.uint8, device=batch.device)
        self.seen.append((len(batch), batch.untyped_storage().nbytes()))
        return elementwise(batch)


@pytest.mark.parametrize(
    ("room", "batch_size", "layout"),
    [(9, 100, torch.contiguous_format), (60, 1000, torch.channels_last), (60, None, torch.contiguous_format)],
)
def test_out_of_memory_halves_the_batch(
    device: torch.device,
    room: int,
    batch_size: int | None,
    layout: torch.memory_format,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch is halved until it fits, no vote is counted twice, and the noise buffer shrinks with the batch."""
    block = 20_000
    monkeypatch.setattr("pyrobust.smoothing.blocks._BLOCK_BYTES", block)
    model = Hungry(room).to(device)
    smoother = smooth(model, noise="uniform", batch_size=batch_size, memory_format=layout)
    result = smoother.certify_batch(images(), n0=20, n=90, alpha=0.05, indices=INDICES)
    np.testing.assert_array_equal(result.counts0, expected("uniform", "select", 20))
    np.testing.assert_array_equal(result.counts, expected("uniform", "estimate", 90))
    assert "out of memory" in caplog.text
    size = smoother.runner.batch_size(SHAPE)
    assert room // 4 < size <= room
    row = 4 * torch.Size(SHAPE).numel()
    assert max(storage for _, storage in model.seen) <= max(2 * size * row, block)
    model.seen.clear()
    smoother.votes(images(), n=90)
    assert max(rows for rows, _ in model.seen) == size


def test_single_row_out_of_memory(device: torch.device) -> None:
    model = Hungry(0).to(device).train()
    with pytest.raises(ModelError, match=rf"one input of shape \(3, 5, 8\) does not fit the memory of {device}"):
        smooth(model, batch_size=8).votes(images(), n=10)
    assert model.training
    assert not torch.is_inference_mode_enabled()


# --- GPU only


def test_non_default_stream(cuda: torch.device) -> None:
    x = images().to(cuda)
    want = smooth(elementwise, noise="uniform", batch_size=64).votes(x, n=90, indices=INDICES)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        got = smooth(elementwise, noise="uniform", batch_size=64).votes(x, n=90, indices=INDICES)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got, expected("uniform", "estimate", 90))


def test_device_other_than_the_current_one(second_cuda: torch.device) -> None:
    current = torch.cuda.current_device()
    for x in (images(), images().to(second_cuda)):
        smoother = smooth(elementwise, noise="uniform", batch_size=64, device=second_cuda)
        got = smoother.votes(x, n=90, indices=INDICES)
        np.testing.assert_array_equal(got, expected("uniform", "estimate", 90))
    smooth(Net(), 4, device=second_cuda).votes(images(), n=20)
    assert torch.cuda.current_device() == current


def test_gpu_generator_is_untouched(cuda: torch.device) -> None:
    before = torch.cuda.get_rng_state(cuda)
    smooth(Net().to(cuda), 4).certify_batch(images(), n0=10, n=50)
    assert torch.equal(torch.cuda.get_rng_state(cuda), before)
