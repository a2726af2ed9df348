"""Labelled images in tar shards, as WebDataset names them: KEY.png or KEY.jpg beside KEY.cls or KEY.json."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from pyrobust.errors import FileFormatError
from pyrobust.zoo.folder import read_picture
from pyrobust.zoo.lazy.images import LazyImages
from pyrobust.zoo.lazy.source import Position, Row, Source, find_files
from pyrobust.zoo.rows import LABEL_KEYS
from pyrobust.zoo.untrusted import as_pixels

_PICTURES = ("png", "jpg", "jpeg")
_LABELS = ("cls", "json")
# Reading these would run code.
_PICKLES = ("pyd", "pickle", "pkl", "pth", "pt")
# Bytes of a picture, and of a label, a long name or an extended header.
_MAX_PICTURE, _MAX_TEXT = 1 << 26, 1 << 20
_BLOCK = 512
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}
# A key has no dot after its folders.
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.S)


def load_tar(pattern: str | Path, name: str | None = None) -> LazyImages:
    """Read images of tar shards, named as by WebDataset, when they are asked for. Needs Pillow, the extra ``data``.

    A sample is a run of members whose names differ only after their first dot: one picture (.png, .jpg or .jpeg: 8
    bits, all of one size, all grey or all RGB), and its class, as text (.cls) or as the entry "label", "labels", "y" or
    "cls" of an object (.json). Other members are ignored, but pickled ones (.pyd, .pickle) are refused.
    Nothing is unpacked to disk.

    Args:
        pattern: of the tar files, uncompressed: ``shards/test-{0000..0127}.tar``, ``shards/*.tar`` or a folder.
        name: name of the set. Default: the pattern.

    Raises:
        FileFormatError: a file is missing, compressed, truncated or otherwise damaged, or a sample lacks a part.
        MissingExtraError: Pillow is missing.

    >>> load_tar("/nowhere/{00..07}.tar")
    Traceback (most recent call last):
    pyrobust.errors.FileFormatError: /nowhere/00.tar: expected .tar files, found none; check the path
    """
    return LazyImages(TarSource(find_files(pattern, ".tar")), name or str(pattern))


class TarSource(Source):
    """Samples of tar files; the place of a position is the offset of the sample's first header."""

    options = ("tar",)

    def __init__(self, files: tuple[Path, ...]) -> None:
        self.files = files

    def count(self) -> int:
        """Count the pictures by their headers alone."""
        total = 0
        for path in self.files:
            with _opened(path) as stream:
                total += sum(_split(name)[1] in _PICTURES for _, name, _ in _members(stream, path))
        return total

    def rows(self, position: Position) -> Iterator[Row]:
        """Yield the samples from a position on."""
        offset = position[1]
        for number in range(position[0], len(self.files)):
            path = self.files[number]
            with _opened(path) as stream:
                stream.seek(offset)
                for start, key, parts in _samples(stream, path):
                    image, label = _decoded(parts, f"{path}: {key}")
                    yield (number, start, 0), as_pixels(np.moveaxis(image, -1, 0), f"{path}: {key}"), label
            offset = 0


def _decoded(parts: dict[str, bytes], where: str) -> tuple[npt.NDArray[np.uint8], int]:
    """The picture [H, W, C] and the class of a sample."""
    pictures = [extension for extension in _PICTURES if extension in parts]
    if len(pictures) != 1 or not {"cls", "json"} & parts.keys():
        raise FileFormatError(
            f"{where}: expected one picture (.png, .jpg, .jpeg) and its class (.cls or .json) next to each other, got "
            f"{', '.join(parts) or 'neither'}; write the members of a sample one after the other"
        )
    label: object = None
    with contextlib.suppress(ValueError, RecursionError):
        if "cls" in parts:
            label = int(parts["cls"]) if re.fullmatch(rb"\s*\d{1,10}\s*", parts["cls"]) else None
        else:
            entries = json.loads(parts["json"])
            found = [entries[name] for name in LABEL_KEYS if name in entries] if isinstance(entries, dict) else []
            label = found[0] if len(found) == 1 and type(found[0]) is int else None
    if not isinstance(label, int) or not 0 <= label < 1 << 31:
        raise FileFormatError(
            f"{where}: expected the number of a class as the text of .cls, or in .json as one of the entries "
            f"{', '.join(LABEL_KEYS)}; number the classes 0, 1, …, below 2**31"
        )
    return read_picture(io.BytesIO(parts[pictures[0]]), f"{where}.{pictures[0]}"), label


def _samples(stream: IO[bytes], path: Path) -> Iterator[tuple[int, str, dict[str, bytes]]]:
    """Yield offset, key and parts, by extension, of each sample from the offset of the stream on."""
    start, key, parts = 0, "", dict[str, bytes]()
    for offset, name, size in _members(stream, path):
        prefix, extension = _split(name)
        if extension.rpartition(".")[2] in _PICKLES:
            raise FileFormatError(
                f"{path}: {name}: expected pictures and classes, got pickled data, which could run code when read; "
                "write the shards without it"
            )
        if extension not in (*_PICTURES, *_LABELS):
            continue
        if prefix != key:
            if parts:
                yield start, key, parts
            start, key, parts = offset, prefix, {}
        most = _MAX_PICTURE if extension in _PICTURES else _MAX_TEXT
        if extension in parts or size > most:
            got = "twice" if extension in parts else f"of {size} bytes"
            raise FileFormatError(f"{path}: {name}: expected it once, of at most {most} bytes, got it {got}")
        parts[extension] = stream.read(size)
    if parts:
        yield start, key, parts


def _split(name: str) -> tuple[str, str]:
    """The key and the extension of a member; ("", "") for one that belongs to no sample."""
    match = _NAME.fullmatch(name)
    return (match[1], match[2].lower()) if match else ("", "")


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _members(stream: IO[bytes], path: Path) -> Iterator[tuple[int, str, int]]:
    """Yield the offset of its headers, the name and the size of each file from the offset of the stream on.

    The stream is then at the contents, which may be read.
    """
    length = path.stat().st_size
    start, given = stream.tell(), dict[str, str]()
    while True:
        offset = stream.tell()
        header = stream.read(_BLOCK)
        if header == bytes(_BLOCK):
            return _check_end(stream, path)
        size = _checked_size(header, given, f"{path}: offset {offset}")
        kind, after = header[156:157], offset + _BLOCK + -(-size // _BLOCK) * _BLOCK
        if after > length or (kind in b"xLgK" and size > _MAX_TEXT):
            raise FileFormatError(
                f"{path}: offset {offset}: a member of {size} bytes; the file is truncated or damaged"
            )
        if kind == b"x":
            given |= _records(stream.read(size), f"{path}: offset {offset}")
        elif kind == b"L":
            given["path"] = _text(stream.read(size))
        elif kind not in b"gK":
            name = given.get("path") or _name(header)
            if kind in (b"0", b"\0", b"7") and not name.endswith("/"):
                yield start, name, size
            elif kind not in (b"5", b"\0", b"0"):
                raise FileFormatError(
                    f"{path}: {name}: expected plain files and folders, got a link or special file (type {kind!r}); "
                    "write the shards without it"
                )
            start, given = after, {}
        stream.seek(after)


def _checked_size(header: bytes, given: dict[str, str], where: str) -> int:
    """The size of a member's contents; raises FileFormatError for bytes that are no header."""
    compression = next((kind for begin, kind in _COMPRESSED.items() if header.startswith(begin)), None)
    if len(header) < _BLOCK and not compression:
        raise FileFormatError(f"{where}: ends without the end marker of a tar file; it is truncated")
    total = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    try:
        if int(header[148:156].strip(b" \0"), 8) != total:
            raise ValueError
        # Sizes from 8 GiB on are binary.
        binary = header[124] == 0x80
        size = int.from_bytes(header[125:136], "big") if binary else int(header[124:136].strip(b" \0") or b"0", 8)
        size = int(given.get("size", size))
        if size < 0 or any(name.startswith("GNU.sparse") for name in given):
            raise ValueError
    except ValueError:
        advice = (
            f"it is compressed with {compression}: unpack it to a plain .tar, which can be read from the middle"
            if compression
            else "the file is damaged, or no tar file"
        )
        raise FileFormatError(f"{where}: expected a tar header; {advice}") from None
    return size


def _records(data: bytes, where: str) -> dict[str, str]:
    """The records of an extended header: LENGTH NAME=VALUE and a newline each."""
    records = {}
    while data.strip(b"\0"):
        match = re.match(rb"(\d{1,7}) ([^=]+)=", data)
        length = int(match[1]) if match else 0
        if match is None or not match.end() < length <= len(data) or data[length - 1 : length] != b"\n":
            raise FileFormatError(f"{where}: expected an extended header; the file is damaged")
        records[_text(match[2])] = _text(data[match.end() : length - 1])
        data = data[length:]
    return records


def _name(header: bytes) -> str:
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{_text(header[:100])}" if prefix else _text(header[:100])


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="replace")


def _check_end(stream: IO[bytes], path: Path) -> None:
    """Raise FileFormatError if data follow the end marker, as in concatenated tar files."""
    while chunk := stream.read(1 << 20):
        if chunk.strip(b"\0"):
            raise FileFormatError(
                f"{path}: expected nothing after the end marker, got data, as of concatenated tar files; join the "
                "members in one tar file (tar --concatenate), or keep the files apart"
            )
