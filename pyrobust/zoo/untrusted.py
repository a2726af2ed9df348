"""Checks shared by the readers of untrusted files."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import file_path
from pyrobust.errors import FileFormatError

#: Exceptions of zipfile, gzip and zlib on damaged bytes, and MemoryError for a declared size too large for memory.
READ_ERRORS = (OSError, ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile, struct.error, MemoryError)

# Largest compression ratio: images, even drawings, stay below it; decompression bombs (many GB of zeros in a few MB)
# exceed it.
_MAX_RATIO = 200
# Sizes up to this are always unpacked.
_HARMLESS = 64 << 20
_CHUNK = 1 << 20


def existing_file(path: str | Path) -> Path:
    """Return the path; raise FileFormatError unless it is a file.

    >>> existing_file(__file__).name
    'untrusted.py'
    """
    path = file_path("path", path)
    if not path.is_file():
        what = "a folder" if path.is_dir() else "nothing"
        raise FileFormatError(f"{path}: expected a file, found {what} there; check the path")
    return path


def check_distinct(paths: Iterable[Path]) -> None:
    """Raise FileFormatError if two paths lead to the same file through symbolic links; hard links are not noticed.

    >>> check_distinct([Path("a.tar"), Path("./a.tar")])
    Traceback (most recent call last):
    pyrobust.errors.FileFormatError: a.tar: expected each file once, got it twice, as a.tar; remove the link or the name
    """
    seen: dict[str, Path] = {}
    for path in paths:
        other = seen.setdefault(os.path.realpath(path), path)
        if other is not path:
            raise FileFormatError(
                f"{path}: expected each file once, got it twice, as {other}; remove the link or the name"
            )


def check_ratio(unpacked: int, stored: int, where: str) -> None:
    """Raise FileFormatError if ``stored`` bytes unpack to more than 64 MiB and to more than 200 times their own size.

    >>> check_ratio(10**6, 1000, "a.npz: x")
    """
    if unpacked > _HARMLESS and unpacked > _MAX_RATIO * stored:
        raise FileFormatError(
            f"{where}: expected a compression ratio of at most {_MAX_RATIO}, got {stored} bytes that unpack to "
            f"{unpacked}; if this is intended, store the data uncompressed"
        )


def read_exactly(stream: IO[bytes], size: int, where: str) -> bytearray:
    """Read a stream that must end after ``size`` bytes.

    The memory use depends on the actual data, not on the declared size.

    Raises FileFormatError, naming ``where``, if the stream is shorter or longer.

    >>> import io
    >>> read_exactly(io.BytesIO(b"abc"), 3, "a.gz")
    bytearray(b'abc')
    """
    data = bytearray()
    # Read one byte past the declared size: this detects excess data and makes zip and gzip verify their checksums.
    while len(data) <= size:
        chunk = stream.read(min(_CHUNK, size + 1 - len(data)))
        if not chunk:
            break
        data += chunk
    if len(data) != size:
        got = "more" if len(data) > size else f"only {len(data)}"
        raise FileFormatError(f"{where}: expected {size} bytes of data, got {got}; the file is damaged")
    return data


def as_pixels(
    array: npt.NDArray[np.generic],
    where: str,
    *,
    unit_range: bool = True,
    rounded: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Convert pixels to float32: uint8 is divided by 255, floats are rounded to float32.

    ``rounded`` is called with float64 pixels if float32 does not represent them all. For another dtype, for NaN and for
    infinity, FileFormatError is raised. With ``unit_range``, it is also raised for floats outside [0, 1]. The message
    names ``where``.

    >>> as_pixels(np.array([0, 255], dtype=np.uint8), "x")
    tensor([0., 1.])
    """
    if array.dtype == np.uint8:
        return torch.from_numpy(_plain(array, np.uint8)).float().div_(255)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise FileFormatError(
            f"{where}: expected float pixels in [0, 1] or uint8 pixels, got {array.dtype}; divide other integers by "
            "their full scale and store float32"
        )
    if array.size and not np.isfinite(array).all():
        position = [int(index) for index in np.argwhere(~np.isfinite(array))[0]]
        raise FileFormatError(
            f"{where}: expected finite pixels, got {array[tuple(position)]} at {position}; remove or repair that image"
        )
    if unit_range and array.size and (array.min() < 0 or array.max() > 1):
        raise FileFormatError(
            f"{where}: expected pixels in [0, 1], got {float(array.min()):g} to {float(array.max()):g}; rescale them "
            "(levels 0 to 255: store uint8), and make any other normalisation the first layer of the model"
        )
    pixels = torch.from_numpy(_plain(array, np.float32))
    if rounded is not None and array.dtype.itemsize == 8 and bool((pixels.numpy() != array).any()):
        rounded(torch.from_numpy(_plain(array, np.float64)))
    return pixels


def as_labels(array: npt.NDArray[np.generic], where: str) -> Tensor:
    """Convert labels of any integer dtype to int64.

    Raises FileFormatError for other dtypes, and for labels outside [0, 2**31).

    >>> as_labels(np.array([3, 1], dtype=np.uint8), "y")
    tensor([3, 1])
    """
    if array.dtype.kind not in "iu":
        raise FileFormatError(f"{where}: expected integer labels, got {array.dtype}; store them as int64")
    if array.size and (array.min() < 0 or array.max() >= 1 << 31):
        raise FileFormatError(
            f"{where}: expected labels in [0, 2**31), got {int(array.min())} to {int(array.max())}; "
            "number the classes 0, 1, …"
        )
    return torch.from_numpy(_plain(array, np.int64))


def as_nchw(x: Tensor, where: str) -> Tensor:
    """Return images as [N, C, H, W]; add a channel axis to [N, H, W], and raise FileFormatError for other layouts.

    >>> as_nchw(torch.zeros(5, 8, 8), "x").shape
    torch.Size([5, 1, 8, 8])
    """
    if x.dim() == 3:
        return x.unsqueeze(1)
    if x.dim() != 4:
        raise FileFormatError(f"{where}: expected [N, C, H, W] or [N, H, W], got {list(x.shape)}")
    if x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        raise FileFormatError(
            f"{where}: expected [N, C, H, W], got {list(x.shape)}, which looks like [N, H, W, C]; "
            "store x.transpose(0, 3, 1, 2)"
        )
    return x


def _plain(array: npt.NDArray[np.generic], dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    """Make an array contiguous, writable and of native byte order for torch; copy it only if needed."""
    return np.require(array, dtype, ["C", "W"])
