"""Saving images as PNG files or an npz file.

Pixel values are bytes divided by 255. Loading a saved image gives the same bits.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import class_labels, file_path, float_tensor, image_indices, shape_text
from pyrobust.errors import FileFormatError, InputError, extra
from pyrobust.zoo.files import TEMPORARY, write_together
from pyrobust.zoo.folder import read_picture
from pyrobust.zoo.image_set import ImageSet
from pyrobust.zoo.untrusted import as_pixels, check_ratio

#: Name of the table beside PNG files, and its first columns.
TABLE, _COLUMNS = "images.tsv", ("file", "index", "label")
#: First bytes of every table.
BEGINS = b"# pyrobust images, bytes over 255"

# Number of images encoded at once.
_CHUNK = 256
_MAX_TABLE = 1 << 28


def save_images(
    path: str | os.PathLike[str],
    x: Tensor,
    y: Tensor | Sequence[int],
    *,
    indices: Sequence[int] | Tensor | None = None,
    columns: Mapping[str, Sequence[object]] | None = None,
    about: str = "",
) -> None:
    """Save images without loss.

    The values must be bytes divided by 255, as in the results of an attack with ``grid="1/255"``.

    If the path ends in .npz, one file is written. It holds the arrays x (uint8, [N, C, H, W]), y and index. For any
    other path, a folder is written. It contains one PNG file for each image, named after its index, and a table,
    images.tsv. ``load_data("npz:PATH")`` and ``load_data("folder:PATH")`` read this file or folder, and give images
    with the same float32 bits as ``x``.

    Nothing is overwritten. An npz file must be new. A folder must be new, empty, or written by this function with the
    same ``about`` and the same names of ``columns``. In the last case, the missing files are added to the folder, and
    their rows to the table. A PNG file that is there already is kept if it has the pixels of the image that is to be
    saved under its name. A row of the table that is there already must be equal to the new row of the same index.

    Args:
        path: path of the npz file or folder.
        x: images [N, C, H, W], float32 or float64. Every value must be the float32 number nearest to k/255 for an
            integer k from 0 to 255. For PNG, C must be 1 or 3.
        y: [N], integers, the labels.
        indices: index of each image in its data set, [N]; all must be distinct. By default, they are 0 … N - 1.
        columns: further columns of the table, [N] each; PNG only.
        about: text on the origin of the images, which is written to a line of the table; PNG only.

    Raises:
        InputError: a value of x is not k/255, the shapes do not match, or writing to the path is refused because of
            what exists there.
        InputTypeError: arguments of another type.
        MissingExtraError: PNG is requested without Pillow (the extra ``data``).
        StoreError: a file cannot be written.

    >>> import tempfile
    >>> from pyrobust.zoo import load_data
    >>> x = torch.arange(256).reshape(1, 1, 16, 16) / 255
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_images(folder + "/adversarial", x, [3])
    ...     loaded = load_data(f"folder:{folder}/adversarial")
    >>> torch.equal(loaded.x, x), loaded.y.tolist()
    (True, [3])
    """
    path = file_path("path", path)
    levels = _bytes(x)
    labels = class_labels("y", y, len(levels)).numpy()
    index = np.array(image_indices(indices, len(levels)), dtype=np.int64)
    if len(np.unique(index)) < len(index):
        raise InputError("indices", "distinct indices", "one twice")
    if path.suffix.lower() == ".npz":
        if os.path.lexists(path):
            raise InputError("path", "a new file", f"{str(path)!r}, which exists", "name another")
        content = io.BytesIO()
        np.savez_compressed(content, x=levels, y=labels, index=index)
        write_together(path.parent, {path.name: content.getvalue()})
        return
    if levels.shape[1] not in (1, 3):
        raise InputError("x", "1 or 3 channels for PNG files", levels.shape[1], "save an npz file")
    extra = {name: [_cell(value) for value in values] for name, values in (columns or {}).items()}
    for name, values in extra.items():
        if len(values) != len(levels):
            raise InputError("columns", f"{len(levels)} values of {name}", len(values))
    head = [f"{BEGINS.decode()}{about and '; ' + _cell(about)}", "\t".join((*_COLUMNS, *extra))]
    cells = zip(index.tolist(), labels.tolist(), *extra.values(), strict=True)
    rows = {int(row[0]): [_name(int(row[0])), *map(str, row)] for row in cells}
    _write_folder(path, levels, index.tolist(), head, rows)


def check_image_path(path: str | os.PathLike[str], shape: Sequence[int], option: str = "path") -> None:
    """Raise unless ``save_images`` can write images of this shape to the path, as far as can be known beforehand.

    Raises InputError if the path is an existing file, or a folder that is neither empty nor written by ``save_images``.
    Raises MissingExtraError for PNG if Pillow is not installed.
    """
    path = file_path(option, path)
    if len(shape) != 3:
        raise InputError(option, "none for inputs that are not images", f"shape {shape_text(shape)}")
    if path.suffix.lower() == ".npz":
        if os.path.lexists(path):
            raise InputError(option, "a new file", f"{str(path)!r}, which exists", "name another")
        return
    if shape[0] not in (1, 3):
        raise InputError(option, f"a name that ends in .npz for images of {shape[0]} channels")
    _png(np.zeros((1, 1, 1), np.uint8))
    _existing_rows(path, [], option)


def is_saved(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder has a table of saved images."""
    return (Path(folder) / TABLE).is_file()


def load_saved(folder: str | os.PathLike[str], name: str | None = None) -> ImageSet:
    """Load a folder of PNG files that ``save_images`` wrote, in the order of its table.

    Raises FileFormatError if an image is missing, or if the table or an image is damaged. Raises FileNotFoundError if
    the table is missing, and MissingExtraError without Pillow.
    """
    folder = Path(folder)
    with (folder / TABLE).open("rb") as file:
        content = file.read(_MAX_TABLE)
    try:
        lines = content.decode().splitlines()
        table = [line.split("\t") for line in lines[2:]]
        files = [row[0] for row in table]
        labels = torch.tensor([int(row[2]) for row in table], dtype=torch.int64)
        plain = all(entry == _name(int(row[1])) for entry, row in zip(files, table, strict=True))
        if not content.startswith(BEGINS) or tuple(lines[1].split("\t")[:3]) != _COLUMNS or not plain:
            raise ValueError("unexpected columns")
        if not files or bool((labels < 0).any()) or len(set(files)) < len(files):
            raise ValueError("no image, a negative label, or an image twice")
    except (ValueError, IndexError, RuntimeError) as error:
        raise FileFormatError(f"{folder / TABLE}: not a table of saved images ({error}); save them again") from error
    missing = next((entry for entry in files if not (folder / entry).is_file()), None)
    if missing is not None:
        raise FileFormatError(f"{folder / missing}: expected the image that {TABLE} names, found none; save it again")
    listed = {TABLE, *files}
    unlisted = next((entry for entry in folder.iterdir() if entry.name[0] != "." and entry.name not in listed), None)
    if unlisted is not None:
        raise FileFormatError(
            f"{unlisted}: expected only the images that {TABLE} names; save the images again, as after an interrupted "
            "command, or move it away"
        )
    first = read_picture(folder / files[0])
    check_ratio(first.size * len(files), sum((folder / entry).stat().st_size for entry in files), str(folder))
    levels = np.empty((len(files), *first.shape), np.uint8)
    for row, entry in enumerate(files):
        image = read_picture(folder / entry)
        if image.shape != first.shape:
            raise FileFormatError(f"{folder / entry}: expected the size and mode of {files[0]}; save the images again")
        levels[row] = image
    x = as_pixels(levels, str(folder)).permute(0, 3, 1, 2).contiguous()
    return ImageSet(name or str(folder), x, labels)


def _write_folder(
    folder: Path, levels: npt.NDArray[np.uint8], index: list[int], head: list[str], rows: dict[int, list[str]]
) -> None:
    saved = _existing_rows(folder, head, "path")
    new: list[int] = []
    for position, number in enumerate(index):
        if not (folder / _name(number)).exists():
            new.append(position)
        elif not _same_picture(folder / _name(number), levels[position]):
            raise InputError(
                "path", f"no other image named {_name(number)} in {str(folder)!r}", hint="name a new folder"
            )
    changed = next((number for number, row in rows.items() if saved.get(number, row) != row), None)
    if changed is not None:
        raise InputError(
            "path", f"the row of {_name(changed)} in {str(folder / TABLE)!r}", "another row", "name a new folder"
        )
    rows = saved | rows
    if not folder.exists() or not (folder / TABLE).exists():  # marks the folder as one to complete
        write_together(folder, {TABLE: _table(head, {})})
    for begin in range(0, len(new), _CHUNK):
        write_together(
            folder, {_name(index[position]): _png(levels[position]) for position in new[begin : begin + _CHUNK]}
        )
    write_together(folder, {TABLE: _table(head, rows)})


def _existing_rows(folder: Path, head: list[str], option: str) -> dict[int, list[str]]:
    """Return the rows of a folder's table, {} if it is new or empty; raise InputError if it may not be written to."""
    if not folder.exists():
        return {}
    if not folder.is_dir():
        raise InputError(option, "a folder", f"the file {str(folder)!r}", "name another")
    if all(entry.name.startswith(TEMPORARY) for entry in folder.iterdir()):  # left by a killed writer
        return {}
    table = folder / TABLE
    lines = table.read_text(errors="replace").splitlines() if table.is_file() else []
    if not lines or not lines[0].startswith(BEGINS.decode()):
        raise InputError(option, "a new or empty folder, or one of saved images", repr(str(folder)), "name another")
    if lines[: len(head)] != head:
        raise InputError(
            option,
            f"a folder of the same images, {head[0]!r}",
            f"{str(folder)!r} with {lines[0][:300]!r}",
            "name another",
        )
    rows = [line.split("\t") for line in lines[2:]]
    if not all(len(row) > 1 and row[1].isdecimal() for row in rows):
        raise InputError(option, problem=f"{str(table)!r} is damaged", hint="name another folder")
    return {int(row[1]): row for row in rows}


def _table(head: list[str], rows: dict[int, list[str]]) -> bytes:
    lines = [*head, *("\t".join(rows[number]) for number in sorted(rows))]
    return "".join(f"{line}\n" for line in lines).encode()


def _name(index: int) -> str:
    return f"{index:06d}.png"


def _cell(value: object) -> str:
    """Write a value as text without tabs and line ends; floats in the shortest form, None as empty text."""
    return "" if value is None else " ".join(str(value).split())


def _bytes(x: Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of images; raise InputError for a value that is not k/255."""
    x = float_tensor("x", x)
    if x.dim() != 4 or not x.numel():
        raise InputError("x", "images [N, C, H, W]", f"shape {shape_text(x.shape)}")
    exact = x.detach().cpu().double()
    levels = (exact * 255).round().clamp(0, 255).nan_to_num(0.0)
    same = (levels.float() / 255).double() == exact
    if not bool(same.all()):
        value = float(exact[~same][0])
        share = float((~same).double().mean())
        raise InputError(
            "x",
            "the float32 nearest to k/255 everywhere, as of an attack with grid='1/255'",
            repr(value),
            f"{share:.2%} of the values would change in a file",
        )
    return levels.to(torch.uint8).numpy()


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    """Encode an image [C, H, W] as a PNG file."""
    with extra("data", "PNG: needs Pillow"):
        from PIL import Image
    content = io.BytesIO()
    pixels: npt.NDArray[Any] = image[0] if len(image) == 1 else np.moveaxis(image, 0, -1)
    Image.fromarray(np.ascontiguousarray(pixels)).save(content, format="PNG")
    return content.getvalue()


def _same_picture(path: Path, image: npt.NDArray[np.uint8]) -> bool:
    try:
        return np.array_equal(read_picture(path), np.moveaxis(image, 0, -1))
    except FileFormatError:
        return False
