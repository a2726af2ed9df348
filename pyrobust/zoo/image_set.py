"""Labelled images: the interface through which a sweep reads any data set, and its in-memory implementation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from pyrobust.checks import as_tensor, first_wrong, integer, kind, label_hint, summary
from pyrobust.errors import InputError, InputTypeError
from pyrobust.grid import CANDIDATES, find_grid, is_on_grid
from pyrobust.zoo.hashing import hash_tensors

#: Whether float32 rounds float64 values of a data set and, if so, whether these values are on a grid.
Rounded = Literal["no", "grid", "yes"]

#: Warning about rounded images, with the name of their set.
ROUNDED = "%s: float64 images rounded to float32, which distances are of"


class Float32Rounding:
    """Records whether a data set has float64 values that float32 cannot represent, and whether these are on a grid.

    >>> rounding = Float32Rounding()
    >>> rounding.found
    'no'
    >>> rounding(torch.tensor([0.1], dtype=torch.float64))
    >>> rounding.found
    'yes'
    """

    def __init__(self) -> None:
        self._steps: list[Fraction] | None = None

    def __call__(self, x: Tensor) -> None:
        """Take note of a float64 tensor in which rounding to float32 changes at least one value."""
        steps = [Fraction(1), *CANDIDATES] if self._steps is None else self._steps
        self._steps = [step for step in steps if is_on_grid(x, step)]

    @property
    def found(self) -> Rounded:
        """Rounding so far: "no" if no value was rounded, "grid" if the float64 values are on a grid, else "yes"."""
        return "no" if self._steps is None else "grid" if self._steps else "yes"


class LabelledImages(ABC):
    """Images of one shape with their labels, in a fixed order, read by index.

    An `ImageSet` holds the images in memory; other sets read them from files on demand. Two sets with the same pixels
    and labels have the same ``sha256``, wherever they are stored.

    >>> data: LabelledImages = ImageSet("two", torch.zeros(2, 1, 8, 8), torch.tensor([3, 1]))
    >>> x, y = data.read([1, 0])
    >>> x.shape, y, data.shape, data.extremes
    (torch.Size([2, 1, 8, 8]), tensor([1, 3]), (1, 8, 8), (0.0, 0.0))
    """

    #: Name of the set in logs and tables.
    name: str
    #: "yes" if the data hold float64 values that float32 rounds, "grid" if these values are on a grid. A certificate
    #: does not cover such values; sweeps that certify accept "grid" only if they certify on a grid.
    rounded: Rounded = "no"

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of every image. For inputs that are not images, only the number of features."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """The largest label plus one; a model for this set needs at least this number of outputs."""

    @property
    @abstractmethod
    def sha256(self) -> str:
        """SHA-256 of shape, dtype and little-endian bytes of pixels and labels, in hex; the name is not included."""

    @property
    @abstractmethod
    def grid(self) -> Fraction | None:
        """The step of the first common grid on which all pixel values lie (`pyrobust.grid.find_grid`), or None."""

    @property
    @abstractmethod
    def extremes(self) -> tuple[float, float]:
        """The lowest and the highest pixel of the set."""

    def read(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the images at these indices, float32 [B, C, H, W] or [B, D], and the labels, int64 [B], in this order.

        Raises InputError for an index outside [0, N). Raises FileFormatError if the files no longer hold the images
        whose hash is ``sha256``.
        """
        rows = [integer("indices", index, 0, len(self) - 1) for index in indices]
        return self._read(rows)

    @abstractmethod
    def _read(self, indices: list[int]) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, eq=False)
class ImageSet(LabelledImages):
    """Images in memory, with their labels.

    Args:
        name: name of the set in logs and tables.
        x: images [N, C, H, W] or tabular inputs [N, D]; float32, finite, on the CPU. Values of images read from files
            are in [0, 1].
        y: class of each image, int64 [N], at least 0.
        rounded: as for `LabelledImages`.

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
    rounded: Rounded = field(default="no", repr=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            tensor = as_tensor(getattr(self, name))  # converts an array or a list
            if tensor is None:
                raise InputTypeError(
                    f"ImageSet {self.name}: {name}",
                    "a tensor, an array or a list",
                    kind(getattr(self, name)),
                    label_hint(getattr(self, name)),
                )
            object.__setattr__(self, name, tensor)
        if self.x.dtype != torch.float32 or self.y.dtype != torch.int64:
            raise InputTypeError(
                f"ImageSet {self.name}",
                "x float32 and y int64",
                f"{self.x.dtype} and {self.y.dtype}",
                "convert with x.float() and y.long()",
            )
        if self.x.dim() not in (2, 4) or self.y.dim() != 1 or len(self.x) != len(self.y):
            raise InputError(
                f"ImageSet {self.name}",
                "x [N, C, H, W] or [N, D] and y [N] with the same N",
                f"{list(self.x.shape)} and {list(self.y.shape)}",
            )
        if self.x.numel() == 0:
            raise InputError(f"ImageSet {self.name}", "at least one pixel", f"x {list(self.x.shape)}")
        finite = torch.isfinite(self.x).flatten(1).all(1)
        if not bool(finite.all()):
            bad = int((~finite).nonzero()[0])
            raise InputError(
                f"ImageSet {self.name}: x",
                "finite pixels",
                f"{first_wrong(self.x[bad], ~self.x[bad].isfinite())} of image {bad}",
                "remove or repair it",
            )
        if int(self.y.min()) < 0:
            bad = int((self.y < 0).nonzero()[0])
            raise InputError(f"ImageSet {self.name}: y", "non-negative labels", f"{int(self.y[bad])} for image {bad}")

    def __repr__(self) -> str:
        images, *shape = self.x.shape
        return summary(self, name=self.name, images=images, shape=tuple(shape), classes=self.num_classes)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of every image, or the number of features."""
        return tuple(self.x.shape[1:])

    @property
    def num_classes(self) -> int:
        """The largest label plus one; a model for this set needs at least this number of outputs."""
        return int(self.y.max()) + 1

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of shape, dtype and little-endian bytes of x and y, in hex; the name is not included."""
        return hash_tensors({"x": self.x, "y": self.y})

    @cached_property
    def grid(self) -> Fraction | None:
        """The step of the first common grid on which all pixel values lie (`pyrobust.grid.find_grid`), or None."""
        return find_grid(self.x)

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """The lowest and the highest pixel of the set."""
        low, high = self.x.aminmax()
        return float(low), float(high)

    def _read(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(indices, dtype=torch.int64)
        return self.x[rows], self.y[rows]
