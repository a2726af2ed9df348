"""kill -9 in the middle of an attack by the real command, then the same command again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from attack_runs import same

from pyrobust.errors import PyrobustError
from pyrobust.evaluation import Run

# One image a chunk, so that every kill hits a run half done; a small epsilon, so that every step is taken.
SWEEP = [
    *("attack", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--attack", "pgd", "--epsilon", "4/255"),
    *("--steps", "40", "--restarts", "2", "--batch-size", "1", "--max", "30"),
]
TIMEOUT_S = 120


def start(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from pyrobust.cli import main; main()", *SWEEP, "--out", str(path)]
    return subprocess.Popen(
        command,
        cwd=path.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def committed(path: Path) -> int:
    try:
        return len(Run(path))
    except PyrobustError:  # not there yet, or just being made
        return 0


def finish(path: Path) -> None:
    process = start(path)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors


def test_killed_attacks_end_like_uninterrupted_ones(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "killed.db"
    finish(whole)
    expected = Run(whole)
    hits, deadline = 0, time.monotonic() + TIMEOUT_S
    while hits < 2:
        assert time.monotonic() < deadline
        before = committed(path)
        process = start(path)
        while process.poll() is None and committed(path) <= before + 3 * hits and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        if process.returncode == 0:  # it was done before the kill
            path.unlink()
        else:
            hits += 0 < committed(path) < len(expected)
    finish(path)
    assert Run(path).complete
    assert Run(path).header == expected.header
    assert same(Run(path), expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["killed.db", "whole.db"]
