"""Digests of headers and chunks: renewed with what they cover, compared wherever a run is read."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damage import reseal
from support.example_parameters import example
from support.store_rows import IDENTITY, header, pending_rows, rows, sequential_rows, write_rows

from pyrobust.auditing.audit import audit_run
from pyrobust.errors import FileFormatError, StoreError
from pyrobust.evaluation import RunWatcher
from pyrobust.runs.merged_file import write_merged
from pyrobust.runs.reader import Header
from pyrobust.runs.run import Run
from pyrobust.runs.shards import survey_runs
from pyrobust.runs.writer import RunWriter


def spoil(path: Path, *statements: str) -> None:
    """Change a run and leave its digests."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount != 0
        connection.commit()


CHUNK = (
    r"run\.db: damaged: the contents of chunk 2, images 4, 5, 6, 7, differ from their digest; do not use this file: "
)
HEADER = (
    r"run\.db: damaged: the header \(parameters, hashes, versions and identity of the model\) differs from its digest"
)
# One of the chunks, of the header and of their list, which every reader compares.
ALL = (
    ["UPDATE result SET label = 2 WHERE idx = 5"],
    ["DELETE FROM seal"],
    ["UPDATE seal SET contents = zeroblob(32)"],
)
LIST = r"run\.db: damaged: the digests of its chunks differ from the digest of all"


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["UPDATE result SET label = 2 WHERE idx = 5"], CHUNK),
        (["UPDATE result SET seconds = seconds + 1e-15 WHERE idx = 5"], CHUNK),
        (["DELETE FROM result WHERE idx = 7"], CHUNK),
        (["DELETE FROM result WHERE idx > 3"], CHUNK),
        (["INSERT INTO chunk VALUES (4, 'other', '')"], CHUNK),
        (["INSERT INTO chunk VALUES (12, '', 'lost')"], "images of a chunk that has no digest"),
        (
            [
                "INSERT INTO result SELECT 9, label, prediction, status, seconds, counts0, counts, p_lower, radius"
                " FROM result WHERE idx = 5"
            ],
            "images of a chunk that has no digest",
        ),
        (["DELETE FROM result WHERE idx > 3", "DELETE FROM digest WHERE first = 4"], LIST),
        (["UPDATE digest SET contents = zeroblob(32) WHERE first = 4"], LIST),
        (["UPDATE seal SET contents = zeroblob(32)"], LIST),
        (["UPDATE digest SET first = 5 WHERE first = 4"], "expected first images of chunks"),
        (["UPDATE digest SET contents = CAST(contents AS TEXT)"], r"run\.db: "),
        (["UPDATE run SET data_sha256 = replace(data_sha256, 'b', 'c')"], HEADER),
        (["UPDATE run SET parameters = replace(parameters, '0.001', '0.002')"], HEADER),
        (["UPDATE identity SET value = replace(value, '0.0', '0.1')"], HEADER),
        (["UPDATE seal SET header = zeroblob(32)"], HEADER),
        (["DELETE FROM seal"], HEADER),
    ],
)
def test_every_reader_names_what_differs(
    run_file: Path, statements: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("evaluation.watch", "runs.shards"):
        monkeypatch.setattr(f"pyrobust.{module}._PAUSE_S", 0.0)
    spoil(run_file, *statements)
    readers: list[Callable[[], object]] = [
        lambda: Run(run_file).table,
        lambda: RunWriter(run_file, header()),
        lambda: len(Run(run_file)),
        lambda: Run(run_file).histogram(),
        lambda: Run(run_file).machines,
        lambda: Run(run_file).count_invalid_votes(),
        lambda: survey_runs([run_file]),
        lambda: RunWatcher(run_file).state(),
        lambda: audit_run(Run(run_file)),
    ]
    for reader in readers if statements in ALL else readers[:2]:
        with pytest.raises(FileFormatError, match=message):
            reader()


def test_examples_are_compared_where_they_are_read(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "run.db", "attack", shard=[1, 1])
    spoil(path, "UPDATE result SET x_adv = zeroblob(16) WHERE idx = 5")
    run = Run(path)
    assert len(run.table["index"]) == 8
    assert len(run.examples([0, 3])) == 2
    message = "the examples of chunk 2, images 4, 5, 6, 7, differ from their digest"
    for reader in (run.examples, run.check, lambda: audit_run(run)):
        with pytest.raises(FileFormatError, match=message):
            reader()
    with pytest.raises(FileFormatError, match=message):
        write_merged([path], tmp_path / "out.db", partial=True)
    assert not (tmp_path / "out.db").exists()


@settings(max_examples=8)
@given(
    order=st.sampled_from([{}, {"order": "random", "order_seed": 1}]),
    size=st.integers(1, 9),
    piece=st.sampled_from([1, 3, 4096]),
    parts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    skip=st.integers(1, 3),
)
def test_chunks_committed_in_parts_are_guarded_at_every_moment(
    order: dict[str, object], size: int, piece: int, parts: list[int], skip: int
) -> None:
    changes = {"images": 20 * skip, "skip": skip, "chunk": size} | order
    made = replace(header(), parameters=example("sequential") | changes)
    with tempfile.TemporaryDirectory() as name, mock.patch("pyrobust.runs.chunk_digests._PIECE", piece):
        path = Path(name) / "run.db"
        images = list(Run(_started(path, made)).expected)
        for number, length in enumerate(parts):
            taken, images = images[:length], images[length:]
            with RunWriter(path, made) as writer:
                if taken:
                    writer.append(sequential_rows(taken), pending_rows(images[:2]), machines=None)
                writer.set_aside(writer._chunks.first(images[0]), f"lost {number}") if images else None
                Run(path).check()
        Run(path).check()
        stored = _digests(path)
        reseal(path)
        assert _digests(path) == stored


def _digests(path: Path) -> list[list[tuple[object, ...]]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in ("digest", "seal")]


def _started(path: Path, made: Header) -> Path:
    RunWriter(path, made).close()
    return path


def test_a_chunk_with_a_duplicate_image_is_refused_whole(run_file: Path) -> None:
    with RunWriter(run_file, header()) as writer:
        with pytest.raises(StoreError, match="already holds one of these images"):
            writer.append(rows(range(7, 9)))
        writer.append(rows(range(8, 12)))
    Run(run_file).check()
    assert Run(run_file).table["index"].tolist() == list(range(12))


def test_the_void_mark_and_changed_code_renew_the_header(tmp_path: Path) -> None:
    run_file = tmp_path / "run.db"
    first, second = (replace(header(), identity=replace(IDENTITY, code=(name * 64,))) for name in "cd")
    RunWriter(run_file, first).close()
    RunWriter(run_file, second, allow_changed_code=True).close()
    run = Run(run_file)
    assert run.header.identity is not None
    assert run.header.identity.code == ("c" * 64, "d" * 64)
    with RunWriter(run_file, run.header) as writer:
        writer.void("it drifts")
    with pytest.raises(StoreError, match="void, do not use its results: it drifts"):
        Run(run_file)
    spoil(run_file, "UPDATE identity SET value = json_set(value, '$.void', '')")
    with pytest.raises(FileFormatError, match=HEADER):
        Run(run_file)


def test_minus_zero_is_stored_as_sqlite_returns_it(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run.db", header()) as writer:
        writer.append(rows(range(4), radius=-0.0))
    Run(tmp_path / "run.db").check()
