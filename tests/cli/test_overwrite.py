"""No command writes over its inputs, or over another file without being asked."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.printed import contents

from pyrobust.errors import InputError, StoreError
from pyrobust.evaluation import Run, certify_dataset, write_log
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model

SMALL = ["--model", "zoo:digits-smooth-0.25", "--data", "digits", "--max", "2"]
REFUSED = "--out: expected a file other than the inputs"
EXISTS = "which exists; name another or pass --replace"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards, in a folder that no test writes to."""
    folder = tmp_path_factory.mktemp("made")
    smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, 0.25)
    for number in (1, 2):
        certify_dataset(
            smoother, load_data("digits"), n=100, max_images=4, shard=(number, 2), out=folder / f"part{number}.db"
        )
    return folder


@pytest.fixture
def runs(made: Path, pyrobust: Any, tmp_path: Path) -> list[str]:
    """The shards, copied to the working folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return ["part1.db", "part2.db"]


@pytest.mark.parametrize("replace", [[], ["--replace"]])
def test_log_keeps_its_runs(pyrobust: Any, runs: list[str], tmp_path: Path, replace: list[str]) -> None:
    Path("soft").symlink_to(runs[0])
    Path("hard").hardlink_to(runs[1])
    before = contents(tmp_path)
    for out in (*runs, f"./{runs[0]}", tmp_path / runs[1], "soft", "hard"):
        assert REFUSED in pyrobust("log", *runs, "--out", out, *replace).error
    for suffix in ("-wal", "-shm", "-journal"):
        assert "which belongs to part1.db" in pyrobust("log", *runs, "--out", runs[0] + suffix, *replace).error
    assert contents(tmp_path) == before
    with pytest.raises(InputError, match="path: expected a file other than the inputs"):
        write_log(Run(runs[0]), runs[0], replace=True)


def test_log_replaces_logs_of_its_kind_alone(pyrobust: Any, runs: list[str], tmp_path: Path) -> None:
    pyrobust.ok("log", *runs, "--out", "log.tsv")
    whole = Path("log.tsv").read_bytes()
    pyrobust.ok("log", runs[0], "--out", "log.tsv")
    assert Path("log.tsv").read_bytes() != whole
    pyrobust.ok("predict", *SMALL, "--sigma", "0.25", "--n", "100", "--out", "predict.db")
    Path("best.pt").write_bytes(b"weights")
    before = contents(tmp_path)
    assert EXISTS in pyrobust("log", "predict.db", "--out", "log.tsv").error
    assert EXISTS in pyrobust("log", *runs, "--out", "best.pt").error
    assert EXISTS in pyrobust("log", *runs, "--out", "predict.db").error
    assert contents(tmp_path) == before
    pyrobust.ok("log", *runs, "--out", "best.pt", "--replace")
    assert Path("best.pt").read_bytes() == whole


def test_audit(pyrobust: Any, runs: list[str], tmp_path: Path) -> None:
    Path("notes.md").write_text("mine")
    Path("notes.json").write_text("{}")
    before = contents(tmp_path)
    assert "--json: expected a file other than" in pyrobust("audit", *runs, "--json", runs[1], "--replace").error
    assert contents(tmp_path) == before
    pyrobust.ok("audit", *runs, "--out", "notes.md", "--json", "notes.json", "--replace")
    assert "mine" not in Path("notes.md").read_text()
    # An audit's JSON is replaced by the next one's.
    pyrobust.ok("audit", runs[0], "--json", "notes.json")


def test_report(pyrobust: Any, runs: list[str], tmp_path: Path) -> None:
    Path("comparison").mkdir()
    pyrobust("log", *runs, "--out", "comparison/table.csv")
    before = contents(Path("comparison"))
    for replace in ([], ["--replace"]):
        options = ["--out", "comparison", "--formats", "md,csv", *replace]
        assert REFUSED in pyrobust("report", "comparison/table.csv", *options).error
    assert contents(Path("comparison")) == before
    Path("comparison/notes.txt").write_text("mine")
    before = contents(Path("comparison"))
    report = ["report", *runs, "--out", "comparison", "--formats", "md,csv"]
    assert EXISTS in pyrobust(*report).error
    assert contents(Path("comparison")) == before
    pyrobust.ok(*report, "--replace")
    after = contents(Path("comparison"))
    assert after.keys() == before.keys() | {"table.md"}
    assert [name for name in before if after[name] != before[name]] == ["table.csv"]


def test_train_asks_before_it_begins(pyrobust: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("trained")

    for name in ("smooth", "ibp"):
        monkeypatch.setattr(f"pyrobust.training.train_digits_{name}", never)
        Path("net.pt").write_bytes(b"weights")
        assert EXISTS in pyrobust("train", f"digits-{name}", "--out", "net.pt").error
        assert "in a writable folder" in pyrobust("train", f"digits-{name}", "--out", "nowhere/net.pt").error
        with pytest.raises(AssertionError, match="trained"):
            pyrobust("train", f"digits-{name}", "--out", "net.pt", "--replace")


def test_quickstart_keeps_to_its_own_folder(pyrobust: Any) -> None:
    Path("mine").mkdir()
    Path("mine/log.tsv").write_text("mine")
    assert "which has a log.tsv; name another" in pyrobust("quickstart", "--out", "mine").error
    assert contents(Path("mine")) == {"log.tsv": b"mine"}


def test_a_sweep_writes_over_nothing_else(pyrobust: Any, runs: list[str], tmp_path: Path) -> None:
    command = ["certify", *SMALL, "--sigma", "0.25", "--n", "100", "--out"]
    Path("alone.db-wal").write_bytes(b"what a killed writer left")
    Path("loop").symlink_to("loop")
    Path("weights").write_bytes(b"x" * 5000)
    before = {path.name: path.lstat().st_mtime_ns for path in tmp_path.iterdir()}
    assert "companion of another run" in pyrobust(*command, "part1.db-wal").error
    assert "expected no alone.db-wal without the run" in pyrobust(*command, "alone.db").error
    assert "loop: cannot create the file" in pyrobust(*command, "loop").error
    assert "not a run of pyrobust" in pyrobust(*command, "/dev/null").error
    assert "not a run of pyrobust" in pyrobust(*command, "weights").error
    assert {path.name: path.lstat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_run_behind_a_symbolic_link(pyrobust: Any, tmp_path: Path) -> None:
    """The link may lead to a file that does not exist yet."""
    Path("far").mkdir()
    Path("link.db").symlink_to("far/run.db")
    for _ in range(2):
        pyrobust.ok("certify", *SMALL, "--sigma", "0.25", "--n", "100", "--out", "link.db")
    assert Path("link.db").is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["far", "link.db", "run.db"]
    smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, 0.5)
    with pytest.raises(StoreError, match="different parameters"):
        certify_dataset(smoother, load_data("digits"), n=100, max_images=2, out="link.db")
