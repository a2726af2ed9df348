"""kill -9 in the middle of a sweep of the real command, then the same command again."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from killed_runs import TIMEOUT_S, Sweep, committed, finish, start

from pyrobust.evaluation import Run, format_log

# One image a chunk, so that every image is a commit that a kill can hit.
SWEEP = [
    *("certify", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25"),
    *("--n0", "100", "--n", "1900", "--batch-size", "125", "--max", "60"),
]


def without_times(run: Run) -> str:
    return "".join(line.rpartition("\t")[0] + "\n" for line in format_log(run).splitlines())


def assert_same_results(run: Run, expected: Run) -> None:
    """Assert that nothing is lost or duplicated, and that all bits agree, except for times."""
    assert run.complete
    assert without_times(run) == without_times(expected)
    assert run.header == expected.header
    for name in ("index", "prediction", "p_lower", "radius"):
        assert run.table[name].tobytes() == expected.table[name].tobytes()
    for name in ("counts0", "counts"):
        assert np.array_equal(run.histogram(name), expected.histogram(name))


def wait_for_progress(process: Sweep, path: Path) -> None:
    """Wait until the process has committed something, or is done."""
    before, deadline = committed(path), time.monotonic() + TIMEOUT_S
    while process.poll() is None and committed(path) == before and time.monotonic() < deadline:
        time.sleep(0.005)


def kill_and_resume(folder: Path, kills: int, seed: int) -> None:
    """Kill sweeps at random moments, each resuming the last, until ``kills`` kills hit an unfinished sweep.

    Every second moment is counted from the start of the process, so that the creation of the file is hit
    too; the others from the first commit of the process. A sweep that finishes before its kill is checked, and a new
    one starts.
    """
    chance = random.Random(seed)
    begin = time.monotonic()
    whole = folder / "whole.db"
    finish(SWEEP, whole)
    seconds = time.monotonic() - begin
    expected = Run(whole)
    path = folder / "killed.db"
    attempts = hits = 0
    while hits < kills:
        attempts += 1
        assert attempts <= 10 * kills + 20, f"only {hits} of {attempts - 1} kills hit a sweep half done"
        process = start(SWEEP, path)
        if attempts % 2:
            wait_for_progress(process, path)
            time.sleep(chance.uniform(0, 0.3))
        else:
            time.sleep(chance.uniform(0, seconds))
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        if process.returncode == 0:
            assert_same_results(Run(path), expected)
            path.unlink()
        else:
            assert process.returncode == -signal.SIGKILL, errors
            hits += 0 < committed(path) < len(expected)
    finish(SWEEP, path)
    assert_same_results(Run(path), expected)
    assert sorted(file.name for file in folder.iterdir()) == ["killed.db", "whole.db"]


def test_killed_sweeps_resume_to_the_same_results(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, kills=2, seed=0)


def test_a_kill_while_the_file_is_created_leaves_a_usable_file(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    process = start(SWEEP, path)
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)
    assert committed(path) <= 2
    finish(SWEEP, path)
    assert Run(path).complete


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_interrupt_says_how_to_resume(tmp_path: Path, number: int, status: int, word: str) -> None:
    """SIGTERM is what schedulers send before they kill."""
    path = tmp_path / "run.db"
    process = start(SWEEP, path)
    wait_for_progress(process, path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    if process.returncode == 0:
        pytest.skip("the sweep was done before the interrupt came")
    assert process.returncode == status, errors
    kept = committed(path)
    assert kept > 0
    assert f"{word}; {kept} of 60 images are saved in run.db" in errors
    assert f"resume with: pyrobust {' '.join(SWEEP)} --out {path}" in errors
    assert "Traceback" not in errors
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]
