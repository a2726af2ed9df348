"""The state of a run while it is written, killed, resumed, merged and removed; coverage of its bounds by simulation."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.attack_runs import Mine, digits, pgd
from support.damage import change
from support.killed_runs import TIMEOUT_S, start
from support.store_rows import MAKERS, header, write_rows
from support.sweep_models import FEW, Bands, Failing, images, same, smoother
from torch import Tensor

from pyrobust.errors import FileFormatError, InputError, InputTypeError, StoreError
from pyrobust.evaluation import (
    Run,
    RunState,
    RunWatcher,
    Sandwich,
    attack_dataset,
    certify_dataset,
    predict_dataset,
    snapshot,
)
from pyrobust.evaluation import watch as watch_module
from pyrobust.runs.parameters import processing_order
from pyrobust.runs.writer import RunWriter
from pyrobust.runs.written import is_written
from pyrobust.stats import population_sequence

SWEEP = [
    *("certify", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25", "--order", "random"),
    *("--n0", "100", "--n", "1900", "--batch-size", "125", "--max", "60"),
]


def seen(watcher: RunWatcher) -> RunState:
    state = watcher.state()
    assert state is not None
    return state


def until(watcher: RunWatcher, condition: Any) -> RunState:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        state = watcher.state()
        if state is not None and condition(state):
            return state
        time.sleep(0.01)
    raise AssertionError("the state never came")


def test_a_complete_run(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run = certify_dataset(smoother(), images(), out=path, order="random", **FEW)
    state = seen(RunWatcher(path))
    assert (state.state, state.done, state.total, state.order, state.bounded) == ("done", 40, 40, "random", 40)
    assert state.seconds_left == 0.0
    assert (state.abstained, state.failed) == (int((run.table["prediction"] < 0).sum()), 0)
    right, certified = state.rates
    assert (right.count, right.lower, right.upper) == (int(run.correct.sum()), right.value, right.value)
    assert certified.title == "certified at 0.1"
    assert certified.value == run.certified_accuracy([0.1])[0]
    assert json.loads(json.dumps(state.to_dict()))["rates"][1]["radius"] == 0.1


def test_no_time_remains_for_a_writer_that_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.db"
    with RunWriter(path, header("certify")) as writer:
        writer.append(MAKERS["certify"](range(4)))
    now = time.time()
    monkeypatch.setattr(watch_module, "is_written", lambda path: True)
    monkeypatch.setattr(time, "time", lambda: now + 1e6)
    state = seen(RunWatcher(path))
    assert (state.state, state.done < state.total, state.seconds_left) == ("running", True, 0.0)


def test_rates_of_every_kind(tmp_path: Path) -> None:
    paths = {case: write_rows(tmp_path / f"{case}.db", case, images=8) for case in MAKERS}
    predict_dataset(smoother(), images(), n=50, out=tmp_path / "predict.db")
    runs = {case: Run(path) for case, path in paths.items()} | {"predict": Run(tmp_path / "predict.db")}
    rates = {
        case: {rate.title: rate.count for rate in seen(RunWatcher(run.files[0])).rates} for case, run in runs.items()
    }
    shares = Sandwich(runs["sandwich"]).shares([0.1])
    expected = {
        "certify": {"certified at 0.25": 8},
        "sequential": {"certified at 0.25": 8},
        "attack": {"robust": int(runs["attack"].robust.sum())},
        "minimum": {},
        "certified-first": {"robust": int(runs["certified-first"].robust.sum())},
        "verify": {"certified at 0.1": runs["verify"].verified_accuracy(0.1).successes},
        "search": {},
        "sandwich": {
            "certified at 0.1": shares.certified[0].successes,
            "robust at 0.1": 8 - shares.attacked[0].successes,
        },
        "predict": {},
    }
    assert rates == {case: {"correct": int(runs[case].correct.sum())} | more for case, more in expected.items()}


def test_outputs_without_a_winner_are_failures(tmp_path: Path) -> None:
    class Broken(Bands):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x.flatten(1)[:, :1] > 0.9, torch.nan, super().forward(x))

    data, path = images(9), tmp_path / "run.db"
    certify_dataset(smoother(Broken()), data, out=path, **FEW)
    state = seen(RunWatcher(path))
    assert state.failed == state.abstained == 3
    path.unlink()
    attack_dataset(Mine(Broken(), step=0.0), data, out=path)
    state = seen(RunWatcher(path))
    assert (state.failed, state.abstained) == (3, 0)


def test_a_sweep_is_watched_from_before_it_begins_until_it_is_killed_resumed_and_done(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    watcher = RunWatcher(path)
    assert watcher.state() is None
    assert watcher.run is None
    process = start(SWEEP, path)
    running = until(watcher, lambda state: state.done >= 3)
    assert running.state == "running"
    assert running.images_per_second is not None
    assert running.images_per_second > 0
    assert running.seconds_left is not None
    assert running.bounded == running.done
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)
    stopped = until(watcher, lambda state: state.state != "running")
    assert (stopped.state, os.path.exists(f"{path}-wal")) == ("stopped", True)
    assert running.done <= stopped.done < 60
    again = start(SWEEP, path)
    # A watcher that never pauses, and snapshots as well, do not stop the writer from closing one plain file.
    states = [until(watcher, lambda state: state.done > stopped.done)]
    copies = [stopped.done]
    while states[-1].state != "done":
        states.append(seen(watcher))
        copies.append(len(snapshot(path)))
    assert copies == sorted(copies)
    _, errors = again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 0, errors
    assert [state.done for state in states] == sorted(state.done for state in states)
    final = states[-1]
    assert final.done == 60
    # Every state's bounds contain the final rates: one draw of what stats/test_bounded_mean.py enumerates.
    for state in states:
        for rate, last in zip(state.rates, final.rates, strict=True):
            assert rate.lower <= last.value <= rate.upper
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]


def test_another_run_in_the_place_of_one(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    watcher = RunWatcher(path)
    certify_dataset(smoother(), images(), out=path, shard=(1, 2), order="random", **FEW)
    assert seen(watcher).done == 20
    path.unlink()
    assert watcher.state() is None
    certify_dataset(smoother(), images(5), out=path, **FEW)
    assert (seen(watcher).total, seen(watcher).order) == (5, "data")


def test_nothing_is_read_where_nothing_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.db"
    certify_dataset(smoother(), images(), out=path, **FEW)
    watcher = RunWatcher(path)
    before = seen(watcher)

    def forbidden(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Run, "__init__", forbidden)
    monkeypatch.setattr(watch_module, "_rates", forbidden)
    assert seen(watcher).rates == before.rates


def test_locks_of_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("PRAGMA journal_mode = WAL")
        assert not is_written(path)
        connection.execute("BEGIN IMMEDIATE")
        assert is_written(path)
        (tmp_path / "link.db").symlink_to(path)
        assert is_written(tmp_path / "link.db")
        # Between two transactions there is no lock: the second look finds it.
        locks = Path("/proc/locks").read_text()
        looks = iter([re.sub(".* 120 120\n", "", locks), locks])
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda self: next(looks))
            assert is_written(path)
        assert next(looks, None) is None
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM t")
        assert not is_written(path)
        # Without a list of locks, the companion has to do.
        monkeypatch.setattr(Path, "read_text", lambda self: (_ for _ in ()).throw(FileNotFoundError()))
        assert is_written(path)
    assert not is_written(path)


def test_a_writer_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is in no list of this machine; the file system knows it."""
    path = tmp_path / "run.db"
    code = f"""
import sqlite3
connection = sqlite3.connect({str(path)!r}, isolation_level=None)
connection.execute("CREATE TABLE t (x)")
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("BEGIN IMMEDIATE")
print(flush=True)
input()
"""
    writer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    writer.stdout.readline()
    monkeypatch.setattr(Path, "read_text", lambda self: "")
    assert is_written(path)
    writer.communicate("\n")
    assert not is_written(path)


def test_images_that_sequential_sampling_finished_early_are_no_sample(tmp_path: Path) -> None:
    """Bounds rest on the images that no unfinished one precedes; removing one in the middle shows it."""
    path = tmp_path / "run.db"
    options: dict[str, Any] = {"n0": 10, "n": 400, "method": "sequential", "radii": [0.05], "order": "random"}
    run = certify_dataset(smoother(), images(), out=path, **options)
    order = processing_order(run.parameters)
    change(path, f"DELETE FROM result WHERE idx IN ({order[7]}, {order[30]})")
    state = seen(RunWatcher(path))
    assert (state.done, state.bounded, state.state) == (38, 7, "stopped")
    right = state.rates[0]
    first = np.isin(run.table["index"], order[:7])
    bounds = population_sequence(int(run.correct[first].sum()), 7, 40, 0.05)
    assert (right.lower, right.upper) == (int(bounds[0]) / 40, int(bounds[1]) / 40)
    assert right.n == 38


def test_an_unfinished_run_in_the_order_of_the_data_has_no_bounds(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    options: dict[str, Any] = {"out": path, "n0": 10, "n": 4000}
    with pytest.raises(ValueError, match="broken"):
        certify_dataset(smoother(Failing(900, ValueError("broken"))), images(), **options)
    state = seen(RunWatcher(path))
    assert (state.state, state.order, state.bounded) == ("stopped", "data", 0)
    assert 0 < state.done < 40
    assert {rate.lower for rate in state.rates} == {None}


def test_a_snapshot_is_the_run_at_one_moment(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    attack_dataset(pgd(), digits(), out=path)
    copy = snapshot(path)
    path.unlink()
    assert same(copy, attack_dataset(pgd(), digits()))
    assert copy.path == path


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^alpha: expected a number in \(0, 1\), got 0.0"):
        RunWatcher("run.db", 0)
    with pytest.raises(InputTypeError, match=r"^path: expected the name of a file"):
        RunWatcher(3)
    (tmp_path / "text.db").write_text("not a run, but long enough to be taken for something else")
    with pytest.raises(FileFormatError, match=r"text\.db"):
        RunWatcher(tmp_path / "text.db").state()
    path = tmp_path / "run.db"
    certify_dataset(smoother(), images(6), out=path, **FEW)
    identity = json.loads(sqlite3.connect(path).execute("SELECT value FROM identity").fetchone()[0])
    watcher = RunWatcher(path)
    assert seen(watcher).state == "done"
    change(path, "UPDATE identity SET value = ?", json.dumps(identity | {"void": "it has state"}))
    with pytest.raises(StoreError, match="void, do not use its results: it has state"):
        watcher.state()


def test_a_run_that_has_just_begun_counts_as_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.db"
    RunWriter(path, header()).close()
    state = seen(RunWatcher(path))
    assert (state.state, state.done) == ("running", 0)
    later = time.time() + 3
    monkeypatch.setattr(time, "time", lambda: later)
    assert seen(RunWatcher(path)).state == "stopped"
