"""Votes of runs of samples do not depend on how batches split them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust import RandomizedSmoothing
from pyrobust.ops.sample_noise import sample_noise
from pyrobust.runner import Runner
from pyrobust.smoothing.sampling import Sampler

X = torch.tensor([[0.3, 0.0, 0.1], [0.0, 0.2, 0.1], [0.0, 0.0, 0.0], [-0.4, 0.1, 0.0]])
INDEX = (7, 2**32 - 1, 0, 40)


def model(x):
    return torch.stack([x[:, 0], x[:, 1]], dim=1)


def votes_one_by_one(runs, stages):
    counts = torch.zeros(len(X), 3, dtype=torch.int64)
    for (row, image, first, number), stage in zip(runs, stages, strict=True):
        for sample in range(first, first + number):
            noisy = sample_noise(X, [(row, image, sample, 1)], sigma=0.5, stage=stage, seed=3)
            counts[row, int(model(noisy)[0].argmax())] += 1
    return counts


@pytest.mark.usefixtures("unprobed")
@given(
    runs=st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 50), st.integers(1, 20), st.sampled_from(["select", "estimate", "attack"])
        ),
        max_size=8,
    ),
    batch_size=st.integers(1, 40),
    block=st.sampled_from([1, 700, 1 << 18]),
)
def test_votes_do_not_depend_on_batches_or_blocks(runs, batch_size, block):
    """Runs in any order, of stages in any order, with rows that occur more than once."""
    stages = [stage for *_, stage in runs]
    runs = [(row, INDEX[row], first, number) for row, first, number, _ in runs]
    seen, logits = [], torch.zeros(40, 2)

    def watched(x):
        seen.append((len(x), x.data_ptr() % 64))
        logits[: len(x)] = model(x)  # memory that the model uses again
        return logits[: len(x)]

    sampler = Sampler(Runner(watched, batch_size=batch_size), 2, 0.5, "gaussian", 3, None)
    counts, reported = torch.zeros(len(X), 3, dtype=torch.int64), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyrobust.smoothing.blocks._BLOCK_BYTES", block)
        sampler.count(X, runs, stages, counts, reported.append)
    total = sum(number for _, _, _, number in runs)
    assert torch.equal(counts, votes_one_by_one(runs, stages))
    sizes = [batch_size] * (total // batch_size) + [total % batch_size] * (total % batch_size > 0)
    assert seen == [(size, 0) for size in sizes]  # where memory begins, a kernel may choose another order of sums
    assert reported == [min(batch_size * (i + 1), total) for i in range(len(sizes))]


def test_votes_are_added_to_counts():
    counts = torch.full((4, 3), 5, dtype=torch.int64)
    Sampler(Runner(model), 2, 0.5, "gaussian", 3, None).count(X, [(1, 9, 0, 30)], "predict", counts, lambda done: None)
    assert counts.sum(1).tolist() == [15, 45, 15, 15]


def test_a_model_may_use_the_memory_of_its_logits_again():
    """As captured CUDA graphs do: the row probe's own passes must not change what is counted or compared."""
    kept = torch.zeros(64, 2)

    def buffered(x):
        kept[: len(x)] = model(x)
        return kept[: len(x)]

    x = X[:, None].repeat(1, 8, 1).reshape(-1, 3)
    votes = []
    for f in (model, buffered):
        smoother = RandomizedSmoothing(f, 2, 0.5, batch_size=64, grid=None)
        votes.append([smoother.votes(x, n=200, indices=range(len(x))) for _ in range(3)])
    assert np.array_equal(*votes)
