"""Arrays out of npz files that anybody may have written: sizes are checked first, and no pickle is read."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pyrobust.errors import FileFormatError
from pyrobust.zoo.image_set import ImageSet
from pyrobust.zoo.untrusted import READ_ERRORS, as_labels, as_nchw, as_pixels, check_ratio, existing_file, read_exactly

# What every writer of the format produces. A pattern, and not Python's parser, because the text comes from the file.
_HEADER = re.compile(
    r"\{'descr': ?'([<>|=]?[a-zA-Z]\d{0,4})', ?'fortran_order': ?(True|False), ?"
    r"'shape': ?\(((?:\d{1,18}L?(?:, ?|(?=\))))*)\),? ?\} *\n?"
)
_LONGEST_HEADER = 10_000
_MOST_AXES = 8


def load_npz(path: str | Path, name: str | None = None) -> ImageSet:
    """Images and labels from the arrays x (or X) and y (or Y) of an npz file.

    Args:
        path: written by ``numpy.savez`` or ``savez_compressed``. x [N, C, H, W] or [N, H, W], uint8 (divided by 255) or
            float in [0, 1]; y [N], integer, from 0 on.
        name: of the set; default the path.

    Returns:
        The images.

    Raises:
        FileFormatError: the file is missing, damaged or holds something else; the message names file and array.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(os.path.join(folder, "a.npz"), x=np.zeros((2, 8, 8), np.uint8), y=np.array([1, 0]))
    ...     load_npz(os.path.join(folder, "a.npz"), "mine")
    ImageSet(name='mine')
    """
    arrays = read_npz_arrays(path, ("x", "y"))
    x = as_nchw(as_pixels(arrays["x"], f"{path}: array x"), f"{path}: array x")
    y = as_labels(arrays["y"], f"{path}: array y")
    if x.numel() == 0 or y.shape != x.shape[:1]:
        raise FileFormatError(
            f"{path}: expected N > 0 images and N labels, got x {list(x.shape)} and y {list(y.shape)}; save both again"
        )
    return ImageSet(name or str(path), x, y)


def read_npz_arrays(path: str | Path, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Reads some arrays of an npz file.

    Args:
        path: the file; untrusted.
        names: the arrays wanted, in lower case; each may be stored in upper case instead. Others are not looked at.

    Returns:
        The arrays under the names asked for, writable, in native byte order.

    Raises:
        FileFormatError: the file is missing or damaged, an array is missing, holds Python objects, or promises another
            number of bytes than there are.

    >>> read_npz_arrays(Path(__file__).parent / "data" / "optdigits.npz", ["x"])["x"].shape
    (1797, 8, 8)
    """
    path = existing_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name: _find(archive, name, path) for name in names}
            return {name: _read_member(archive, member, path) for name, member in members.items()}
    except FileFormatError:
        raise
    except READ_ERRORS as error:
        raise FileFormatError(
            f"{path}: not a readable npz file ({error or type(error).__name__}); save it again"
        ) from error


def _find(archive: zipfile.ZipFile, name: str, path: Path) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if info.filename in (f"{name}.npy", f"{name.upper()}.npy")]
    if len(found) != 1:
        present = ", ".join(info.filename.removesuffix(".npy") for info in archive.infolist()[:10]) or "nothing"
        raise FileFormatError(
            f"{path}: expected one array named {name} or {name.upper()}, found {len(found)}; the file holds {present}"
        )
    return found[0]


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> npt.NDArray[Any]:
    where = f"{path}: array {info.filename.removesuffix('.npy')}"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FileFormatError(f"{where}: compressed by an unknown method; use numpy.savez or savez_compressed")
    if info.compress_size > path.stat().st_size:
        raise FileFormatError(f"{where}: promises {info.compress_size} bytes, more than the file has; it is damaged")
    check_ratio(info.file_size, info.compress_size, where)
    with archive.open(info) as stream:
        dtype, fortran_order, shape, offset = _read_header(stream, where)
        size = math.prod(shape) * dtype.itemsize
        if size != info.file_size - offset:
            raise FileFormatError(
                f"{where}: {dtype} {list(shape)} needs {size} bytes after offset {offset}, the file gives "
                f"{info.file_size - offset}; it is damaged"
            )
        data = read_exactly(stream, size, where)
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C")
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def _read_header(stream: IO[bytes], where: str) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """dtype, whether the first index varies fastest, shape, and where the data start."""
    start = stream.read(8)
    width = {1: 2, 2: 4, 3: 4}.get(start[6] if len(start) == 8 else 0)
    if not start.startswith(b"\x93NUMPY") or width is None:
        raise FileFormatError(f"{where}: offset 0: expected the npy magic and version 1, 2 or 3, got {start!r}")
    length = int.from_bytes(stream.read(width), "little")
    text = stream.read(min(length, _LONGEST_HEADER)).decode("latin1")
    match = _HEADER.fullmatch(text) if len(text) == length else None
    if match is None:
        hint = "; arrays of records cannot be read" if "[(" in text else ""
        raise FileFormatError(f"{where}: offset {8 + width}: expected an npy header, got {text[:80]!r}{hint}")
    try:
        dtype = np.dtype(match[1])
    except TypeError as error:
        raise FileFormatError(f"{where}: unknown dtype {match[1]!r}") from error
    if dtype.kind not in "fiub":
        what = "Python objects, and reading those would run code" if dtype.kind == "O" else f"{dtype}, not numbers"
        raise FileFormatError(f"{where}: holds {what}; save it as a plain array of float32, uint8 or int64")
    shape = tuple(int(part.strip(" L")) for part in match[3].split(",") if part.strip())
    if len(shape) > _MOST_AXES:
        raise FileFormatError(f"{where}: has {len(shape)} axes, expected at most {_MOST_AXES}")
    return dtype, match[2] == "True", shape, 8 + width + length
