"""The dealer with lost workers, suspect chunks, errors and other machines, without processes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fake_fleet import FakeFleet, Fate
from support.sweep_models import FEW, images, same, smoother

from pyrobust.errors import InputError, RowDependenceError, StoreError, WorkerError
from pyrobust.evaluation import Run, certify_dataset
from pyrobust.evaluation import certify_sequential as sequential_module
from pyrobust.evaluation.sweep import ChunkAnswer, SweepWorker, Task
from pyrobust.runs.reader import Header
from pyrobust.workers import executors

DATA = images(40)
# Chunks of 10 images: 0, 10, 20, 30.
FIXED: dict[str, Any] = {**FEW, "batch_size": 64}
SEQUENTIAL: dict[str, Any] = {"n0": 10, "n": 100, "method": "sequential", "radii": [0.05], "batch_size": 64}
EXPECTED = certify_dataset(smoother(), DATA, threads=1, **FIXED)


class Fleets:
    """Makes the fleet of each run that the test starts, and keeps it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[FakeFleet] = []
        self.use()
        monkeypatch.setattr(executors, "open_fleet", self._open)

    def _open(self, executor: Any, factory: Any, threads: Any, stored: Any) -> FakeFleet:
        self.made.append(FakeFleet(self.factory(factory), self.workers, **self.options))
        return self.made[-1]

    def use(self, workers: int = 2, factory: Any = lambda make: make, **options: Any) -> None:
        self.workers, self.factory, self.options = workers, factory, options


@pytest.fixture
def fleets(monkeypatch: pytest.MonkeyPatch) -> Fleets:
    return Fleets(monkeypatch)


def certify(out: Path | None = None, **options: Any) -> Run:
    arguments = {**FIXED, "model_name": "bands", **options}
    return certify_dataset(smoother(), DATA, out=out, executor="cpu:2", threads=1, **arguments)


def deadly(first: int, times: int, fate: str = "die") -> Fate:
    """A chunk that kills the first workers that compute it."""
    deaths = 0

    def decide(fleet: FakeFleet, worker: int, method: str, arguments: tuple[Any, ...]) -> str:
        nonlocal deaths
        if method == "work" and arguments[0] is not None and arguments[0].first == first and deaths < times:
            deaths += 1
            return fate
        return "answer"

    return decide


@pytest.mark.parametrize(("fate", "deaths"), [("die", 3), ("node", 50)])
def test_what_lost_workers_had_is_computed_again_and_nothing_else(fleets: Fleets, fate: str, deaths: int) -> None:
    fleets.use(2, fate=deadly(10, deaths, fate))
    run = certify()
    assert run.complete
    assert same(run, EXPECTED)
    assert run.parameters == EXPECTED.parameters
    assert not run.set_aside
    assert sorted(fleets.made[0].computed) == [0, 10, 20, 30]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_chunk_that_kills_every_worker_is_set_aside_and_tried_again(
    fleets: Fleets, tmp_path: Path, workers: int
) -> None:
    lonely: list[int] = []
    kill = deadly(10, 1000)

    def fate(fleet: FakeFleet, worker: int, method: str, arguments: tuple[Any, ...]) -> str:
        decision = kill(fleet, worker, method, arguments)
        if decision == "die":
            lonely.append(len(fleet.calls[worker]))  # chunks that wait behind it
        return decision

    fleets.use(workers, fate=fate)
    path = tmp_path / "run.db"
    with pytest.raises(WorkerError, match=r"chunks set aside: 1; .*begins with image 10.*worker \d+ died"):
        certify(path)
    # Two deaths among others, then three alone.
    assert len(lonely) == 5
    assert lonely[2:] == [0, 0, 0]
    run = Run(path)
    assert sorted(run.table["index"]) == [i for i in range(40) if not 10 <= i < 20]
    assert list(run.set_aside) == [10]
    assert "died" in run.set_aside[10]
    fleets.use(2)
    again = certify(path)
    assert again.complete
    assert same(again, EXPECTED)
    assert not again.set_aside
    assert fleets.made[-1].computed == [10]


@pytest.fixture
def fake_time(fleets: Fleets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrobust.evaluation.deal.time.monotonic", lambda: fleets.made[-1].seconds)


@pytest.mark.usefixtures("fake_time")
@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_chunk_that_hangs_is_named_and_computed_elsewhere(
    fleets: Fleets, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After a minute, as the usual time is half a second; then after twice as long each time."""
    fleets.use(2, fate=deadly(30, times, "hang"))
    with caplog.at_level(logging.WARNING):
        assert same(certify(), EXPECTED)
    named = [
        record.message for record in caplog.records if "about the chunk that begins with image 30" in record.message
    ]
    assert len(named) == times
    assert "dealt to another worker, and set aside only with a timeout" in named[0]
    least = sum(60 * 2**number for number in range(times))
    assert least <= fleets.made[-1].seconds <= least + 40
    assert sorted(fleets.made[-1].computed) == [0, 10, 20, 30]


@pytest.mark.usefixtures("fake_time")
def test_what_waits_behind_a_hung_chunk_is_computed_meanwhile(fleets: Fleets) -> None:
    fleets.use(2, fate=deadly(0, 99, "hang"))
    with pytest.raises(
        WorkerError, match=r"set aside: 1; the one that begins with image 0: .* than the timeout of 90 s"
    ):
        certify(timeout=90)
    assert sorted(fleets.made[-1].computed) == [10, 20, 30]
    assert 90 < fleets.made[-1].seconds < 100


@pytest.mark.usefixtures("fake_time")
def test_a_first_worker_that_hangs_as_it_prepares_is_named(
    fleets: Fleets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait = FakeFleet.wait

    def wait_or_stop(fleet: FakeFleet, seconds: float) -> list[Any]:
        if fleet.seconds > 100:
            raise KeyboardInterrupt
        return wait(fleet, seconds)

    monkeypatch.setattr(FakeFleet, "wait", wait_or_stop)
    fleets.use(1, fate=lambda fleet, worker, method, arguments: "hang" if method == "prepare" else "answer")
    with pytest.raises(KeyboardInterrupt), caplog.at_level(logging.WARNING):
        certify()
    [named] = [record.message for record in caplog.records if "as it prepares the model" in record.message]
    assert "no answer for 60 s" in named


def test_a_timeout_is_checked() -> None:
    for timeout, problem in ((0, "a finite number above 0"), (5, "none without an executor")):
        with pytest.raises(InputError, match=f"timeout: expected {problem}"):
            certify_dataset(smoother(), DATA, timeout=timeout, **FIXED)


def failing(first: int, error: Exception) -> Any:
    """A factory of workers that fail at a chunk."""

    def factory(make: Any) -> Any:
        def build(place: Any) -> SweepWorker:
            worker = make(place)
            work = worker.work

            def fail(task: Task) -> ChunkAnswer:
                if task.first == first:
                    raise error
                return work(task)

            worker.work = fail
            return worker

        return build

    return factory


def test_an_error_of_the_model_is_raised_at_once_and_results_stay(fleets: Fleets, tmp_path: Path) -> None:
    fleets.use(1, failing(20, ValueError("no such layer")))
    with pytest.raises(ValueError, match="no such layer"):
        certify(tmp_path / "run.db")
    assert fleets.made[0].computed == [0, 10]
    assert list(Run(tmp_path / "run.db").table["index"]) == list(range(20))
    fleets.use(1)
    assert same(certify(tmp_path / "run.db"), EXPECTED)
    assert fleets.made[1].computed == [20, 30]


def test_a_row_dependence_error_of_a_worker_voids_the_run(fleets: Fleets, tmp_path: Path) -> None:
    fleets.use(1, failing(20, RowDependenceError("model: rows depend on each other")))
    with pytest.raises(RowDependenceError):
        certify(tmp_path / "run.db")
    with pytest.raises(StoreError, match="void"):
        Run(tmp_path / "run.db")


@pytest.mark.parametrize("later", [False, True])
def test_workers_that_die_as_they_start_end_the_run(fleets: Fleets, tmp_path: Path, later: bool) -> None:
    def fate(fleet: FakeFleet, worker: int, method: str, arguments: tuple[Any, ...]) -> str:
        return "die" if not later or worker > 0 or method == "work" else "answer"

    fleets.use(1 if later else 2, fate=fate)
    with pytest.raises(WorkerError, match=r"executor: 3 workers died as they started: worker \d died"):
        certify(tmp_path / "run.db")
    assert not (tmp_path / "run.db").exists()  # without results there is nothing to resume


def restated(change: Callable[[Header], Header], unchanged: set[str]) -> Any:
    """A factory of workers with another header, but for some."""

    def factory(make: Any) -> Any:
        def build(place: Any) -> SweepWorker:
            worker = make(place)
            prepare = worker.prepare
            if place.name not in unchanged:
                worker.prepare = lambda stored: change(prepare(stored))
            return worker

        return build

    return factory


def other_machine(header: Header) -> Header:
    assert header.identity is not None
    return dataclasses.replace(header, identity=dataclasses.replace(header.identity, machine="another CPU", bits=""))


def other_version(package: str, version: str) -> Callable[[Header], Header]:
    return lambda header: dataclasses.replace(header, versions=header.versions | {package: version})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_version("pyrobust", "0.0.1"), r"worker 1: .*pyrobust: '[\d.a-z]+' on the driver, '0.0.1' there"),
        (other_version("torch", "1.99"), r"worker 1: .*torch: '[\d.a-z+]+' on worker 0, '1.99' there"),
        (lambda header: dataclasses.replace(header, model_sha256="0" * 64), "worker 1: .*hash of the model"),
    ],
)
def test_workers_with_other_software_or_another_model_are_refused(fleets: Fleets, change: Any, message: str) -> None:
    fleets.use(2, factory=restated(change, {"worker 0"}))
    with pytest.raises(WorkerError, match=message):
        certify()


def test_chunks_of_another_machine_are_recorded(fleets: Fleets, tmp_path: Path) -> None:
    fleets.use(2, factory=restated(other_machine, {"worker 0"}))
    run = certify(tmp_path / "run.db")
    assert same(run, EXPECTED)
    assert sum(run.machines.values()) == 40
    assert run.machines["another CPU"] in (10, 20, 30)


def certify_grid(out: Path | None) -> Run:
    data = images(40)
    data = dataclasses.replace(data, x=(data.x * 255).round() / 255)
    return certify_dataset(
        smoother(grid="1/255"), data, out=out, executor="cpu:2", threads=1, model_name="bands", **FIXED
    )


def test_grid_runs_leave_out_other_machines(fleets: Fleets, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fleets.use(3, factory=restated(other_machine, {"worker 0", "worker 2"}))
    with caplog.at_level(logging.WARNING):
        run = certify_grid(tmp_path / "run.db")
    assert run.complete
    assert run.header.identity is not None
    assert set(run.machines) == {run.header.identity.machine}
    assert "worker 1: left out: the grid guarantee is of" in caplog.text


def test_a_grid_run_waits_for_a_machine_of_its_kind(
    fleets: Fleets, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    complete = certify_grid(None)
    fleets.use(1, factory=restated(other_machine, {"worker 0"}), fate=deadly(10, 1))
    with pytest.raises(
        WorkerError, match=r"expected a worker on .*, of which the run certifies the classifier, got another CPU"
    ):
        certify_grid(tmp_path / "run.db")
    fleets.use(1, factory=restated(other_machine, set()))
    with pytest.raises(StoreError, match="on a grid"):
        certify_grid(tmp_path / "run.db")
    fleets.use(2, factory=restated(other_machine, {"worker 1"}))
    with caplog.at_level(logging.WARNING):
        run = certify_grid(tmp_path / "run.db")
    assert same(run, complete)
    assert "worker 0: left out: the grid guarantee is of" in caplog.text


@pytest.mark.parametrize("batch", [1, 8])
def test_sequential_chunks_resume_on_other_workers(fleets: Fleets, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential_module, "_PART_S", 0.0)  # a part after every round of batches
    expected = certify_dataset(smoother(), DATA, threads=1, **SEQUENTIAL)
    steps = iter(range(10_000))

    def fate(fleet: FakeFleet, worker: int, method: str, arguments: tuple[Any, ...]) -> str:
        return "node" if method == "work" and next(steps) % 3 == 2 else "answer"

    fleets.use(2, fate=fate, batch=batch)
    run = certify(None, **SEQUENTIAL)
    assert run.complete
    assert same(run, expected)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_interleaving_commits_every_chunk_once(fleets: Fleets, data: st.DataObject) -> None:
    kills = data.draw(st.lists(st.sampled_from(["die", "node"]), max_size=4), label="kills")

    def fate(fleet: FakeFleet, worker: int, method: str, arguments: tuple[Any, ...]) -> str:
        # Two deaths before the first worker is ready, or as workers start, are tolerated; this test is of chunks.
        if method == "work" and kills and data.draw(st.booleans()):
            return kills.pop()
        return "answer"

    fleets.use(
        data.draw(st.integers(1, 4), label="workers"),
        fate=fate,
        pick=lambda busy: data.draw(st.sampled_from(list(busy))),
        late=data.draw(st.booleans(), label="late"),
        batch=data.draw(st.integers(1, 4), label="batch"),
    )
    run = certify()
    assert run.complete
    assert same(run, EXPECTED)
    assert not run.set_aside
