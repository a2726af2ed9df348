"""kill -9 in the middle of an attack or a verification by the real command, then the same command again."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from attack_runs import same
from killed_runs import TIMEOUT_S, committed, finish, start

from pyrobust.evaluation import Run

MODEL = ("--model", "zoo:digits-smooth-0.25", "--data", "digits")
# One image a chunk, so that kills hit unfinished runs; a small epsilon, so that every step is taken.
SWEEPS = {
    "attack": [
        *("attack", *MODEL, "--attack", "pgd", "--epsilon", "4/255"),
        *("--steps", "40", "--restarts", "2", "--batch-size", "1", "--max", "30"),
    ],
    "minimum": [
        *("attack", *MODEL, "--minimum", "--attack", "fab-t", "--norm", "l2"),
        *("--steps", "3", "--batch-size", "1", "--max", "8"),
    ],
    "certified-first": [
        *("attack", "--model", "zoo:digits-ibp-0.10", "--data", "digits", "--certify-first"),
        *("--epsilon", "0.1", "--batch-size", "1", "--max", "30"),
    ],
    "verify": [
        *("verify", *MODEL, "--method", "cascade"),
        *("--epsilon", "4/255,8/255", "--attack", "pgd", "--batch-size", "1", "--max", "20"),
    ],
}


@pytest.mark.parametrize(("name", "kills"), [("attack", 1), ("minimum", 1), ("certified-first", 1), ("verify", 1)])
def test_killed_sweeps_resume_to_the_same_results(tmp_path: Path, name: str, kills: int) -> None:
    sweep = SWEEPS[name]
    whole, path = tmp_path / "whole.db", tmp_path / "killed.db"
    finish(sweep, whole)
    expected = Run(whole)
    hits, deadline = 0, time.monotonic() + TIMEOUT_S
    while hits < kills:
        assert time.monotonic() < deadline
        before = committed(path)
        process = start(sweep, path)
        while process.poll() is None and committed(path) <= before + 3 * hits and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        if process.returncode == 0:  # it was done before the kill
            path.unlink()
        else:
            hits += 0 < committed(path) < len(expected)
    finish(sweep, path)
    assert Run(path).complete
    assert Run(path).header == expected.header
    assert same(Run(path), expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["killed.db", "whole.db"]
