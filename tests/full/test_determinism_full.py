"""Determinism on the whole test set and for all image shapes, batch sizes, thread counts and splits."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pyrobust import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model

pytestmark = pytest.mark.full

NORMS = {"gaussian": "l2", "uniform": "l1", "laplace": "l1"}


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("noise", list(NORMS))
@pytest.mark.parametrize("name", ["zoo:digits-smooth-0.25", "zoo:digits-smooth-0.50"])
def test_counts_of_the_whole_test_set(name, noise, threads):
    model, x = load_model(name), load_data("digits").x

    def certify(batch_size, pick):
        smoother = RandomizedSmoothing(
            model, 10, 0.25, noise=noise, norm=NORMS[noise], batch_size=batch_size, seed=2**40 + 1
        )
        return smoother.certify_batch(x[pick], n0=20, n=200, alpha=0.001, indices=pick)

    everything = list(range(len(x)))
    base = certify(512, everything)
    for batch_size in (33, 256, 1000, None):
        result = certify(batch_size, everything)
        np.testing.assert_array_equal(result.counts, base.counts)
        np.testing.assert_array_equal(result.counts0, base.counts0)
        np.testing.assert_array_equal(result.radius, base.radius)
    for batch_size in (1, 7):
        np.testing.assert_array_equal(certify(batch_size, [0, 17]).counts, base.counts[[0, 17]])
    random.Random(5).shuffle(everything)
    for k in range(3):
        part = everything[k::3]
        np.testing.assert_array_equal(certify(100, part).counts, base.counts[part])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1,), (3,), (5, 7), (1, 8, 8), (3, 5, 4), (4, 3, 3), (3, 32, 32)])
def test_noise_bits_of_every_shape(shape, dtype, memory_format):
    if memory_format == torch.channels_last and len(shape) != 3:
        pytest.skip("channels_last is for images")
    x = torch.rand(5, *shape, generator=torch.Generator().manual_seed(6))
    normalize = ([0.4] * shape[0], [0.3] * shape[0]) if len(shape) > 1 else None

    def rows(batch_size):
        seen = []

        def model(batch):
            seen.append(batch.clone(memory_format=torch.contiguous_format))
            return batch.flatten(1)[:, :1]

        RandomizedSmoothing(
            model, 1, 0.5, normalize=normalize, dtype=dtype, memory_format=memory_format, batch_size=batch_size, seed=8
        ).certify_batch(x, n0=13, n=101, alpha=0.05)
        return torch.cat(seen).view(torch.uint8)

    expected = rows(570)
    for batch_size in (1, 2, 7, 64, 101, 256, 1000, None):
        assert torch.equal(rows(batch_size), expected)
