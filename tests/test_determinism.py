"""The same seed gives the same noise bits and counts for every batch size, thread count, order and split.

Counts agree to the last vote only if the model's arithmetic does not depend on the batch. ``elementwise`` below
computes nothing; the bundled nets show it for a real model.
"""

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

BATCHES = (1, 7, 256, 1000)
NORMS = {"gaussian": "l2", "uniform": "l1", "laplace": "l1"}


def elementwise(batch):
    """Return the first three elements as logits, without arithmetic."""
    return batch.flatten(1)[:, :3]


class Recorder:
    """Model that records its inputs."""

    def __init__(self):
        self.seen = []

    def __call__(self, batch):
        self.seen.append(batch.clone(memory_format=torch.contiguous_format))
        return elementwise(batch)

    def rows(self):
        return torch.cat(self.seen)


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def images(count=6, shape=(3, 5, 7)):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def record_samples(batch_size, *, x=None, indices=None, method="certify_batch", n=45, **options):
    recorder = Recorder()
    options = {"seed": 3, "noise": "gaussian", "grid": None} | options
    smoother = RandomizedSmoothing(
        recorder, 3, 0.3, norm=NORMS[options["noise"]], batch_size=batch_size, device="cpu", **options
    )
    arguments = {"n": n, "alpha": 0.05, "indices": indices} | ({"n0": 20} if method == "certify_batch" else {})
    result = getattr(smoother, method)(images() if x is None else x, **arguments)
    return recorder.rows(), result


NORMALIZED = {"normalize": ([0.1, 0.2, 0.3], [0.5, 0.4, 0.3])}
OPTIONS = [
    *({"noise": noise} for noise in NORMS),
    {"dtype": torch.float64, **NORMALIZED},
    {"dtype": torch.bfloat16, "memory_format": torch.channels_last, **NORMALIZED},
    {"dtype": torch.float16, "memory_format": torch.channels_last},
]


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, list(options.values())[:2])))
def test_noise_bits_and_counts_do_not_depend_on_the_batch_size(options, threads):
    expected, base = record_samples(64, **options)
    assert expected.dtype == options.get("dtype", torch.float32)
    for batch_size in (*BATCHES, None):
        rows, result = record_samples(batch_size, **options)
        assert torch.equal(bits(rows), bits(expected))
        np.testing.assert_array_equal(result.counts, base.counts)
        np.testing.assert_array_equal(result.counts0, base.counts0)
        np.testing.assert_array_equal(result.radius, base.radius)


@pytest.mark.parametrize("method", ["certify_batch", "predict_batch"])
def test_counts_do_not_depend_on_shards_and_order(method):
    x, indices = images(11), [40, 3, 2**32 - 1, 17, 5, 6, 0, 99, 12, 13, 70000]
    _, whole = record_samples(64, x=x, indices=indices, method=method)
    for order in ([range(0, 11, 3), range(1, 11, 3), range(2, 11, 3)], [range(10, -1, -1)], [[i] for i in range(11)]):
        for part in order:
            part = list(part)
            _, shard = record_samples(32, x=x[part], indices=[indices[i] for i in part], method=method)
            np.testing.assert_array_equal(shard.counts, whole.counts[part])
            np.testing.assert_array_equal(shard.prediction, whole.prediction[part])
            if method == "certify_batch":
                np.testing.assert_array_equal(shard.counts0, whole.counts0[part])
                np.testing.assert_array_equal(shard.radius, whole.radius[part])


@pytest.mark.usefixtures("unprobed")
def test_larger_n_extends_the_samples_of_smaller_n():
    x = images(1)
    short, _ = record_samples(64, x=x, method="predict_batch", n=50)
    long, _ = record_samples(64, x=x, method="predict_batch", n=130)
    assert torch.equal(long[:50], short)


def test_repeated_calls_give_the_same_counts_whatever_the_global_seed():
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        smoother = RandomizedSmoothing(elementwise, 3, 0.3, batch_size=50)
        results += [smoother.certify_batch(images(), n0=20, n=100, alpha=0.05) for _ in range(2)]
    for result in results[1:]:
        np.testing.assert_array_equal(result.counts, results[0].counts)
        np.testing.assert_array_equal(result.counts0, results[0].counts0)


@pytest.mark.usefixtures("unprobed")
def test_seeds_images_stages_and_samples_share_no_noise():
    """With equal images, no two samples may agree in more elements than by chance."""
    x = torch.zeros(1, 2, 3).expand(4, 2, 3)
    rows = []
    for seed in (0, 1, 2**32, 2**63, 2**64 - 1):
        for method in ("certify_batch", "predict_batch"):
            rows.append(record_samples(64, x=x, indices=[0, 1, 256, 2**31], seed=seed, method=method)[0])
    rows = torch.cat(rows).flatten(1)
    assert len(rows) == 5 * 4 * (20 + 45 + 45)
    for column in rows.T:
        # Among these, about one pair of float32 normals is expected to collide by chance.
        assert len(column.unique()) > len(column) - 5
    assert len(rows.unique(dim=0)) == len(rows)
    for noise in ("uniform", "laplace"):
        other = record_samples(64, x=x, indices=range(4), seed=0, noise=noise)[0].flatten(1)
        assert torch.isin(other, rows).float().mean() < 0.002


def test_counts_of_a_bundled_net(threads):
    model, digits = load_model("zoo:digits-smooth-0.50"), load_data("digits")
    pick = list(range(0, 380, 64))
    x = digits.x[pick]

    def certify(batch_size, part=slice(None), n=100):
        smoother = RandomizedSmoothing(model, 10, 0.5, batch_size=batch_size, seed=9)
        return smoother.certify_batch(x[part], n0=20, n=n, alpha=0.05, indices=pick[part])

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
    before = torch.get_rng_state(), np.random.get_state(), random.getstate(), torch.initial_seed()  # noqa: NPY002
    smoother.certify_batch(images(2, (6,)), n0=5, n=20, progress=True)
    smoother.certify(images(1, (6,))[0], n0=5, n=20)
    smoother.predict(images(1, (6,))[0], 20)
    smooth.certify(images(1, (6,))[0], 5, 20, 0.05, 10)
    smooth.predict(images(1, (6,))[0], 20, 0.05, 10)
    after = torch.get_rng_state(), np.random.get_state(), random.getstate(), torch.initial_seed()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1][0] == after[1][0]
    assert (before[1][1] == after[1][1]).all()
    assert before[1][2:] == after[1][2:]
    assert before[2:] == after[2:]


class LimitedMemory:
    """Model that runs out of memory on batches of more than ``room`` rows."""

    def __init__(self, room):
        self.room, self.sizes = room, []

    def __call__(self, batch):
        self.sizes.append(len(batch))
        if len(batch) > self.room:
            raise OUT_OF_MEMORY
        return elementwise(batch)


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


@pytest.mark.parametrize("room", [1, 60])
def test_out_of_memory_changes_only_the_batch_size(room, caplog):
    _expected, base = record_samples(64)
    model = LimitedMemory(room)
    smoother = RandomizedSmoothing(model, 3, 0.3, seed=3, batch_size=100)
    result = smoother.certify_batch(images(), n0=20, n=45, alpha=0.05)
    np.testing.assert_array_equal(result.counts, base.counts)
    np.testing.assert_array_equal(result.counts0, base.counts0)
    assert "out of memory" in caplog.text
    assert max(model.sizes) == 100
    assert smoother.runner.batch_size((3, 5, 7)) <= room
    # Each size that does not fit is tried once, and the smaller size is kept.
    assert sum(size > room for size in model.sizes) <= 7
    model.sizes.clear()
    smoother.certify_batch(images(), n0=20, n=45, alpha=0.05)
    assert max(model.sizes) <= room


def test_out_of_memory_during_a_run():
    calls = []

    def model(batch):
        calls.append(len(batch))
        if len(calls) in (2, 3, 7):
            raise OUT_OF_MEMORY
        return elementwise(batch)

    _, base = record_samples(64)
    done = []
    smoother = RandomizedSmoothing(model, 3, 0.3, seed=3, batch_size=80)
    result = smoother.certify_batch(images(), n0=20, n=45, alpha=0.05, progress=lambda count, total: done.append(count))
    np.testing.assert_array_equal(result.counts, base.counts)
    np.testing.assert_array_equal(result.counts0, base.counts0)
    assert done == sorted(set(done))
    assert done[-1] == 6 * 65
