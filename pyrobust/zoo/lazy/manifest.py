"""Manifests: properties of a data set, found in one pass over it, and hashes of its blocks to check later reads."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from pyrobust.checks import WORDS
from pyrobust.errors import FileFormatError, StoreError
from pyrobust.grid import CANDIDATES, is_on_grid
from pyrobust.zoo.files import write_atomically
from pyrobust.zoo.hashing import ImagesDigest
from pyrobust.zoo.image_set import Float32Rounding, Rounded
from pyrobust.zoo.lazy.source import START, ImageSource, Position, Row

logger = logging.getLogger(__name__)

_FORMAT = "pyrobust manifest 3"
# Most images and pixels in a block, which is decoded as a whole to read one of its images.
_BLOCK_IMAGES, _BLOCK_PIXELS = 256, 1 << 22
_STEPS = (Fraction(1), *CANDIDATES)
_MAX_FILE = 1 << 28
# Seconds between progress messages.
_INTERVAL = 10.0


@dataclass(frozen=True)
class Manifest:
    """Properties of a data set, and hashes that identify the data set and its blocks.

    Attributes:
        images: number of images.
        shape: channels, height and width.
        num_classes: the largest label plus one.
        low, high: the lowest and the highest pixel.
        grid: result of ``find_grid`` for all pixels.
        rounded: whether rounding to float32 changes pixels, see ``LabelledImages.rounded``.
        sha256: the value of ``ImageSet.sha256`` for the same images and labels.
        block: number of images in each block but the last.
        positions: position of the first image of each block.
        hashes: SHA-256 of the pixels and labels of each block.
    """

    images: int
    shape: tuple[int, int, int]
    num_classes: int
    low: float
    high: float
    grid: Fraction | None
    rounded: Rounded
    sha256: str
    block: int
    positions: tuple[Position, ...]
    hashes: tuple[str, ...]


def manifest_of(source: ImageSource, name: str) -> Manifest:
    """Return the manifest of a source: from the user's cache folder if it is there, else from one pass over the images.

    Raises FileFormatError or InputError if the pass finds an image that cannot be read.
    """
    path = cache_path(source)
    kept = None if path is None else _read(path, len(source.files))
    if kept is not None:
        return kept
    manifest = make_manifest(source, name)
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(path, _encoded(manifest))
        except (OSError, StoreError) as error:
            logger.info("%s: manifest not kept (%s); the next load reads all images again", name, error)
    return manifest


def make_manifest(source: ImageSource, name: str) -> Manifest:
    """Read all images once, and return their manifest."""
    images, begin, reported = source.count(), time.monotonic(), 0.0
    rounding = Float32Rounding()
    rows = source.rows(START, rounding)
    first = next(rows, None)
    if first is None or not 0 < images <= WORDS:
        raise FileFormatError(f"data: {name}: expected 1 to 2**32 images, got {images if first else 0}")
    rows = itertools.chain([first], rows)
    channels, height, width = shape = _shape(first[1], name)
    block = max(1, min(_BLOCK_IMAGES, _BLOCK_PIXELS // math.prod(shape)))
    digest, labels = ImagesDigest(images, shape), np.empty(images, np.int64)
    low, high, steps = math.inf, -math.inf, list(_STEPS)
    positions: list[Position] = []
    hashes: list[str] = []
    for start in range(0, images, block):
        position, x, y = read_block(rows, min(block, images - start), shape, name, start)
        positions.append(position)
        hashes.append(block_hash(x, y))
        digest.update(x)
        labels[start : start + len(y)] = y.numpy()
        least, most = (float(extreme) for extreme in x.aminmax())
        low, high = min(low, least), max(high, most)
        steps = [step for step in steps if is_on_grid(x, step)]
        if time.monotonic() - begin > reported + _INTERVAL:
            reported = time.monotonic() - begin
            logger.info("%s: manifest: %d of %d images read in %.0f s", name, start + len(y), images, reported)
    if next(rows, None) is not None:
        raise FileFormatError(f"data: {name}: expected {images} images, got more; a file changes as it is read")
    if max(-low, high) <= 1:  # as find_grid does
        steps = [step for step in steps if step != 1]
    return Manifest(
        images,
        (channels, height, width),
        int(labels.max()) + 1,
        low,
        high=high,
        grid=steps[0] if steps else None,
        rounded=rounding.found,
        sha256=digest.hexdigest(torch.from_numpy(labels)),
        block=block,
        positions=tuple(positions),
        hashes=tuple(hashes),
    )


def read_block(
    rows: Iterator[Row], count: int, shape: tuple[int, int, int], name: str, first: int
) -> tuple[Position, Tensor, Tensor]:
    """Take images from a stream; return the first one's position, the images [count, C, H, W] and the labels [count].

    Raises FileFormatError if the stream ends early, or an image has another shape.
    """
    x, y = torch.empty(count, *shape, dtype=torch.float32), torch.empty(count, dtype=torch.int64)
    position = START
    for index in range(count):
        row = next(rows, None)
        if row is None:
            raise FileFormatError(f"data: {name}: expected an image {first + index}, found the end of the data")
        if not index:
            position = row[0]
        if tuple(row[1].shape) != shape:
            raise FileFormatError(
                f"data: {name}: image {first + index}: expected {list(shape)} like image 0, got "
                f"{list(row[1].shape)}; resize or convert it"
            )
        x[index], y[index] = row[1], row[2]
    return position, x, y


def block_hash(x: Tensor, y: Tensor) -> str:
    """Return the SHA-256 of the little-endian bytes of pixels and labels, in hex.

    >>> block_hash(torch.zeros(1, 1, 1, 1), torch.tensor([0]))[:8]
    '15ec7bf0'
    """
    digest = hashlib.sha256(x.numpy().data)
    digest.update(y.numpy().data)
    return digest.hexdigest()


def cache_path(source: ImageSource) -> Path | None:
    """Return the path for a source's manifest, derived from its files' sizes and times; None if it is not stored."""
    if not source.files:
        return None
    stats = [(path, path.stat()) for path in source.files]
    key = [_FORMAT, _pillow(), *source.options, [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]]
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    except RuntimeError:  # a user without a home folder, such as in some containers
        return None
    return folder / "pyrobust" / "manifests" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:40]}.json"


def _pillow() -> str:
    """Return Pillow's version for the manifest's path, as another version may decode JPEG files to other pixels."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("pillow")
    return ""


def _shape(image: Tensor, name: str) -> tuple[int, int, int]:
    if image.dim() != 3 or not image.numel():
        raise FileFormatError(f"data: {name}: expected images [C, H, W], got {list(image.shape)}")
    channels, height, width = image.shape
    return channels, height, width


def _encoded(manifest: Manifest) -> bytes:
    """Encode a manifest as two lines: the SHA-256 of the second line, and the manifest as JSON."""
    fields = dataclasses.asdict(manifest) | {"grid": None if manifest.grid is None else str(manifest.grid)}
    body = json.dumps(fields).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _read(path: Path, files: int) -> Manifest | None:
    """Return the manifest in a file; None if the file is missing, incomplete, or not owned by the user."""
    try:
        status = path.stat()
        if status.st_uid != os.geteuid() or status.st_size > _MAX_FILE:
            return None
        digest, _, body = path.read_bytes().partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            raise ValueError("its hash differs")
        return _checked(json.loads(body), files)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        logger.info("%s: not a manifest (%s); it is made again", path, error)
        return None


def _checked(fields: dict[str, Any], files: int) -> Manifest:
    """Build a manifest from untrusted fields; raise ValueError, TypeError or KeyError if they are invalid."""
    whole = [
        fields["images"],
        fields["num_classes"],
        fields["block"],
        *fields["shape"],
        *itertools.chain(*fields["positions"]),
    ]
    hashes = [fields["sha256"], *fields["hashes"]]
    low, high = fields["low"], fields["high"]
    grid = None if fields["grid"] is None else Fraction(fields["grid"])
    if not all(type(value) is int and value >= 0 for value in whole) or not all(map(_is_hash, hashes)):
        raise ValueError("numbers or hashes of another form")
    manifest = Manifest(
        **fields
        | {
            "shape": tuple(fields["shape"]),
            "grid": grid,
            "positions": tuple(map(tuple, fields["positions"])),
            "hashes": tuple(fields["hashes"]),
        }
    )
    blocks = -(-manifest.images // manifest.block) if manifest.block else -1
    if (
        not 0 < manifest.images <= WORDS
        or len(manifest.shape) != 3
        or not 0 < manifest.block * math.prod(manifest.shape) <= max(_BLOCK_PIXELS, math.prod(manifest.shape))
        or not 0 < manifest.num_classes <= 1 << 31
        or not (type(low) is type(high) is float and math.isfinite(low) and math.isfinite(high) and low <= high)
        or (grid is not None and grid not in _STEPS)
        or manifest.rounded not in get_args(Rounded)
        or len(manifest.positions) != blocks
        or len(manifest.hashes) != blocks
        or any(len(position) != 3 or position[0] >= files for position in manifest.positions)
    ):
        raise ValueError("values out of range")
    return manifest


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef")
