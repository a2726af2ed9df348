"""Write a run chunk by chunk, starting a new file or resuming an existing one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from pyrobust.errors import InputError, StoreError
from pyrobust.runs.chunk_digests import ChunkDigests
from pyrobust.runs.chunks import AND, MAX_TEXT, Chunks, CoveredImages, is_text, read_chunks
from pyrobust.runs.command import command_line
from pyrobust.runs.digests import add_seal, renew_header
from pyrobust.runs.identity import Identity
from pyrobust.runs.kinds.columns import Column
from pyrobust.runs.locked_file import LockedFile
from pyrobust.runs.parameters import chosen_indices
from pyrobust.runs.reader import Header, read_blocks, read_header, reading
from pyrobust.runs.schema import VERSION, create_statements

logger = logging.getLogger(__name__)


class RunWriter(LockedFile):
    """Start or resume a run in a file, and append results; if the path is None, start a run in memory.

    If the file already holds a run, the given header must agree with the header of this run. With
    ``allow_changed_code`` the code of the model may differ; the run records the change. A new file's header is written
    in one transaction.

    >>> from pyrobust.evaluation import predict_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> header = predict_dataset(smoother, load_data("digits"), n=10, max_images=8).header
    >>> with RunWriter(None, header) as writer:
    ...     writer.append({"idx": [7], "label": [1], "prediction": [1], "status": ["ok"], "seconds": [0.1],
    ...                    "counts": [[0, 10] + [0] * 9], "p_value": [0.002]})
    ...     sorted(writer.done)
    [7]
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, header: Header, *, allow_changed_code: bool = False
    ) -> None:
        self.header = header
        self._kind = header.type
        self._allow_changed_code = allow_changed_code
        self.done = CoveredImages(chosen_indices(header.parameters))
        #: Machine that computes chunks by default, and the file's records of chunks.
        self._machine = "" if header.identity is None else header.identity.machine
        self._marks: dict[int, tuple[str, str]] = {}
        super().__init__(path)

    def append(
        self,
        rows: Mapping[str, Sequence[Any]],
        pending: Mapping[str, Sequence[Any]] | None = None,
        *,
        machines: Mapping[int, str] | None = None,
    ) -> None:
        """Commit results of one or more chunks and the state of unfinished sequential images, all in one transaction.

        Args:
            rows: all columns of the layout, of equal length. Histograms are counts [B, K+1], adversarial examples are
                bytes, and a missing distance is None.
            pending: columns of unfinished images, in the order in which sampling resumes. Finished images are removed
                from the table of unfinished images.
            machines: a mapping from each chunk's first image to the machine that computed the chunk
                (`Identity.machine`). By default, all chunks were computed by the machine that the header given to this
                writer names.

        Raises:
            InputError: a column is unknown, a value cannot be stored, the run does not cover an image, or ``machines``
                names another machine for an image that begins no chunk. The caller has to append whole chunks, unless
                images finish one by one.
            StoreError: the file cannot be written or already holds one of these images, or the run is on a grid and a
                chunk was computed on a machine other than the one that the run's header names.
        """
        values = _sqlite_columns(self._kind.columns, rows)
        unfinished = None if pending is None else _sqlite_columns(self._kind.pending, pending)
        indices = values[0] + (unfinished[0] if unfinished else [])
        for index in indices:
            if index not in self.done.expected:
                raise InputError("store: idx", "images that the run covers", index)
        marks = self._new_marks(indices, machines)
        if unfinished is not None:
            unfinished.append(list(range(len(unfinished[0]))))
        with self._writing("written"):
            if not self.connection.in_transaction:  # after a refused chunk
                self.connection.execute("BEGIN IMMEDIATE")
            try:
                self._insert("INSERT INTO result", values)
                if unfinished is not None:
                    self.connection.executemany("DELETE FROM pending WHERE idx = ?", [(index,) for index in values[0]])
                    self._insert("INSERT OR REPLACE INTO pending", unfinished)
                if marks:
                    self._mark(marks)
                self._renew_digests([*indices, *marks])
                self.connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            self.done.add(values[0])
            self._marks |= marks
            self._empty = False
            self.connection.execute("BEGIN IMMEDIATE")

    def set_aside(self, first: int, error: str) -> None:
        """Record that a chunk was given up and why; a later ``append`` of its images removes the record.

        Args:
            first: the chunk's first image, in the run's processing order.
            error: the reason. Its first 4096 characters are kept as printable text.

        Raises:
            InputError: no chunk begins with this image, the chunk is complete, or it has a result and the run is not
                sequential.
            StoreError: the file cannot be written.
        """
        images = self._chunk(first)
        done = sum(index in self.done for index in images)
        if done == len(images) or (done and not self._kind.pending):
            raise InputError("store", "an unfinished chunk to set aside", f"that of image {first}")
        text = "".join(char if char.isprintable() else " " for char in error)[:MAX_TEXT].strip() or "unknown error"
        marks = {first: (self._marks.get(first, ("", ""))[0], text)}
        with self._writing("written"):
            if not self.connection.in_transaction:
                self.connection.execute("BEGIN IMMEDIATE")
            self._mark(marks)
            self._renew_digests([first])
            self._commit()
        self._marks |= marks
        self._empty = False

    def _chunk(self, first: int) -> Sequence[int]:
        try:
            return self._chunks.images(first)
        except ValueError as error:
            raise InputError("store", "the first image of a chunk of this run", f"{first}: {error}") from error

    def _renew_digests(self, indices: Sequence[int]) -> None:
        """Update the digests of the chunks of these images, in the transaction that changes these chunks."""
        numbers = np.unique(self._chunks.numbers(np.asarray(indices, dtype=np.int64)))
        ChunkDigests(self.connection, self.header, self._chunks).renew(numbers.tolist())

    @cached_property
    def _chunks(self) -> Chunks:
        return Chunks(self.header.parameters)

    def _new_marks(self, indices: list[int], machines: Mapping[int, str] | None) -> dict[int, tuple[str, str]]:
        """Return changed chunk records (machine, error) by first image; raise if a grid run changes machine."""
        if self.header.identity is None:
            return {}
        run_machine = self.header.identity.machine
        if machines is None:
            if self._machine == run_machine and not self._marks:
                return {}
            machines = dict.fromkeys((self._chunks.first(index) for index in indices), self._machine)
        marks: dict[int, tuple[str, str]] = {}
        for first, machine in machines.items():
            other, error = self._marks.get(first, ("", ""))
            if machine == run_machine and not error:
                continue
            self._chunk(first)
            if not machine or not is_text(machine):
                raise InputError("store: machines", "printable text", repr(machine[:100]))
            if machine != run_machine:
                self._check_machine(run_machine, machine)
                # Another machine may have drawn some of a sequential chunk's samples.
                others = [text for text in other.split(AND) if text and text != machine]
                other = AND.join([*others, machine])[:MAX_TEXT]
            marks[first] = (other, "")
        return marks

    def _check_machine(self, run_machine: str, machine: str) -> None:
        if self.header.guarantee == "grid":
            raise StoreError(
                f"{self.where}: expected results of {run_machine}, which started the run, got {machine}: on a grid, "
                "hardware, instruction set, threads and torch are part of the certified classifier; use machines of "
                "one kind and as many threads (--threads), or start a run of its own on the other kind"
            )

    def _mark(self, marks: dict[int, tuple[str, str]]) -> None:
        self.connection.executemany(
            "INSERT OR REPLACE INTO chunk VALUES (?, ?, ?)", [(first, *mark) for first, mark in marks.items()]
        )
        if any(mark == ("", "") for mark in marks.values()):
            self.connection.execute("DELETE FROM chunk WHERE machine = '' AND error = ''")

    def _insert(self, statement: str, values: list[list[Any]]) -> None:
        marks = ", ".join("?" * len(values))
        self.connection.executemany(f"{statement} VALUES ({marks})", zip(*values, strict=True))

    def _start(self) -> None:
        stored = read_header(self.connection, self.where)
        if stored is None:
            self._begin()
        else:
            self._created = False  # another process started a run in the file that this writer created
            self._resume(stored)

    def _begin(self) -> None:
        identity = self.header.identity
        if identity is None:
            raise InputError("store", "the identity of the model for a new run", "none")
        self.header = replace(self.header, command=command_line())
        with self._writing("written"):
            self._create(VERSION, create_statements(self._kind).values(), self.header)
            self.connection.execute("INSERT INTO identity VALUES (1, ?)", (identity.encode(),))
            add_seal(self.connection)
            sealed = self._seal()
            self.connection.execute("COMMIT")
            self._sealed = sealed
            self._lock_in_wal_mode()

    def _resume(self, stored: Header) -> None:
        identity = self.header.identity
        assert stored.identity is not None
        stored_code = stored.identity.code
        if self._allow_changed_code and identity is not None:
            self.header = replace(self.header, identity=replace(identity, code=(*stored_code, *identity.code)))
        differences = stored.differences(self.header)
        if differences:
            if stored.kind != self.header.kind:
                raise StoreError(
                    f"{self.where}: holds a run of kind {stored.kind}, expected {self.header.kind}; use another file"
                )
            raise StoreError(
                f"{self.where}: holds a run with different parameters: {'; '.join(differences)}; "
                f"repeat its parameters to resume it{_grid_hint(stored, self.header)}"
                f"{_code_hint(stored, self.header)}, or use another file"
            )
        if stored.versions != self.header.versions:
            logger.warning("%s: started with %s, resumed with %s", self.where, stored.versions, self.header.versions)
        self.header = stored
        if identity is not None and identity.machine != stored.identity.machine:
            self._check_machine(stored.identity.machine, identity.machine)
        ChunkDigests(self.connection, stored).check(self.where)
        with reading(self.where):
            self._marks = read_chunks(self.connection, stored).marks
        for block in read_blocks(self.connection, self.where, stored.type, ["idx"]):
            with reading(self.where):
                self.done.add_array(block["idx"])
        with self._writing("opened"):
            self._sealed = self._seal()
            self._roll_back()
            self._lock_in_wal_mode()
        if identity is not None and not set(identity.code) <= set(stored_code):
            logger.warning("%s: the code of the model has changed; the run records it", self.where)
            self._store_identity(replace(stored.identity, code=(*stored_code, *identity.code)))

    def void(self, reason: str) -> None:
        """Mark the run void because the model does not reproduce its outputs.

        The results of a void run can no longer be read.
        """
        if self.header.identity is not None:
            self._store_identity(replace(self.header.identity, void=reason[:4096]))

    def _store_identity(self, identity: Identity) -> None:
        self.header = replace(self.header, identity=identity)
        with self._writing("written"):
            self._roll_back()
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.execute("UPDATE identity SET value = ?", (identity.encode(),))
            renew_header(self.connection)
            self._commit()


def _grid_hint(stored: Header, header: Header) -> str:
    """Return a hint that names argument and option for the stored grid, or an empty string if the grids agree."""
    grid, asked = stored.parameters.get("grid"), header.parameters.get("grid")
    if grid == asked:
        return ""
    return " (without a grid: grid=None, --grid none)" if grid is None else f' (grid="{grid}", --grid {grid})'


def _code_hint(stored: Header, header: Header) -> str:
    """Return a hint that the run can be resumed with changed code, or an empty string if anything else differs."""
    if stored.identity is None or header.identity is None:
        return ""
    allowed = replace(header, identity=replace(header.identity, code=stored.identity.code))
    if stored.differences(allowed):
        return ""
    return " (with allow_changed_code=True, --allow-changed-code, if the new code computes the same)"


def _sqlite_columns(columns: Mapping[str, Column], rows: Mapping[str, Sequence[Any]]) -> list[list[Any]]:
    """Convert columns to SQLite values, in schema order."""
    if set(rows) != set(columns):
        raise InputError("store", f"the columns {', '.join(columns)}", ", ".join(rows))
    values = [column.encode(name, rows[name]) for name, column in columns.items()]
    if any(len(column) != len(values[0]) for column in values):
        raise InputError("store", "columns of one length", [len(column) for column in values])
    return values
