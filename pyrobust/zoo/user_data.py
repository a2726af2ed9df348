"""Labelled images from a user's own objects and code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pyrobust.checks import exact_cast
from pyrobust.errors import InputError, InputTypeError
from pyrobust.grid import find_grid
from pyrobust.zoo.image_set import Float32Rounding, ImageSet, LabelledImages
from pyrobust.zoo.rows import as_batch, checked_classes, is_batch
from pyrobust.zoo.user_code import call_without_arguments, find_object, working_directory_importable


def load_from_code(spec: str, most: int | None, forms: str) -> LabelledImages:
    """Load images from a user's callable, named by ``spec``; error messages show ``forms``, the valid kinds of spec."""
    with working_directory_importable():
        try:
            function = find_object(spec, "data")
        except InputError as error:
            error.hint = f"expected one of {forms}"
            raise
        if not callable(function):
            raise InputTypeError("data", "a callable", type(function).__name__, where=spec)
        data = call_without_arguments(function, spec, "data")
        return data if isinstance(data, LabelledImages) else as_image_set(data, spec, most)


def as_image_set(
    data: Any,
    name: str,
    most: int | None = None,
    *,
    rounding: Literal["keep", "refuse", "grid"] = "keep",
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """Read labelled images of any of the usual forms into memory.

    Args:
        data: a pair (x, y) of tensors, arrays or lists; or an iterable or map-style data set, such as torch's
            ``DataLoader`` or ``Dataset``. The items of a data set are pairs or dictionaries. A pair is an image with
            its label, or a batch with labels. A dictionary, as in Hugging Face's data sets, has an image (key "image",
            "img", "pixel_values" or "x") and a label (key "label", "labels", "y" or "cls"). Images are tensors or
            arrays [C, H, W], or pictures of Pillow. Floats may have any range. float64 is rounded to float32, and uint8
            is divided by 255.
        name: name of the set.
        most: number of images after which reading stops. It is ignored if the data have a length. By default, all
            images are read.
        rounding: treatment of float64 images with values that float32 does not represent. "keep" rounds the values and
            notes this in the set's ``rounded``, so that attacks warn and certification refuses the set. "refuse" raises
            an error. "grid" raises an error if the images are on none of the usual grids, such as the multiples of
            1/255, and otherwise rounds like "keep".
        classes: if the labels are names, the names of all classes, in the order of the model's outputs.

    Returns:
        The images and labels.

    Raises:
        InputError: the data have another form or no image, the images have different shapes, or ``rounding`` refuses a
            value.

    >>> as_image_set([(torch.zeros(1, 8, 8), 3), (torch.ones(1, 8, 8), 1)], "two")
    ImageSet(name='two', images=2, shape=(1, 8, 8), classes=4)
    >>> as_image_set((np.zeros((2, 3)), ["dog", "cat"]), "pets", classes=["cat", "dog"]).y
    tensor([1, 0])
    """
    checked_classes(classes)
    if _has_length(data):
        most = None
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    missing = most
    noted = Float32Rounding()

    def rounded(images: Tensor) -> None:
        if rounding == "refuse" or (rounding == "grid" and find_grid(images) is None):
            exact_cast(f"data: {name}: x", images, torch.float32, "a data set")
        noted(images)

    for x, y in _batches(data, name, rounded, classes):
        xs.append(x[:missing])
        ys.append(y[:missing])
        if missing is not None:
            missing -= len(xs[-1])
            if not missing:
                break
    if not xs:
        raise InputError("data", "at least one image", "none", where=name)
    if len({tuple(x.shape[1:]) for x in xs}) > 1:
        raise InputError(
            "data", "images of the same shape", sorted({tuple(x.shape[1:]) for x in xs}), "resize them", where=name
        )
    return ImageSet(name, torch.cat(xs), torch.cat(ys), rounded=noted.found)


def _batches(
    data: Any, name: str, rounded: Callable[[Tensor], None], classes: Sequence[str] | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches ([N, C, H, W], [N]) from data of any form."""
    if isinstance(data, tuple | list) and len(data) == 2 and is_batch(*data):
        yield as_batch(data, name, rounded, classes)
        return
    if not isinstance(data, Iterable) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        data = map(data.__getitem__, range(len(data)))  # a map-style torch Dataset
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | dict | Tensor | np.ndarray):
        raise InputError("data", "(x, y) or an iterable of (x, y)", type(data).__name__, where=name)
    for row in data:
        yield as_batch(row, name, rounded, classes)


def _has_length(data: object) -> bool:
    try:
        len(data)  # type: ignore[arg-type]  # raises TypeError if there is no length
    except TypeError:  # also raised by a loader of an iterable data set
        return False
    return True
