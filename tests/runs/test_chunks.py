"""Shards and chunks of the chosen images: what they cover, who computed them, and which were set aside."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.damage import change
from support.example_parameters import example
from support.store_rows import IDENTITY, header, pending_rows, rows, sequential_rows

from pyrobust.errors import FileFormatError, InputError, StoreError
from pyrobust.report import describe_run
from pyrobust.runs.chunks import MAX_TEXT, Chunks
from pyrobust.runs.log import write_log
from pyrobust.runs.log_header import header_path, read_log_header
from pyrobust.runs.parameters import chosen_indices, processing_order
from pyrobust.runs.reader import Header
from pyrobust.runs.run import Run
from pyrobust.runs.schema import VERSION
from pyrobust.runs.shards import array_expression
from pyrobust.runs.writer import RunWriter

OWN, OTHER = IDENTITY.machine, "other CPU, 4 threads"


def on_a_grid() -> Header:
    grid = {"grid": "1/16", "delta": 1e-6}
    return replace(header(), parameters=example("certify") | grid, guarantee="grid")


@given(
    images=st.integers(1, 60),
    skip=st.integers(1, 4),
    shard=st.none() | st.sampled_from([[1, 2], [2, 2], [3, 5]]),
    size=st.integers(1, 9),
    order=st.sampled_from([{}, {"order": "random", "order_seed": 3}]),
)
def test_chunks_are_slices_of_the_order(
    images: int, skip: int, shard: list[int] | None, size: int, order: dict[str, Any]
) -> None:
    parameters = {"images": images, "skip": skip, "max": None, "shard": shard, "chunk": size} | order
    chunks, taken = Chunks(parameters), list(processing_order(parameters))
    slices = [taken[start : start + size] for start in range(0, len(taken), size)]
    assert len(chunks) == len(slices)
    for number, images_of in enumerate(slices):
        assert list(chunks.images(images_of[0])) == images_of
        assert {chunks.first(index) for index in images_of} == {images_of[0]}
        assert chunks.numbers(np.array(images_of)).tolist() == [number] * len(images_of)
        for index in images_of[1:]:
            with pytest.raises(ValueError, match="not the first of a chunk"):
                chunks.images(index)
    for outside in {-1, images, images + skip} | ({1} if skip > 1 else set()):
        with pytest.raises(ValueError, match="does not cover"):
            chunks.first(outside)


@given(
    images=st.integers(1, 300),
    skip=st.integers(1, 20),
    maximum=st.none() | st.integers(1, 400),
    count=st.integers(1, 40),
    order=st.sampled_from([{}, {"order": "random", "order_seed": 3}]),
)
def test_shards_partition_the_chosen_images(
    images: int, skip: int, maximum: int | None, count: int, order: dict[str, object]
) -> None:
    selection = {"images": images, "skip": skip, "max": maximum, "shard": None, **order}
    whole = [index for index in range(images) if index % skip == 0][:maximum]
    assert list(chosen_indices(selection)) == whole
    parts = [selection | {"shard": [number, count]} for number in range(1, count + 1)]
    assert [shard[0] for shard in map(list, map(chosen_indices, parts)) if shard] == whole[:count]
    shards = [processing_order(parameters) for parameters in parts]
    assert sorted(index for shard in shards for index in shard) == whole
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def expand(expression: str) -> set[int]:
    """The task numbers of an array, as Slurm reads the expression."""
    numbers: set[int] = set()
    for item in filter(None, expression.split(",")):
        first, _, last = item.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


@given(st.sets(st.integers(1, 60)))
def test_an_array_expression_names_each_number_once(numbers: set[int]) -> None:
    expression = array_expression(numbers)
    assert expand(expression) == numbers
    assert expression.count(",") + 1 == len([n for n in numbers if n - 1 not in numbers]) or not numbers


def test_an_ordinary_run_records_no_chunk(run_file: Path) -> None:
    with contextlib.closing(sqlite3.connect(run_file)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert connection.execute("SELECT * FROM chunk").fetchall() == []
    assert (Run(run_file).machines, Run(run_file).set_aside) == ({OWN: 8}, {})
    assert not any("achines" in line or "ASIDE" in line for line in describe_run(Run(run_file)))


def test_machines_of_chunks(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with RunWriter(path, header()) as writer:
        assert Run(path).machines == {}
        writer.append(rows(range(0, 12)), machines={0: OWN, 4: OTHER, 8: OTHER})
        assert Run(writer.connection).machines == Run(path).machines == {OWN: 4, OTHER: 8}
    # A process on another machine that resumes the run is recorded without being told.
    with RunWriter(path, replace(header(), identity=replace(IDENTITY, machine="third"))) as writer:
        writer.append(rows(range(12, 16)))
        writer.append(rows(range(16, 20)), machines={16: OWN})
    run = Run(path)
    assert run.complete
    assert run.machines == {OWN: 8, OTHER: 8, "third": 4}
    assert f"Machines: 8 images by {OWN}; 8 images by {OTHER}; 4 images by third" in describe_run(run)
    write_log(run, tmp_path / "log.tsv")
    beside = json.loads(header_path(tmp_path / "log.tsv").read_text())
    assert (beside["machines"], "set_aside" in beside) == (run.machines, False)
    assert read_log_header(tmp_path / "log.tsv") is not None


def test_chunks_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with RunWriter(path, header()) as writer:
        writer.set_aside(4, "worker lost\n\x00three times\x1b[1m" + "!" * 9000)
        writer.append(rows(range(0, 4)))
        with pytest.raises(InputError, match="first image of a chunk of this run, got 5"):
            writer.set_aside(5, "lost")
        with pytest.raises(InputError, match="an unfinished chunk to set aside, got that of image 0"):
            writer.set_aside(0, "lost")
    run = Run(path)
    [(first, error)] = run.set_aside.items()
    assert (first, len(error), error.isprintable()) == (4, MAX_TEXT, True)
    assert error.startswith("worker lost  three times [1m!!!")
    assert not run.complete
    assert describe_run(run)[-1].startswith("SET ASIDE: 1 chunk (from image 4: worker lost  three times")
    write_log(run, tmp_path / "log.tsv")
    assert json.loads(header_path(tmp_path / "log.tsv").read_text())["set_aside"] == {"4": error}
    with RunWriter(path, header()) as writer:
        writer.append(rows(range(4, 8)), machines={4: OTHER})
    assert (Run(path).set_aside, Run(path).machines) == ({}, {OWN: 4, OTHER: 4})
    with RunWriter(path, header()) as writer:
        writer.set_aside(8, "lost")
        writer.append(rows(range(8, 12)))
    assert (Run(path).set_aside, Run(path).machines) == ({}, {OWN: 8, OTHER: 4})


def test_a_run_on_a_grid_refuses_other_machines(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    elsewhere = replace(on_a_grid(), identity=replace(IDENTITY, machine=OTHER))
    words = f"{OWN}.*, got {OTHER}: on a grid, .* part of the certified classifier; use machines of one kind"
    with RunWriter(path, on_a_grid()) as writer:
        writer.append(rows(range(0, 4)), machines={0: OWN})
        with pytest.raises(StoreError, match=words):
            writer.append(rows(range(4, 12)), machines={4: OWN, 8: OTHER})
        assert len(Run(path)) == 4
        writer.append(rows(range(4, 8)))
    with pytest.raises(StoreError, match=words):
        RunWriter(path, elsewhere)
    assert Run(path).machines == {OWN: 8}
    change(path, "INSERT INTO chunk VALUES (4, ?, '')", OTHER)
    with pytest.raises(FileFormatError, match="a grid guarantee is that of one machine"):
        _ = Run(path).machines


def test_machines_that_cannot_be_recorded_refuse_the_chunks(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run.db", header()) as writer:
        for machines in ({1: OTHER}, {20: OTHER}, {0: ""}, {0: "a\x00b"}, {0: "a" * (MAX_TEXT + 1)}):
            with pytest.raises(InputError, match=r"first image of a chunk|printable text"):
                writer.append(rows(range(0, 4)), machines=machines)
        assert len(writer.done) == 0
        writer.append(rows(range(0, 4)))


@pytest.mark.parametrize(
    "values",
    [
        "(1, 'other', '')",
        "(20, 'other', '')",
        "(4, '', '')",
        "(4, 'cpu, 1 threads', '')",
        "(4, '', 'lost')",
        "(8, 'other', '')",
        "(8, '', 'a' || char(10))",
        "(4, 'a' || char(0) || 'b', '')",
        "(4, x'61', '')",
        "(4, replace(hex(zeroblob(500000)), '00', 'ab'), '')",
        "(8, '', replace(hex(zeroblob(500000)), '00', 'ab'))",
        "(4, replace(hex(zeroblob(2500)), '00', 'ab'), '')",
    ],
)
def test_tampered_chunks_are_refused(run_file: Path, values: str) -> None:
    change(run_file, f"INSERT INTO chunk VALUES {values}")
    for opening in (
        lambda: Run(run_file).machines,
        lambda: Run(run_file).set_aside,
        lambda: RunWriter(run_file, header()),
    ):
        with pytest.raises(FileFormatError, match=r"run\.db: damaged.*(chunk|cover)") as caught:
            opening()
        assert len(str(caught.value)) < len(str(run_file)) + 200


def sequential_header() -> Header:
    return replace(header(), parameters=example("sequential") | {"chunk": 4})


def test_a_sequential_chunk_may_be_set_aside_after_some_images(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with RunWriter(path, sequential_header()) as writer:
        writer.append(sequential_rows(range(4, 6)), pending_rows([7, 6]), machines={4: OTHER})
        writer.set_aside(4, "lost")
    run = Run(path)
    assert (run.machines, run.set_aside) == ({OTHER: 2}, {4: "lost"})
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT idx FROM pending ORDER BY place").fetchall() == [(7,), (6,)]
    # What resumes it may have drawn samples elsewhere.
    with RunWriter(path, sequential_header()) as writer:
        writer.append(sequential_rows(range(6, 7)), pending_rows([7]), machines={4: "third"})
        assert Run(path).set_aside == {}
        writer.append(sequential_rows(range(7, 8)), pending_rows([]), machines={4: OWN})
    assert Run(path).machines == {f"{OTHER} and third": 4}


def test_other_threads_are_refused(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run.db", header(threads=65536)).close()
    with pytest.raises(StoreError, match="threads: 65536 stored"):
        RunWriter(tmp_path / "run.db", header())
