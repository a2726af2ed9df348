"""Pinned sessions: one batch size, kernels that repeat their bits, and torch's settings as they were."""

from __future__ import annotations

import os
import types

import pytest
import torch

from pyrobust import RandomizedSmoothing
from pyrobust.errors import ModelError
from pyrobust.machine import CUBLAS_VARIABLE, prepare_cublas, repeatable_kernels
from pyrobust.runner import Runner

X = torch.randint(256, (3, 2, 3, 3), generator=torch.Generator().manual_seed(2)).float() / 255


def settings():
    return torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark


@pytest.fixture(params=["default", "warn", "error"])
def before(request):
    was = settings()
    torch.set_deterministic_debug_mode(request.param)
    torch.backends.cudnn.benchmark = True
    yield settings()
    torch.set_deterministic_debug_mode(was[0])
    torch.backends.cudnn.benchmark = was[1]


def test_kernels_repeat_their_bits_inside_and_settings_come_back(before):
    seen = []

    def model(batch):
        seen.append(settings())
        return batch.flatten(1)[:, :2]

    RandomizedSmoothing(model, 2, 0.5, grid="1/255").certify_batch(X, n0=5, n=10)
    assert set(seen) == {(2, False)}
    assert settings() == before
    seen.clear()
    RandomizedSmoothing(model, 2, 0.5).certify_batch(X, n0=5, n=10)
    assert set(seen) == {before}


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, ZeroDivisionError])
def test_settings_come_back_after_a_failure(before, failure):
    def model(batch):
        raise failure("on purpose")

    with pytest.raises(failure, match="on purpose"):
        RandomizedSmoothing(model, 2, 0.5, grid="1/255").certify_batch(X, n0=5, n=10)
    assert settings() == before


def test_a_kernel_that_does_not_repeat_its_bits_is_an_error():
    def model(batch):
        rows = batch.flatten(1)[:, :2].clone()
        return rows.put_(torch.zeros(2, dtype=torch.int64), torch.ones(2))

    with pytest.raises(ModelError, match=r"expected kernels that repeat their bits, got put_.*grid=None"):
        RandomizedSmoothing(model, 2, 0.5, grid="1/255").votes(X, n=5)
    assert RandomizedSmoothing(model, 2, 0.5).votes(X, n=5).sum() == 15


def test_cublas_is_told_before_it_is_asked(monkeypatch):
    monkeypatch.delenv(CUBLAS_VARIABLE, raising=False)
    prepare_cublas()
    assert os.environ[CUBLAS_VARIABLE] == ":4096:8"
    monkeypatch.setenv(CUBLAS_VARIABLE, ":16:8")
    prepare_cublas()
    assert os.environ[CUBLAS_VARIABLE] == ":16:8"
    reason = f"deterministic behavior was enabled, but ... set {CUBLAS_VARIABLE}=:4096:8 ..."
    with pytest.raises(ModelError, match=f"{CUBLAS_VARIABLE} unset; set it"), repeatable_kernels(torch.device("cpu")):
        raise RuntimeError(reason)


# --- memory


class Crowded:
    """A model whose memory holds ``room`` rows."""

    def __init__(self, room, *, from_call=1):
        self.room, self.from_call, self.sizes = room, from_call, []

    def __call__(self, batch):
        self.sizes.append(len(batch))
        if len(self.sizes) >= self.from_call and len(batch) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return batch.flatten(1)[:, :2]


def test_a_size_that_was_given_is_not_halved():
    model = Crowded(20)
    with pytest.raises(
        ModelError, match=r"batch_size: expected one that fits .* got 32.*begin anew with batch_size=16"
    ):
        RandomizedSmoothing(model, 2, 0.5, grid="1/255", batch_size=32).certify_batch(X, n0=5, n=100)
    assert model.sizes == [32]


def test_a_size_that_was_found_is_halved_before_anything_ran(monkeypatch):
    monkeypatch.setattr(Runner, "_find_batch_size", lambda self, shape, gradients: 64)
    model = Crowded(20)
    smoother = RandomizedSmoothing(model, 2, 0.5, grid="1/255")
    found = smoother.certify_batch(X, n0=5, n=100)
    assert model.sizes[:3] == [64, 32, 16]
    assert set(model.sizes[2:]) == {16}
    expected = RandomizedSmoothing(lambda x: x.flatten(1)[:, :2], 2, 0.5, grid="1/255").certify_batch(X, n0=5, n=100)
    assert (found.counts == expected.counts).all()


def test_and_not_after(monkeypatch):
    monkeypatch.setattr(Runner, "_find_batch_size", lambda self, shape, gradients: 64)
    model = Crowded(20, from_call=3)
    with pytest.raises(ModelError, match="begin anew with batch_size=32"):
        RandomizedSmoothing(model, 2, 0.5, grid="1/255").certify_batch(X, n0=5, n=100)
    assert model.sizes == [64, 64, 64]
    # Without a grid, a batch that does not fit is halved at any time.
    model = Crowded(20, from_call=3)
    RandomizedSmoothing(model, 2, 0.5, batch_size=64).certify_batch(X, n0=5, n=100)
    assert max(model.sizes[-3:]) <= 20


def test_one_row_that_does_not_fit():
    with pytest.raises(ModelError, match="one input of shape"):
        RandomizedSmoothing(Crowded(0), 2, 0.5, grid="1/255", batch_size=1).votes(X, n=5)


def test_an_empty_batch_runs_nothing():
    seen = types.SimpleNamespace(calls=0)

    def model(batch):
        seen.calls += 1
        return batch.flatten(1)[:, :2]

    result = RandomizedSmoothing(model, 2, 0.5, grid="1/255").certify_batch(X[:0], n0=5, n=10)
    assert len(result) == 0
    assert seen.calls == 0
