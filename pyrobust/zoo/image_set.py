"""Labelled images in memory, the one form in which data reaches the rest of the package."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and their labels.

    Args:
        name: what the set is called in logs and tables.
        x: float32 [N, C, H, W], finite, on the CPU. Readers of files deliver pixels in [0, 1].
        y: int64 [N], the class of each image, at least 0.

    Raises:
        InputTypeError: another dtype.
        InputError: another shape, no image at all, a pixel that is NaN or infinite, a negative label.

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
            raise InputError(f"ImageSet {self.name}: x: image {bad} has a NaN or infinite pixel; remove or repair it")
        if int(self.y.min()) < 0:
            bad = int((self.y < 0).nonzero()[0])
            raise InputError(
                f"ImageSet {self.name}: y: expected class numbers from 0 on, got {int(self.y[bad])} for image {bad}"
            )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_classes(self) -> int:
        """The largest label plus one: a model for this set needs at least that many outputs."""
        return int(self.y.max()) + 1

    @cached_property
    def sha256(self) -> str:
        """SHA-256 in hex over shape, dtype and little-endian bytes of x and y; the name is not part of it."""
        return hash_tensors({"x": self.x, "y": self.y})


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 in hex over the names, dtypes, shapes and bytes of tensors.

    Each part is preceded by its length, so that no two different inputs feed the same bytes.

    Args:
        tensors: names and dense tensors of any dtype and device; their order does not matter.

    Returns:
        64 hexadecimal digits.

    >>> hash_tensors({"a": torch.ones(2)}) == hash_tensors({"a": torch.ones(1, 2)})
    False
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        feed(digest, f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        feed(digest, tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def feed(digest: hashlib._Hash, part: bytes | memoryview) -> None:
    """Adds a part to a hash, its length first."""
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)
