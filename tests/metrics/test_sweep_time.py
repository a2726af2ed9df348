"""Dealing chunks to workers: Graham's bounds, by-hand cases, and how often a prediction from a pilot covers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import makespan, sweep_time

TIMES = st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=1, max_size=60)


@given(TIMES, st.integers(1, 20))
def test_makespan_keeps_the_bounds_of_graham(seconds: list[float], workers: int) -> None:
    wall, total, longest = makespan(seconds, workers), math.fsum(seconds), max(seconds)
    slack = 1e-9 * total
    assert max(longest, total / workers) - slack <= wall <= total / workers + (1 - 1 / workers) * longest + slack
    assert makespan(seconds, 1) == pytest.approx(total, rel=1e-12)
    assert makespan(seconds, len(seconds)) == longest


@settings(max_examples=40)
@given(TIMES, st.integers(1, 300), st.integers(1, 12), st.integers(1, 40), st.integers(1, 8))
def test_sweep_keeps_them_too(seconds: list[float], images: int, workers: int, chunk: int, timed: int) -> None:
    time = sweep_time(seconds, images, workers, chunk, timed=timed, resamples=20)
    total, slack = time.worker_seconds, 1e-9 * time.worker_seconds
    assert images * min(seconds) - slack <= total <= images * max(seconds) + slack
    longest = min(chunk, images) * max(seconds)
    assert total / workers - slack <= time.wall_seconds <= total / workers + longest + slack
    assert time.lower - slack <= time.wall_seconds <= time.upper + slack or min(seconds) < max(seconds)
    assert time.waiting == pytest.approx(1 - total / max(time.held_seconds, 1e-300), abs=1e-9) or not total
    if workers == 1:
        assert time.wall_seconds == pytest.approx(total, rel=1e-9)
        assert time.waiting == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("images", [10, 1000, 100_003])
def test_equal_times_give_whole_rounds(images: int) -> None:
    """Also where only the last chunks are dealt one by one: the rest is a multiple of the workers."""
    for workers, chunk in ((1, 1), (7, 3), (64, 10), (100, 1)):
        time = sweep_time([0.5], images, workers, chunk, resamples=20)
        rounds, last = divmod(math.ceil(images / chunk), workers)
        expected = 0.5 * chunk * (rounds + (last > 0))
        if images % chunk and last in (0, 1):  # the last chunk is smaller, and alone in its round, or ends the last one
            expected -= 0.5 * (chunk - images % chunk) if last == 1 or workers == 1 else 0
        assert time.wall_seconds == pytest.approx(expected, rel=1e-9), (workers, chunk)
        assert time.lower == pytest.approx(time.upper)


def test_dealing_only_the_last_chunks_one_by_one_changes_little() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.pareto(2.5, 200) + 0.1
    weights = np.full(200, 1 / 200)
    images = 20_000
    exact = np.mean([makespan(rng.choice(seconds, images, p=weights), 16) for _ in range(20)])
    assert sweep_time(seconds, images, 16).wall_seconds == pytest.approx(exact, rel=0.03)


def test_shards_of_a_billion_images() -> None:
    """Images of large chunks are drawn in groups: no memory for each."""
    time = sweep_time([1.0, 2.0, 3.0], 10**9, 400, 10**9 // 400, timed=2**40)
    assert time.worker_seconds == pytest.approx(2e9, rel=0.2)
    assert time.waiting < 0.4
    assert sweep_time([1.0, 3.0], 10**9, 400, 10**9 // 400).waiting < 0.05
    assert sweep_time([0.1], 10_000, 1, 10_000).wall_seconds == pytest.approx(1000.0)


def test_simulated_times_of_each_image() -> None:
    rows = np.array([[1.0, 10.0], [3.0, 30.0]])
    time = sweep_time(rows, 1000, 4)
    assert time.worker_seconds == pytest.approx(1000 * rows.mean(), rel=0.1)
    constant = sweep_time(np.full((5, 1), 2.0), 10)
    assert (constant.lower, constant.upper, constant.waiting) == (20.0, 20.0, 0.0)


def test_the_interval_covers_sweeps_as_often_as_it_says() -> None:
    """Uneven times, pilots of 60 images, sweeps of 1000."""
    rng = np.random.default_rng(1)
    trials = 200
    covered = 0
    for trial in range(trials):
        time = sweep_time(rng.exponential(1, 60), 1000, 8, 10, resamples=50, seed=trial)
        wall = makespan(rng.exponential(1, 1000).reshape(-1, 10).sum(axis=1).tolist(), 8)
        covered += time.lower <= wall <= time.upper
    assert 0.83 <= covered / trials <= 0.95


def test_images_timed_together_vary_together() -> None:
    """A chunk of 50 that was timed as one is as uneven as the pilot's; 50 images timed alone average out."""
    seconds = [1.0, 3.0]
    together = sweep_time(seconds, 500, 10, 50, timed=50)
    alone = sweep_time(seconds, 500, 10, 50)
    assert together.waiting > 2 * alone.waiting > 0


def test_bad_input() -> None:
    with pytest.raises(InputError, match="seconds: expected finite times of at least 0"):
        sweep_time([1.0, -1.0], 10)
    with pytest.raises(InputError, match="seconds"):
        sweep_time([], 10)
    with pytest.raises(InputError, match="seconds"):
        sweep_time([math.nan], 10)
    with pytest.raises(InputError, match="workers: expected at least 1, got 0"):
        sweep_time([1.0], 10, 0)
    with pytest.raises(InputError, match="resamples: expected at least 20, got 1"):
        sweep_time([1.0], 10, resamples=1)
    with pytest.raises(InputTypeError, match="images: expected an integer"):
        sweep_time([1.0], 1.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seconds"):
        makespan([-1.0], 2)
    assert makespan([], 3) == 0.0
    for numbers in ((10**30, 2, 1), (10, 10**30, 1), (10, 2, 10**30)):
        with pytest.raises(InputError, match="expected at most 4294967296"):
            sweep_time([1.0], *numbers)
    assert sweep_time([2.0], 10, 2**32).wall_seconds == makespan([2.0] * 10, 10**30) == 2.0
