"""Loading images and labels in the IDX format of MNIST (LeCun, Cortes and Burges, 1998)."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from pyrobust.errors import FileFormatError, InputError
from pyrobust.zoo.image_set import ImageSet
from pyrobust.zoo.untrusted import READ_ERRORS, as_labels, as_pixels, check_ratio, existing_file, read_exactly

_STEMS = {"test": "t10k", "train": "train"}


def load_mnist(folder: str | Path, split: str = "test", name: str | None = None) -> ImageSet:
    """Load MNIST, or another data set in its format, from IDX files.

    The folder holds ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``, or the same names with ``train-`` in
    place of ``t10k-``. Each name may end in ``.gz``, and may have a dot instead of the hyphen before ``idx``. If a file
    exists in several of these forms, all of them must hold the same array. The split is "test" (the t10k files) or
    "train". The set is named after folder and split unless ``name`` is given. Returns the images x [N, 1, H, W], whose
    values are the bytes of the file divided by 255, and the labels y [N]. Raises InputError for another split. Raises
    FileFormatError if a file is missing or damaged, or if its forms hold different arrays.

    >>> load_mnist("/nowhere", "validation")
    Traceback (most recent call last):
    pyrobust.errors.InputError: load_mnist: split: expected test or train, got 'validation'
    """
    if split not in _STEMS:
        raise InputError("load_mnist: split", "test or train", repr(split))
    images = _find_files(Path(folder), f"{_STEMS[split]}-images-idx3-ubyte")
    labels = _find_files(Path(folder), f"{_STEMS[split]}-labels-idx1-ubyte")
    x = as_pixels(_read_equal(images, 3), str(images[0])).unsqueeze(1)
    y = as_labels(_read_equal(labels, 1), str(labels[0]))
    if x.numel() == 0 or len(x) != len(y):
        raise FileFormatError(
            f"{images[0]}: expected one image for each of the {len(y)} labels in {labels[0].name}, at least one, "
            f"got images {list(x.shape)}"
        )
    return ImageSet(name or f"mnist:{folder}:{split}", x, y)


def read_idx(path: str | Path, axes: int) -> npt.NDArray[Any]:
    """Read an untrusted IDX file of unsigned bytes with this number of axes; files named ``.gz`` are unpacked.

    Raises FileFormatError if the file is missing or damaged, has another type or number of axes, or has another length
    than its header states.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "labels"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 5]))
    ...     read_idx(path, 1)
    array([7, 5], dtype=uint8)
    """
    path = existing_file(path)
    zipped = path.suffix == ".gz"
    stored = path.stat().st_size
    try:
        with cast("IO[bytes]", gzip.open(path) if zipped else path.open("rb")) as stream:
            start = 4 + 4 * axes
            header = stream.read(start)
            if len(header) < start or header[:4] != bytes([0, 0, 8, axes]):
                raise FileFormatError(
                    f"{path}: offset 0: expected an IDX header of bytes with {axes} axes, 00 00 08 {axes:02d} …, "
                    f"got {header[:4].hex(' ') or 'an empty file'}"
                )
            shape = tuple(int.from_bytes(header[4 * i : 4 * i + 4], "big") for i in range(1, axes + 1))
            size = math.prod(shape)
            if not zipped and size != stored - start:
                raise FileFormatError(
                    f"{path}: offset 4: expected {size} bytes after the header for {list(shape)}, got {stored - start}"
                )
            check_ratio(size, stored, str(path))
            data = read_exactly(stream, size, str(path))
    except FileFormatError:
        raise
    except READ_ERRORS as error:
        raise FileFormatError(f"{path}: damaged ({error or type(error).__name__}); download it again") from error
    return np.frombuffer(data, np.uint8).reshape(shape)


def _find_files(folder: Path, name: str) -> list[Path]:
    names = [f"{candidate}{ending}" for candidate in (name, name.replace("-idx", ".idx")) for ending in ("", ".gz")]
    files = [folder / candidate for candidate in names if (folder / candidate).is_file()]
    if not files:
        raise FileFormatError(f"{folder}: expected a file {name} or {name}.gz, found neither")
    return files


def _read_equal(paths: list[Path], axes: int) -> npt.NDArray[Any]:
    """Read files that must hold the same array."""
    first, *others = (read_idx(path, axes) for path in paths)
    for path, array in zip(paths[1:], others, strict=True):
        if not np.array_equal(array, first):
            raise FileFormatError(
                f"{path}: expected the contents of {paths[0].name}, got others; move one of them away"
            )
    return first
