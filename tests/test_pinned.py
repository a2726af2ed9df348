"""Pinned sessions: one batch size, deterministic kernels, and restored torch settings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pyrobust import RandomizedSmoothing
from pyrobust.environment import CUBLAS_VARIABLE
from pyrobust.errors import ModelError
from pyrobust.machine import repeatable_kernels
from pyrobust.runner import Runner

X = torch.randint(256, (3, 2, 3, 3), generator=torch.Generator().manual_seed(2)).float() / 255


def settings():
    return torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark


@pytest.fixture(params=["default", "warn", "error"])
def before(request):
    original = settings()
    torch.set_deterministic_debug_mode(request.param)
    torch.backends.cudnn.benchmark = True
    yield settings()
    torch.set_deterministic_debug_mode(original[0])
    torch.backends.cudnn.benchmark = original[1]


def test_kernels_are_deterministic_inside_and_settings_are_restored(before):
    seen = []

    def model(batch):
        seen.append(settings())
        return batch.flatten(1)[:, :2]

    RandomizedSmoothing(model, 2, 0.5, grid="1/255").certify_batch(X, n0=5, n=10)
    assert set(seen) == {(1, False)}  # warnings, which are raised
    assert settings() == before
    seen.clear()
    RandomizedSmoothing(model, 2, 0.5, grid=None).certify_batch(X, n0=5, n=10)
    assert set(seen) == {before}


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, ZeroDivisionError])
def test_settings_are_restored_after_an_exception(before, failure):
    def model(batch):
        raise failure("on purpose")

    with pytest.raises(failure, match="on purpose"):
        RandomizedSmoothing(model, 2, 0.5, grid="1/255").certify_batch(X, n0=5, n=10)
    assert settings() == before


def test_nondeterministic_kernel_raises_an_error():
    def model(batch):
        scratch = torch.zeros(2).put_(torch.zeros(2, dtype=torch.int64), torch.ones(2))
        return batch.flatten(1)[:, :2] + 0 * scratch

    with pytest.raises(ModelError, match=r"expected kernels that repeat their bits, got put_.*grid=None"):
        RandomizedSmoothing(model, 2, 0.5, grid="1/255").votes(X, n=5)
    assert RandomizedSmoothing(model, 2, 0.5, grid=None).votes(X, n=5).sum() == 15


def test_quantized_layers_repeat_their_bits():
    class Quantized(nn.Module):
        def forward(self, batch):
            x = torch.quantize_per_tensor(batch.flatten(1), 1 / 64, 64, torch.quint8)
            return torch.ops.quantized.linear(x, self.weight, 1 / 64, 64).dequantize()

    model = Quantized()
    weight = torch.quantize_per_tensor(torch.rand(2, 18) - 0.5, 1 / 128, 0, torch.qint8)
    model.weight = torch.ops.quantized.linear_prepack(weight, None)
    result = RandomizedSmoothing(model, 2, 0.5, grid="1/255").certify_batch(X, n0=5, n=10)
    assert result.guarantee == "grid"


def test_a_workspace_set_too_late_is_explained():
    reason = f"deterministic behavior was enabled, but ... set {CUBLAS_VARIABLE}=:4096:8 ..."
    with (
        pytest.raises(ModelError, match=f"{CUBLAS_VARIABLE} unset; import pyrobust before"),
        repeatable_kernels(torch.device("cpu")),
    ):
        raise RuntimeError(reason)


# --- memory


class LimitedMemory:
    """Model that runs out of memory on batches of more than ``room`` rows, from a given call on."""

    def __init__(self, room, *, from_call=1):
        self.room, self.from_call, self.sizes = room, from_call, []

    def __call__(self, batch):
        self.sizes.append(len(batch))
        if len(self.sizes) >= self.from_call and len(batch) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return batch.flatten(1)[:, :2]


def test_given_batch_size_is_not_halved():
    model = LimitedMemory(20)
    with pytest.raises(
        ModelError, match=r"batch_size: expected one that fits .* got 32.*begin anew with batch_size=16"
    ):
        RandomizedSmoothing(model, 2, 0.5, grid="1/255", batch_size=32).certify_batch(X, n0=5, n=100)
    assert model.sizes == [32]


@pytest.mark.usefixtures("unprobed")
def test_chosen_batch_size_is_halved_before_the_first_samples(monkeypatch):
    monkeypatch.setattr(Runner, "_find_batch_size", lambda self, shape, gradients: 64)
    model = LimitedMemory(20)
    smoother = RandomizedSmoothing(model, 2, 0.5, grid="1/255")
    result = smoother.certify_batch(X, n0=5, n=100)
    assert model.sizes[:3] == [64, 32, 16]
    assert set(model.sizes[2:]) == {16}
    expected = RandomizedSmoothing(lambda x: x.flatten(1)[:, :2], 2, 0.5, grid="1/255").certify_batch(X, n0=5, n=100)
    assert (result.counts == expected.counts).all()


@pytest.mark.usefixtures("unprobed")
def test_chosen_batch_size_is_not_halved_later(monkeypatch):
    monkeypatch.setattr(Runner, "_find_batch_size", lambda self, shape, gradients: 64)
    model = LimitedMemory(20, from_call=3)
    with pytest.raises(ModelError, match="begin anew with batch_size=32"):
        RandomizedSmoothing(model, 2, 0.5, grid="1/255").certify_batch(X, n0=5, n=100)
    assert model.sizes == [64, 64, 64]
    # Without a grid, a batch that does not fit in memory is halved at any time.
    model = LimitedMemory(20, from_call=3)
    RandomizedSmoothing(model, 2, 0.5, grid=None, batch_size=64).certify_batch(X, n0=5, n=100)
    assert max(model.sizes[-3:]) <= 20


def test_single_row_out_of_memory():
    with pytest.raises(ModelError, match="one input of shape"):
        RandomizedSmoothing(LimitedMemory(0), 2, 0.5, grid="1/255", batch_size=1).votes(X, n=5)
