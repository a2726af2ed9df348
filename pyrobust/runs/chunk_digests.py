"""Digests of the chunks of a run file: computed from its tables, stored, and compared.

A chunk has two digests. The first digest covers three things: the chunk's rows without the examples, the states of its
unfinished images, and the record of its machine and error. The second digest covers the chunk's examples, which may be
large. This digest is compared only when examples are read. The XOR of all chunk digests is stored beside the header's
digest. If a chunk is lost together with its digest, the XOR reveals the loss.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import pairwise
from operator import xor
from pathlib import Path
from typing import Any, Final

import numpy as np

from pyrobust.checks import first_values
from pyrobust.errors import FileFormatError
from pyrobust.runs.chunks import Chunks
from pyrobust.runs.digests import REMEDY, EncodedRows
from pyrobust.runs.kinds.columns import ExampleColumn
from pyrobust.runs.reader import Header, one_moment, reading
from pyrobust.runs.schema import CHUNK, PLACE

# Images whose rows are read at a time; larger chunks are read and hashed in pieces of this many.
_PIECE: Final = 4096
_BYTES: Final = 32


class ChunkDigests:
    """The digests of the chunks of a run in a file.

    Args:
        connection: connection to the file.
        header: header of the run.
        chunks: chunks of the run. By default, they are computed from the run's parameters.
    """

    def __init__(self, connection: sqlite3.Connection, header: Header, chunks: Chunks | None = None) -> None:
        self._connection = connection
        self._examples = bool(header.parameters.get("examples"))
        kind = header.type
        results = [name for name, column in kind.columns.items() if not isinstance(column, ExampleColumn)]
        self._tables = {"result": results, "chunk": list(CHUNK)}
        if kind.pending:
            self._tables["pending"] = [*kind.pending, *PLACE]
        self._chunks = chunks or Chunks(header.parameters)

    def renew(self, numbers: Iterable[int]) -> None:
        """Store the digests of the chunks with these numbers (from 0).

        Call it in the transaction that changed the chunks.
        """
        numbers = sorted(numbers)
        examples = dict(self._example_digests(numbers))
        new = [
            (self._images(number)[0], contents, examples.get(number, b""))
            for number, contents, _ in self._content_digests(numbers)
        ]
        select = "SELECT contents, examples FROM digest WHERE first = ?"
        old = [row for first, *_ in new for row in self._connection.execute(select, (first,))]
        seal = self._connection.execute("SELECT contents, examples FROM seal").fetchone()
        self._connection.executemany("INSERT OR REPLACE INTO digest VALUES (?, ?, ?)", new)
        columns = zip(seal, *old, *((contents, examples) for _, contents, examples in new), strict=True)
        self._connection.execute("UPDATE seal SET contents = ?, examples = ?", list(map(_xor, columns)))

    def check(self, path: Path) -> None:
        """Read all rows and compare all digests except those of examples.

        Raises:
            FileFormatError: a digest differs.
        """
        with reading(path), one_moment(self._connection):
            stored = self._stored(path)
            hashed, differing = 0, []
            for number, contents, rows in self._content_digests(sorted(stored)):
                hashed += rows
                if stored.pop(number) != contents:
                    differing.append(number)
            self._refuse(path, [*differing, *stored], "contents")
            counts = (self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in self._tables)
            if sum(counts) != hashed:
                raise FileFormatError(f"{path}: damaged: holds images of a chunk that has no digest; {REMEDY}")

    def check_examples(self, path: Path, indices: Sequence[int]) -> None:
        """Compare the digests of the examples of every chunk that holds one of the given images.

        Raises:
            FileFormatError: a digest differs.
        """
        if not indices:
            return
        with reading(path), one_moment(self._connection):
            numbers = np.unique(self._chunks.numbers(np.asarray(indices, dtype=np.int64))).tolist()
            select = "SELECT examples FROM digest WHERE first = ?"
            differing = [
                number
                for number, examples in self._example_digests(numbers)
                if self._connection.execute(select, (self._images(number)[0],)).fetchone() != (examples,)
            ]
            self._refuse(path, differing, "examples")

    def _stored(self, path: Path) -> dict[int, bytes]:
        """Compare the stored digests with their stored XOR, and return the digest of each chunk's contents."""
        rows = self._connection.execute("SELECT first, contents, examples FROM digest").fetchall()
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        if self._connection.execute("SELECT contents, examples FROM seal").fetchone() != tuple(map(_xor, columns[1:])):
            raise FileFormatError(f"{path}: damaged: the digests of its chunks differ from the digest of all; {REMEDY}")
        firsts = np.array(columns[0], dtype=np.int64)
        numbers = self._chunks.numbers(firsts).tolist()
        if any(self._images(number)[0] != first for number, first in zip(numbers, columns[0], strict=True)):
            raise ValueError("table digest: expected first images of chunks")
        return dict(zip(numbers, columns[1], strict=True))

    def _refuse(self, path: Path, numbers: Sequence[int], of: str) -> None:
        """Raise FileFormatError unless ``numbers``, the numbers of chunks that differ from their digests, is empty."""
        if numbers:
            number = min(numbers)
            more = f", and those of {len(numbers) - 1} more chunks," if len(numbers) > 1 else ""
            images = first_values(self._images(number))
            raise FileFormatError(
                f"{path}: damaged: the {of} of chunk {number + 1}, images {images},{more} differ from their digest; "
                f"{REMEDY}"
            )

    def _images(self, number: int) -> Sequence[int]:
        size = self._chunks.size
        return self._chunks.order[number * size : (number + 1) * size]

    def _content_digests(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes, int]]:
        """Yield (number, digest of the contents, number of rows) for each chunk that has rows."""
        for unit in self._units(numbers):
            digests = {number: hashlib.sha256() for number in unit}
            rows = dict.fromkeys(unit, 0)
            for table, columns in self._tables.items():
                for piece in self._pieces(unit):
                    for number, encoded, start, stop in self._encoded(table, columns, piece):
                        encoded.feed(digests[number], table, start, stop)
                        rows[number] += stop - start
            yield from ((number, digests[number].digest(), rows[number]) for number in unit if rows[number])

    def _encoded(
        self, table: str, columns: Sequence[str], images: Sequence[int]
    ) -> Iterator[tuple[int, EncodedRows, int, int]]:
        """Yield (number, rows of all these images, start, stop of its own rows) for each chunk that has such rows."""
        rows = self._rows(table, columns, images).fetchall()
        if not rows:
            return
        numbers = self._chunks.numbers(np.array([row[0] for row in rows], dtype=np.int64))
        if (np.diff(numbers) < 0).any():
            order = np.argsort(numbers, kind="stable")
            rows, numbers = [rows[position] for position in order.tolist()], numbers[order]
        encoded = EncodedRows(rows)
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        for start, stop in pairwise([*starts, len(rows)]):
            yield int(numbers[start]), encoded, start, stop

    def _example_digests(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield (number, digest of the examples) for each chunk; nothing for a run without examples."""
        for number in numbers if self._examples else ():
            digest = hashlib.sha256()
            for piece in self._pieces([number]):
                for index, example in self._rows("result", ["idx", "x_adv"], piece):
                    if not isinstance(example, bytes):
                        raise ValueError("column x_adv: expected values of type bytes")
                    digest.update(struct.pack("<qq", index, len(example)))
                    digest.update(example)
            yield number, digest.digest()

    def _units(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        """Split increasing chunk numbers into consecutive series; those of several chunks have ≤ ``_PIECE`` images."""
        chunks_at_once = max(1, _PIECE // self._chunks.size)
        start = 0
        for stop in range(1, len(numbers) + 1):
            if stop == len(numbers) or numbers[stop] != numbers[stop - 1] + 1 or stop - start == chunks_at_once:
                yield numbers[start:stop]
                start = stop

    def _pieces(self, unit: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield the images of consecutive chunks, at most ``_PIECE`` at a time."""
        size, order = self._chunks.size, self._chunks.order
        stop = min((unit[-1] + 1) * size, len(order))
        for start in range(unit[0] * size, stop, _PIECE):
            yield order[start : min(stop, start + _PIECE)]

    def _rows(self, table: str, columns: Sequence[str], images: Sequence[int]) -> sqlite3.Cursor:
        """Select the rows of images in the order of their indices."""
        span = (
            f"BETWEEN {images[0]} AND {images[-1]}"
            if isinstance(images, range)
            else f"IN ({', '.join(map(str, images))})"
        )
        return self._connection.execute(
            f"SELECT {', '.join(columns)} FROM {table} WHERE {columns[0]} {span} ORDER BY {columns[0]}"
        )


def _xor(digests: Sequence[Any]) -> bytes:
    """Return the XOR of digests; an empty digest counts as zero."""
    if not all(isinstance(digest, bytes) and len(digest) in (0, _BYTES) for digest in digests):
        raise ValueError(f"digests: expected {_BYTES} bytes")
    return reduce(xor, (int.from_bytes(digest, "big") for digest in digests), 0).to_bytes(_BYTES, "big")
