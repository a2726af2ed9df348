"""Sweeps by the real command, to be killed and restarted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyrobust.errors import PyrobustError
from pyrobust.evaluation import Run

TIMEOUT_S = 120


def start(sweep: list[str], path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from pyrobust.cli import main; main()", *sweep, "--out", str(path)]
    return subprocess.Popen(
        command,
        cwd=path.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # several threads wait for each other on a busy machine
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def committed(path: Path) -> int:
    try:
        return len(Run(path))
    except PyrobustError:  # not there yet, or just being made
        return 0


def finish(sweep: list[str], path: Path) -> None:
    process = start(sweep, path)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
