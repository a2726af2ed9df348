"""Labelled images in tar shards with WebDataset's names: KEY.png or KEY.jpg beside KEY.cls or KEY.json."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from torch import Tensor

from pyrobust.errors import FileFormatError, InputError
from pyrobust.zoo.folder import read_picture
from pyrobust.zoo.lazy.images import LazyImages
from pyrobust.zoo.lazy.source import ImageSource, Position, Row, find_files
from pyrobust.zoo.rows import LABEL_KEYS
from pyrobust.zoo.untrusted import as_pixels

_PICTURES = ("png", "jpg", "jpeg")
_LABELS = ("cls", "json")
# Extensions of files that would run code if read.
_PICKLES = ("pyd", "pickle", "pkl", "pth", "pt")
# Most bytes of a picture, and of a label, a long name or an extended header.
_MAX_PICTURE, _MAX_TEXT = 1 << 26, 1 << 20
_BLOCK = 512
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}
# A key has no dot after its folders.
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.S)
_IMAGE = re.compile(rf"([^/:]+\.)?({'|'.join(_PICTURES)})", re.I)
_LABEL = re.compile(rf"([^/:]+\.)?({'|'.join(_LABELS)})", re.I)


def load_tar(
    pattern: str | Path, name: str | None = None, *, image: str | None = None, label: str | None = None
) -> LazyImages:
    """Read images from tar shards with WebDataset's file names, on demand. Needs Pillow (the extra ``data``).

    A sample is a series of consecutive members of a tar file whose names are equal up to the first dot of the base
    name. The part of a name before this dot is the key of the sample, and the part after it is the extension. Every
    sample has one picture and a class. The pictures are png, jpg or jpeg files with 8 bits, all of the same size, and
    all grey or all RGB. The class is the text of the .cls member, or the entry "label", "labels", "y" or "cls" of the
    .json member. Other members of a sample are ignored; this includes members with compound extensions such as seg.png.
    Pickled members (pyd, pickle) are refused. A member belongs to no sample if its name begins with a dot or has no
    dot. Nothing is unpacked to disk.

    Args:
        pattern: pattern of the uncompressed tar files: ``shards/test-{0000..0127}.tar``, ``shards/*.tar`` or a folder.
        name: name of the set. By default, it is the pattern.
        image: extension of the pictures, such as "seg.png". By default, the extension is png, jpg or jpeg.
        label: extension of the members that hold the classes, such as "fine.cls". By default, it is cls or json. If the
            pictures have the extension 0.png, then by default the class of a sample is read from its member 0.cls, if
            it has one.

    Raises:
        InputError: image or label is not a valid extension.
        FileFormatError: a file is missing, compressed, truncated or otherwise damaged, or has two samples with the same
            key. A sample is refused if it has no picture or two pictures. It is also refused if it has no class, or if
            its members give different classes.
        MissingExtraError: Pillow is missing.

    >>> load_tar("/nowhere/{00..07}.tar")
    Traceback (most recent call last):
    pyrobust.errors.FileFormatError: /nowhere/00.tar: expected .tar files, found none; check the path
    """
    return LazyImages(TarSource(find_files(pattern, ".tar"), image, label), name or str(pattern))


def is_image_extension(text: str) -> bool:
    """Whether a text can be the argument ``image`` of `load_tar`.

    >>> [is_image_extension(text) for text in ("png", "seg.JPG", "tar", "a/b.png")]
    [True, True, False, False]
    """
    return _IMAGE.fullmatch(text) is not None


class TarSource(ImageSource):
    """Samples of tar files; a position contains the offset of the sample's first header."""

    def __init__(self, files: tuple[Path, ...], image: str | None = None, label: str | None = None) -> None:
        for argument, value, form, usual in (("image", image, _IMAGE, _PICTURES), ("label", label, _LABEL, _LABELS)):
            if value is not None and not form.fullmatch(value):
                raise InputError(
                    argument, f"an extension that ends in {', '.join(usual)}, such as x.{usual[0]}", repr(value)
                )
        self.files = files
        self.image, self.label = image and image.lower(), label and label.lower()
        self.options = ("tar", self.image or "", self.label or "")

    def count(self) -> int:
        """Count the samples from their headers alone, and check that each has a picture, a class and a unique key."""
        total = 0
        for path in self.files:
            keys = set[str]()
            with _opened(path) as stream:
                for _, key, parts in _samples(stream, path):
                    self._choose(parts, f"{path}: {key}")
                    if key in keys:
                        raise FileFormatError(
                            f"{path}: {key}: expected the members of a sample one after the other, got the key again "
                            "after other samples; write each sample once"
                        )
                    keys.add(key)
            total += len(keys)
        return total

    def rows(self, position: Position, rounded: Callable[[Tensor], None] | None = None) -> Iterator[Row]:
        """Yield the samples from ``position`` onwards; their pixels are bytes, so ``rounded`` is never called."""
        offset = position[1]
        for number in range(position[0], len(self.files)):
            path = self.files[number]
            with _opened(path) as stream:
                stream.seek(offset)
                for start, key, parts in _samples(stream, path):
                    where = f"{path}: {key}"
                    image, labels = self._choose(parts, where)
                    texts = {name: _content(stream, parts[name], _MAX_TEXT, f"{where}.{name}") for name in labels}
                    picture = _content(stream, parts[image], _MAX_PICTURE, f"{where}.{image}")
                    pixels = read_picture(io.BytesIO(picture), f"{where}.{image}")
                    yield (number, start, 0), as_pixels(np.moveaxis(pixels, -1, 0), where), _class(texts, where)
            offset = 0

    def _choose(self, parts: Mapping[str, object], where: str) -> tuple[str, list[str]]:
        """Return the extension of a sample's picture, and the extensions of the members that hold its class."""
        pictures = [name for name in ([self.image] if self.image else _PICTURES) if name in parts]
        stem = pictures[0].rpartition(".")[0] if pictures else ""
        choices = [[self.label]] if self.label else [[f"{stem}.cls"], _LABELS]
        labels = next((present for names in choices if (present := [name for name in names if name in parts])), [])
        if len(pictures) == 1 and labels:
            return pictures[0], labels
        wanted = f".{self.image}" if self.image else "one picture (.png, .jpg, .jpeg)"
        compound = [name for name in parts if "." in name and is_image_extension(name)]
        advice = "write the members of a sample one after the other"
        if compound and not pictures:
            advice = "a key ends at the first dot of the base name; rename members whose key is to have dots"
        if not self.image and len(pictures or compound) == (2 if pictures else 1):
            choice = (pictures or compound)[0]
            advice += f"; or choose the picture of every sample: tar:PATTERN:{choice}, image={choice!r} of load_tar"
        raise FileFormatError(
            f"{where}: expected {wanted} and its class ({f'.{self.label}' if self.label else '.cls or .json'}) next to "
            f"each other, got {', '.join([*parts][:10])}{' …' * (len(parts) > 10)}; {advice}"
        )


def _class(texts: dict[str, bytes], where: str) -> int:
    """Read a sample's class from the members that hold it, given as a mapping from extension to contents."""
    classes = {name: _number(name, text) for name, text in texts.items()}
    numbers = {number for number in classes.values() if number is not None}
    if len(numbers) > 1:
        got = " and ".join(f"{number} in .{name}" for name, number in classes.items())
        raise FileFormatError(f"{where}: expected one class, got {got}; choose one with label= of load_tar")
    unreadable = any(number is None and name.endswith("cls") for name, number in classes.items())
    if unreadable or not numbers or not 0 <= min(numbers) < 1 << 31:
        raise FileFormatError(
            f"{where}: expected the number of a class as the text of .cls, or in .json as one of the entries "
            f"{', '.join(LABEL_KEYS)}; number the classes 0, 1, …, below 2**31"
        )
    return numbers.pop()


def _number(name: str, text: bytes) -> int | None:
    """Return the class that a .cls or .json member holds; None if it holds no class, as a .json of mere metadata."""
    with contextlib.suppress(ValueError, RecursionError):
        if name.endswith("cls"):
            return int(text) if re.fullmatch(rb"\s*\d{1,10}\s*", text) else None
        entries = json.loads(text)
        classes = [entries[key] for key in LABEL_KEYS if key in entries] if isinstance(entries, dict) else []
        return classes[0] if len(classes) == 1 and type(classes[0]) is int else None
    return None


def _content(stream: IO[bytes], span: tuple[int, int], limit: int, where: str) -> bytes:
    offset, size = span
    if size > limit:
        raise FileFormatError(f"{where}: expected at most {limit} bytes, got {size}")
    stream.seek(offset)
    return stream.read(size)


def _samples(stream: IO[bytes], path: Path) -> Iterator[tuple[int, str, dict[str, tuple[int, int]]]]:
    """Yield each sample's offset and key, and a dictionary from extensions to its members' offsets and sizes.

    Between samples, the caller may read elsewhere in the stream.
    """
    start, key, parts = 0, "", dict[str, tuple[int, int]]()
    for offset, name, size in _members(stream, path):
        span = stream.tell(), size
        prefix, extension = _split(name)
        if extension.rpartition(".")[2] in _PICKLES:
            raise FileFormatError(
                f"{path}: {name}: expected pictures and classes, got pickled data, which could run code when read; "
                "write the shards without it"
            )
        if not prefix:
            continue
        if prefix != key:
            if parts:
                yield start, key, parts
            start, key, parts = offset, prefix, {}
        if extension in parts:
            raise FileFormatError(f"{path}: {name}: expected it once, got it twice; write each member once")
        parts[extension] = span
    if parts:
        yield start, key, parts


def _split(name: str) -> tuple[str, str]:
    """Return the key and the extension of a member; ("", "") if it does not belong to a sample."""
    match = _NAME.fullmatch(name)
    return (match[1], match[2].lower()) if match else ("", "")


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _members(stream: IO[bytes], path: Path) -> Iterator[tuple[int, str, int]]:
    """Yield, for each file from the stream's current offset on, the offset of its headers, its name and its size.

    After each item, the stream stands at the start of that file's contents. The caller may move the stream to another
    place before it asks for the next item.
    """
    length = path.stat().st_size
    start, fields = stream.tell(), dict[str, str]()
    while True:
        offset = stream.tell()
        header = stream.read(_BLOCK)
        if header == bytes(_BLOCK):
            return _check_end(stream, path)
        size = _checked_size(header, fields, f"{path}: offset {offset}")
        kind, after = header[156:157], offset + _BLOCK + -(-size // _BLOCK) * _BLOCK
        if after > length or (kind in b"xLgK" and size > _MAX_TEXT):
            raise FileFormatError(
                f"{path}: offset {offset}: a member of {size} bytes; the file is truncated or damaged"
            )
        if kind == b"x":
            fields |= _records(stream.read(size), f"{path}: offset {offset}")
        elif kind == b"L":
            fields["path"] = _text(stream.read(size))
        elif kind not in b"gK":
            name = fields.get("path") or _name(header)
            if kind in (b"0", b"\0", b"7") and not name.endswith("/"):
                yield start, name, size
            elif kind not in (b"5", b"\0", b"0"):
                raise FileFormatError(
                    f"{path}: {name}: expected plain files and folders, got a link or special file (type {kind!r}); "
                    "write the shards without it"
                )
            start, fields = after, {}
        stream.seek(after)


def _checked_size(header: bytes, fields: dict[str, str], where: str) -> int:
    """Return the size of a member's contents; raise FileFormatError if the bytes are not a header."""
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
        size = int(fields.get("size", size))
        if size < 0 or any(name.startswith("GNU.sparse") for name in fields):
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
    """Return the records of an extended header; each has the form LENGTH NAME=VALUE and ends with a newline."""
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
