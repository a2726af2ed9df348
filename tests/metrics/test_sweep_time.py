"""Extrapolated times of sweeps against dealing chunk by chunk, and how often the standard error covers."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import sweep_time


def dealt(seconds: list[float], workers: int) -> float:
    """Deal chunks to whichever worker is free first."""
    free = [0.0] * workers
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 40))
def test_equal_times_are_dealt_in_rounds(images: int, workers: int, chunk: int) -> None:
    time = sweep_time([0.5, 0.5], images, workers, chunk)
    sizes = [chunk] * (images // chunk) + [images % chunk] * (images % chunk > 0)
    wall = dealt([0.5 * size for size in sizes], workers)
    assert wall <= time.wall_seconds * (1 + 1e-12) <= wall + 0.5 * chunk
    assert images % chunk or time.wall_seconds == pytest.approx(wall)
    assert time.worker_seconds == images / 2
    assert time.standard_error == 0.0
    assert time.waiting == pytest.approx(1 - time.worker_seconds / (workers * time.wall_seconds), abs=1e-12)


def test_uneven_chunks_add_at_most_the_longest() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.pareto(2.5, 2000) + 0.1
    chunks = seconds.reshape(-1, 10).sum(axis=1)
    time = sweep_time(seconds, 2000, 8, 10)
    assert abs(time.wall_seconds - dealt(chunks.tolist(), 8)) <= chunks.max()


def test_the_standard_error_covers_totals() -> None:
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(400):
        time = sweep_time(rng.exponential(1, 60), 1000)
        assert time.standard_error is not None
        missed += abs(time.worker_seconds - 1000) > 1.96 * time.standard_error
    assert 0.02 <= missed / 400 <= 0.11


def test_bad_input() -> None:
    for seconds in ([1.0, -1.0], [], [math.nan], [[1.0], [2.0]]):
        with pytest.raises(InputError, match="seconds: expected finite times of at least 0"):
            sweep_time(seconds, 10)
    with pytest.raises(InputError, match="workers: expected at least 1, got 0"):
        sweep_time([1.0], 10, 0)
    with pytest.raises(InputTypeError, match="images: expected an integer"):
        sweep_time([1.0], 1.5)  # type: ignore[arg-type]  # a wrong type
    for numbers in ((10**30, 2, 1), (10, 10**30, 1), (10, 2, 10**30)):
        with pytest.raises(InputError, match="expected at most 4294967296"):
            sweep_time([1.0], *numbers)
    one = sweep_time([2.0], 10, 2**32)
    assert (one.wall_seconds, one.standard_error) == (2.0, None)
    assert sweep_time([0.0], 10, 3).waiting == pytest.approx(1 / 6)
