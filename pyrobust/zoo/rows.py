"""Labelled images in the forms that data sets and loaders yield: a pair or a dictionary, of one image or a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import as_tensor, first_values, label_hint, shown
from pyrobust.errors import FileFormatError, InputError
from pyrobust.zoo.untrusted import as_labels, as_pixels

#: Keys of the image and of the label in rows that are dictionaries, and names of such columns in tables.
IMAGE_KEYS = ("image", "img", "pixel_values", "x")
LABEL_KEYS = ("label", "labels", "y", "cls")
# Pillow's modes whose numbers are levels of grey or RGB.
_MODES = ("L", "LA", "RGB", "RGBA", "F")


def as_batch(
    row: Any,
    name: str,
    rounded: Callable[[Tensor], None] | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x and the labels [N] of a row: a pair or a dictionary that holds one labelled image or a batch of them.

    x is [N, C, H, W] or [N, D]. ``rounded`` is called with float64 images if float32 does not represent their values.
    With ``classes``, labels are names from this list. Raises InputError, naming the data set, for any other row.

    >>> x, y = as_batch({"img": np.zeros((1, 2, 2), np.uint8), "label": 3}, "mine")
    >>> x.shape, y
    (torch.Size([1, 1, 2, 2]), tensor([3]))
    """
    if isinstance(row, Mapping):
        return _batch(_entry(row, IMAGE_KEYS, name), _entry(row, LABEL_KEYS, name), name, rounded, classes)
    if not isinstance(row, tuple | list) or len(row) != 2:
        raise InputError("data", "pairs (x, y)", type(row).__name__, where=name)
    return _batch(row[0], row[1], name, rounded, classes)


def is_batch(x: Any, y: Any) -> bool:
    """Whether two objects are a batch and its labels, rather than two examples that each include a label.

    >>> is_batch(np.zeros((2, 3)), [0, 1]), is_batch(([0.5, 0.5], 0), ([1.0, 0.0], 1))
    (True, False)
    """
    labels = all(np.ndim(label) == 0 for label in y) if isinstance(y, list | tuple) else np.ndim(y) > 0
    return labels and (isinstance(x, list | tuple) or np.ndim(x) > 0)


def _entry(row: Mapping[str, Any], keys: tuple[str, ...], name: str) -> Any:
    present = [key for key in keys if key in row]
    if len(present) != 1:
        raise InputError(
            "data",
            f"one of the keys {', '.join(keys)} in each row",
            ", ".join(map(str, row)),
            "pass pairs (row[image], row[label]) with the keys of this data set",
            where=name,
        )
    return row[present[0]]


def checked_classes(classes: Sequence[str] | None) -> Sequence[str] | None:
    """Return the argument ``classes``; raise InputError unless it is a list of distinct names or None."""
    names = isinstance(classes, list | tuple) and all(isinstance(each, str) for each in classes)
    if classes is not None and (not names or len(set(classes)) < len(classes)):
        raise InputError("classes", "a list of distinct names", shown(classes))
    return classes


def numbered(labels: npt.NDArray[Any], classes: Sequence[str], where: str) -> npt.NDArray[np.int64]:
    """Return each label's index among the class names; raise InputError for a label that is not a class name.

    >>> numbered(np.array(["dog", "cat"]), ["cat", "dog"], "pets: y")
    array([1, 0])
    """
    numbers = {label: number for number, label in enumerate(classes)}
    for label in labels.reshape(-1).tolist():
        if not isinstance(label, str) or label not in numbers:
            raise InputError("data", f"names among classes, {first_values(classes)}", shown(label), where=where)
    return np.array([numbers[label] for label in labels.reshape(-1).tolist()], np.int64).reshape(labels.shape)


def _array(value: Any, name: str) -> npt.NDArray[Any]:
    """Convert a tensor, an array or a Pillow picture to an array; a picture's channels come first."""
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if hasattr(value, "getbands"):
        if value.mode not in _MODES:  # an index into a palette, for example, is not a level
            raise InputError(
                "data",
                f"pictures of the modes {', '.join(_MODES)}",
                value.mode,
                "convert them, as by picture.convert('RGB')",
                where=name,
            )
        picture = np.asarray(value)
        return picture[None] if picture.ndim == 2 else np.moveaxis(picture, -1, 0)
    tensor = as_tensor(value)  # the numbers of a list become float32
    return np.asarray(value) if tensor is None else _array(tensor, name)


def _batch(
    image: Any, label: Any, name: str, rounded: Callable[[Tensor], None] | None, classes: Sequence[str] | None
) -> tuple[Tensor, Tensor]:
    images, labels = _array(image, name), _array(label, name)
    if classes is not None:
        labels = numbered(labels, classes, f"{name}: y")
    elif label_hint(labels):
        hint = f"{label_hint(labels)}; as_image_set(data, name, classes=classes) does it"
        raise InputError("data", "integer labels", shown(label), hint, where=f"{name}: y")
    try:
        x = as_pixels(images, f"{name}: x", unit_range=False, rounded=rounded)
        y = as_labels(labels, f"{name}: y")
    except FileFormatError as error:
        raise InputError("data", problem=str(error)) from error
    if y.dim() == 0:
        x, y = x.unsqueeze(0), y.unsqueeze(0)
    if x.dim() == 3:
        x = x.unsqueeze(1)
    if x.dim() not in (2, 4) or y.shape != x.shape[:1]:
        raise InputError(
            "data",
            problem="expected x [N, C, H, W] or [N, D] with labels [N], or one [C, H, W] or [D] with its label; got x "
            f"{list(images.shape)} and y {list(labels.shape)}",
            where=name,
        )
    return x, y
