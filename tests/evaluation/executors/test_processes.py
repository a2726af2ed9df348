"""Workers that are processes of this machine: killed, outlived by nothing, and equal to one process."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import counted_model
from support.counted_model import Echo, certify

from pyrobust.errors import InputError
from pyrobust.evaluation import Run
from pyrobust.workers.fleet import Failed, Lost, Place, Reply, Started
from pyrobust.workers.payload import dump, load
from pyrobust.workers.processes import Processes
from pyrobust.zoo.user_code import find_object, working_directory_importable

TIMEOUT_S = 120.0
#: Of each worker: the probe of its rows, the chunk that it computes, and the next; a chunk is 8 images, of 17 passes.
IN_FLIGHT_PASSES = 16 + 2 * 18


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def collect(fleet: Processes, events: list[Any], count: int) -> None:
    """Wait until there are this many events."""
    while len(events) < count:
        events += until(lambda: fleet.wait(1.0))


def rows_of(path: Path) -> list[str]:
    """Lines of an exported log without the time, which differs."""
    return [line.rpartition("\t")[0] for line in path.read_text().splitlines()]


def test_calls_and_answers_larger_than_a_pipe_do_not_wait_for_each_other() -> None:
    value = torch.arange(1_000_000)
    with Processes(Echo, [Place("cpu", 1, "worker 0 on cpu")]) as fleet:
        until(lambda: fleet.wait(1.0))
        fleet.call(0, "fail")
        for _ in range(3):
            fleet.call(0, "echo", value)
        events: list[Any] = []
        collect(fleet, events, 4)
        assert isinstance(events[0], Failed)
        assert isinstance(events[0].error, LookupError)
        assert all(torch.equal(event.value, value) for event in events[1:])
        # The child of a killed worker keeps its pipe open.
        fleet.call(0, "die_with_a_child", 30)
        collect(fleet, events, 6)
        lost, started = events[4:]
        assert isinstance(lost, Lost)
        assert "worker 0 on cpu was killed by SIGKILL" in lost.reason
        assert isinstance(started, Started)
        fleet.call(started.worker, "echo", 1)
        assert until(lambda: fleet.wait(1.0)) == [Reply(started.worker, 1)]
        fleet.call(started.worker, "close_pipe")
        assert isinstance(until(lambda: fleet.wait(1.0))[0], Lost)


def test_what_cannot_be_pickled_is_told_before_workers_start() -> None:
    with pytest.raises(InputError, match="executor: expected a model, data and functions that can be sent to other"):
        Processes(partial(Echo, lock=threading.Lock()), [Place("cpu", 1, "")])


def test_workers_import_what_the_driver_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "random.py").write_text("raise SystemExit('of the working folder')")
    (folder / "models_here.py").write_text(
        "class Model:\n    def __init__(self, place): pass\n    def seven(self): return 7"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # Python ignores what is not a string
    with working_directory_importable():
        model = find_object("models_here:Model", "model")
    with Processes(model, [Place("cpu", 1, "worker 0 on cpu")]) as fleet:
        assert isinstance(until(lambda: fleet.wait(1.0))[0], Started)
        fleet.call(0, "seven")
        assert until(lambda: fleet.wait(1.0)) == [Reply(0, 7)]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_memory_formats_need_no_module_of_the_driver(
    memory_format: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By itself pickle names the first module that has ``torch``.
    monkeypatch.setattr(sys, "modules", {__name__: sys.modules[__name__], **sys.modules})
    assert __name__.encode() in pickle.dumps(memory_format)
    content = dump(memory_format, pickle.Pickler)
    assert __name__.encode() not in content
    assert load(content, "worker 0") is memory_format


def test_a_module_that_a_worker_lacks_is_told() -> None:
    with pytest.raises(InputError, match="that worker 1 can import, got No module named 'nothing_such'; define them"):
        load(b"cnothing_such\nthing\n.", "worker 1")


def start(path: Path, executor: str) -> subprocess.Popen[str]:
    environment = os.environ | {counted_model.LOG: f"{path}.passes", "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "import logging, sys, support.counted_model as model; logging.basicConfig(); model.certify(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(path), executor]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def passes(path: Path) -> list[int]:
    """Process of each forward pass of the sweep, in order."""
    log = Path(f"{path}.passes")
    return [int(line.split()[0]) for line in log.read_text().splitlines()] if log.exists() else []


def computing(path: Path) -> int | None:
    """Return a worker that computes a chunk; the first passes prepare it."""
    workers = passes(path)
    return next((worker for worker in workers if workers.count(worker) > 5), None)


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def check_equal(path: Path, whole: Path, lost_workers: int) -> None:
    run, expected = Run(path), Run(whole)
    assert run.parameters == expected.parameters
    assert rows_of(Path(f"{path}.tsv")) == rows_of(Path(f"{whole}.tsv"))
    assert len(passes(path)) <= len(passes(whole)) + (lost_workers + 2) * IN_FLIGHT_PASSES


def test_killed_workers_and_drivers_leave_results_and_nothing_else(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "run.db"
    driver = start(path, "cpu:2")
    os.kill(until(lambda: computing(path)), signal.SIGKILL)
    until(lambda: len(passes(path)) > 20)
    workers = children(driver.pid)
    assert workers
    driver.kill()
    driver.communicate()
    until(lambda: not any(map(alive, workers)))
    certify(str(path), "none")
    check_equal(path, whole, lost_workers=3)


@pytest.mark.full
def test_interrupted_drivers_leave_results_and_nothing_else(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "run.db"
    driver = start(path, "cpu:2")
    until(lambda: passes(path))
    workers = children(driver.pid)
    # Ctrl-C goes to all processes of the terminal.
    for process in [driver.pid, *workers]:
        os.kill(process, signal.SIGINT)
    _, errors = driver.communicate(timeout=TIMEOUT_S)
    assert "KeyboardInterrupt" in errors
    assert not any(map(alive, workers))
    driver = start(path, "cpu:2")
    _, errors = driver.communicate(timeout=TIMEOUT_S)
    assert driver.returncode == 0, errors
    check_equal(path, whole, lost_workers=2)
