"""Progress reports of sweeps."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from sweep_models import FEW, images, smoother

from pyrobust.evaluation import SweepProgress, certify_dataset


def test_progress_is_reported_and_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[SweepProgress] = []
    path = tmp_path / "run.db"
    run = certify_dataset(smoother(), images(), out=path, progress=seen.append, **FEW)
    done = [now.images for now in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0.0, 40.0)
    assert any(now.images % 1 for now in seen)
    assert seen[-1].correct == run.correct.sum()
    assert seen[-1].certified == (run.correct & (run.table["radius"] >= 0.1)).sum()
    seen.clear()
    certify_dataset(smoother(), images(), out=path, progress=seen.append, **FEW)
    assert [(now.done, now.correct) for now in seen] == [(40, run.correct.sum())]


def test_the_bar_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    certify_dataset(smoother(), images(4), progress=True, **FEW)
    output = capsys.readouterr()
    assert output.out == ""
    assert "4/4 images" in output.err
    certify_dataset(smoother(), images(4), **FEW)
    assert capsys.readouterr() == ("", "")


def test_the_bar_fits_a_terminal_of_80_columns() -> None:
    code = (
        "import time\n"
        "from pyrobust.runs.progress import SweepProgress, sweep_reporting\n"
        "with sweep_reporting(True) as report:\n"
        "    for k in range(4):\n"
        "        done = 50_000 * k // 3\n"
        "        report(SweepProgress(done, 50_000, 0, 0, 0, done, done, 0.125))\n"
        "        time.sleep(0.15)\n"
    )
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    child = subprocess.Popen(
        [sys.executable, "-c", code], stderr=follower, stdin=follower, env=environment | {"TERM": "xterm"}
    )
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # Linux reports the end of a terminal so
        while piece := os.read(leader, 1 << 16):
            shown += piece
    os.close(leader)
    assert child.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    lines = [line for line in re.split(r"[\r\n]+", text) if line]
    assert max(map(len, lines)) <= 80
    assert "50000/50000 images" in lines[-1]
    assert lines[-1].rstrip().endswith("correct 100.0 %, R>=0.125: 100.0 %")
    assert "took 0:00:0" in lines[-1]
    assert "ETA" not in lines[-1]
    assert any("ETA" in line for line in lines[:-1])
    assert b"\x1b[1A" not in shown  # the cursor never goes up: one line
