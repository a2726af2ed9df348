"""Batches of sequential sampling: stopped after any round and resumed, they are those of an uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyrobust.smoothing import packing
from pyrobust.smoothing.packing import Round, SequencePacker
from pyrobust.smoothing.sequential import CertificationRule, ImageSequence

N0, N = 10, 200
GRIDS = (None, Fraction(1, 255))
# Votes of 41 images by stage: from clear to undecided ones.
VOTES = {
    stage: np.random.default_rng(seed).random((41, N)) < np.arange(41)[:, None] / 40
    for seed, stage in enumerate(("select", "estimate"))
}
RULE = CertificationRule((0.25, 0.5), 2, 0.5, "gaussian", "l2", N, 0.01)


class RecordingSampler:
    """A sampler of two classes without a model: each image has a fixed sequence of votes. Records every batch."""

    num_classes = 2

    def __init__(self, batch: int, grid: Fraction | None = None) -> None:
        self.grid = grid
        self.runner = SimpleNamespace(batch_size=lambda shape: batch)
        self.batch = batch
        self.batches: list[list[tuple[int, str, int, int]]] = []

    def note_no_class(self, votes: Any) -> None:
        """Every sample has a class."""

    def count(
        self,
        x: Tensor,
        runs: Sequence[Any],
        stage: str,
        counts: Tensor,
        report: Callable[[int], None],
        rows: Sequence[int],
        keys: None = None,
    ) -> None:
        filled = self.batch
        for position, (row, image, first, number) in enumerate(runs):
            assert x[row] == image  # the pixels of the image
            votes = int(VOTES[stage][image, first : first + number].sum())
            counts[rows[position]] += torch.tensor([votes, number - votes, 0])
            while number:
                if filled == self.batch:
                    self.batches.append([])
                    filled = 0
                taken = min(number, self.batch - filled)
                self.batches[-1].append((image, stage, first, taken))
                first, number, filled = first + taken, number - taken, filled + taken


def new(chunk: Iterable[int]) -> list[ImageSequence]:
    return [ImageSequence(index, np.zeros(3, dtype=np.int64)) for index in chunk]


def rounds(sampler: RecordingSampler, images: list[ImageSequence], active: list[ImageSequence]) -> Iterator[Round]:
    packer = SequencePacker(sampler, RULE, N0, torch.tensor(0.0))  # type: ignore[arg-type]  # a stand-in that records
    begun = {image.index for image in active}
    waiting = [deepcopy(image) for image in images if image.index not in begun]
    return packer.run(waiting, lambda chosen: torch.tensor([float(image.index) for image in chosen]), active=active)


@settings(max_examples=5)
@given(
    st.integers(1, 60),
    st.lists(st.integers(0, 40), min_size=1, max_size=30, unique=True),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from(GRIDS),
)
@example(24, list(range(8, 28)), 8, 4, None, None)
@example(24, list(range(8, 28)), 8, 4, None, GRIDS[1])
def test_a_run_stopped_after_a_round_resumes_in_the_same_batches(
    batch: int, chunk: list[int], slots: int, length: int, first: int | None, grid: Fraction | None
) -> None:
    """After every seventh round from the first on; in the examples after every round in turn."""
    images = new(chunk)
    with mock.patch.multiple(packing, _MIN_ACTIVE=slots, _MAX_ACTIVE=max(slots, 8), _ROUND_BATCHES=length):
        whole = RecordingSampler(batch, grid)
        states, ends = [], []
        for state in rounds(whole, images, []):
            states.append(deepcopy(state))
            ends.append(len(whole.batches))
        assert sorted(image.index for state in states for image in state.finished) == sorted(chunk)
        for stop in range(len(states))[first :: 7 if first is not None else 1]:
            decided = {image.index for earlier in states[: stop + 1] for image in earlier.finished}
            undecided = [image for image in images if image.index not in decided]
            resumed = RecordingSampler(batch, grid)
            continued = [later.finished for later in rounds(resumed, undecided, deepcopy(states[stop].active))]
            assert resumed.batches == whole.batches[ends[stop] :]
            for finished, expected in zip(continued, [state.finished for state in states[stop + 1 :]], strict=True):
                assert [image.index for image in finished] == [image.index for image in expected]
                for image, other in zip(finished, expected, strict=True):
                    np.testing.assert_array_equal(image.counts, other.counts)
                    np.testing.assert_array_equal(image.limits, other.limits)


@settings(max_examples=12)
@given(st.integers(1, 500), st.lists(st.integers(0, 40), min_size=1, max_size=30, unique=True))
@example(2 * N, [5, 33])
def test_whole_batches_on_a_grid_change_no_result(batch: int, chunk: list[int]) -> None:
    """Samples after the next look are drawn in rows that would be empty, and dropped where the image is decided."""
    results = []
    for grid in GRIDS:
        sampler = RecordingSampler(batch, grid)
        finished = [image for state in rounds(sampler, new(chunk), []) for image in state.finished]
        results.append({image.index: (image.counts.tolist(), image.limits.tolist()) for image in finished})
        batches = [rows for rows in sampler.batches if rows[0][1] == "estimate"]
        for rows in batches:
            drawn = [(image, sample) for image, _, first, number in rows for sample in range(first, first + number)]
            assert len(set(drawn)) == len(drawn) <= batch
            assert max(sample for _, sample in drawn) < N
        results.append(len(batches))
    assert results[0] == results[2]
    assert results[1] >= results[3]
    assert results[3] == 1 or batch < N * len(chunk)


def test_more_active_images_than_slots_are_all_decided() -> None:
    """Batches are halved where memory runs out: a resumed run may have fewer slots than the one that was stopped."""
    images = new(range(30))
    with mock.patch.object(packing, "_MIN_ACTIVE", 30):
        state = next(rounds(RecordingSampler(30), images, []))
    assert len(state.active) == 30
    with mock.patch.object(packing, "_MIN_ACTIVE", 7):
        later = rounds(RecordingSampler(7), images, state.active)
        assert sorted(image.index for state in later for image in state.finished) == list(range(30))
