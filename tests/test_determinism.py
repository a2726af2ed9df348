"""A real model has the same counts for every batch size, thread count and split; no global generator is used."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch
from torch import nn

from pyrobust import RandomizedSmoothing
from pyrobust.compat.smoothing import Smooth
from pyrobust.zoo import load_data, load_model


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def images(count, shape):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def test_counts_of_a_bundled_net(threads):
    model, digits = load_model("zoo:digits-smooth-0.50"), load_data("digits")
    pick = list(range(0, 380, 64))
    x = digits.x[pick]

    def certify(batch_size, rows=slice(None), n=100):
        smoother = RandomizedSmoothing(model, 10, 0.5, batch_size=batch_size, seed=9)
        return smoother.certify_batch(x[rows], n0=20, n=n, alpha=0.05, indices=pick[rows])

    base = certify(256)
    assert (base.prediction >= 0).any()
    assert ((base.counts > 0).sum(1) > 2).any(), "unanimous votes would not show a difference"
    for batch_size in (7, 1000, None):
        result = certify(batch_size)
        np.testing.assert_array_equal(result.counts, base.counts)
        np.testing.assert_array_equal(result.counts0, base.counts0)
    for k in range(3):
        shard = certify(7 if k else 1000, slice(k, None, 3))
        np.testing.assert_array_equal(shard.counts, base.counts[k::3])
        np.testing.assert_array_equal(shard.counts0, base.counts0[k::3])
    single, packed = certify(1, slice(0, 4), n=30), certify(64, slice(0, 4), n=30)
    np.testing.assert_array_equal(single.counts, packed.counts)
    np.testing.assert_array_equal(single.counts0, base.counts0[:4])


def test_global_generators_are_untouched(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)  # importing rich draws from Python's generator
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    smoother, smooth = RandomizedSmoothing(model, 3, 0.5), Smooth(model, 3, 0.5)
    # numpy's legacy global state must stay untouched.
    before = torch.get_rng_state(), np.random.get_state(), random.getstate(), torch.initial_seed()
    smoother.certify_batch(images(2, (6,)), n0=5, n=20, progress=True)
    smoother.certify(images(1, (6,))[0], n0=5, n=20)
    smoother.predict(images(1, (6,))[0], 20)
    smooth.certify(images(1, (6,))[0], 5, 20, 0.05, 10)
    smooth.predict(images(1, (6,))[0], 20, 0.05, 10)
    after = torch.get_rng_state(), np.random.get_state(), random.getstate(), torch.initial_seed()
    assert torch.equal(before[0], after[0])
    assert before[1][0] == after[1][0]
    assert (before[1][1] == after[1][1]).all()
    assert before[1][2:] == after[1][2:]
    assert before[2:] == after[2:]


@pytest.mark.usefixtures("unprobed")
def test_out_of_memory_during_a_run():
    calls, done = [], []

    def model(batch):
        calls.append(len(batch))
        if failing and len(calls) in (2, 3, 7):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return batch.flatten(1)[:, :3]  # no arithmetic, which could depend on the batch

    def certify():
        smoother = RandomizedSmoothing(model, 3, 0.3, seed=3, batch_size=80, grid=None)
        return smoother.certify_batch(images(6, (105,)), n0=20, n=45, alpha=0.05, progress=lambda n, _: done.append(n))

    failing = False
    base = certify()
    calls.clear()
    done.clear()
    failing = True
    result = certify()
    np.testing.assert_array_equal(result.counts, base.counts)
    np.testing.assert_array_equal(result.counts0, base.counts0)
    assert done == sorted(set(done))
    assert done[-1] == 6 * 65
