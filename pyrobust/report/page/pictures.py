"""Pictures of examples, their adversarial examples and the difference, as data URIs."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.evaluation import Run
from pyrobust.zoo import LabelledImages

# Longest side of an embedded picture in pixels; larger pictures are scaled down and compressed with loss.
_LONGEST = 96
_QUALITY = 90

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Picture:
    """Pictures of one example.

    Attributes:
        clean, adversarial, difference: data URIs; the last two are "" where no adversarial example is known.
        largest: largest change of a value, in the unit of the input.
        scale: factor by which the difference is multiplied, so that the largest change becomes white or black; 0 if
            there is no difference.
        width, height: size of the originals, in pixels.
    """

    clean: str
    adversarial: str
    difference: str
    largest: float
    scale: float
    width: int
    height: int


@dataclass(frozen=True, eq=False)
class Pictures:
    """Source of the pictures of a subject.

    Attributes:
        images: the data set.
        adversarial: a mapping from data-set indices to runs. For each example with an adversarial example, it gives the
            run that found the nearest one.
    """

    images: LabelledImages
    adversarial: Mapping[int, Run]

    @property
    def about(self) -> str:
        """Return notes on how the pictures were made, apart from those in the captions; "" if there are no notes."""
        channels, height, width = self.images.shape
        notes = []
        if channels not in (1, 3):
            notes.append(f"Only the first of {channels} channels is shown.")
        low, high = self._range
        if (low, high) != (0.0, 1.0):
            notes.append(f"Black is {low:g} and white {high:g}, the smallest and largest value of the data.")
        if max(height, width) > _LONGEST:
            notes.append(f"Pictures are scaled down from {width} × {height} pixels.")
        return " ".join(notes)

    @cached_property
    def _range(self) -> tuple[float, float]:
        low, high = self.images.extremes
        if low >= 0 and high <= 1:
            return 0.0, 1.0
        return low, high if high > low else low + 1

    def of(self, indices: Sequence[int]) -> dict[int, Picture]:
        """Return the pictures of some examples by their data-set indices."""
        shape = list(self.images.shape)
        wanted: dict[Run, list[int]] = {}
        for index in indices:
            run = self.adversarial.get(index)
            if run is not None and run.parameters["shape"] == shape:
                wanted.setdefault(run, []).append(index)
        changed: dict[int, Tensor] = {}
        for run, rows in wanted.items():
            changed |= zip(rows, run.examples(rows), strict=True)
        clean = self.images.read(indices)[0]
        return {index: self._picture(x, changed.get(index)) for index, x in zip(indices, clean, strict=True)}

    def _picture(self, image: Tensor, adversarial: Tensor | None) -> Picture:
        low, high = self._range
        clean = image.double().numpy()
        height, width = clean.shape[1:]
        if adversarial is None:
            return Picture(_encoded((clean - low) / (high - low)), "", "", 0.0, scale=0.0, width=width, height=height)
        changed = adversarial.double().numpy()
        difference = changed - clean
        largest = float(np.abs(difference).max())
        scale = (high - low) / (2 * largest) if largest > 0 else 1.0
        return Picture(
            _encoded((clean - low) / (high - low)),
            _encoded((changed - low) / (high - low)),
            _encoded(0.5 + scale * difference / (high - low)),
            largest,
            scale=scale,
            width=width,
            height=height,
        )


def _encoded(image: _Floats) -> str:
    """Encode an image [C, H, W] with values in [0, 1] as a data URI."""
    from PIL import Image

    levels = np.clip(np.rint(255 * image), 0, 255).astype(np.uint8)
    picture = Image.fromarray(np.moveaxis(levels, 0, -1)) if len(levels) == 3 else Image.fromarray(levels[0])
    buffer, form = io.BytesIO(), "png"
    if max(picture.size) > _LONGEST:
        form = "jpeg"
        picture.thumbnail((_LONGEST, _LONGEST))
        picture.save(buffer, format=form, quality=_QUALITY)
    else:
        picture.save(buffer, format=form, optimize=True)
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
