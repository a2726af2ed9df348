"""Actors of a Ray cluster: killed workers, and results equal to those of one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import counted_model
import pytest
from sweep_driver import certify
from test_processes import check_equal, computing, start, until

ray = pytest.importorskip("ray")


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "whole.db"
    monkeypatch.setenv(counted_model.LOG, str(path) + ".passes")
    certify(str(path), "none")
    return path


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
