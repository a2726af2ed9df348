"""Write the shards of a sweep as one run file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.checks import file_path, flag
from pyrobust.errors import InputError, StoreError
from pyrobust.runs.chunk_digests import ChunkDigests
from pyrobust.runs.chunks import AND, MAX_TEXT, Chunks, places
from pyrobust.runs.digests import add_seal
from pyrobust.runs.locked_file import LockedFile
from pyrobust.runs.merge import check_shards
from pyrobust.runs.parameters import chosen_indices
from pyrobust.runs.reader import BLOCK, Header, connect_readonly, reading
from pyrobust.runs.run import Run
from pyrobust.runs.schema import create_statements
from pyrobust.zoo.files import COMPANIONS, TEMPORARY

# Approximate memory of the rows that are copied at a time.
_BLOCK_BYTES = 1 << 26


def write_merged(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], *, partial: bool = False) -> Run:
    """Write the shards of one sweep as one run file, atomically.

    The file holds what a single process would have written, with two exceptions. The times differ, and the versions and
    the machine are taken from the first shard. The images are divided into chunks as in a run without shards, so that
    each chunk mixes images of all shards. If the first shard's machine did not compute all images of a chunk, the file
    names all machines that computed images of this chunk. Unfinished images and chunks that were set aside are left
    out.

    Everything in the shards is checked, and memory use does not grow with their size.

    Args:
        paths: the files of all shards, in any order.
        out: the file to write, which must not exist.
        partial: whether shards may be unfinished or missing. Resume the shards, not this file: it can be read, but a
            sweep can resume it only if the run is a sequential certification or no chunk is there in part. Otherwise,
            the sweep reports it as damaged.

    Returns:
        The run in the new file.

    Raises:
        InputError: ``out`` exists; shards are unfinished or missing; or the files are not shards of one sweep.
        FileFormatError: a file is missing or damaged, or was written by another program, or by a newer or an older
            version.
        StoreError: a shard cannot be opened or its run is void; or the file cannot be written, and no part of it is
            left behind.

    >>> write_merged([], "whole.db")
    Traceback (most recent call last):
    pyrobust.errors.InputError: write_merged: paths: expected at least one run file, got none
    """
    out, partial = file_path("out", out), flag("partial", partial)
    if not paths:
        raise InputError("write_merged: paths", "at least one run file", "none")
    _check_new(out)
    shards = check_shards("write_merged", [Run(path) for path in paths], partial=partial)
    unfinished = [run for run in shards if not run.complete]
    if unfinished and not partial:
        raise InputError(
            "write_merged",
            problem=f"{len(unfinished)} of {len(shards)} shards are unfinished, the first is {unfinished[0].path}: "
            f"{len(unfinished[0])} of {len(unfinished[0].expected)} images",
            hint="resume them first, or pass partial=True (--partial)",
        )
    for run in shards:
        run.check()
    with _new_file(out) as temporary:
        merged = _MergedFile(temporary, out, shards)
        try:
            merged.copy()
        except BaseException:
            merged.discard()
            raise
        merged.close()
    return Run(out)


def _check_new(out: Path) -> None:
    for path in (out, *(Path(f"{out}{suffix}") for suffix in COMPANIONS)):
        if os.path.lexists(path):
            raise InputError("write_merged: out", f"a new file, but {path} exists", hint="name another")


@contextlib.contextmanager
def _new_file(out: Path) -> Iterator[Path]:
    """Yield a temporary path next to the new file; after writing, move it to the final name."""
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(dir=out.absolute().parent, prefix=TEMPORARY))
        temporary = folder / out.name
        yield temporary
        _sync(temporary)
        try:
            os.link(temporary, out)  # unlike a rename, a link never replaces a file
        except FileExistsError:
            raise InputError("write_merged: out", f"a new file, but {out} exists", hint="name another") from None
        except OSError:  # a file system without hard links
            _check_new(out)
            os.rename(temporary, out)
        _sync(out.absolute().parent)
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror or error}); nothing was changed there") from error
    finally:
        if folder is not None:
            with contextlib.suppress(OSError):
                for file in folder.iterdir():
                    file.unlink()
            with contextlib.suppress(OSError):
                folder.rmdir()


def _sync(path: Path) -> None:
    """Flush a file or folder to disk, so that it survives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _MergedFile(LockedFile):
    """A new run file with the header of merged shards, written in one transaction."""

    def __init__(self, path: Path, out: Path, shards: list[Run]) -> None:
        self._shards = shards
        self.header = _merged_header(shards)
        self._expected = chosen_indices(self.header.parameters)
        self._present = np.zeros(len(self._expected), dtype=bool)
        super().__init__(path)
        self.where = out

    def _start(self) -> None:
        header = self.header
        assert header.identity is not None
        with self._writing("written"):
            self._create(header.schema_version, create_statements(header.type).values(), header)
            self.connection.execute("INSERT INTO identity VALUES (1, ?)", (header.identity.encode(),))
            add_seal(self.connection)

    def discard(self) -> None:
        """Close and remove the file."""
        self._discard()

    def copy(self) -> None:
        """Copy the rows of all shards in index order, and the machines that computed them."""
        columns = len(self.header.type.columns)
        insert = f"INSERT INTO result VALUES ({', '.join('?' * columns)})"
        size = self._block_size()
        for start in range(0, len(self._expected), size):
            block = self._expected[start : start + size]
            rows = [row for shard in self._shards for row in _rows(shard, block)]
            rows.sort(key=itemgetter(0))
            self._present[places(self._expected, np.array([row[0] for row in rows], dtype=np.int64))] = True
            with self._writing("written"):
                self.connection.executemany(insert, rows)
        with self._writing("written"):
            self.connection.executemany("INSERT INTO chunk VALUES (?, ?, '')", self._machines())
            chunks = Chunks(self.header.parameters)
            ChunkDigests(self.connection, self.header, chunks).renew(range(len(chunks)))
            self.connection.execute("COMMIT")

    def _block_size(self) -> int:
        files = [file for shard in self._shards for file in shard.files]
        total = sum(os.path.getsize(file) for file in files)
        return int(min(BLOCK, max(1, _BLOCK_BYTES * sum(map(len, self._shards)) // max(1, total))))

    def _machines(self) -> Iterator[tuple[int, str]]:
        """Yield the first image and all machines of each chunk that the run's own machine did not compute alone."""
        identity = self.header.identity
        assert identity is not None
        names, machine = [identity.machine], np.zeros(len(self._expected), dtype=np.uint16)
        for shard in self._shards:
            _enter_machines(shard, names, machine)
        if len(names) == 1:
            return
        chunks = Chunks(self.header.parameters)
        for start in range(0, len(chunks.order), chunks.size):
            indices = np.asarray(chunks.order[start : start + chunks.size], dtype=np.int64)
            held = places(self._expected, indices)
            machines = np.unique(machine[held[self._present[held]]])
            if machines.any():
                yield int(indices[0]), AND.join(names[number] for number in machines)[:MAX_TEXT]


def _enter_machines(shard: Run, names: list[str], machine: npt.NDArray[np.uint16]) -> None:
    """Store each image's machine in ``machine``, as a position in the list ``names``; append new names to the list."""
    identity, whole = shard.header.identity, chosen_indices(shard.parameters | {"shard": None})
    assert identity is not None

    def number(name: str) -> int:
        if name not in names:
            names.append(name)
        return names.index(name)

    if len(shard):
        machine[places(whole, np.asarray(shard.expected))] = number(identity.machine)
    marks = shard._chunks.marks
    chunks = Chunks(shard.parameters) if marks else None
    for first, (other, _) in marks.items():
        if other and chunks is not None:
            indices = np.asarray(chunks.images(first), dtype=np.int64)
            machine[places(whole, indices)] = number(other)


def _merged_header(shards: list[Run]) -> Header:
    """Return the header of the whole run, with the code hashes of all shards."""
    first = shards[0].header
    assert first.identity is not None
    identities = [run.header.identity for run in shards]
    codes = [code for each in identities if each is not None for code in each.code]
    identity = replace(first.identity, code=tuple(dict.fromkeys(codes)))
    return replace(first, parameters=first.parameters | {"shard": None}, identity=identity, command="")


def _rows(shard: Run, block: range) -> list[tuple[Any, ...]]:
    """Return the rows of a shard for a range of images, as SQLite stores them."""
    assert shard.path is not None
    with closing(connect_readonly(shard.path)) as connection, reading(shard.path):
        bounds = (block[0], block[-1])
        return connection.execute("SELECT * FROM result WHERE idx BETWEEN ? AND ?", bounds).fetchall()
