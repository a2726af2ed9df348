"""Shards written as one file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damage import change, largest_file
from support.example_parameters import example
from support.store_rows import IDENTITY, attack_rows, header, rows, sequential_rows

from pyrobust.errors import FileFormatError, InputError, StoreError
from pyrobust.runs.chunks import Chunks
from pyrobust.runs.log import format_log
from pyrobust.runs.merge import group_shards, merge_runs
from pyrobust.runs.merged_file import write_merged
from pyrobust.runs.reader import Header
from pyrobust.runs.run import Run
from pyrobust.runs.writer import RunWriter

ROWS = {"certify": rows, "sequential": sequential_rows, "attack": attack_rows}


def made(layout: str, **changes: Any) -> Header:
    kind, guarantee = ("attack", "empirical") if layout == "attack" else ("certify", "real")
    return replace(header(kind), parameters=example(layout) | {"chunk": 4} | changes, guarantee=guarantee)


def write(path: Path, header: Header, firsts: Iterable[int] | None = None, machine: str = IDENTITY.machine) -> Path:
    """Write a run, or those of its chunks that have these numbers."""
    chunks = Chunks(header.parameters)
    with RunWriter(path, replace(header, identity=replace(IDENTITY, machine=machine))) as writer:
        for number in range(len(chunks)) if firsts is None else firsts:
            start = number * chunks.size
            writer.append(ROWS[header.layout](chunks.order[start : start + chunks.size]))
    return path


def write_shards(folder: Path, layout: str, count: int, **changes: Any) -> list[Path]:
    numbers = range(1, count + 1)
    return [write(folder / f"{i}.db", made(layout, shard=[i, count], **changes)) for i in numbers]


def assert_same(run: Run, other: Run) -> None:
    assert format_log(run) == format_log(other)
    assert run.complete == other.complete
    assert {name: column.tobytes() for name, column in run.table.items()} == {
        name: column.tobytes() for name, column in other.table.items()
    }
    if run.kind == "attack":
        assert run.examples().equal(other.examples())
    else:
        assert run.histogram().tolist() == other.histogram().tolist()


@settings(max_examples=8)
@given(
    layout=st.sampled_from(sorted(ROWS)),
    images=st.integers(1, 40),
    skip=st.integers(1, 3),
    count=st.integers(1, 5),
    order=st.sampled_from([{}, {"order": "random", "order_seed": 1}]),
    block=st.sampled_from([1, 3, 1 << 14]),
)
def test_the_file_equals_the_merged_shards_and_the_single_process(
    layout: str, images: int, skip: int, count: int, order: dict[str, Any], block: int
) -> None:
    changes = {"images": images, "skip": skip} | order
    with tempfile.TemporaryDirectory() as name, mock.patch("pyrobust.runs.merged_file.BLOCK", block):
        folder = Path(name)
        paths = write_shards(folder, layout, count, **changes)
        single = Run(write(folder / "single.db", made(layout, **changes)))
        run = write_merged(paths[::-1], folder / "out.db")
        assert run.path == folder / "out.db"
        assert run.header == single.header
        assert_same(run, single)
        assert_same(run, merge_runs(paths))
        assert run.machines == single.machines
        assert len(list(folder.iterdir())) == count + 2
        # It is a run like any other.
        with RunWriter(run.path, single.header) as writer:
            assert sorted(writer.done) == list(run.expected)


def test_chunks_name_the_machines_of_all_their_images(tmp_path: Path) -> None:
    machines = (IDENTITY.machine, "gpu", IDENTITY.machine)
    numbers = range(1, 4)
    headers = [made("certify", shard=[i, 3], images=21, chunk=3) for i in numbers]
    paths = [
        write(tmp_path / f"{i}.db", each, machine=machine)
        for i, each, machine in zip(numbers, headers, machines, strict=True)
    ]
    assert merge_runs(paths).machines == {IDENTITY.machine: 14, "gpu": 7}
    run = write_merged(paths, tmp_path / "out.db")
    assert run.machines == {f"{IDENTITY.machine} and gpu": 21}
    assert run.set_aside == {}


def test_unfinished_and_missing_shards(tmp_path: Path) -> None:
    headers = [made("certify", shard=[i, 3], images=24) for i in (1, 2, 3)]
    first = write(tmp_path / "1.db", headers[0])
    second = write(tmp_path / "2.db", headers[1], [0], machine="gpu")
    with RunWriter(tmp_path / "3.db", headers[2]) as writer:
        writer.set_aside(2, "lost")
    third = tmp_path / "3.db"
    out = tmp_path / "out.db"
    with pytest.raises(InputError, match=r"2 of 3 shards are unfinished, the first is .*2\.db: 4 of 8 images; resume"):
        write_merged([first, second, third], out)
    with pytest.raises(InputError, match="missing shards: 2/3"):
        write_merged([first, third], out)
    assert not out.exists()
    run = write_merged([first, second, third], out, partial=True)
    assert_same(run, merge_runs([first, second, third]))
    assert (len(run), run.complete, run.set_aside) == (12, False, {})
    assert len(write_merged([first, third], tmp_path / "two.db", partial=True)) == 8


def test_shards_of_other_sweeps_are_refused(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "other", "more")]
    for folder in folders:
        folder.mkdir()
    first, second, third = write_shards(folders[0], "certify", 3)
    other, more = write_shards(folders[1], "certify", 3, n=50), write_shards(folders[2], "certify", 4)
    whole = write(tmp_path / "whole.db", made("certify"))
    for paths, words in (
        ([first, third], r"missing shards: 2/3;"),
        ([first, second, second, third], r"shard 2/3 given twice: .*2\.db and .*2\.db"),
        ([first, second, other[2]], "n: 1000 in the first, 50 in the second"),
        ([first, second, more[2]], "shard: of 3 in the first, of 4 in the second"),
        ([first, whole], "not a shard"),
    ):
        with pytest.raises(InputError, match=words):
            merge_runs(paths)
    assert merge_runs([second]).parameters["shard"] == [2, 3]
    assert merge_runs([whole]).complete


def test_shards_on_a_grid_are_of_one_machine(tmp_path: Path) -> None:
    headers = [replace(made("certify", grid="1/16", delta=1e-6, shard=[i, 2]), guarantee="grid") for i in (1, 2)]
    machines = enumerate(zip(("cpu", "gpu"), headers, strict=True), start=1)
    paths = [write(tmp_path / f"{i}.db", each, (), name) for i, (name, each) in machines]
    words = r"machine: cpu in the first, gpu in the second \(on a grid, it is part of the certified classifier\)"
    with pytest.raises(InputError, match=words):
        merge_runs(paths)
    assert [path.name for [path] in group_shards(paths)] == ["1.db", "2.db"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, "certify", 2)
    before = {path: path.read_bytes() for path in paths}
    (tmp_path / "dangling.db").symlink_to("nowhere")
    (tmp_path / "beside.db-wal").touch()
    for name in ("1.db", "dangling.db", "beside.db"):
        with pytest.raises(InputError, match="expected a new file"):
            write_merged(paths, tmp_path / name)
    with pytest.raises(StoreError, match="cannot be written"):
        write_merged(paths, tmp_path / "nowhere" / "out.db")

    def appear(*_: object) -> None:
        (tmp_path / "out.db").write_text("of another process")

    with (
        mock.patch("pyrobust.runs.merged_file._sync", appear),
        pytest.raises(InputError, match=r"out\.db exists; name another"),
    ):
        write_merged(paths, tmp_path / "out.db")
    assert (tmp_path / "out.db").read_text() == "of another process"
    assert {path: path.read_bytes() for path in paths} == before
    assert len(list(tmp_path.iterdir())) == 5


def test_a_file_system_without_hard_links(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, "certify", 2)
    with mock.patch("os.link", side_effect=OSError(1, "Operation not permitted")):
        assert write_merged(paths, tmp_path / "out.db").complete
    assert sorted(os.listdir(tmp_path)) == ["1.db", "2.db", "out.db"]


@pytest.mark.parametrize(
    ("layout", "statement"),
    [
        ("certify", """UPDATE result SET counts = '{"3":999}' WHERE idx = 9"""),
        ("certify", "UPDATE result SET radius = -1 WHERE idx = 9"),
        ("certify", "INSERT INTO chunk VALUES (1, 'other', 'lost')"),
        ("attack", "UPDATE result SET x_adv = zeroblob(15) WHERE idx = 9"),
        ("attack", "UPDATE result SET x_adv = x'00000000000000000000000000000040' WHERE idx = 9"),
    ],
)
def test_damaged_shards_are_refused(tmp_path: Path, layout: str, statement: str) -> None:
    paths = write_shards(tmp_path, layout, 2)
    change(paths[1], statement)
    with pytest.raises(FileFormatError, match=r"2\.db: damaged"):
        write_merged(paths, tmp_path / "out.db")
    assert sorted(os.listdir(tmp_path)) == ["1.db", "2.db"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, "certify", 2, images=600, chunk=100)
    with largest_file(60_000), pytest.raises(StoreError, match=r"out\.db: cannot be written"):
        write_merged(paths, tmp_path / "out.db")
    assert sorted(os.listdir(tmp_path)) == ["1.db", "2.db"]
