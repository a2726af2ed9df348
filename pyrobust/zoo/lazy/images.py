"""Images read from a source on demand, and checked against the manifest."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import summary
from pyrobust.errors import FileFormatError, InputError, InputTypeError
from pyrobust.zoo.image_set import LabelledImages
from pyrobust.zoo.lazy.manifest import Manifest, block_hash, cache_path, manifest_of, read_block
from pyrobust.zoo.lazy.source import ImageSource, MapSource, Row

# Number of decoded blocks kept: a chunk that spans the end of a block needs two.
_BLOCKS = 2


class LazyImages(LabelledImages):
    """Labelled images that are read on demand, so that memory does not grow with their number.

    At the first use, all images are read once, and a manifest is made. The manifest has the number of images, their
    shape, the number of classes, the range of the pixel values and the grid on which these lie. It also has a hash of
    the whole set, which equals the ``sha256`` of an `ImageSet` of the same images, and a hash for every block of up to
    256 images. Every later read is checked against the manifest, so that a run never mixes two versions of a data set.
    For files, the manifest is stored in ``$XDG_CACHE_HOME/pyrobust/manifests`` (or ``~/.cache``). It is used again as
    long as the sizes and modification times of the files are the same. The set can be pickled and sent to another
    process, which checks what it reads in the same way. To read one image, its whole block is decoded; two decoded
    blocks are kept.

    Args:
        dataset: map-style data set, with ``__len__`` and ``__getitem__``, such as ``datasets.Dataset`` or a ``Dataset``
            of torch. Its rows are pairs or dictionaries, as for `as_image_set`, of one image [C, H, W] each; tabular
            rows are refused. A row must be the same whenever it is read. For files, use `load_parquet`,
            `load_hugging_face`, `load_tar`, or `load_data` with a spec.
        name: name of the set in logs and tables.

    Raises:
        InputTypeError: the data set has no length or no items.
        InputError, FileFormatError: an image or a label cannot be read, or images differ in shape.

    >>> from pyrobust.zoo import load_data
    >>> digits = load_data("digits")
    >>> data = LazyImages(torch.utils.data.TensorDataset(digits.x, digits.y), "digits")
    >>> data
    LazyImages(name='digits', images=382, shape=(1, 8, 8), classes=10)
    >>> data.sha256 == digits.sha256, bool((data.read([300, 5])[0] == digits.x[[300, 5]]).all())
    (True, True)
    """

    def __init__(self, dataset: Any, name: str) -> None:
        mapped = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not isinstance(dataset, ImageSource) and (not mapped or isinstance(dataset, str)):
            raise InputTypeError(
                "dataset",
                "a map-style data set, with a length and items",
                type(dataset).__name__,
                "read files with load_data, and others into memory with as_image_set",
            )
        self.name = name
        self._source = dataset if isinstance(dataset, ImageSource) else MapSource(dataset, name)
        self._manifest: Manifest = manifest_of(self._source, name)
        self.rounded = self._manifest.rounded
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()
        # The process that opened the stream, and the block that the stream reads next.
        self._stream: tuple[int, int, Iterator[Row]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_lock", "_blocks", "_stream")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def __repr__(self) -> str:
        return summary(self, name=self.name, images=len(self), shape=self.shape, classes=self.num_classes)

    def __len__(self) -> int:
        return self._manifest.images

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        return self._manifest.shape

    @property
    def num_classes(self) -> int:
        """The largest label plus one; a model for this set needs at least that many outputs."""
        return self._manifest.num_classes

    @property
    def sha256(self) -> str:
        """SHA-256 that an `ImageSet` of the same images and labels has."""
        return self._manifest.sha256

    @property
    def grid(self) -> Fraction | None:
        """The step of the first common grid on which all pixel values lie (`pyrobust.grid.find_grid`), or None."""
        return self._manifest.grid

    @property
    def extremes(self) -> tuple[float, float]:
        """The lowest and the highest pixel of the set."""
        return self._manifest.low, self._manifest.high

    def _read(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        x, y = torch.empty(len(indices), *self.shape, dtype=torch.float32), torch.empty(len(indices), dtype=torch.int64)
        places: dict[int, list[int]] = {}
        for position, index in enumerate(indices):
            places.setdefault(index // self._manifest.block, []).append(position)
        with self._lock:
            for block, wanted in places.items():
                pixels, labels = self._block(block)
                rows = [indices[position] % self._manifest.block for position in wanted]
                x[wanted], y[wanted] = pixels[rows], labels[rows]
        return x, y

    def _block(self, block: int) -> tuple[Tensor, Tensor]:
        """Return a block that agrees with the manifest, from the cache or from the source."""
        if block in self._blocks:
            self._blocks.move_to_end(block)
            return self._blocks[block]
        manifest, stream, self._stream = self._manifest, self._stream, None
        start = block * manifest.block
        count = min(manifest.block, len(self) - start)
        if stream is not None and stream[:2] == (os.getpid(), block):
            rows = stream[2]
        else:
            rows = self._source.rows(manifest.positions[block])
        while len(self._blocks) >= _BLOCKS:
            self._blocks.popitem(last=False)
        try:
            _, x, y = read_block(rows, count, manifest.shape, self.name, start)
            if block_hash(x, y) != manifest.hashes[block]:
                raise FileFormatError("their hash differs")
        except (FileFormatError, InputError, OSError) as error:
            raise self._changed(start, count, error) from error
        self._stream = os.getpid(), block + 1, rows
        self._blocks[block] = x, y
        return x, y

    def _changed(self, start: int, count: int, error: Exception) -> FileFormatError:
        """Return the error for a block that differs from the manifest, and drop the manifest."""
        files, images = self._source.files, f"images {start} to {start + count - 1}"
        if not files:
            return FileFormatError(
                f"data: {self.name}: {images}: expected the rows that the first reading gave, got others ({error}); "
                "remove random transforms"
            )
        with contextlib.suppress(OSError):
            path = cache_path(self._source)
            if path is not None:
                path.unlink(missing_ok=True)
        return FileFormatError(
            f"{files[self._manifest.positions[start // self._manifest.block][0]]}: {images} have changed since the "
            f"manifest was made, or another version of Pillow decodes them ({error}); restore the file, or load the "
            "data set again"
        )
