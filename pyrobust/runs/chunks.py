"""Chunks of a run: the images of each chunk, the machine that computed it, and whether it was set aside."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.runs.parameters import chosen_indices, processing_order
from pyrobust.runs.reader import Header, one_moment

#: Longest description of a machine or an error in a run file.
MAX_TEXT = 4096
#: Separator between machines that computed parts of one chunk.
AND = " and "


def places(expected: range, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions of images in the range that a run covers; raise ValueError for an image outside it.

    >>> places(range(4, 10, 2), np.array([8, 4]))
    array([2, 0])
    """
    positions, remainder = np.divmod(indices - expected.start, expected.step)
    if not ((remainder == 0) & (positions >= 0) & (positions < len(expected))).all():
        raise ValueError("an image that the run does not cover")
    return positions


class Chunks:
    """Chunks of a run, each named by its first image in the run's order.

    Args:
        parameters: parameters of the run. Without ``chunk``, all images are one chunk.

    >>> chunks = Chunks({"images": 20, "skip": 2, "max": None, "shard": None, "chunk": 4})
    >>> chunks.first(10), list(chunks.images(8)), len(chunks)
    (8, [8, 10, 12, 14], 3)
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.expected = chosen_indices(parameters)
        self.order = processing_order(parameters)
        self.size: int = parameters.get("chunk") or max(1, len(self.expected))

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    @cached_property
    def _rank(self) -> npt.NDArray[np.uint32] | None:
        """Position of each image in the run's order, with images sorted by index; None if both orders are the same."""
        if isinstance(self.order, range):
            return None
        rank = np.empty(len(self.order), dtype=np.uint32)
        order = np.asarray(self.order, dtype=np.int64)
        rank[places(self.expected, order)] = np.arange(len(order), dtype=np.uint32)
        return rank

    def numbers(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the chunk number (from 0) of each image; raise ValueError for an image that the run does not cover."""
        positions = places(self.expected, indices)
        return (positions if self._rank is None else self._rank[positions].astype(np.int64)) // self.size

    def first(self, index: int) -> int:
        """Return the first image of the chunk that holds an image."""
        number = int(self.numbers(np.array([index], dtype=np.int64))[0])
        return int(self.order[number * self.size])

    def images(self, first: int) -> Sequence[int]:
        """Return the images of the chunk that begins with ``first``, in the run's order.

        Raises ValueError if no chunk begins with it.
        """
        start = int(self.numbers(np.array([first], dtype=np.int64))[0]) * self.size
        if self.order[start] != first:
            raise ValueError(f"image {first} is not the first of a chunk")
        return self.order[start : start + self.size]


class CoveredImages(Set[int]):
    """A set of images of a run, stored in one byte for each image that the run covers.

    >>> done = CoveredImages(range(0, 10, 2))
    >>> done.add([4, 0])
    >>> sorted(done), 2 in done, done | {2} == {0, 2, 4}
    ([0, 4], False, True)
    """

    def __init__(self, expected: range) -> None:
        self.expected = expected
        self._present = bytearray(len(expected))
        self._count = 0

    def add(self, indices: Iterable[int]) -> None:
        """Add images; raise ValueError for an image that the run does not cover."""
        for index in indices:
            position = self.expected.index(index)
            self._count += not self._present[position]
            self._present[position] = 1

    def add_array(self, indices: npt.NDArray[np.int64]) -> None:
        """Add many images; raise ValueError for an image that the run does not cover."""
        np.frombuffer(self._present, dtype=np.uint8)[places(self.expected, indices)] = 1
        self._count = sum(self._present)

    def __contains__(self, index: object) -> bool:
        # an index that is expected is an integer
        return index in self.expected and bool(self._present[self.expected.index(index)])  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        return compress(self.expected, self._present)

    def __len__(self) -> int:
        return self._count

    @classmethod
    def _from_iterable(cls, indices: Iterable[int]) -> set[int]:  # type: ignore[override]  # what operators return
        return set(indices)


@dataclass(frozen=True)
class ChunkRecord:
    """Machines and errors of chunks, as recorded in a run file.

    Attributes:
        marks: a mapping from each chunk's first image to the chunk's machine ("" for the machine of the run) and error
            ("" for no error).
        machines: a mapping from each machine's description to the number of images that the machine computed.
        set_aside: a mapping from the first image of each chunk that was set aside to the error of this chunk.
    """

    marks: dict[int, tuple[str, str]] = field(default_factory=dict)
    machines: dict[str, int] = field(default_factory=dict)
    set_aside: dict[int, str] = field(default_factory=dict)


def is_text(text: Any) -> bool:
    r"""Whether a value is a valid description of a machine or error: printable, at most 4096 characters.

    >>> is_text("cpu, 2 threads"), is_text("a\x00"), is_text("a" * 5000)
    (True, False, False)
    """
    return isinstance(text, str) and len(text) <= MAX_TEXT and text.isprintable()


def read_chunks(connection: sqlite3.Connection, header: Header) -> ChunkRecord:
    """Read the untrusted table of chunks in one transaction; raise ValueError if it is malformed."""
    if header.identity is None:
        return ChunkRecord()
    with one_moment(connection):
        return _read_chunks(connection, header, header.identity.machine)


def _read_chunks(connection: sqlite3.Connection, header: Header, machine: str) -> ChunkRecord:
    partly = bool(header.type.pending)  # images of a sequential chunk finish one by one
    # SQLite tells the lengths without loading texts, which may be huge.
    long = " OR ".join(f"length(CAST({name} AS BLOB)) > {4 * MAX_TEXT}" for name in ("machine", "error"))
    if connection.execute(f"SELECT count(*) FROM chunk WHERE {long}").fetchone()[0]:
        raise ValueError(f"table chunk: expected texts of at most {MAX_TEXT} characters")
    (rows,) = connection.execute("SELECT count(*) FROM result").fetchone()
    total = {machine: rows} if rows else {}
    if connection.execute("SELECT 1 FROM chunk").fetchone() is None:
        return ChunkRecord(machines=total)
    chunks = Chunks(header.parameters)
    present = np.zeros(len(chunks), dtype=np.int64)
    cursor = connection.execute("SELECT idx FROM result")
    while block := cursor.fetchmany(1 << 16):
        numbers = chunks.numbers(np.array([index for (index,) in block], dtype=np.int64))
        present += np.bincount(numbers, minlength=len(chunks))
    record = ChunkRecord(machines=total)
    for first, other, error in connection.execute("SELECT first, machine, error FROM chunk"):
        if not (type(first) is int and is_text(other) and is_text(error)):
            raise ValueError("table chunk: expected an image and two printable texts")
        size, done = len(chunks.images(first)), int(present[chunks.numbers(np.array([first]))[0]])
        if other == machine or not (other or error):
            raise ValueError(f"table chunk: expected another machine or an error for chunk {first}")
        if other and header.guarantee == "grid":
            raise ValueError("table chunk: a grid guarantee is that of one machine, but others computed chunks")
        if error and (done == size or (done and not partly)):
            raise ValueError(f"table chunk: chunk {first} is set aside, but has results")
        if other and not done and not partly:
            raise ValueError(f"table chunk: chunk {first} has a machine, but no results")
        record.marks[first] = (other, error)
        if error:
            record.set_aside[first] = error
        if other and done:
            record.machines[other] = record.machines.get(other, 0) + done
            record.machines[machine] -= done
    if not record.machines.get(machine, 1):
        del record.machines[machine]
    return record
