"""SHA-256 digests of the contents of a run file: one of its header, and one of each chunk.

When data change, their digest is renewed in the same transaction. Digests are compared whenever the file is read. A
flipped bit, a lost page or an outdated page is therefore noticed even if SQLite reads the file without an error.
Digests guard against damage only: someone who changes a file on purpose can recompute its digests.

Values are hashed as SQLite returns them. A row begins with one byte for the type of each column. These bytes are
followed by 64 bits for each column, little-endian. The 64 bits are an integer in two's complement, the bits of a float,
or the length of a text or blob. A group of rows is followed by its texts (in UTF-8) and blobs, column by column.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pyrobust.errors import FileFormatError
from pyrobust.runs.schema import IDENTITY, RUN

if TYPE_CHECKING:
    from hashlib import _Hash

#: The advice at the end of each message about damage.
REMEDY: Final = "do not use this file: copy it again from its origin, or start a new run in another file"

_TAGS: Final = {type(None): 0, int: 1, float: 2, str: 3, bytes: 4}


class EncodedRows:
    r"""Rows of a table, encoded for hashing by `feed`.

    >>> rows = EncodedRows([(7, 0.5, "ok", None)])
    >>> first, second = hashlib.sha256(), hashlib.sha256()
    >>> rows.feed(first, "result", 0, 1)
    >>> second.update(b"result 1\n" + bytes([1, 2, 3, 0]) + struct.pack("<qdqq", 7, 0.5, 2, 0) + b"ok")
    >>> first.digest() == second.digest()
    True
    """

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        columns = list(zip(*rows, strict=True))
        shape = (len(columns),)
        self._heads = np.zeros(len(rows), dtype=[("types", "u1", shape), ("words", "<u8", shape)])
        self._texts: list[Sequence[str] | Sequence[bytes]] = []
        for column, values in enumerate(columns):
            self._enter(values, self._heads["types"][:, column], self._heads["words"][:, column])

    def _enter(self, values: Sequence[Any], types: npt.NDArray[Any], words: npt.NDArray[Any]) -> None:
        """Write a column's types and 64-bit words into the given arrays, and keep its texts or blobs, if any."""
        present = set(map(type, values))
        types[:] = [_TAGS[type(value)] for value in values] if len(present) > 1 else _TAGS[present.pop()]
        if (types == _TAGS[int]).all():
            words[:] = np.array(values, dtype=np.int64).view(np.uint64)
        elif (types == _TAGS[float]).all():
            words[:] = np.array(values, dtype=np.float64).view(np.uint64)
        elif (types == _TAGS[str]).all():
            words[:] = np.fromiter(map(len, values), dtype=np.uint64, count=len(values))
            self._texts.append(values)
        else:
            words[:] = np.array([_word(value) for value in values], dtype=np.uint64)
            self._texts.append([_bytes(value) for value in values])

    def feed(self, digest: _Hash, table: str, start: int, stop: int) -> None:
        """Hash the rows from ``start`` to ``stop``."""
        digest.update(f"{table} {stop - start}\n".encode())
        digest.update(self._heads[start:stop].tobytes())
        for texts in self._texts:
            block = texts[start:stop]
            digest.update("".join(block).encode() if isinstance(block[0], str) else b"".join(block))  # type: ignore[arg-type]  # a block is of str or of bytes


def _word(value: Any) -> int:
    """Encode a value in 64 bits: the value's bits or, for a text or blob, its length."""
    if value is None:
        return 0
    if isinstance(value, str | bytes):
        return len(value)
    return int.from_bytes(struct.pack("<d" if isinstance(value, float) else "<q", value), "little")


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""


def header_digest(connection: sqlite3.Connection) -> bytes:
    """Return the digest of the tables "run" and "identity" of a run file."""
    digest = hashlib.sha256()
    for table, columns in (("run", RUN), ("identity", IDENTITY)):
        if rows := connection.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id").fetchall():
            EncodedRows(rows).feed(digest, table, 0, len(rows))
    return digest.digest()


def add_seal(connection: sqlite3.Connection) -> None:
    """Store the digest of the header of a new run file, in the transaction that creates it."""
    connection.execute("INSERT INTO seal VALUES (1, ?, ?, ?)", (header_digest(connection), bytes(32), bytes(32)))


def renew_header(connection: sqlite3.Connection) -> None:
    """Store the digest of the header, in the transaction that has changed the header."""
    connection.execute("UPDATE seal SET header = ?", (header_digest(connection),))


def check_header(connection: sqlite3.Connection, path: Path) -> None:
    """Raise FileFormatError if the header of a run file differs from its digest."""
    stored = connection.execute("SELECT id, header FROM seal").fetchall()
    if stored != [(1, header_digest(connection))]:
        raise FileFormatError(
            f"{path}: damaged: the header (parameters, hashes, versions and identity of the model) differs from its "
            f"digest; {REMEDY}"
        )
