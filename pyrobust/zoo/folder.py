"""Images as PNG and JPEG files, one folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pyrobust.errors import FileFormatError, MissingExtraError
from pyrobust.zoo.image_set import ImageSet
from pyrobust.zoo.untrusted import as_pixels, check_ratio

_SUFFIXES = (".png", ".jpg", ".jpeg")
_MOST_PIXELS = 1 << 24


def load_folder(folder: str | Path, name: str | None = None) -> ImageSet:
    """Images from one subfolder per class. Needs Pillow, the extra ``data``.

    Args:
        folder: its subfolders in sorted order are the classes 0, 1, …; their PNG and JPEG files in sorted order the
            images, all of one size, all grey or all RGB, 8 bits. Names that start with a dot are left out.
        name: of the set; default the path.

    Returns:
        x [N, 1 or 3, H, W], level/255, and y [N].

    Raises:
        MissingExtraError: Pillow is not installed.
        FileFormatError: there is no such folder or no image in it, something else lies there, an image is damaged or
            differs in size or mode.

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
            raise FileFormatError(f"{entry}: expected only one subfolder per class in {folder}; move it away")
        for path in _visible(entry):
            if not path.is_file() or path.suffix.lower() not in _SUFFIXES:
                raise FileFormatError(
                    f"{path}: expected only PNG and JPEG files in {entry}; convert it or move it away"
                )
            files.append((path, label))
    if not files:
        raise FileFormatError(f"{folder}: holds no PNG or JPEG file; expected one subfolder of images per class")
    first = _read(files[0][0])
    check_ratio(first.size * len(files), sum(path.stat().st_size for path, _ in files), str(folder))
    levels = np.empty((len(files), *first.shape), np.uint8)
    for row, (path, _) in enumerate(files):
        image = _read(path)
        if image.shape != first.shape:
            raise FileFormatError(
                f"{path}: expected {_describe(first)} as {files[0][0]} is, got {_describe(image)}; resize or convert it"
            )
        levels[row] = image
    x = as_pixels(levels, str(folder)).permute(0, 3, 1, 2).contiguous()
    return ImageSet(name or str(folder), x, torch.tensor([label for _, label in files]))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _read(path: Path) -> npt.NDArray[np.uint8]:
    """One image, [H, W, C]."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError('folder: needs Pillow; install it with pip install "pyrobust[data]"') from error
    try:
        with Image.open(path, formats=["PNG", "JPEG"]) as image:
            if image.mode not in ("L", "RGB") or image.width * image.height > _MOST_PIXELS:
                raise FileFormatError(
                    f"{path}: expected 8-bit grey or RGB and at most {_MOST_PIXELS} pixels, got mode {image.mode}, "
                    f"{image.width}x{image.height}; convert it"
                )
            return np.atleast_3d(np.asarray(image, np.uint8))
    except FileFormatError:
        raise
    except Exception as error:  # decoders raise what they like on damaged files, SyntaxError among it
        raise FileFormatError(f"{path}: not a readable PNG or JPEG file ({error}); save it again") from error


def _describe(image: npt.NDArray[np.uint8]) -> str:
    height, width, channels = image.shape
    return f"{width}x{height} {'grey' if channels == 1 else 'RGB'}"
