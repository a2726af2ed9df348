"""Actors of a Ray cluster: killed workers, and results equal to those of one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from evaluation.executors.test_processes import check_equal, computing, start, until
from support.counted_model import Echo

from pyrobust.workers.fleet import Reply
from pyrobust.workers.ray import RayActors

pytest.importorskip("ray")


def test_a_worker_killed_in_a_session_of_two(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.db"
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 2}')
    driver = start(path, "ray")
    os.kill(until(lambda: computing(path)), signal.SIGKILL)
    output, errors = driver.communicate(timeout=120)
    assert driver.returncode == 0, errors
    assert "was lost" in errors
    assert not output  # Ray itself would print that a worker has died
    check_equal(path, whole, lost_workers=1)


def test_workers_of_a_session_have_the_usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 1}')
    with RayActors(Echo, "ray") as fleet:
        while not fleet.wait(5.0):
            pass
        fleet.call(0, "niceness")
        [answer] = fleet.wait(60.0)
    assert isinstance(answer, Reply)
    assert answer.value == os.nice(0)
