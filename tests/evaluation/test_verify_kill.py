"""kill -9 in the middle of a verification by the real command, then the same command again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from verify_models import same

from pyrobust.errors import PyrobustError
from pyrobust.evaluation import Run

# One image a chunk, so that a kill hits a run half done.
SWEEP = [
    *("certify", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--method", "cascade"),
    *("--epsilon", "4/255,8/255", "--attack", "pgd", "--batch-size", "1", "--max", "40"),
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


def test_a_killed_verification_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "killed.db"
    finish(whole)
    expected = Run(whole)
    hit, deadline = False, time.monotonic() + TIMEOUT_S
    while not hit:
        assert time.monotonic() < deadline
        process = start(path)
        while process.poll() is None and not committed(path) and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        if process.returncode == 0:  # it was done before the kill
            path.unlink()
        hit = 0 < committed(path) < len(expected)
    finish(path)
    assert Run(path).complete
    assert Run(path).header == expected.header
    assert same(Run(path), expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["killed.db", "whole.db"]
