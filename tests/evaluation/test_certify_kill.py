"""kill -9 in the middle of a sweep of the real command, then the same command again."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.killed_runs import TIMEOUT_S, Sweep, committed, finish, start
from support.sweep_models import same

from pyrobust.errors import PyrobustError
from pyrobust.evaluation import Run

SMOOTHED = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25")
# One image a chunk, so that every image is a commit that a kill can hit.
CERTIFY = ["certify", *SMOOTHED, "--n0", "100", "--n", "1900", "--batch-size", "125", "--max", "60"]
SWEEPS = {
    "certify": CERTIFY,
    # The second radius is close to those of many images, which therefore draw thousands of samples. Votes of unfinished
    # images are stored once a second: fast machines, too, take longer for 200 images.
    "sequential": [
        *("certify", *SMOOTHED, "--method", "sequential", "--radii", "0.25,0.5"),
        *("--n", "20000", "--batch-size", "1200", "--max", "200"),
    ],
    # A small epsilon, so that every step is taken.
    "attack": [
        *("attack", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--attack", "pgd", "--epsilon", "4/255"),
        *("--steps", "40", "--restarts", "2", "--batch-size", "1", "--max", "30"),
    ],
}


def in_work(path: Path) -> int:
    """Number of unfinished images with stored votes."""
    try:
        Run(path)
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM pending").fetchone()[0])
    except (PyrobustError, sqlite3.Error):  # not there yet, or just being made
        return 0


def wait_for_progress(process: Sweep, path: Path, name: str = "certify") -> None:
    """Wait until the process has committed results, or votes of images in work, or is done."""
    stored = in_work if name == "sequential" else committed
    before, deadline = stored(path), time.monotonic() + TIMEOUT_S
    while process.poll() is None and stored(path) == before and time.monotonic() < deadline:
        time.sleep(0.005)


def kill_and_resume(folder: Path, kills: int, seed: int, name: str = "certify") -> None:
    """Kill sweeps at random moments, each resuming the last, until ``kills`` kills hit a sweep half done.

    Every second moment is counted from the start of the process, so that the creation of the file is hit too; the
    others from the first commit of the process. A sweep that is done before its kill is checked, and a new one starts.
    """
    chance, sweep, begin = random.Random(seed), SWEEPS[name], time.monotonic()
    whole, path = folder / "whole.db", folder / "killed.db"
    finish(sweep, whole)
    seconds = time.monotonic() - begin
    expected = Run(whole)
    attempts = hits = 0
    while hits < kills:
        attempts += 1
        assert attempts <= 10 * kills + 20, f"only {hits} of {attempts - 1} kills hit a sweep half done"
        process = start(sweep, path)
        if attempts % 2:
            wait_for_progress(process, path, name)
            time.sleep(chance.uniform(0, 0.3))
        else:
            time.sleep(chance.uniform(0, seconds))
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        if process.returncode == 0:
            assert same(Run(path), expected)
            path.unlink()
        else:
            assert process.returncode == -signal.SIGKILL, errors
            hits += (in_work(path) > 0) if name == "sequential" else 0 < committed(path) < len(expected)
    finish(sweep, path)
    assert Run(path).complete
    assert Run(path).header == expected.header
    assert same(Run(path), expected)
    assert name != "sequential" or in_work(path) == 0
    assert sorted(file.name for file in folder.iterdir()) == ["killed.db", "whole.db"]


@pytest.mark.parametrize("name", SWEEPS)
def test_killed_sweeps_resume_to_the_same_results(tmp_path: Path, name: str) -> None:
    kill_and_resume(tmp_path, kills=1, seed=0, name=name)


def test_a_kill_while_the_file_is_created_leaves_a_usable_file(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    process = start(CERTIFY, path)
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert committed(path) <= 2
    finish(CERTIFY, path)
    assert Run(path).complete


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_interrupt_says_how_to_resume(tmp_path: Path, number: int, status: int, word: str) -> None:
    """SIGTERM is what schedulers send before they kill."""
    path = tmp_path / "run.db"
    process = start(CERTIFY, path)
    wait_for_progress(process, path)
    process.send_signal(number)
    _, errors = process.communicate()
    if process.returncode == 0:
        pytest.skip("the sweep was done before the interrupt came")
    assert process.returncode == status, errors
    kept = committed(path)
    assert kept > 0
    assert f"{word}; {kept} of 60 images are saved in run.db" in errors
    assert f"resume with: pyrobust {' '.join(CERTIFY)} --out {path}" in errors
    assert "Traceback" not in errors
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]
