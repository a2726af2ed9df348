"""Progress reports of sweeps: a function, a bar on a terminal, and one in a notebook, whose kernel is an imitation."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.sweep_models import FEW, images, smoother

from pyrobust.evaluation import SweepProgress, certify_dataset
from pyrobust.notebook import in_notebook
from pyrobust.runner import reporting
from pyrobust.runs.progress import sweep_reporting

SEQUENTIAL = {"n0": 10, "n": 2000, "method": "sequential", "radii": [0.1, 0.2]}


@pytest.mark.parametrize("options", [FEW, SEQUENTIAL], ids=["fixed", "sequential"])
def test_progress_is_reported_and_ends_at_the_total(tmp_path: Path, options: dict[str, Any]) -> None:
    seen: list[SweepProgress] = []
    path = tmp_path / "run.db"
    run = certify_dataset(smoother(), images(), out=path, progress=seen.append, **options)
    done, begun = [now.done for now in seen], [now.images for now in seen]
    assert done == sorted(done)
    assert (done[0], done[-1], begun[0], begun[-1]) == (0, 40, 0, 40)
    assert max(begun) == 40
    assert any(images % 1 for images in begun)
    assert options is SEQUENTIAL or begun == sorted(begun)  # a sequence may take longer than it seemed
    assert (seen[-1].total, seen[-1].radius) == (40, 0.1)
    assert seen[-1].correct == run.correct.sum()
    assert seen[-1].certified == (run.correct & (run.table["radius"] >= 0.1)).sum()
    seen.clear()
    certify_dataset(smoother(), images(), out=path, progress=seen.append, **options)
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


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pictures of a kernel's display, in order."""
    pictures: list[Any] = []
    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=None)  # type: ignore[attr-defined]  # a stand-in module

    def display(picture: Any, display_id: bool) -> Any:
        assert display_id
        pictures.append(picture)
        return SimpleNamespace(update=pictures.append)

    module.display = display  # type: ignore[attr-defined]  # a stand-in module
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return pictures


def test_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    shell = ModuleType("IPython")  # of a terminal
    shell.get_ipython = lambda: SimpleNamespace()  # type: ignore[attr-defined]  # a stand-in module
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert not in_notebook()


def test_bars_of_calls_and_sweeps(displayed: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(True, 10) as report:
        for done in range(11):
            report(done)
    assert repr(displayed[-1]) == "10/10 samples, took 0:00"
    assert displayed[-1]._repr_html_().startswith('<progress value="10" max="10"></progress> 10/10')
    assert len(displayed) < 6  # a picture in a tenth of a second, and the last
    with contextlib.suppress(KeyboardInterrupt), sweep_reporting(True) as show:
        show(SweepProgress(8, 20, 50, 100, 4, 7, 6, 0.25))
        show(SweepProgress(12, 20, 0, 100, 4, 9, 8, 0.25))
        raise KeyboardInterrupt
    assert repr(displayed[-1]).startswith("12/20 images, ETA 0:0")
    assert "R&gt;=0.25: 66.7 %" in displayed[-1]._repr_html_()
    assert capsys.readouterr() == ("", "")
