"""A Ray cluster of four nodes that loses workers, nodes and drivers: the log of one process, and nothing lost twice."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from evaluation.executors.test_processes import alive, until
from support import counted_chunks

from pyrobust.evaluation import Run

pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")

from ray.cluster_utils import Cluster

pytestmark = pytest.mark.full

NODES = 4
TIMEOUT_S = 600.0
KILLS = 10
#: Tasks of a worker at once: the chunk that it computes, and the next, which it may have computed as well.
IN_FLIGHT = 2


class Storm:
    """A cluster, and what its workers have written down."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path, self.log = path, Path(f"{path}.chunks")
        # Nodes inherit the environment of this process.
        patch.setenv(counted_chunks.LOG, str(self.log))
        patch.setenv("RAY_worker_niceness", "0")  # beside busy processes, others would import for minutes
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        self.cluster: Any = None
        self.nodes: list[Any] = []

    def start(self, **options: Any) -> None:
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **options}
        )
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(NODES - 1)]

    def stop(self) -> None:
        if self.cluster is not None:
            self.cluster.shutdown()
            self.cluster = None

    def drive(self, kind: str, executor: str = "ray") -> subprocess.Popen[str]:
        environment = dict(os.environ)
        if executor == "ray":
            environment["RAY_ADDRESS"] = self.cluster.address
        command = [sys.executable, "-c", "from support import counted_chunks; counted_chunks.main()"]
        with open(f"{self.path}.err", "a") as errors:
            return subprocess.Popen(
                [*command, kind, str(self.path), executor], env=environment, stdout=errors, stderr=errors, text=True
            )

    def lines(self, what: str) -> list[tuple[int, int]]:
        """First image and process of each part of a chunk that was begun, ended or committed."""
        text = self.log.read_text().splitlines() if self.log.exists() else []
        return [(int(line.split()[1]), int(line.split()[2])) for line in text if line.startswith(f"{what} ")]

    def computing(self) -> list[int]:
        """Workers that have finished a chunk, or a part of one."""
        return [process for process in {process for _, process in self.lines("end")} if alive(process)]

    def finish(self, driver: subprocess.Popen[str]) -> str:
        driver.wait(TIMEOUT_S)
        errors = Path(f"{self.path}.err").read_text()
        assert driver.returncode == 0, errors
        return errors

    def check(self, whole: Storm, lost: int) -> None:
        """Compare with the single process; ``lost`` workers were killed."""
        run, expected = Run(self.path), Run(whole.path)
        assert run.parameters == expected.parameters
        assert Path(f"{self.path}.log").read_bytes() == Path(f"{whole.path}.log").read_bytes()
        begun, ended, committed = (len(self.lines(what)) for what in ("begin", "end", "commit"))
        print(f"{self.path.stem}: {lost} workers lost, {begun} parts begun, {ended} ended, {committed} committed")
        assert begun - committed <= IN_FLIGHT * lost
        if run.header.layout != "sequential":  # whose parts last a second, however much that is
            assert Counter(first for first, _ in self.lines("commit")) == Counter(
                first for first, _ in whole.lines("commit")
            )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Storm]:
    """Runs of a single process, by kind."""
    runs: dict[str, Storm] = {}

    def get(kind: str) -> Storm:
        if kind not in runs:
            with pytest.MonkeyPatch.context() as patch:
                runs[kind] = Storm(tmp_path_factory.mktemp("alone") / f"{kind}.db", patch)
                runs[kind].finish(runs[kind].drive(kind, "none"))
        return runs[kind]

    return get


@pytest.fixture
def storm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storm]:
    storm = Storm(tmp_path / "run.db", monkeypatch)
    yield storm
    storm.stop()


def test_through_a_client_server(storm: Storm, alone: Callable[[str], Storm]) -> None:
    whole = alone("fixed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    storm.start(ray_client_server_port=port)
    storm.finish(storm.drive("fixed", f"ray://127.0.0.1:{port}"))
    storm.check(whole, lost=0)


@pytest.mark.parametrize("kind", ["fixed", "sequential"])
def test_a_worker_killed_every_two_seconds(storm: Storm, alone: Callable[[str], Storm], kind: str) -> None:
    whole = alone(kind)
    storm.start()
    driver = storm.drive(kind)
    killed = 0
    while driver.poll() is None and killed < KILLS:
        workers = storm.computing()
        if workers:
            os.kill(random.Random(killed).choice(sorted(workers)), signal.SIGKILL)
            killed += 1
            time.sleep(2.0)
        time.sleep(0.1)
    errors = storm.finish(driver)
    assert errors.count("was lost") == killed
    storm.check(whole, lost=killed)


@pytest.mark.parametrize("kind", ["fixed", "sequential"])
def test_nodes_leave_and_others_join(storm: Storm, alone: Callable[[str], Storm], kind: str) -> None:
    whole = alone(kind)
    storm.start()
    driver = storm.drive(kind)
    for _ in range(2):
        ended = len(storm.lines("end"))
        until(lambda ended=ended: len(storm.lines("end")) > ended + 2)  # type: ignore[misc]  # mypy infers no such lambda
        storm.cluster.remove_node(storm.nodes.pop(0), allow_graceful=False)
        storm.nodes.append(storm.cluster.add_node(num_cpus=1))
    storm.finish(driver)
    storm.check(whole, lost=2)


@pytest.mark.parametrize("kind", ["fixed", "sequential"])
def test_drivers_killed_and_resumed(storm: Storm, alone: Callable[[str], Storm], kind: str) -> None:
    """Once with the cluster still alive, once with a new one."""
    whole = alone(kind)
    storm.start()
    for _ in range(2):
        driver = storm.drive(kind)
        committed = len(storm.lines("commit"))
        until(lambda committed=committed: len(storm.lines("commit")) > committed + 3)  # type: ignore[misc]  # mypy infers no such lambda
        driver.kill()
        driver.wait()
    workers = storm.computing()
    until(lambda: not any(map(alive, workers)))  # they end with their driver
    storm.stop()
    storm.start()
    storm.finish(storm.drive(kind))
    storm.check(whole, lost=2 * NODES)


def test_a_chunk_that_hangs_is_set_aside_after_the_timeout(
    storm: Storm, alone: Callable[[str], Storm], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = alone("fixed")
    hung = whole.lines("begin")[5][0]
    Path(f"{storm.log}.hang-{hung}").touch()
    monkeypatch.setenv(counted_chunks.TIMEOUT, "20")
    storm.start()
    storm.drive("fixed").wait(TIMEOUT_S)
    assert "longer than the timeout of 20 s" in Path(f"{storm.path}.err").read_text()
    assert list(Run(storm.path).set_aside) == [hung]
    assert len(storm.lines("commit")) == len(whole.lines("commit")) - 1
