"""``pyrobust watch`` beside a real sweep: piped, on a terminal, interrupted, and its page."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.killed_runs import TIMEOUT_S, start
from support.store_rows import write_rows

from pyrobust.cli.watch import describe_state
from pyrobust.evaluation import Run, RunState, RunWatcher, WatchedRate
from pyrobust.runs.writer import RunWriter

SWEEP = [
    *("certify", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25", "--order", "random"),
    *("--n0", "100", "--n", "1900", "--batch-size", "125", "--max", "24"),
]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def begin(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pyrobust", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **(pipes | options))


def until(condition: Any) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def done(path: Path) -> int:
    state = RunWatcher(path).state()
    return 0 if state is None else state.done


def test_piped_from_before_the_sweep_until_it_is_done(tmp_path: Path) -> None:
    watching = begin(tmp_path, "watch", "run.db", "--interval", "0.1", "--html", "page.html")
    assert watching.stdout is not None
    assert watching.stdout.readline() == "run.db: waiting for the run\n"
    sweep = start(SWEEP, tmp_path / "run.db")
    page = tmp_path / "page.html"
    live = ""
    while watching.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            text = page.read_text()
            assert text.rstrip().endswith("</html>")  # whole at every moment
            live = live or (text if 'id="live"' in text else "")
        time.sleep(0.02)
    out, errors = watching.communicate(timeout=TIMEOUT_S)
    assert watching.returncode == 0, errors
    assert errors == "page: page.html\n"
    lines = out.splitlines()
    assert not any(CONTROL.search(line) for line in lines)
    assert lines[-1].startswith("run.db: done, 24 of 24 images")
    assert len(set(lines)) == len(lines) > 1
    assert [line for line in lines[:-1] if not ("running" in line or "finishing" in line)] == []
    assert re.search(r"correct \d+\.\d % \[\d+\.\d, \d+\.\d\]", lines[-2])
    assert "[" not in lines[-1]
    if live:  # on a busy machine the first page may be the last
        assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in live
        assert re.search(r"<strong>In progress\.</strong> <bdi>run\.db: running, \d+ of 24 images", live)
    text = page.read_text()
    assert 'http-equiv="refresh"' not in text
    assert "In progress" not in text
    _, errors = sweep.communicate(timeout=TIMEOUT_S)
    assert sweep.returncode == 0, errors
    assert sorted(file.name for file in tmp_path.iterdir()) == ["page.html", "run.db"]


def test_interrupted(pyrobust: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a run, and beside one that stopped, which is followed on: it may be resumed."""
    append = RunWriter.append

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def append_once(*arguments: Any, **options: Any) -> None:
        append(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr("pyrobust.cli.watch.time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupt))
    waiting = pyrobust("watch", "run.db")
    assert (waiting.status, waiting.out, waiting.err) == (130, "run.db: waiting for the run\n", "")
    monkeypatch.setattr(RunWriter, "append", append_once)
    assert pyrobust(*SWEEP, "--out", "run.db").status == 130
    stopped = "run.db: stopped (no process of this machine writes it; the same command resumes it)"
    watched = pyrobust("watch", "run.db", "--html", "page.html")
    assert (watched.status, watched.err) == (130, "page: page.html\n")
    assert watched.out.startswith(f"{stopped}, {len(Run('run.db'))} of 24 images")
    text = Path("page.html").read_text()
    assert f"<strong>Not finished.</strong> <bdi>{stopped}" in text
    assert 'http-equiv="refresh"' not in text


def test_on_a_terminal(tmp_path: Path) -> None:
    sweep = start(SWEEP, tmp_path / "run.db")
    path = tmp_path / "run.db"
    until(lambda: done(path) >= 2)
    parent, child = pty.openpty()
    watching = begin(tmp_path, "watch", "run.db", "--interval", "0.1", stdout=child, stderr=child)
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal closes
        while output := os.read(parent, 4096):
            shown += output
    os.close(parent)
    assert watching.wait(TIMEOUT_S) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "run.db  certify, zoo:digits-smooth-0.25, digits" in text
    assert "24 of 24 images" in text
    assert "so far" in text
    assert "complete run" in text
    assert re.search(r"certified at 0\.25 +\d+\.\d % +\d+\.\d to \d+\.\d %", text)
    assert "complete: the rates are those of all images of the run" in text
    assert b"\x1b[?25h" in shown  # the cursor is back
    sweep.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def finished(pyrobust: Any, tmp_path: Path) -> Any:
    """The command, beside a complete run in the order of the data."""
    write_rows(tmp_path / "run.db", "attack", images=8)
    return pyrobust


def test_once_json_and_page_of_a_complete_run(finished: Any) -> None:
    once = finished("watch", "run.db", "--once", "--html", "page.html")
    assert (once.status, once.err) == (0, "page: page.html\n")
    assert once.out.startswith("run.db: done, 8 of 8 images, ")
    assert once.out.splitlines()[1] == "complete: the rates are those of all images of the run"
    state = json.loads(finished("watch", "run.db", "--json", "-").out)
    assert (state["state"], state["done"], state["total"], state["order"]) == ("done", 8, 8, "data")
    assert [rate["name"] for rate in state["rates"]] == ["correct", "robust"]
    for _ in range(2):  # over those of its own kind; nothing waits for a complete run
        assert finished("watch", "run.db", "--json", "state.json").status == 0
        assert finished("watch", "run.db", "--html", "page.html").err == "page: page.html\n"
    assert json.loads(Path("state.json").read_text())["done"] == 8
    assert Path("page.html").read_text().startswith("<!doctype html>")
    for option in ("--html", "--json"):
        refused = finished("watch", "run.db", option, "run.db", "--replace")
        assert refused.error.startswith(f"error: {option}: expected")


def test_errors(finished: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("text.db").write_text("no run" * 100)
    assert "text.db" in finished("watch", "text.db").error
    # Removed between two looks.
    state = RunWatcher("run.db").state()
    states = iter([state and RunState(**{**vars(state), "state": "running"}), None])
    monkeypatch.setattr(RunWatcher, "state", lambda self: next(states))
    removed = finished("watch", "run.db", "--interval", "0.01")
    assert (removed.status, removed.err.splitlines()) == (
        2,
        ["error: run.db: removed while it was watched; nothing is left to show"],
    )


def test_hostile_names_do_not_reach_the_terminal() -> None:
    rate = WatchedRate("correct", None, 1, 2, 0.5, None, None)
    state = RunState(
        "r\x1b[2Jun.db", "attack", "net", "d", "running", 1, 2, None, None, 0.0, 0, 0, "data", 0, 0.05, (rate,)
    )
    first, second = describe_state(state)
    assert not CONTROL.search(first)
    assert "--order random gives bounds" in second


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (61, "1 min 1 s"), (3700, "1 h 1 min"), (200000, "2 d 7 h")]
)
def test_time_left(seconds: float, text: str) -> None:
    state = RunState("r", "attack", "n", "d", "running", 1, 2, 1.0, seconds, 0.0, 0, 0, "random", 0, 0.05, ())
    assert f", {text} left" in describe_state(state)[0]
    assert describe_state(state)[1] == "no bounds on the final rates yet"
