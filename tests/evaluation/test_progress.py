"""Progress reports of sweeps."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pytest
from sweep_models import FEW, images, smoother

from pyrobust.evaluation import SweepProgress, certify_dataset
from pyrobust.runs.progress import sweep_reporting


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for name, value in (("COLUMNS", "80"), ("LINES", "24"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    with sweep_reporting(True) as report:
        for done in (0, 16_666, 33_333, 50_000):
            report(SweepProgress(done, 50_000, 0, 0, 0, done, done, 0.125))
            time.sleep(0.15)
    shown = terminal.getvalue()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    lines = [line for line in re.split(r"[\r\n]+", text) if line]
    assert max(map(len, lines)) <= 80
    assert "50000/50000 images" in lines[-1]
    assert lines[-1].rstrip().endswith("correct 100.0 %, R>=0.125: 100.0 %")
    assert "took 0:00:0" in lines[-1]
    assert "ETA" not in lines[-1]
    assert any("ETA" in line for line in lines[:-1])
    assert "\x1b[1A" not in shown  # the cursor never goes up: one line
