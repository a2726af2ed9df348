"""Run files: round trips of results, and refusals of other runs and files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damage import being_written
from support.example_parameters import example
from support.store_rows import header, rows, write_rows

from pyrobust.errors import FileFormatError, InputError, StoreError
from pyrobust.runs.command import stating_command
from pyrobust.runs.kinds.columns import decode_counts, encode_histograms
from pyrobust.runs.merged_file import write_merged
from pyrobust.runs.reader import Header, connect_readonly
from pyrobust.runs.run import Run
from pyrobust.runs.writer import RunWriter

# -- round trips ------------------------------------------------------------------------------------------------------


def test_results_round_trip_while_they_are_written_and_in_one_plain_file(run_file: Path) -> None:
    run_file.unlink()
    with RunWriter(run_file, header()) as writer:
        assert len(Run(run_file)) == 0
        writer.append(rows(range(4)))
        assert len(Run(run_file)) == 4
        writer.append(rows(range(4, 8), radius=0.25))
    run = Run(run_file)
    assert run.header == header()
    assert run.table["index"].tolist() == list(range(8))
    assert run.table["radius"].tolist() == [0.5] * 4 + [0.25] * 4
    assert run.table["status"].tolist() == ["ok"] * 8
    expected = [0, 0, 0, 990, 0, 0, 0, 0, 0, 0, 10]
    assert run.histogram().tolist() == [expected] * 8
    assert run.histogram("counts0").tolist() == [[count // 10 for count in expected]] * 8
    assert not run.complete
    assert len(run.expected) == 20
    assert list(run_file.parent.iterdir()) == [run_file]


doubles = st.floats(min_value=0.0, allow_infinity=False) | st.sampled_from([5e-324, math.pi, 1 / 3, 1e308])


@settings(max_examples=15)
@given(radius=doubles, p_lower=st.floats(0.0, 1.0), seconds=doubles)
def test_floats_round_trip_bit_for_bit(radius: float, p_lower: float, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        with RunWriter(path, header(alpha=1 / 3, sigma=0.1 + 0.2)) as writer:
            writer.append(rows(range(1), radius, p_lower, seconds))
        run = Run(path)
        for name, value in (("radius", radius), ("p_lower", p_lower), ("seconds", seconds)):
            assert run.table[name].tobytes() == np.float64(value + 0.0).tobytes()
        assert run.parameters["alpha"] == 1 / 3
        assert run.parameters["sigma"] == 0.1 + 0.2


@given(st.lists(st.integers(0, 2**32), min_size=2, max_size=20))
def test_histograms_round_trip(counts: list[int]) -> None:
    decoded = decode_counts(encode_histograms(np.array([counts]))[0], len(counts) - 1)
    assert [decoded.get(column, 0) for column in range(len(counts))] == counts


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"x":1}', '{"10":1}', '{"-1":1}', '{"1":0}', '{"1":1.0}', '{"1":true}', '{"1":4294967297}', '{"²":1}'],
)
def test_malformed_histograms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_counts(text, 10)


def test_the_command_that_started_a_run_is_stored_beside_the_versions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.db"
    with stating_command(["certify", "--data", "my data"]), RunWriter(path, header()) as writer:
        writer.append(rows(range(4)))
    with stating_command(["certify", "--json", "-"]), RunWriter(path, header()) as writer:
        writer.append(rows(range(4, 8)))
    assert caplog.records == []  # of another command
    run = Run(path)
    assert run.header.command == "pyrobust certify --data 'my data'"
    assert run.header.versions == header().versions
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (stored,) = connection.execute("SELECT versions FROM run").fetchone()
    assert json.loads(stored) == {"pyrobust": "0.1.0", "command": "pyrobust certify --data 'my data'"}


def test_runs_that_python_started_and_merged_ones_have_no_command(run_file: Path, tmp_path: Path) -> None:
    assert Run(run_file).header.command == ""
    with stating_command(["certify"]):
        write_rows(tmp_path / "1.db", "certify", shard=[1, 1], images=8)
    assert write_merged([tmp_path / "1.db"], tmp_path / "whole.db").header.command == ""


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_other_model_data_or_kind_is_refused(run_file: Path) -> None:
    fields = dict(vars(header()))
    for change, words in (
        ({"model_sha256": "c" * 64}, "hash of the model"),
        ({"data_sha256": "c" * 64}, "hash of the data"),
        ({"guarantee": "grid"}, "guarantee: 'real' stored, 'grid' given"),
        ({"kind": "predict", "parameters": example("predict")}, "a run of kind certify, expected predict; use"),
    ):
        with pytest.raises(StoreError, match=words):
            RunWriter(run_file, Header(**(fields | change)))
    for kind in ("predict", "attack", "verify"):
        with pytest.raises(StoreError) as caught:
            RunWriter(run_file, header(kind))
        assert len(str(caught.value)) < len(str(run_file)) + 80
    # Display names are not compared: the same images may come from another path.
    with RunWriter(run_file, Header(**(fields | {"data": "npz:elsewhere.npz", "versions": {}}))) as writer:
        assert writer.done == set(range(8))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("radius", math.nan),
        ("radius", math.inf),
        ("p_lower", math.nan),
        ("seconds", math.inf),
        ("idx", 2**32),
        ("idx", -1),
    ],
)
def test_unstorable_values_refuse_the_whole_chunk(run_file: Path, column: str, value: float) -> None:
    with RunWriter(run_file, header()) as writer:
        chunk = rows(range(8, 12))
        chunk[column] = [*list(chunk[column])[:3], value]
        with pytest.raises(InputError, match=column):
            writer.append(chunk)
        with pytest.raises(InputError, match="columns"):
            writer.append({"idx": [8]})
        with pytest.raises(InputError, match="one length"):
            writer.append(rows(range(8, 12)) | {"label": [1]})
        assert writer.done == set(range(8))
    assert len(Run(run_file)) == 8


def test_second_writer_is_refused(run_file: Path) -> None:
    with RunWriter(run_file, header()) as writer:
        for _ in range(2):
            writer.append(rows(range(max(writer.done) + 1, max(writer.done) + 3)))
            with pytest.raises(StoreError, match="being written by another process"):
                RunWriter(run_file, header())
    with being_written(run_file), pytest.raises(StoreError, match="being written by another process"):
        RunWriter(run_file, header())
    with RunWriter(run_file, header()) as writer:
        assert len(writer.done) == 12


@contextlib.contextmanager
def overtaken(monkeypatch: pytest.MonkeyPatch, method: str, other: Callable[[], object]) -> Iterator[None]:
    """Another process acts just before a writer's first call of a method."""
    plain = getattr(RunWriter, method)

    def late(self: RunWriter) -> object:
        patched.undo()
        other()
        return plain(self)

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, method, late)
        yield


@pytest.mark.parametrize("new", [False, True])
def test_a_writer_that_is_overtaken_while_it_opens_a_run_is_refused(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, new: bool
) -> None:
    if new:
        run_file.unlink()

    def other() -> None:
        with RunWriter(run_file, header()) as writer:
            writer.append(rows(range(8, 12)))

    with overtaken(monkeypatch, "_lock_in_wal_mode", other), pytest.raises(StoreError, match="run again to resume"):
        RunWriter(run_file, header())
    with RunWriter(run_file, header()) as writer:
        assert writer.done == set(range(8 if new else 0, 12))


def test_a_writer_removes_no_run_that_another_process_began_in_its_new_file(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(sigma: float) -> None:
        with RunWriter(run_file, header(sigma=sigma)) as writer:
            writer.append(rows(range(4)))

    run_file.unlink()
    with (
        overtaken(monkeypatch, "_connect", lambda: begun(0.75)),
        pytest.raises(StoreError, match="different parameters"),
    ):
        RunWriter(run_file, header())
    assert len(Run(run_file)) == 4
    run_file.unlink()
    same_sigma = float(header().parameters["sigma"])
    others = overtaken(monkeypatch, "_connect", lambda: begun(same_sigma))
    with contextlib.suppress(KeyboardInterrupt), others, RunWriter(run_file, header()) as writer:
        assert writer.done == set(range(4))
        raise KeyboardInterrupt
    assert len(Run(run_file)) == 4


def test_a_file_that_is_removed_as_it_is_opened_is_not_written(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = RunWriter._connect

    def removed(self: RunWriter) -> sqlite3.Connection:
        connection = connect(self)
        run_file.unlink()
        return connection

    monkeypatch.setattr(RunWriter, "_connect", removed)
    with pytest.raises(StoreError, match="removed or replaced by another process"):
        RunWriter(run_file, header())
    assert not run_file.exists()


def test_foreign_files_are_refused_untouched(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    with contextlib.closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE run (a)")
        connection.commit()
    text = tmp_path / "text"
    text.write_text("idx\tlabel\n" * 500)
    trap = tmp_path / "pickle"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "executed"),))

    trap.write_bytes(pickle.dumps([Trap()] * 100))
    short = tmp_path / "short"
    short.write_bytes(b"SQLite format 3\0")
    for path in (foreign, text, trap, short):
        before = path.read_bytes()
        # called inside the iteration that made them
        for opening in (lambda: Run(path), lambda: RunWriter(path, header())):  # noqa: B023 - called in the same turn
            with pytest.raises(FileFormatError, match=path.name):
                opening()
        assert path.read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"foreign.db", "text", "pickle", "short"}


def test_missing_files_and_empty_databases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="file not found"):
        Run(tmp_path / "run.db")
    with pytest.raises(FileFormatError, match="is a folder"):
        Run(tmp_path)
    (tmp_path / "empty.db").touch()
    with pytest.raises(FileFormatError, match="empty database"):
        Run(tmp_path / "empty.db")
    # A kill during creation leaves an empty file, in which a run can start.
    RunWriter(tmp_path / "empty.db", header()).close()
    assert len(Run(tmp_path / "empty.db")) == 0


def left_by_a_killed_writer(tmp_path: Path, application: int | None = None) -> Path:
    """A run with a journal that has to be rolled back, as a kill leaves it between two writes of a transaction."""
    source = tmp_path / "source.db"
    RunWriter(source, header()).close()
    with contextlib.closing(sqlite3.connect(source, isolation_level=None)) as connection:
        if application is not None:
            connection.execute(f"PRAGMA application_id = {application}")
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE other (value)")
        connection.executemany("INSERT INTO other VALUES (?)", [("x" * 5000,)] * 100)
        for suffix in ("", "-journal"):
            shutil.copy(f"{source}{suffix}", tmp_path / f"killed.db{suffix}")
    assert (tmp_path / "killed.db-journal").stat().st_size
    return tmp_path / "killed.db"


def test_a_transaction_that_a_kill_cut_off_is_rolled_back(tmp_path: Path) -> None:
    path = left_by_a_killed_writer(tmp_path)
    with (
        contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        connection.execute("SELECT * FROM run").fetchone()
    assert len(Run(path)) == 0
    assert not (tmp_path / "killed.db-journal").exists()
    RunWriter(path, header()).close()


def test_a_writer_that_closes_waits_for_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    writer = RunWriter(path, header())
    reading, closing = threading.Event(), threading.Event()

    def read() -> None:
        with contextlib.closing(connect_readonly(path)) as connection:
            assert connection.execute("SELECT count(*) FROM run").fetchone() == (1,)
            reading.set()
            closing.wait(10)
            time.sleep(0.1)

    reader = threading.Thread(target=read)
    reader.start()
    assert reading.wait(10)
    closing.set()
    writer.close()
    reader.join()
    assert list(tmp_path.iterdir()) == [path]


def test_databases_of_other_programs_are_not_rolled_back(tmp_path: Path) -> None:
    path = left_by_a_killed_writer(tmp_path, application=7)
    before = path.read_bytes()
    with pytest.raises((FileFormatError, StoreError)):
        Run(path)
    assert path.read_bytes() == before
    assert (tmp_path / "killed.db-journal").exists()


# -- parameters -------------------------------------------------------------------------------------------------------
