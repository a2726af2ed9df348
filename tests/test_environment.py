"""Variables of OpenMP and cuBLAS, which importing pyrobust sets before torch reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyrobust import environment as module
from pyrobust.environment import CUBLAS_VARIABLE, allowed_processors, machine_is_busy, prepare_threads


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"OMP_WAIT_POLICY": "passive"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
        ({"GOMP_SPINCOUNT": "1000"}, {"GOMP_SPINCOUNT": "1000"}),
    ],
)
def test_waiting_threads_sleep_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: dict[str, str]
) -> None:
    monkeypatch.setattr(module, "allowed_processors", lambda: None)
    monkeypatch.setattr(module, "machine_is_busy", lambda: True)
    prepare_threads(environment)
    assert environment == expected


def test_waiting_threads_spin_on_a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "allowed_processors", lambda: None)
    monkeypatch.setattr(module, "machine_is_busy", lambda: False)
    environment: dict[str, str] = {}
    prepare_threads(environment)
    assert environment == {}


@pytest.mark.parametrize(
    ("load", "expected"),
    [("0.31 1.30 1.71 1/123 4567\n", False), ("0.01 0.02 0.00 2/123 4567\n", True), ("0.3\n", True), (None, True)],
)
def test_a_machine_is_busy_where_anything_else_runs(tmp_path: Path, load: str | None, expected: bool) -> None:
    if load is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "loadavg").write_text(load)
    assert machine_is_busy(str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("allowed", "threads", "expected"),
    [(2, None, "2"), (4, None, None), (5, None, None), (2, "3", "3"), (None, None, None)],
)
def test_no_more_threads_than_the_container_allows(
    monkeypatch: pytest.MonkeyPatch, allowed: int | None, threads: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(module, "allowed_processors", lambda: allowed)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    environment = {} if threads is None else {"OMP_NUM_THREADS": threads}
    prepare_threads(environment)
    assert environment.get("OMP_NUM_THREADS") == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),  # rounded up
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n", "cpu.max": "800000 100000\n"}, 3),
        (
            "4:memory:/\n1:cpu,cpuacct:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "10000\n"},
            5,
        ),
        ("1:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("2:cpuset:/\n", {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/\n", {"cpu.max": "100000 0\n"}, None),
        ("0::/\n", {"cpu.max": "\n"}, None),
        (None, {}, None),
    ],
)
def test_control_groups(tmp_path: Path, groups: str | None, files: dict[str, str], expected: int | None) -> None:
    contents = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    if groups is not None:
        contents["proc/self/cgroup"] = groups
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert allowed_processors(str(tmp_path)) == expected


def variables(code: str, **environment: str) -> list[str]:
    """Return the variables of cuBLAS and OpenMP after running code beside a process that is never idle."""
    names = (CUBLAS_VARIABLE, "OMP_WAIT_POLICY")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP", "CUBLAS"))}
    code += f"\nimport os; print(*[os.environ.get(name) for name in {names}])"
    busy = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        done = subprocess.run(
            [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, check=True
        )
    finally:
        busy.kill()
        busy.communicate()
    return done.stdout.split()


def test_importing_the_package_prepares_libraries() -> None:
    assert variables("import pyrobust") == [":4096:8", "passive"]
    # Read already: a variable would change other programs alone.
    assert variables("import sys; sys.modules['torch'] = None; import pyrobust") == [":4096:8", "None"]
    environment = {CUBLAS_VARIABLE: ":16:8", "OMP_WAIT_POLICY": "active"}
    assert variables("import pyrobust", **environment) == [":16:8", "active"]


def test_the_command_loads_torch_afterwards(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os\nprint(os.environ['CUBLAS_WORKSPACE_CONFIG'])\nos._exit(0)\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    kept = {name: value for name, value in os.environ.items() if name != CUBLAS_VARIABLE}
    command = [sys.executable, "-u", "-c", "from pyrobust.cli import main; main()", "info"]
    done = subprocess.run(command, env={**kept, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, ":4096:8\n", "")
