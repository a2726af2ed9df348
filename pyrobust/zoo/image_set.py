"""Labelled images in memory, the data type that all data sets are loaded into."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from pyrobust.checks import first_wrong, summary
from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo.hashing import hash_tensors


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with their labels.

    Args:
        name: name of the set in logs and tables.
        x: images, float32 [N, C, H, W], finite, on the CPU; in [0, 1] if read from files.
        y: class of each image, int64 [N], at least 0.

    Raises:
        InputTypeError: x or y has another dtype.
        InputError: x or y has another shape, there is no image, a pixel is NaN or infinite, or a label is negative.

    >>> data = ImageSet("two", torch.zeros(2, 1, 8, 8), torch.tensor([3, 1]))
    >>> len(data), data.num_classes, data.sha256[:8]
    (2, 4, '24dc6af2')
    """

    name: str
    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.x.dtype != torch.float32 or self.y.dtype != torch.int64:
            raise InputTypeError(
                f"ImageSet {self.name}: expected x float32 and y int64, got {self.x.dtype} and {self.y.dtype}; "
                "convert with x.float() and y.long()"
            )
        if self.x.dim() != 4 or self.y.dim() != 1 or len(self.x) != len(self.y):
            raise InputError(
                f"ImageSet {self.name}: expected x [N, C, H, W] and y [N] with the same N, got {list(self.x.shape)} "
                f"and {list(self.y.shape)}"
            )
        if self.x.numel() == 0:
            raise InputError(f"ImageSet {self.name}: expected at least one pixel, got x {list(self.x.shape)}")
        finite = torch.isfinite(self.x).flatten(1).all(1)
        if not bool(finite.all()):
            bad = int((~finite).nonzero()[0])
            raise InputError(
                f"ImageSet {self.name}: x: expected finite pixels, got "
                f"{first_wrong(self.x[bad], ~self.x[bad].isfinite())} of image {bad}; remove or repair it"
            )
        if int(self.y.min()) < 0:
            bad = int((self.y < 0).nonzero()[0])
            raise InputError(
                f"ImageSet {self.name}: y: expected non-negative labels, got {int(self.y[bad])} for image {bad}"
            )

    def __repr__(self) -> str:
        images, *shape = self.x.shape
        return summary(self, name=self.name, images=images, shape=tuple(shape), classes=self.num_classes)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_classes(self) -> int:
        """The largest label plus one; a model for this set needs at least that many outputs."""
        return int(self.y.max()) + 1

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of shape, dtype and little-endian bytes of x and y, in hex; the name is not included."""
        return hash_tensors({"x": self.x, "y": self.y})
