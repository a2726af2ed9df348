"""Loading arrays from untrusted npz files: sizes are checked first, and pickles are never read."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pyrobust.errors import FileFormatError
from pyrobust.zoo.image_set import Float32Rounding, ImageSet
from pyrobust.zoo.rows import checked_classes, numbered
from pyrobust.zoo.untrusted import READ_ERRORS, as_labels, as_nchw, as_pixels, check_ratio, existing_file, read_exactly

_MAX_HEADER = 10_000  # characters; numpy evaluates longer headers only of trusted files
_MAX_AXES = 8


def load_npz(
    path: str | Path,
    name: str | None = None,
    *,
    image: str | None = None,
    label: str | None = None,
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """Load images and labels from an npz file: from the arrays x (or X) and y (or Y), or from arrays of other names.

    The file is written by ``numpy.savez`` or ``savez_compressed``. x holds images [N, C, H, W] or [N, H, W], or tabular
    inputs [N, D]. Images are uint8, which is divided by 255, or float in [0, 1]. Tabular inputs are float of any range,
    or uint8, which is also divided by 255. y [N] holds integers of at least 0. Float64 is rounded to float32. If
    rounding changes a value, attacks warn, and certification refuses the data. There is one exception: certification on
    a grid, such as the multiples of 1/255, accepts the data if the float64 values that rounding changes are on a grid.

    Args:
        path: the file.
        name: name of the set. By default, it is the path.
        image: name of the array of images, such as "x_test". By default, it is x or X.
        label: name of the array of labels. By default, it is y or Y.
        classes: if the labels are names, the names of all classes, in the order of the model's outputs.

    Returns:
        The images and labels.

    Raises:
        FileFormatError: the file is missing or damaged, or its contents have another form. The message names the file
            and the array. If the array is missing, it also lists the arrays of the file.
        InputError: ``classes`` are not distinct names, or a label is not one of them.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(os.path.join(folder, "a.npz"), x=np.zeros((2, 8, 8), np.uint8), y=np.array([1, 0]))
    ...     load_npz(os.path.join(folder, "a.npz"), "mine")
    ImageSet(name='mine', images=2, shape=(1, 8, 8), classes=2)
    """
    images, labels = image or "x", label or "y"
    checked_classes(classes)
    arrays = read_npz_arrays(path, (images, labels), () if classes is None else (labels,))
    pixels = arrays[images]
    tabular = pixels.ndim == 2
    rounding = Float32Rounding()
    x = as_pixels(pixels, f"{path}: array {images}", unit_range=not tabular, rounded=rounding)
    x = x if tabular else as_nchw(x, f"{path}: array {images}")
    where = f"{path}: array {labels}"
    y = as_labels(arrays[labels] if classes is None else numbered(arrays[labels], classes, where), where)
    if x.numel() == 0 or y.shape != x.shape[:1]:
        raise FileFormatError(
            f"{path}: expected N inputs and N labels with N > 0, got x {list(x.shape)} and y {list(y.shape)}; "
            "save both again"
        )
    return ImageSet(name or str(path), x, y, rounded=rounding.found)


def read_npz_arrays(path: str | Path, names: Sequence[str], texts: Sequence[str] = ()) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of an untrusted npz file by name; an array with a single-letter name may be stored in upper case.

    The arrays named in ``texts`` may hold strings. Arrays that are not named are ignored.

    The result is writable and in native byte order. Raises FileFormatError if the file is missing or damaged. It is
    also raised if an array is missing, holds Python objects, or does not have the size that its header states.

    >>> read_npz_arrays(Path(__file__).parent / "data" / "optdigits.npz", ["x"])["x"].shape
    (1797, 8, 8)
    """
    path = existing_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name: _find_member(archive, name, path) for name in names}
            return {name: _read_member(archive, member, path, name in texts) for name, member in members.items()}
    except FileFormatError:
        raise
    except READ_ERRORS as error:
        raise FileFormatError(
            f"{path}: not a readable npz file ({error or type(error).__name__}); save it again"
        ) from error


def _find_member(archive: zipfile.ZipFile, name: str, path: Path) -> zipfile.ZipInfo:
    names = (name, name.upper()) if len(name) == 1 else (name,)
    members = [info for info in archive.infolist() if info.filename in [f"{stem}.npy" for stem in names]]
    if len(members) != 1:
        present = ", ".join(info.filename.removesuffix(".npy") for info in archive.infolist()[:10]) or "nothing"
        raise FileFormatError(
            f"{path}: expected one array named {' or '.join(names)}, found {len(members)}; the file holds {present}; "
            "name two of its arrays with npz:FILE:IMAGES,LABELS or load_npz(image=, label=)"
        )
    return members[0]


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, text: bool) -> npt.NDArray[Any]:
    where = f"{path}: array {info.filename.removesuffix('.npy')}"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FileFormatError(
            f"{where}: expected no compression or deflate, got method {info.compress_type}; save it with numpy.savez "
            "or savez_compressed"
        )
    if info.compress_size > path.stat().st_size:
        raise FileFormatError(
            f"{where}: declares {info.compress_size} bytes, more than the size of the file; it is damaged"
        )
    check_ratio(info.file_size, info.compress_size, where)
    with archive.open(info) as stream:
        dtype, fortran_order, shape, offset = _read_header(stream, where, text)
        size = math.prod(shape) * dtype.itemsize
        if size != info.file_size - offset:
            raise FileFormatError(
                f"{where}: expected {size} bytes after offset {offset} for {dtype} {list(shape)}, got "
                f"{info.file_size - offset}; the file is damaged"
            )
        data = read_exactly(stream, size, where)
    if dtype.kind == "U":
        code = np.frombuffer(data, np.dtype("u4").newbyteorder(dtype.byteorder)).max(initial=0)
        chr(code)  # raises ValueError if the number is not a character; NumPy would raise SystemError
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C")
    array = array if dtype.isnative else array.astype(dtype.newbyteorder("="))
    return np.char.decode(array, "utf-8") if dtype.kind == "S" else array


def _read_header(stream: IO[bytes], where: str, text: bool) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """Return the dtype, whether the data are in Fortran order, the shape, and the offset of the data."""
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"version {version[0]}.{version[1]}")
        # A header that describes numbers is ASCII, for which versions 2 and 3 are the same.
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read(stream, max_header_size=_MAX_HEADER)
    except Exception as error:  # numpy's parser also raises SyntaxError and TokenError
        reason = (str(error) or type(error).__name__)[:200]
        raise FileFormatError(f"{where}: expected an npy header, got another ({reason}); save it again") from error
    if dtype.kind not in ("fiubUS" if text else "fiub"):
        got = "Python objects, which could run code when read" if dtype.hasobject else str(dtype)
        hint = "save it as float32, uint8 or int64"
        if dtype.kind in "US":
            hint = "pass the names of the classes in the order of the model's outputs as classes= of load_npz"
        raise FileFormatError(f"{where}: expected numbers, got {got}; {hint}")
    if len(shape) > _MAX_AXES or min(shape, default=0) < 0:
        raise FileFormatError(f"{where}: expected at most {_MAX_AXES} axes of sizes from 0 on, got {list(shape)}")
    return dtype, fortran_order, shape, stream.tell()
