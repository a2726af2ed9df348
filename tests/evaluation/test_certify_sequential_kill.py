"""kill -9 in the middle of images of a sequential run of the real command, then the same command again."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from killed_runs import TIMEOUT_S, finish, start

from pyrobust.errors import PyrobustError
from pyrobust.evaluation import Run

# The second radius is close to those of many images, which therefore draw thousands of samples.
SWEEP = [
    *("certify", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25", "--method", "sequential"),
    *("--radii", "0.25,0.5", "--n", "20000", "--batch-size", "1200", "--max", "100"),
]


def in_work(path: Path) -> int:
    """Number of unfinished images with stored votes."""
    try:
        Run(path)
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM pending").fetchone()[0])
    except (PyrobustError, sqlite3.Error):  # not there yet, or just being made
        return 0


def assert_same(run: Run, expected: Run) -> None:
    assert run.complete
    for name in expected.table:
        if name != "seconds":
            assert run.table[name].tobytes() == expected.table[name].tobytes(), name
    for name in ("counts0", "counts"):
        np.testing.assert_array_equal(run.histogram(name), expected.histogram(name))


def test_killed_sweeps_resume_to_the_same_results(tmp_path: Path) -> None:
    chance = random.Random(0)
    whole, path = tmp_path / "whole.db", tmp_path / "killed.db"
    finish(SWEEP, whole)
    expected = Run(whole)
    assert (expected.table["samples"] > 1500).sum() > 5
    hits = attempts = 0
    while hits < 1:
        attempts += 1
        assert attempts < 30, f"only {hits} of {attempts - 1} kills hit images in work"
        process = start(SWEEP, path)
        deadline = time.monotonic() + TIMEOUT_S
        while process.poll() is None and not in_work(path) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        if process.returncode == 0:
            assert_same(Run(path), expected)
            path.unlink()
        else:
            assert process.returncode == -signal.SIGKILL, errors
            hits += in_work(path) > 0
    finish(SWEEP, path)
    assert_same(Run(path), expected)
    assert in_work(path) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["killed.db", "whole.db"]
