"""kill -9 in the middle of ``pyrobust verify``, then the same command again."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from killed_runs import TIMEOUT_S, committed, finish, start
from verify_models import same

from pyrobust.evaluation import Run

# One image per chunk, so that a kill hits a half-finished run.
SWEEP = [
    *("verify", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--method", "cascade"),
    *("--epsilon", "4/255,8/255", "--attack", "pgd", "--batch-size", "1", "--max", "40"),
]


def test_a_killed_verification_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "killed.db"
    finish(SWEEP, whole)
    expected = Run(whole)
    hit, deadline = False, time.monotonic() + TIMEOUT_S
    while not hit:
        assert time.monotonic() < deadline
        process = start(SWEEP, path)
        while process.poll() is None and not committed(path) and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        if process.returncode == 0:  # finished before the kill
            path.unlink()
        hit = 0 < committed(path) < len(expected)
    finish(SWEEP, path)
    assert Run(path).complete
    assert Run(path).header == expected.header
    assert same(Run(path), expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["killed.db", "whole.db"]
