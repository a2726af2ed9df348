"""Shards that find their place in a job array, what a folder of them lacks, and their merging."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.damage import being_written, change, reseal

from pyrobust.cli.parsing import parse_shard
from pyrobust.errors import InputError
from pyrobust.evaluation import Run
from pyrobust.runs.shards import check_siblings
from pyrobust.runs.writer import RunWriter

SWEEP = [
    *("certify", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25"),
    *("--n0", "10", "--n", "100", "--batch-size", "100", "--max", "18"),
]
NAME = "certify-digits-smooth-0.25-digits-sigma0.25-n100-shard{}of{}.db"


def array(number: object, *tasks: int, step: int = 1) -> dict[str, str]:
    """The variables that Slurm sets in a task of an array."""
    values = {"ID": number, "MIN": min(tasks), "MAX": max(tasks), "COUNT": len(tasks), "STEP": step}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


@pytest.fixture
def task(pyrobust: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a command with environment variables."""

    def call(environment: Mapping[str, str], *arguments: object) -> Any:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            return pyrobust(*arguments)

    return call


def without_times(run: Run | str) -> str:
    from pyrobust.evaluation import format_log

    text = run if isinstance(run, str) else format_log(run)
    return "".join(line.rpartition("\t")[0] + "\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "environment", "shard"),
    [
        ("auto/8", array(3, *range(1, 9)), (3, 8)),
        ("auto/8", array(5, 3, 5), (5, 8)),
        ("auto/8", array(1, 1), (1, 8)),
        ("auto/8", array(2, 1, 2), (2, 8)),
        ("auto/8", {"SLURM_ARRAY_TASK_ID": "8"}, (8, 8)),
        ("auto", array(3, *range(1, 9)), (3, 8)),
        ("auto", {"RANK": "0", "WORLD_SIZE": "2"}, (1, 2)),
        ("auto/2", {"RANK": "1", "WORLD_SIZE": "2"}, (2, 2)),
        ("auto", array(2, *range(1, 5)) | {"RANK": "1", "WORLD_SIZE": "4"}, (2, 4)),
        ("1/4", array(3, *range(1, 9)), (1, 4)),
    ],
)
def test_a_shard_finds_its_place(text: str, environment: dict[str, str], shard: tuple[int, int]) -> None:
    assert parse_shard(text, environment) == shard


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        ("auto", {}, "expected SLURM_ARRAY_TASK_ID, .* or RANK and WORLD_SIZE, .*got neither; elsewhere pass I/K"),
        ("auto/0", array(1, 1), "--shard: expected I/K"),
        ("auto4", array(1, 1), "--shard: expected I/K"),
        # Parts of an array that are submitted again have another count.
        ("auto", array(5, 3, 5), "MIN=3, .*COUNT=2, .*pass --shard auto/K"),
        ("auto", array(1, 1), "at least two tasks"),
        ("auto", array(2, 1, 2, 5), "expected a whole job array"),
        ("auto", array(1, 1, 3, 5, 7, step=2), "expected a whole job array"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "3"}, "COUNT=unset"),
        # Arrays are numbered from 1.
        ("auto", array(3, *range(8)), "--array=1-K"),
        ("auto/8", array(0, *range(8)), "ID=0, .*--array=1-8"),
        ("auto/8", array(3, *range(8)), "MIN=0, .*--array=1-8"),
        ("auto/8", array(9, 9), "ID=9, .*--array=1-8"),
        ("auto/4", array(3, *range(1, 9)), "MAX=8; submit with --array=1-4"),
        ("auto/8", array("x", 1), "SLURM_ARRAY_TASK_ID, got 'x'"),
        ("auto/8", array("", 1), "SLURM_ARRAY_TASK_ID, got ''"),
        ("auto", {"RANK": "2", "WORLD_SIZE": "2"}, "RANK below WORLD_SIZE, .*RANK=2, WORLD_SIZE=2"),
        ("auto", {"RANK": "1"}, "WORLD_SIZE=unset"),
        ("auto", {"RANK": "one", "WORLD_SIZE": "2"}, "variable RANK, got 'one'"),
        ("auto/4", {"RANK": "1", "WORLD_SIZE": "2"}, "expected WORLD_SIZE=4"),
        ("auto/8", array(3, 3) | {"RANK": "0", "WORLD_SIZE": "8"}, "3/8 by SLURM_ARRAY_TASK_ID and 1/8 by RANK"),
    ],
)
def test_what_does_not_say_the_shard_is_refused(text: str, environment: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_shard(text, environment)


def test_an_array_with_missing_tasks_is_completed_and_equals_the_whole_run(
    task: Any, pyrobust: Any, tmp_path: Path
) -> None:
    for number in (1, 2, 4):
        assert task(array(number, 1, 2, 3, 4), *SWEEP, "--shard", "auto", "--out", "runs/").status == 0
    assert sorted(file.name for file in (tmp_path / "runs").iterdir()) == [NAME.format(i, 4) for i in (1, 2, 4)]
    before = pyrobust("missing", "runs")
    assert (before.status, before.out, before.err) == (0, "3\n", "shard 3/4: no file\n")
    assert task(array(3, 3), *SWEEP, "--shard", "auto/4", "--out", "runs").status == 0
    after = pyrobust("missing", "runs/")
    assert (after.status, after.out, after.err) == (0, "", "complete: 4 of 4 shards\n")
    pyrobust.ok(*SWEEP, "--out", "runs/whole.db")
    assert pyrobust("merge", "runs", "--out", "all.db").err == "run: all.db, 18 of 18 images\n"
    assert Run("all.db").parameters["shard"] is None
    assert without_times(Run("all.db")) == without_times(Run("runs/whole.db"))
    # A run that is not divided does not belong to the shards beside it.
    assert pyrobust("missing", "runs").out == ""
    assert without_times(pyrobust("log", "runs").out) == without_times(Run("runs/whole.db"))


def test_a_folder_of_shards_belongs_to_one_sweep(task: Any, pyrobust: Any, tmp_path: Path) -> None:
    """A refused command leaves no file, and an existing shard unchanged."""
    assert task(array(1, 1, 2, 3, 4), *SWEEP, "--shard", "auto", "--out", "runs/").status == 0
    content = Path("runs", NAME.format(1, 4)).read_bytes()
    again = task(array(1, 1, 2), *SWEEP, "--shard", "auto", "--out", "runs/")
    assert "shard: of 4 there, of 2 here; pass --shard auto/4" in again.err.splitlines()[-1]
    beside = task(array(1, 1, 2), *SWEEP, "--shard", "auto", "--out", f"runs/{NAME.format(1, 2)}")
    assert "shard: of 4 there, of 2 here" in beside.error
    assert (
        "seed: 0 there, 3 here; use another folder"
        in pyrobust(*SWEEP, *["--seed", "3", "--shard", "2/4", "--out", "runs"]).error
    )
    assert "1/4 is in runs/certify" in task(array(1, 1), *SWEEP, "--shard", "auto/4", "--out", "runs/again.db").error
    assert [file.name for file in (tmp_path / "runs").iterdir()] == [NAME.format(1, 4)]
    assert Path("runs", NAME.format(1, 4)).read_bytes() == content
    # A file that is named is written, as ever.
    pyrobust.ok(*SWEEP, "--shard", "1/3", "--out", "runs/part.db")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/locks")
def test_looking_at_the_folder_keeps_the_locks_of_the_writer(pyrobust: Any) -> None:
    """A process that closes a file loses its locks on it, by whichever name and descriptor."""
    pyrobust.ok(*SWEEP, "--shard", "1/4", "--out", "runs/")
    pyrobust.ok(*SWEEP, "--shard", "2/4", "--out", "runs/")
    path = Path("runs", NAME.format(1, 4))
    Path("runs/link.db").symlink_to(path.name)

    def locks() -> set[str]:
        inodes = [f":{os.stat(f'{path}{suffix}').st_ino} " for suffix in ("", "-shm")]
        lines = [line.partition(": ")[2] for line in Path("/proc/locks").read_text().splitlines()]
        return {line for line in lines if any(inode in line for inode in inodes)}

    with RunWriter(path, Run(path).header):
        before = locks()
        assert len(before) >= 3
        check_siblings(path)
        assert locks() == before


def test_a_run_in_a_folder_has_the_default_name(pyrobust: Any, tmp_path: Path) -> None:
    pyrobust.ok(*SWEEP, "--out", "new/folder/")
    assert [file.name for file in (tmp_path / "new/folder").iterdir()] == [NAME.replace("-shard{}of{}", "")]
    Path("file").write_text("")
    assert "cannot create the folder 'file/'" in pyrobust(*SWEEP, "--out", "file/").error


@pytest.fixture
def shards(pyrobust: Any) -> list[Path]:
    """Four complete shards in a folder."""
    for number in range(1, 5):
        pyrobust.ok(*SWEEP, "--shard", f"{number}/4", "--out", "runs/")
    return [Path("runs", NAME.format(number, 4)) for number in range(1, 5)]


def remove_rows(path: Path, beyond: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM result WHERE idx > ?", (beyond,))
    reseal(path)


def test_missing_tells_unfinished_shards_from_written_and_absent_ones(pyrobust: Any, shards: list[Path]) -> None:
    remove_rows(shards[0], 4)
    shards[3].unlink()
    remove_rows(shards[2], 4)
    with being_written(shards[2]):
        done = pyrobust("missing", "runs")
        assert (done.status, done.out) == (0, "1,4\n")
        assert done.err.splitlines() == [
            f"shard 1/4: 2 of 5 images in {shards[0]}",
            f"shard 3/4: being written in {shards[2]}",
            "shard 4/4: no file",
        ]
        assert pyrobust("missing", "runs", "--running").out == "1,3-4\n"
        described = json.loads(pyrobust("missing", "runs", "--json", "-").out)
        assert (described["missing"], described["running"]) == ("1,4", "3")
        assert [shard["done"] for shard in described["parts"]] == [2, 5, None, 0]
    assert pyrobust("missing", "runs").out == "1,3-4\n"
    pyrobust("missing", *shards[:2], "--json", "state.json")
    assert pyrobust("missing", *shards[:2], "--json", "state.json").out == "1,3-4\n"
    for _ in range(2):
        assert pyrobust("missing", "runs", "--json", "runs/state.json").out == "1,3-4\n"
    assert "--json: expected" in pyrobust("missing", "runs", "--json", shards[1]).error


def test_missing_names_the_chunks_of_a_run_that_is_not_divided(pyrobust: Any) -> None:
    two_images_a_chunk = ["--n", "300", "--batch-size", "20"]
    pyrobust.ok(*SWEEP, *two_images_a_chunk, "--out", "run.db")
    assert (pyrobust("missing", "run.db").out, pyrobust("missing", "run.db").err) == ("", "complete\n")
    remove_rows(Path("run.db"), 9)
    done = pyrobust("missing", "run.db")
    assert (done.out, done.err) == ("6-9\n", "run: 10 of 18 images in run.db\n")


def test_merge_overwrites_nothing_and_names_what_lacks(pyrobust: Any, shards: list[Path]) -> None:
    remove_rows(shards[0], 4)
    shards[2].rename("three.db")
    assert "of 4 these lack images: 1,3; " in pyrobust("merge", "runs", "--out", "all.db").error
    assert "RUN: expected complete shards" in pyrobust("merge", *shards[:2], "--out", "all.db").error
    assert not Path("all.db").exists()
    assert pyrobust("merge", "runs", "--partial", "--out", "some.db").err == "run: some.db, 11 of 18 images\n"
    assert not Run("some.db").complete
    content = Path("some.db").read_bytes()
    for taken in ("some.db", shards[1], shards[1].with_name(f"{shards[1].name}-wal"), "runs", "new/"):
        assert "--out: expected" in pyrobust("merge", "runs", "three.db", "--partial", "--out", taken).error
    assert Path("some.db").read_bytes() == content
    with being_written(shards[1]):
        assert "lack images: 1-3" in pyrobust("merge", "runs", "--out", "all.db").error
    assert "some.db, which is a whole run" in pyrobust("merge", "some.db", "--out", "all.db").error


def test_missing_refuses_what_is_no_sweep(pyrobust: Any, shards: list[Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "found none in it" in pyrobust("missing", "empty").error
    assert "nothing.db: file not found" in pyrobust("missing", "nothing.db").error
    pyrobust.ok(*SWEEP, "--out", "whole.db")
    assert "the shards of one sweep, or one run" in pyrobust("missing", "whole.db", "runs").error
    other = tmp_path / "other.db"
    pyrobust.ok(*SWEEP, "--seed", "3", "--shard", "1/4", "--out", other)
    assert "different sweeps: seed: 3 in the first, 0" in pyrobust("missing", other, "runs").error
    copy = Path("runs/copy.db")
    copy.write_bytes(shards[0].read_bytes())
    assert "shard 1/4: in two files" in pyrobust("missing", "runs").error
    content = shards[0].read_bytes()
    for damaged in (b"junk", content[:5000], content[:100] + b"\xff" * 4000 + content[4100:]):
        copy.write_bytes(damaged)
        assert "runs/copy.db: " in pyrobust("missing", "runs").error
    copy.write_bytes(content)
    remove_rows(copy, 0)
    for name, edit in (("images", {"images": 2**32, "max": None}), ("shards", {"shard": [1, 2**32]})):
        change(copy, "UPDATE run SET parameters = ?", json.dumps(Run(shards[0]).parameters | edit))
        assert f"expected at most 16,777,216 {name}" in pyrobust("missing", copy).error
    copy.write_bytes(b"")  # a run that is just being created
    assert pyrobust("missing", "runs").err == "complete: 4 of 4 shards\n"
    remove_rows(shards[1], -1)
    with closing(sqlite3.connect(shards[1])) as connection, connection:
        connection.execute("INSERT INTO result SELECT 0, 0, 0, 'ok', 0.0, '{}', '{}', 0.0, 0.0")
    assert "damaged" in pyrobust("missing", "runs").error
