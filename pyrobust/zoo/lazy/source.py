"""Streams of labelled images that can be restarted at any image, and patterns of file names."""

from __future__ import annotations

import glob
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from pyrobust.checks import file_path
from pyrobust.errors import FileFormatError, InputError
from pyrobust.zoo.rows import as_batch
from pyrobust.zoo.untrusted import check_distinct

#: Where to start reading so that a given image comes next: file, place in the file, and images to skip from there.
Position: TypeAlias = tuple[int, int, int]
#: An image: its position, pixels float32 [C, H, W], and label.
Row: TypeAlias = tuple[Position, Tensor, int]

START: Position = (0, 0, 0)

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_DIGITS = re.compile(r"(\d+)")
_MAX_FILES = 100_000
# Other suffixes of files of the same format.
_ALIASES = {
    ".pq": ".parquet",
    ".parq": ".parquet",
    ".tgz": ".tar",
    ".tbz2": ".tar",
    ".txz": ".tar",
    ".feather": ".arrow",
}
_SPLITS = {"train", "test", "valid", "val", "validation"}


class ImageSource(ABC):
    """Labelled images in a fixed order; reading can start at any image.

    Attributes:
        files: absolute paths of the files that hold the images; empty for objects in memory.
        options: other settings that determine which images are read from the files.
    """

    files: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()

    @abstractmethod
    def count(self) -> int:
        """Return the number of images without decoding them."""

    @abstractmethod
    def rows(self, position: Position, rounded: Callable[[Tensor], None] | None = None) -> Iterator[Row]:
        """Yield the images from ``position`` onwards.

        ``position`` is ``START`` or the position of an image that was yielded before. ``rounded`` is called with
        float64 pixels that would change if they were rounded to float32.
        """


class MapSource(ImageSource):
    """Rows of a map-style data set."""

    def __init__(self, dataset: Any, name: str) -> None:
        self.dataset, self.name = dataset, name

    def count(self) -> int:
        """Return the length of the data set."""
        return len(self.dataset)

    def rows(self, position: Position, rounded: Callable[[Tensor], None] | None = None) -> Iterator[Row]:
        """Yield the rows from ``position`` onwards."""
        for index in range(position[2], len(self.dataset)):
            x, y = as_batch(self.dataset[index], self.name, rounded)
            if len(y) != 1:
                raise InputError(
                    "data", "one image at each index", len(y), "pass the data set, not batches", where=self.name
                )
            yield (0, 0, index), x[0], int(y[0])


def find_files(pattern: str | Path, suffix: str) -> tuple[Path, ...]:
    """Return the absolute paths of the files that a pattern names.

    Args:
        pattern: a file, a folder, or a pattern of names. A folder stands for all its files with the suffix, in upper or
            lower case. A pattern may contain wildcards, and braces such as ``{000..127}`` or ``{a,b}``. Files found in
            a folder or by a wildcard are in natural order: a2 before a10.
        suffix: suffix of the files in a folder, with its dot, in lower case.

    Raises:
        FileFormatError: braces expand to a name that matches no file, or a file is found twice. A folder is refused if
            it has no file with the suffix, or has files of several splits. It is also refused if it has files of the
            same format in compressed form or in subfolders.
        InputError: braces name more than 100,000 files.

    >>> [path.name for path in find_files(str(Path(__file__).parent / "{source,ta*}.py"), ".py")]
    ['source.py', 'tables.py', 'tar.py']
    """
    path = file_path("data", pattern).absolute()
    if path.is_file():
        return (path,)
    if path.is_dir():
        entries = _in_folder(path, suffix)
    else:
        entries = [entry for name in _expand(str(path)) for entry in _matching(name) or [Path(name)]]
    missing = next((entry for entry in entries if not entry.is_file()), None)
    if not entries or missing:
        raise FileFormatError(f"{missing or path}: expected {suffix} files, found none; check the path")
    check_distinct(entries)
    return tuple(entries)


def _in_folder(folder: Path, suffix: str) -> list[Path]:
    """Return the data files in a folder; raise FileFormatError if it is unclear which files these are."""
    visible = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    entries = _sorted(entry for entry in visible if entry.suffix.lower() == suffix)
    splits = sorted({piece for entry in entries for piece in re.split(r"[-_.]", entry.name.lower())} & _SPLITS)
    if len(splits) > 1:
        raise FileFormatError(
            f"{folder}: expected files of one split, got {', '.join(splits)}; name one: {folder}/*{splits[0]}*{suffix}"
        )
    for entry in visible:
        parts = [piece.lower() for piece in entry.suffixes]
        if entry not in entries and (suffix in parts or _ALIASES.get(parts[-1] if parts else "") == suffix):
            raise FileFormatError(
                f"{entry}: expected {suffix} files only; convert it, move it away, or name the others: "
                f"{folder}/*{suffix}"
            )
        if entry.is_dir() and any(path.suffix.lower() == suffix for path in entry.rglob("*")):
            raise FileFormatError(
                f"{entry}: expected no {suffix} files in subfolders; name one folder, or all files by a pattern, such "
                f"as {folder}/*/*{suffix}"
            )
    return entries


def _expand(pattern: str) -> list[str]:
    """Expand braces into names, in order."""
    parts: list[Sequence[str]] = []
    last = 0
    for match in _BRACES.finditer(pattern):
        span = _RANGE.fullmatch(match[1])
        if span and int(span[2]) - int(span[1]) < _MAX_FILES:
            width = len(span[1]) if span[1].startswith("0") else 0
            choices: Sequence[str] = [f"{number:0{width}}" for number in range(int(span[1]), int(span[2]) + 1)]
        elif span:
            raise InputError("data", f"at most {_MAX_FILES} files", f"{{{match[1]}}}", where=pattern)
        else:
            choices = match[1].split(",")
        parts += [[pattern[last : match.start()]], choices]
        last = match.end()
    names = ["".join(name) for name in itertools.islice(itertools.product(*parts, [pattern[last:]]), _MAX_FILES + 1)]
    if len(names) > _MAX_FILES:
        raise InputError("data", f"braces that name at most {_MAX_FILES} files", "more", where=pattern)
    return names


def _matching(name: str) -> list[Path]:
    """Return the file of this name, or the files that match its wildcards."""
    if glob.has_magic(name) and not Path(name).exists():
        return _sorted(map(Path, glob.glob(name)))
    return [Path(name)]


def _sorted(paths: Iterable[Path]) -> list[Path]:
    """Sort paths, comparing the numbers in them by value."""
    return sorted(
        paths, key=lambda path: [int(piece) if i % 2 else piece for i, piece in enumerate(_DIGITS.split(str(path)))]
    )
