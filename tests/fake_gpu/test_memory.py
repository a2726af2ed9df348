"""Memory and settings of a GPU, and the waits and launches of each loop: of a step, a long run less a short one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from support.fake_cuda import FakeCuda
from support.gpu_nets import labelled, small_net
from torch import Tensor, nn

import pyrobust
from pyrobust import APGD, DDN, FAB, FMN, PGD, BoundedModel, RandomizedSmoothing, Square
from pyrobust.attacks.black_box import square, square_windows
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
    runner = Runner(small_net().to(GPU))
    with torch.inference_mode():
        assert runner.batch_size(SHAPE, gradients=gradients) == sizes[gradients]


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


# --- waits and launches


EPSILON = {"linf": 1e-4, "l2": 1e-3, "l1": 1e-2}  # nothing is fooled


def per_step(cuda: FakeCuda, run: Callable[[int], Any], few: int, many: int) -> tuple[float, float, float]:
    """Waits, late waits and launches beside the model's, of one step."""
    run(few)
    counts = []
    for steps in (few, many):
        with cuda.counting() as counted:
            run(steps)
        counts.append((counted.waits.total(), counted.late, counted.beside_model()))
    waits, late, launches = ((after - before) / (many - few) for before, after in zip(*counts, strict=True))
    return waits, late, launches


# Launches: measured, and a few more for other versions of torch.
@pytest.mark.parametrize(
    ("attack", "norm", "limit"),
    [
        *((PGD, norm, limit) for norm, limit in (("linf", 10), ("l2", 28), ("l1", 30))),
        *((APGD, norm, limit) for norm, limit in (("linf", 16), ("l2", 40), ("l1", 36))),
        *((FAB, norm, limit) for norm, limit in (("linf", 35), ("l2", 34), ("l1", 35))),
        *((Square, norm, limit) for norm, limit in (("linf", 32), ("l2", 14), ("l1", 15))),
        (FMN, "linf", 58),
        (DDN, "l2", 50),
    ],
)
def test_steps_of_attacks(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, attack: Any, norm: str, limit: int
) -> None:
    monkeypatch.setattr(square, "_QUERIES_PER_DRAW", 16)
    x, y = labelled(6)
    net, x, y = small_net().to(GPU), x.to(GPU), y.to(GPU)
    few, many = {Square: (16, 32), APGD: (12, 24)}.get(attack, (4, 8))

    def run(steps: int) -> None:
        options: dict[str, Any] = {"n_queries": steps, "rescale_schedule": False} if attack is Square else {}
        options |= {} if attack is Square else {"steps": steps}
        options |= {"targets": 1} if attack is FAB else {}
        attack(net, EPSILON[norm], norm, batch_size=6, **options)(x, y)

    waits, late, launches = per_step(fake_cuda, run, few, many)
    assert waits <= 0
    assert late <= 1
    assert launches <= limit


@pytest.mark.parametrize("grid", [None, "1/255"])
def test_examples_that_leave(fake_cuda: FakeCuda, grid: str | None) -> None:
    """Examples fooled in the same step leave together: the waits do not grow with the number of examples."""
    waits = []
    for count in (4, 32):
        x, y = labelled(count)
        net, x, y = small_net().to(GPU), x.to(GPU), y.to(GPU)
        with fake_cuda.counting() as counts:
            PGD(net, 0.9, steps=10, random_start=False, batch_size=64, grid=grid)(x, y)
        waits.append(sum(number for (_, line), number in counts.waits.items() if line.startswith("attacks/")))
    assert waits[1] <= waits[0] + 6


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("grid", [None, "1/255"])
def test_batches_of_smoothing(fake_cuda: FakeCuda, grid: str | None) -> None:
    net, x = small_net().to(GPU), labelled()[0][:1].to(GPU)

    def run(batches: int) -> None:
        smoother = RandomizedSmoothing(net, 4, 0.25, grid=grid, batch_size=32)
        smoother.certify_batch(x, n0=32, n=32 * batches, indices=[0])

    waits, _, launches = per_step(fake_cuda, run, 20, 40)
    assert waits == 0
    assert launches <= 8


def test_rounds_of_sequential_sampling(fake_cuda: FakeCuda) -> None:
    x = labelled()[0].to(GPU)
    smoother = RandomizedSmoothing(small_net().to(GPU), 4, 0.25, grid=None, batch_size=32)
    with fake_cuda.counting() as counts:
        smoother.certify_batch(x, n0=32, n=2000, method="sequential", radii=[0.1], indices=range(4))
    lines = {line.partition(":")[0] for _, line in counts.waits if line.startswith("smoothing/packing")}
    read = [number for (what, line), number in counts.waits.items() if line.startswith("smoothing/packing")]
    assert lines == {"smoothing/packing.py"}
    assert len(read) == 1, "a round waits once, for its votes"
    assert not any(line.startswith("smoothing/sampling") for _, line in counts.waits)


@pytest.mark.parametrize(("method", "limit"), [("ibp", 300), ("crown-ibp", 450), ("crown", 600)])
def test_chunks_of_bounds(fake_cuda: FakeCuda, method: str, limit: int) -> None:
    totals = []
    for count in (4, 16):
        x, y = labelled(count)
        bounded = BoundedModel(small_net().to(GPU), x)
        with fake_cuda.counting() as counts:
            bounded.margins(x.to(GPU), y, 0.01, method=method)
        totals.append(counts.launches.total())
        assert counts.waits.total() <= 15
    assert totals[0] <= limit
    assert totals[1] <= totals[0] + 20, "not with the number of examples"


def test_a_stored_attack_runs_no_image_alone(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean and the attacked images of a chunk run as batches: the launches do not grow with the images."""
    monkeypatch.setattr("pyrobust.row_independence.CHECKED", 0)  # a later chunk is probed by chance
    launches = []
    for count in (8, 32):
        attack = PGD(small_net().to(GPU), EPSILON["linf"], steps=4, batch_size=32, random_start=False)
        pyrobust.attack_dataset(attack, labelled(count))  # probes the model's rows
        with fake_cuda.counting() as counts:
            pyrobust.attack_dataset(attack, labelled(count))
        launches.append(counts.launches.total())
    assert launches[1] <= launches[0] + 30
