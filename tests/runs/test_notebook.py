"""Progress in a notebook: the kernel is an imitation, which keeps what it is asked to display."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pyrobust.notebook import in_notebook
from pyrobust.runner import reporting
from pyrobust.runs.progress import SweepProgress, sweep_reporting


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pictures of a kernel's display, in order."""
    pictures: list[Any] = []
    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=None)  # type: ignore[attr-defined]

    def display(picture: Any, display_id: bool) -> Any:
        assert display_id
        pictures.append(picture)
        return SimpleNamespace(update=pictures.append)

    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return pictures


def test_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    shell = ModuleType("IPython")  # of a terminal
    shell.get_ipython = lambda: SimpleNamespace()  # type: ignore[attr-defined]
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
