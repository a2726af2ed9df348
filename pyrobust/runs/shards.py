"""Find the shards of a sweep in a folder by their headers, and determine the missing parts."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from pyrobust.errors import FileFormatError, InputError, StoreError
from pyrobust.runs.chunk_digests import ChunkDigests
from pyrobust.runs.chunks import Chunks, read_chunks
from pyrobust.runs.merge import shard_differences
from pyrobust.runs.parameters import chosen_indices
from pyrobust.runs.reader import Header, connect_readonly, expect_file, file_version, is_run, read_header, reading
from pyrobust.runs.schema import APPLICATION_ID, THREAT_VERSION
from pyrobust.runs.written import is_written
from pyrobust.zoo.files import COMPANIONS

# Attempts to read a file while its writer is opening or closing it.
_ATTEMPTS: Final = 4
_PAUSE_S: Final = 0.1
# Most shards of a sweep, and most images of a file, that are listed: an untrusted header may name billions.
_MOST: Final = 1 << 24


@dataclass(frozen=True)
class ShardState:
    """A shard of a sweep, or an undivided run.

    Attributes:
        number: number I of the shard I/K; 1 for an undivided run.
        path: file of the shard or run; None if there is none.
        state: "complete", "unfinished", "running" (a process of this or another machine writes it) or "missing" (no
            file).
        done: number of images in the file; None while it is being written.
        total: images of the complete shard.
        set_aside: errors of the chunks that were set aside; resuming the shard tries these chunks again.
    """

    number: int
    path: Path | None
    state: Literal["complete", "unfinished", "running", "missing"]
    done: int | None
    total: int
    set_aside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survey:
    """The contents of a sweep's files.

    Attributes:
        shards: the number of shards K; None for an undivided run.
        parts: all K shards in order, or the undivided run.
        chunks: numbers (from 1) of the chunks that are missing from an undivided run; empty if there are shards, or
            while the run is being written.
    """

    shards: int | None
    parts: tuple[ShardState, ...]
    chunks: tuple[int, ...]

    @property
    def running(self) -> list[int]:
        """Numbers of the parts that are being written."""
        return [shard.number for shard in self.parts if shard.state == "running"]

    def missing(self, *, running: bool = False) -> list[int]:
        """Return the numbers of the shards (or of the chunks of an undivided run) that are still to be computed.

        With ``running``, shards that are being written are included. For an undivided run that is being written, the
        list is empty.
        """
        if self.shards is None:
            return list(self.chunks)
        states = {"unfinished", "missing"} | ({"running"} if running else set())
        return [shard.number for shard in self.parts if shard.state in states]

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary for JSON."""
        parts = [
            vars(shard) | {"path": shard.path and str(shard.path), "set_aside": list(shard.set_aside)}
            for shard in self.parts
        ]
        return {
            "shards": self.shards,
            "missing": array_expression(self.missing()),
            "running": array_expression(self.running),
            "parts": parts,
        }


def array_expression(numbers: Iterable[int]) -> str:
    """Write numbers as a Slurm job-array expression.

    >>> array_expression([7, 3, 5, 6])
    '3,5-7'
    """
    ranges: list[list[int]] = []
    for value in sorted(set(numbers)):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)


def find_runs(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Replace each folder by the runs in it: by its shards or, if it has no shards, by its undivided runs.

    Raises:
        FileFormatError: a file is missing or damaged, or a folder holds no run.
    """
    runs: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            expect_file(path, "a run of pyrobust, or a folder of runs")
            runs.append(path)
            continue
        files = [(file, _read_fixed_header(file)) for file in _files(path)]
        headers = {file: header for file, header in files if header is not None}
        shards = [file for file, header in headers.items() if header.parameters["shard"] is not None]
        if not headers:
            raise FileFormatError(f"{path}: expected a folder of runs, found none in it")
        runs += shards or list(headers)
    return runs


def survey_runs(paths: Sequence[str | os.PathLike[str]]) -> Survey:
    """Read the contents of the shards of one sweep, or of one undivided run; nothing is written.

    If a shard is being written, only its header is read, without SQLite's locks. SQLite synchronises readers with a
    writer through shared memory, and the shard's writer may be on another machine.

    Args:
        paths: run files and folders (`find_runs`).

    Raises:
        FileFormatError: a file is missing or damaged, or a folder holds no run.
        InputError: the files are neither the shards of one sweep nor a single run, or a shard is given twice.
        StoreError: a file cannot be read, or its run is void.
    """
    parts: dict[int, ShardState] = {}
    chunks: tuple[int, ...] = ()
    first: tuple[Path, Header] | None = None
    for path in find_runs(paths):
        header, state, lacking = _read(path)
        first = first or (path, header)
        _check_same_sweep(*first, path, header)
        if state.number in parts:
            shard = "{}/{}".format(*header.parameters["shard"] or (1, 1))
            raise InputError(
                f"shard {shard}", problem=f"in two files: {parts[state.number].path} and {path}", hint="leave one out"
            )
        parts[state.number] = state
        if header.parameters["shard"] is None:
            chunks = lacking
    if first is None:
        raise InputError("expected at least one run file or folder, got none")
    parameters = first[1].parameters
    if parameters["shard"] is None:
        return Survey(None, tuple(parts.values()), chunks)
    count = parameters["shard"][1]
    _check_size(first[0], count, "shards")
    for number in range(1, count + 1):
        if number not in parts:
            total = len(chosen_indices(parameters | {"shard": [number, count]}))
            parts[number] = ShardState(number, None, "missing", 0, total)
    return Survey(count, tuple(parts[number] for number in range(1, count + 1)), ())


def check_siblings(path: Path) -> None:
    """Raise InputError if a shard's folder holds a shard of another sweep, or the same shard under another name.

    The shard's writer calls this before its first image. Only headers are read. A folder may hold the shards of only
    one sweep. Otherwise, a shard I/K with a wrong K could compute images a second time, and the folder could not be
    merged as a whole.
    """
    with closing(connect_readonly(path)) as connection:
        header = read_header(connection, path, whole=False)
    assert header is not None
    for file in _files(path.parent, excluded=path):
        sibling = _read_fixed_header(file)
        if sibling is None or sibling.parameters["shard"] is None:
            continue
        (ours, count), (number, others) = header.parameters["shard"], sibling.parameters["shard"]
        differences = shard_differences(sibling, header, ("there", "here"))
        if differences:
            remedy = ""
            if len(differences) == 1:
                remedy = f"pass --shard auto/{others}, or " if count != others else ""
                remedy = "keep to one kind of node, or " if differences[0].startswith("machine") else remedy
            raise InputError(
                "--out",
                "a folder with the shards of one sweep",
                f"one that holds {file}: {'; '.join(differences)}",
                f"{remedy}use another folder",
            )
        if number == ours:
            raise InputError(
                "--shard",
                problem=f"{ours}/{count} is in {file} already",
                hint="resume that file, or use another folder",
            )


def _check_size(path: Path, size: int, of: str) -> None:
    if size > _MOST:
        raise FileFormatError(f"{path}: expected at most {_MOST:,} {of}, got {size:,}")


def _check_same_sweep(first: Path, expected: Header, path: Path, header: Header) -> None:
    if path == first:
        return
    if None in (expected.parameters["shard"], header.parameters["shard"]):
        raise InputError(f"expected the shards of one sweep, or one run, got {first} and {path}")
    differences = shard_differences(expected, header)
    if differences:
        raise InputError(f"{first} and {path} are shards of different sweeps: {'; '.join(differences)}")


def _read(path: Path) -> tuple[Header, ShardState, tuple[int, ...]]:
    """Read a run's header, its state, and the numbers of its missing chunks, counted from 1."""
    for attempt in range(_ATTEMPTS):
        try:
            if not is_written(path):
                return _read_rows(path)
            header = _read_fixed_header(path)
            if header is not None:
                total = len(chosen_indices(header.parameters))
                return header, ShardState(_number(header), path, "running", None, total), ()
        except FileNotFoundError as error:
            raise FileFormatError(f"{path}: removed while it was read") from error
        except (FileFormatError, StoreError):
            if attempt + 1 == _ATTEMPTS:
                raise
        time.sleep(_PAUSE_S)
    raise FileFormatError(f"{path}: expected a run on images, got another kind of run")


def _read_rows(path: Path) -> tuple[Header, ShardState, tuple[int, ...]]:
    with closing(connect_readonly(path)) as connection:
        header = read_header(connection, path)
        if header is None:
            raise FileFormatError(f"{path}: empty database, not a run of pyrobust; use another file")
        _check_size(path, len(chosen_indices(header.parameters)), "images")
        chunks = Chunks(header.parameters)
        ChunkDigests(connection, header, chunks).check(path)
        with reading(path):
            rows = connection.execute("SELECT idx FROM result")
            indices = np.fromiter((index for (index,) in rows), dtype=np.int64)
            done = np.bincount(chunks.numbers(indices), minlength=len(chunks))
            errors = tuple(read_chunks(connection, header).set_aside.values())
    total = len(chunks.order)
    sizes = np.minimum(chunks.size, total - chunks.size * np.arange(len(chunks)))
    lacking = tuple(int(number) + 1 for number in np.flatnonzero(done < sizes))
    state: Literal["complete", "unfinished"] = "unfinished" if lacking else "complete"
    return header, ShardState(_number(header), path, state, len(indices), total, errors), lacking


def _number(header: Header) -> int:
    shard = header.parameters["shard"]
    return 1 if shard is None else int(shard[0])


def _files(folder: Path, excluded: Path | None = None) -> Iterator[Path]:
    """Yield the files of a folder that are runs or are named like runs.

    The file that this process is writing is not opened, and neither are SQLite's companions of this file. Closing a
    file would release all locks that the process holds on it, including SQLite's.
    """
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        raise FileFormatError(f"{folder}: cannot be read ({error.strerror})") from error
    for file in files:
        # Hidden files are still being written, by this package or by a copying script.
        if file.name.startswith(".") or file.name.endswith(COMPANIONS) or not file.is_file():
            continue
        try:
            if excluded is not None and os.path.samefile(file, excluded):
                continue
            size = file.stat().st_size
        except FileNotFoundError:  # removed meanwhile
            continue
        if is_run(file):
            yield file
        elif file.suffix == ".db" and size and file.exists():  # an empty file is a run being created
            raise FileFormatError(f"{file}: damaged, or not a run of pyrobust; move it elsewhere")


def _read_fixed_header(path: Path) -> Header | None:
    """Return the header of a run on images, else None; it is read without locks, since headers hardly ever change."""
    for attempt in range(_ATTEMPTS):
        try:
            uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
            with reading(path), closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
                application = connection.execute("PRAGMA application_id").fetchone()[0]
                if application != APPLICATION_ID or file_version(connection) == THREAT_VERSION:
                    return None
                return read_header(connection, path, whole=False)
        except (FileFormatError, StoreError):  # it is being created or copied
            if not path.exists():
                return None
            if attempt + 1 == _ATTEMPTS:
                raise
        time.sleep(_PAUSE_S)
    raise AssertionError
