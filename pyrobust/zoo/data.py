"""Loading data sets by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobust.checks import integer
from pyrobust.errors import FileFormatError, InputError, InputTypeError
from pyrobust.zoo.digits import load_digits
from pyrobust.zoo.folder import load_folder
from pyrobust.zoo.idx import load_mnist
from pyrobust.zoo.image_set import ImageSet
from pyrobust.zoo.npz import load_npz
from pyrobust.zoo.untrusted import as_labels, as_pixels
from pyrobust.zoo.user_code import find_object, working_directory_importable

FORMS = "digits[:train|:all], mnist:DIR[:train|:test], npz:FILE, folder:DIR, module:callable"


def load_data(spec: str, most: int | None = None) -> ImageSet:
    """Load the labelled images named by a spec.

    Args:
        spec: one of

            - ``digits``, ``digits:train``, ``digits:all``: the bundled handwritten digits (`load_digits`); ``digits``
              is the test split;
            - ``mnist:DIR``, ``mnist:DIR:train``: IDX files, gzipped or not (`load_mnist`);
            - ``npz:FILE``: arrays x and y (`load_npz`);
            - ``folder:DIR``: one subfolder of PNG or JPEG files per class (`load_folder`);
            - ``module:callable``: user code, imported with the working directory on the path and called without
              arguments. It returns (x, y), or an iterable of such pairs, each an image [C, H, W] with its label or a
              batch [N, C, H, W] with labels [N]. Floats are used unchanged, whatever their range; uint8 is divided by
              255.
        most: number of images, at least 1, after which reading stops if the user's iterable has no length, as a
            generator, which may be endless; all else is read whole. Default: all.

    Returns:
        The images and labels.

    Raises:
        InputError: the spec has another form, or the user's callable returns something else.
        InputTypeError: the spec is not a string, or the user's object is not callable.
        FileFormatError: a file is missing, damaged or refused.
        MissingExtraError: ``folder:`` is used without Pillow.

    >>> data = load_data("digits")
    >>> data.x.shape, data.num_classes
    (torch.Size([382, 1, 8, 8]), 10)
    """
    if not isinstance(spec, str):
        raise InputTypeError(f"data: expected a string, one of {FORMS}; got {type(spec).__name__}")
    if most is not None:
        integer("most", most, least=1)
    kind, colon, rest = spec.partition(":")
    if kind == "digits":
        return load_digits(rest if colon else "test")
    if kind in ("mnist", "npz", "folder") and not rest:
        raise InputError(f"data: expected one of {FORMS}; got {spec!r} without a path")
    if kind == "mnist":
        folder, _, split = rest.rpartition(":")
        if not folder or split not in ("train", "test"):
            folder, split = rest, "test"
        return load_mnist(folder, split, spec)
    if kind == "npz":
        return load_npz(rest, spec)
    if kind == "folder":
        return load_folder(rest, spec)
    if not colon:
        raise InputError(f"data: expected one of {FORMS}; got {spec!r}")
    return _load_from_code(spec, most)


def _load_from_code(spec: str, most: int | None) -> ImageSet:
    with working_directory_importable():
        try:
            function = find_object(spec, "data")
        except InputError as error:
            raise InputError(f"{error}; expected one of {FORMS}") from error
        if not callable(function):
            raise InputTypeError(f"data: {spec}: expected a callable, got {type(function).__name__}")
        returned = function()
        if _has_length(returned):
            most = None
        xs: list[Tensor] = []
        ys: list[Tensor] = []
        missing = most
        for x, y in _batches(returned, spec):
            xs.append(x[:missing])
            ys.append(y[:missing])
            if missing is not None:
                missing -= len(xs[-1])
                if not missing:
                    break
    if not xs:
        raise InputError(f"data: {spec}: expected at least one image, got none")
    if len({tuple(x.shape[1:]) for x in xs}) > 1:
        raise InputError(
            f"data: {spec}: expected images of the same shape, got {sorted({tuple(x.shape[1:]) for x in xs})}; "
            "resize them"
        )
    return ImageSet(spec, torch.cat(xs), torch.cat(ys))


def _batches(returned: Any, spec: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches ([N, C, H, W], [N]) from the return value of the user's callable."""
    if isinstance(returned, tuple | list) and len(returned) == 2 and all(_is_array(part) for part in returned):
        yield _batch(returned, spec)
        return
    if not isinstance(returned, Iterable) and hasattr(returned, "__getitem__") and hasattr(returned, "__len__"):
        returned = map(returned.__getitem__, range(len(returned)))  # a map-style torch Dataset
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes | dict):
        raise InputError(f"data: {spec}: expected (x, y) or an iterable of (x, y), got {type(returned).__name__}")
    for pair in returned:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"data: {spec}: expected pairs (x, y), got {type(pair).__name__}")
        yield _batch(pair, spec)


def _has_length(returned: object) -> bool:
    try:
        len(returned)  # type: ignore[arg-type]
    except TypeError:  # also raised by a loader of an iterable data set
        return False
    return True


def _is_array(part: object) -> bool:
    return isinstance(part, Tensor | np.ndarray) and part.ndim > 0


def _batch(pair: tuple[Any, Any] | list[Any], spec: str) -> tuple[Tensor, Tensor]:
    images, labels = (part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part) for part in pair)
    try:
        x = as_pixels(images, f"{spec}: x", unit_range=False)
        y = as_labels(labels, f"{spec}: y")
    except FileFormatError as error:
        raise InputError(f"data: {error}") from error
    if y.dim() == 0:
        x, y = x.unsqueeze(0), y.unsqueeze(0)
    if x.dim() == 3:
        x = x.unsqueeze(1)
    if x.dim() != 4 or y.shape != x.shape[:1]:
        raise InputError(
            f"data: {spec}: expected images [N, C, H, W] with labels [N], or one [C, H, W] with its label; "
            f"got x {list(images.shape)} and y {list(labels.shape)}"
        )
    return x, y
