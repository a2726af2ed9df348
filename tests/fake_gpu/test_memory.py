"""Memory and settings of a GPU: the batch size that is found, what counts as out-of-memory, cuBLAS, streams."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from gpu_nets import labelled, small_net
from torch import Tensor, nn

from pyrobust import FAB, PGD, Square
from pyrobust.attacks.black_box import square_windows
from pyrobust.errors import ModelError
from pyrobust.machine import free_memory, is_out_of_memory
from pyrobust.ops import sample_grid_noise
from pyrobust.runner import Runner

GPU = torch.device("cuda:1")
_CACHES = (
    square_windows._inside,
    square_windows.pattern,
    sys.modules["pyrobust.ops.sample_grid_noise"]._on_device,  # the package has the function of that name
)
SHAPE = (1, 6, 6)


class Small(nn.Module):
    """A net on a GPU whose memory holds batches of some rows."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.net, self.room, self.seen = small_net(), room, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        if len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.net(x)


@pytest.mark.parametrize("gradients", [False, True])
def test_batch_size_found_on_a_gpu(fake_cuda: FakeCuda, gradients: bool) -> None:
    runner = Runner(small_net().to(GPU))
    assert runner.batch_size(SHAPE, gradients=gradients) == 4096
    fake_cuda.free = 1 << 20
    sizes = [Runner(small_net().to(GPU)).batch_size(SHAPE, gradients=flag) for flag in (False, True)]
    assert 8 < sizes[1] < sizes[0] < 4096


@pytest.mark.parametrize("attack", [PGD, FAB, Square])
def test_attacks_find_their_batch_size(fake_cuda: FakeCuda, attack: Any) -> None:
    x, y = labelled()
    options = {"n_queries": 4} if attack is Square else {"steps": 2}
    attack(small_net().to(GPU), 0.01, **options)(x, y)


def test_memory_that_torch_holds_unused_is_free(fake_cuda: FakeCuda) -> None:
    fake_cuda.free, fake_cuda.allocated, fake_cuda.reserved = 1 << 10, 1 << 20, 3 << 20
    assert free_memory(GPU) == (1 << 10) + (2 << 20)


def test_less_memory_than_the_probe_takes(fake_cuda: FakeCuda) -> None:
    """The estimate is a share of the probe's rows, not 1, where eight rows do not fit."""
    runner = Runner(small_net().to(GPU))
    runner.batch_size(SHAPE)
    needed = fake_cuda.peak
    fake_cuda.free = needed
    assert 2 <= Runner(small_net().to(GPU)).batch_size(SHAPE) < 8


@pytest.mark.parametrize("room", [5, 2, 1])
def test_a_probe_that_runs_out_of_memory_is_halved(fake_cuda: FakeCuda, room: int) -> None:
    model = Small(room).to(GPU)
    assert Runner(model).batch_size(SHAPE) > 8, "the estimate, which batches halve further"
    assert max(model.seen) == 8
    assert model.seen[-1] == {5: 4, 2: 2, 1: 1}[room]
    assert Runner(Small(0).to(GPU)).batch_size(SHAPE) == 1
    x, y = labelled()
    assert len(PGD(Small(room).to(GPU), 0.01, steps=2)(x, y)) == 4
    with pytest.raises(ModelError, match="does not fit the memory of cuda:1"):
        PGD(Small(0).to(GPU), 0.01, steps=2)(x, y)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA: sample_noise: out of memory",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "Unable to find a valid cuDNN algorithm to run convolution",
        'torch_call_dispatcher( "aten::empty_like", "", stack.data()) API call failed at ops.h, line 46',
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes",
        "std::bad_alloc",
    ],
)
def test_out_of_memory_in_all_its_words(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert is_out_of_memory(torch.AcceleratorError(text))
    assert not is_out_of_memory(ValueError(text))


def test_other_failures_are_not_out_of_memory() -> None:
    for text in ("CUDA error: an illegal memory access was encountered", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"):
        assert not is_out_of_memory(RuntimeError(text))
    other = 'torch_call_dispatcher( "aten::sum", "", stack.data()) API call failed at ops.h, line 46'
    assert not is_out_of_memory(RuntimeError(other))


def test_cached_tensors_are_marked_as_read(fake_cuda: FakeCuda) -> None:
    """A cache may drop a tensor while a stream still has to read it."""
    for cache in _CACHES:
        cache.cache_clear()
    x, y = labelled()
    Square(small_net().to(GPU), 0.01, "l2", n_queries=2, batch_size=4)(x, y)
    assert len(fake_cuda.recorded) >= 2
    fake_cuda.recorded.clear()
    k = (labelled()[0] * 255).round().to(GPU, torch.int32)
    sample_grid_noise(k, [(0, 0, 0, 2)], sigma=0.25, step=Fraction(1, 255))
    assert len(fake_cuda.recorded) == 2
    for cache in _CACHES:
        cache.cache_clear()
