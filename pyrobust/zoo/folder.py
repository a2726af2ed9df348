"""Loading PNG and JPEG files from one folder per class."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import torch

from pyrobust.errors import FileFormatError, extra
from pyrobust.zoo.image_set import ImageSet
from pyrobust.zoo.untrusted import as_pixels, check_distinct, check_ratio

logger = logging.getLogger(__name__)

_SUFFIXES = (".png", ".jpg", ".jpeg")
_MAX_PIXELS = 1 << 24


def load_folder(folder: str | Path, name: str | None = None) -> ImageSet:
    """Load images from one subfolder per class. Needs Pillow (the extra ``data``).

    The subfolders in sorted order are the classes 0, 1, …, and their PNG and JPEG files in sorted order are the images.
    All images must have 8 bits per channel and the same size, and be all grey or all RGB. Files and folders whose names
    start with a dot are skipped. The set is named after the path unless ``name`` is given. Names are sorted as text, as
    in torchvision: 10 before 2. A warning is logged if all folder names are numbers, but some differ from the numbers
    of their classes. Returns x [N, 1 or 3, H, W] with values level/255, and y [N].

    Raises MissingExtraError without Pillow. Raises FileFormatError if the folder is missing or cannot be read. Also
    raises FileFormatError for a class that has no image, that contains other files or folders, or that has two images
    whose names differ only in the suffix. Also raises it for an image that is damaged, that differs from other images
    in size or mode, or that is, through a symbolic link, the same file as another image.

    >>> load_folder("/nowhere")
    Traceback (most recent call last):
    pyrobust.errors.FileFormatError: /nowhere: expected a folder with one subfolder of images per class
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileFormatError(f"{folder}: expected a folder with one subfolder of images per class")
    files: list[tuple[Path, int]] = []
    for label, entry in enumerate(_visible(folder)):
        if not entry.is_dir():
            raise FileFormatError(
                f"{entry}: expected only one subfolder per class in {folder}, got a file; move it away"
            )
        stems: dict[str, Path] = {}
        for path in _visible(entry):
            if not path.is_file() or path.suffix.lower() not in _SUFFIXES:
                raise FileFormatError(
                    f"{path}: expected only PNG and JPEG files in {entry}; convert it or move it away"
                )
            other = stems.setdefault(path.stem, path)
            if other is not path:
                raise FileFormatError(
                    f"{path}: expected one file for each image, got {other.name} too; rename one, or move it away"
                )
            files.append((path, label))
        if not stems:
            raise FileFormatError(
                f"{entry}: expected at least one PNG or JPEG file, because every subfolder is a class, got none; move "
                "the folder away"
            )
    if not files:
        raise FileFormatError(f"{folder}: expected one subfolder of PNG or JPEG files per class, got no image")
    check_distinct(path for path, _ in files)
    _note_numbers(list(dict.fromkeys(path.parent.name for path, _ in files)))
    first = read_picture(files[0][0])
    check_ratio(first.size * len(files), sum(path.stat().st_size for path, _ in files), str(folder))
    levels = np.empty((len(files), *first.shape), np.uint8)
    for row, (path, _) in enumerate(files):
        image = read_picture(path)
        if image.shape != first.shape:
            raise FileFormatError(
                f"{path}: expected {_describe(first)} like {files[0][0]}, got {_describe(image)}; resize or convert it"
            )
        levels[row] = image
    x = as_pixels(levels, str(folder)).permute(0, 3, 1, 2).contiguous()
    return ImageSet(name or str(folder), x, torch.tensor([label for _, label in files]))


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise FileFormatError(f"{folder}: cannot be read ({error.strerror}); check its permissions") from error


def _note_numbers(classes: list[str]) -> None:
    """Warn if all class names are numbers, but some differ from the numbers of their classes."""
    wrong = [(label, name) for label, name in enumerate(classes) if name.isdecimal() and int(name) != label]
    if wrong and all(name.isdecimal() for name in classes):
        label, name = wrong[0]
        logger.warning(
            "folder: subfolders are numbered by their sorted names, so that %s is class %d; check that the model "
            "numbers them so, or name them by their classes from 0 on, all with the same number of digits",
            name,
            label,
        )


def read_picture(file: Path | IO[bytes], where: str | None = None) -> npt.NDArray[np.uint8]:
    """Read one PNG or JPEG image as uint8 [H, W, C].

    The errors are the same as for ``load_folder``. Their messages name ``where`` if it is given, and the file
    otherwise.
    """
    where = where or str(file)
    with extra("data", "data: PNG and JPEG files need Pillow"):
        from PIL import Image
    try:
        with Image.open(file, formats=["PNG", "JPEG"]) as image:
            # Pillow silently reduces 16-bit RGB to 8 bits, and reads only the first picture of an animation.
            deep = image.format == "PNG" and any("16" in str(tile[3]) for tile in image.tile)
            animated = image.format == "PNG" and getattr(image, "is_animated", False)
            if image.mode not in ("L", "RGB") or deep or animated or image.width * image.height > _MAX_PIXELS:
                kind = "16 bits, " if deep else "an animation, " if animated else ""
                raise FileFormatError(
                    f"{where}: expected 8-bit grey or RGB and at most {_MAX_PIXELS} pixels, got {kind}mode "
                    f"{image.mode}, {image.width}x{image.height}; convert it"
                )
            return np.atleast_3d(np.asarray(image, np.uint8))
    except FileFormatError:
        raise
    except Exception as error:  # decoders raise arbitrary exceptions on damaged files, even SyntaxError
        raise FileFormatError(f"{where}: not a readable PNG or JPEG file ({error}); save it again") from error


def _describe(image: npt.NDArray[np.uint8]) -> str:
    height, width, channels = image.shape
    return f"{width}x{height} {'grey' if channels == 1 else 'RGB'}"
