"""Checks shared by the readers of files that anybody may have written."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.errors import FileFormatError

#: Everything that zipfile, gzip and zlib raise on damaged bytes, and what a promise too large for memory raises.
READ_ERRORS = (OSError, ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile, struct.error, MemoryError)

# Pixels, even drawings, compress less than this; a few MB of zeros that unpack to many GB compress more.
_LARGEST_RATIO = 200
_HARMLESS = 64 << 20
_CHUNK = 1 << 20


def existing_file(path: str | Path) -> Path:
    """The path, where it is a file.

    Raises:
        FileFormatError: it is missing, or not a file.

    >>> existing_file(__file__).name
    'untrusted.py'
    """
    path = Path(path)
    if not path.is_file():
        what = "a folder" if path.is_dir() else "nothing"
        raise FileFormatError(f"{path}: expected a file, found {what} there; check the path")
    return path


def check_ratio(promised: int, stored: int, where: str) -> None:
    """Refuses data that would unpack to far more bytes than pixels do.

    Args:
        promised: bytes after unpacking.
        stored: bytes in the file.
        where: the file and the part of it, for the message.

    Raises:
        FileFormatError: more than 64 MiB out of less than a two-hundredth of it.

    >>> check_ratio(10**6, 1000, "a.npz: x")
    """
    if promised > _HARMLESS and promised > _LARGEST_RATIO * stored:
        raise FileFormatError(
            f"{where}: {stored} bytes promise to unpack to {promised}, more than {_LARGEST_RATIO} to 1; "
            "if that is meant, store it without compression"
        )


def read_exactly(stream: IO[bytes], size: int, where: str) -> bytearray:
    """Reads a stream that must end after exactly ``size`` bytes; memory grows with what is there, not with the promise.

    Args:
        stream: positioned at the first byte.
        size: bytes expected up to the end.
        where: the file and the part of it, for the message.

    Raises:
        FileFormatError: it ends earlier or goes on.

    >>> import io
    >>> read_exactly(io.BytesIO(b"abc"), 3, "a.gz")
    bytearray(b'abc')
    """
    data = bytearray()
    # One byte more than promised: it shows data left over, and makes zip and gzip check their sums at the end.
    while len(data) <= size:
        chunk = stream.read(min(_CHUNK, size + 1 - len(data)))
        if not chunk:
            break
        data += chunk
    if len(data) != size:
        found = "more" if len(data) > size else f"only {len(data)}"
        raise FileFormatError(f"{where}: expected {size} bytes of data, found {found}; the file is damaged")
    return data


def as_pixels(array: npt.NDArray[np.generic], where: str, *, unit_range: bool = True) -> Tensor:
    """Pixels as float32: uint8 divided by 255, floats as they are, rounded to float32.

    Args:
        array: [...], uint8, float16, float32 or float64.
        where: what to call it in the message.
        unit_range: whether floats must be in [0, 1].

    Returns:
        float32, the same shape.

    Raises:
        FileFormatError: another dtype, NaN or infinity, a float outside [0, 1].

    >>> as_pixels(np.array([0, 255], dtype=np.uint8), "x")
    tensor([0., 1.])
    """
    if array.dtype == np.uint8:
        return torch.from_numpy(_plain(array, np.uint8)).float().div_(255)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise FileFormatError(
            f"{where}: expected float pixels in [0, 1] or uint8 pixels, got {array.dtype}; other integers have no "
            "known full scale: divide by it and store float32"
        )
    if array.size and not np.isfinite(array).all():
        raise FileFormatError(f"{where}: holds NaN or infinite pixels; remove or repair those images")
    if unit_range and array.size and (array.min() < 0 or array.max() > 1):
        raise FileFormatError(
            f"{where}: expected pixels in [0, 1], found {float(array.min()):g} to {float(array.max()):g}; rescale them "
            "(levels 0 to 255: store uint8) and make any other normalisation the first layer of the model"
        )
    return torch.from_numpy(_plain(array, np.float32))


def as_labels(array: npt.NDArray[np.generic], where: str) -> Tensor:
    """Class numbers as int64.

    Args:
        array: [N], any integer dtype.
        where: what to call it in the message.

    Returns:
        int64 [N].

    Raises:
        FileFormatError: another dtype, a negative number, or one beyond 31 bits.

    >>> as_labels(np.array([3, 1], dtype=np.uint8), "y")
    tensor([3, 1])
    """
    if array.dtype.kind not in "iu":
        raise FileFormatError(f"{where}: expected integer class numbers, got {array.dtype}; store them as int64")
    if array.size and (array.min() < 0 or array.max() >= 1 << 31):
        raise FileFormatError(
            f"{where}: expected class numbers from 0 on, found {int(array.min())} to {int(array.max())}; "
            "number the classes 0, 1, …"
        )
    return torch.from_numpy(_plain(array, np.int64))


def as_nchw(x: Tensor, where: str) -> Tensor:
    """Images as [N, C, H, W], with one channel where there is no channel axis.

    Raises:
        FileFormatError: another number of axes, or channels that are evidently last.

    >>> as_nchw(torch.zeros(5, 8, 8), "x").shape
    torch.Size([5, 1, 8, 8])
    """
    if x.dim() == 3:
        return x.unsqueeze(1)
    if x.dim() != 4:
        raise FileFormatError(f"{where}: expected [N, C, H, W] or [N, H, W], got {list(x.shape)}")
    if x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        raise FileFormatError(
            f"{where}: expected [N, C, H, W], got {list(x.shape)}, which looks like channels last; "
            "store x.transpose(0, 3, 1, 2)"
        )
    return x


def _plain(array: npt.NDArray[np.generic], dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    """What torch can wrap: contiguous, writable, native byte order. Copied only where needed; a scalar stays one."""
    return np.require(array, dtype, ["C", "W"])
