"""Loading data sets by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobust.checks import integer
from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo.digits import load_digits
from pyrobust.zoo.folder import load_folder
from pyrobust.zoo.idx import load_mnist
from pyrobust.zoo.image_set import ImageSet, LabelledImages
from pyrobust.zoo.lazy import load_hugging_face, load_parquet, load_tar
from pyrobust.zoo.lazy.tar import is_image_extension
from pyrobust.zoo.npz import load_npz
from pyrobust.zoo.rows import as_batch
from pyrobust.zoo.saved_images import is_saved, load_saved
from pyrobust.zoo.user_code import call_without_arguments, find_object, working_directory_importable

FORMS = (
    "digits[:train|:all], mnist:DIR[:train|:test], npz:FILE, folder:DIR, "
    "parquet:PATH, hf:PATH[:SPLIT], tar:PATTERN[:EXTENSION], module:callable"
)


def load_data(spec: str, most: int | None = None) -> LabelledImages:
    """Load the labelled images named by a spec.

    Args:
        spec: one of

            - ``digits``, ``digits:train``, ``digits:all``: the bundled handwritten digits (`load_digits`); ``digits``
              is the test split;
            - ``mnist:DIR``, ``mnist:DIR:train``: IDX files, gzipped or not (`load_mnist`);
            - ``npz:FILE``: arrays x and y (`load_npz`);
            - ``folder:DIR``: one subfolder of PNG or JPEG files per class (`load_folder`), or images saved by
              `save_images`;
            - ``parquet:PATH``, ``hf:PATH``, ``hf:PATH:SPLIT``, ``tar:PATTERN``, ``tar:PATTERN:EXTENSION``: Parquet
              files, data sets saved by Hugging Face's ``save_to_disk``, and tar shards of WebDataset, with the
              extension of their pictures (`load_parquet`, `load_hugging_face`, `load_tar`), whose images are read when
              they are asked for;
            - ``module:callable``: user code, imported with the working directory on the path and called without
              arguments. It returns a `LabelledImages`; or (x, y), or an iterable of such pairs, each an image [C, H, W]
              with its label or a batch [N, C, H, W] with labels [N]. Floats are used unchanged, whatever their range;
              uint8 is divided by 255.
        most: number of images, at least 1, after which reading stops if the user's iterable has no length, as a
            generator, which may be endless; all else is read whole. Default: all.

    Returns:
        The images and labels: an `ImageSet`, or a `LazyImages` of files that are read as needed.

    Raises:
        InputError: the spec has another form, or the user's callable returns something else.
        InputTypeError: the spec is not a string, or the user's object is not callable.
        FileFormatError: a file is missing, damaged or refused.
        MissingExtraError: pictures are read without Pillow, or tables without pyarrow.

    >>> data = load_data("digits")
    >>> len(data), data.shape, data.num_classes
    (382, (1, 8, 8), 10)
    """
    if not isinstance(spec, str):
        raise InputTypeError("data", problem=f"expected a string, one of {FORMS}; got {type(spec).__name__}")
    if most is not None:
        integer("most", most, least=1)
    kind, colon, rest = spec.partition(":")
    if kind == "digits":
        return load_digits(rest if colon else "test")
    if kind in ("mnist", "npz", "folder", "parquet", "hf", "tar") and not rest:
        raise InputError("data", problem=f"expected one of {FORMS}; got {spec!r} without a path")
    if kind == "mnist":
        folder, _, split = rest.rpartition(":")
        if not folder or split not in ("train", "test"):
            folder, split = rest, "test"
        return load_mnist(folder, split, spec)
    if kind == "npz":
        return load_npz(rest, spec)
    if kind == "folder":
        return load_saved(rest, spec) if is_saved(rest) else load_folder(rest, spec)
    if kind == "parquet":
        return load_parquet(rest, spec)
    if kind == "hf":
        folder, _, split = rest.rpartition(":")
        return load_hugging_face(folder or rest, split if folder else None, spec)
    if kind == "tar":
        pattern, _, image = rest.rpartition(":")
        chosen = bool(pattern) and is_image_extension(image)
        return load_tar(pattern, spec, image=image) if chosen else load_tar(rest, spec)
    if not colon:
        raise InputError("data", problem=f"expected one of {FORMS}; got {spec!r}")
    return _load_from_code(spec, most)


def _load_from_code(spec: str, most: int | None) -> LabelledImages:
    with working_directory_importable():
        try:
            function = find_object(spec, "data")
        except InputError as error:
            error.hint = f"expected one of {FORMS}"
            raise
        if not callable(function):
            raise InputTypeError("data", "a callable", type(function).__name__, where=spec)
        data = call_without_arguments(function, spec, "data")
        return data if isinstance(data, LabelledImages) else as_image_set(data, spec, most)


def as_image_set(data: Any, name: str, most: int | None = None) -> ImageSet:
    """Read labelled images of any of the usual forms into memory.

    Args:
        data: a pair (x, y) of tensors or arrays; or an iterable or map-style data set, such as a ``DataLoader`` or
            ``Dataset`` of torch, of pairs, each an image with its label or a batch with labels; or of dictionaries, as
            in data sets of Hugging Face, with an image (key "image", "img", "pixel_values" or "x") and a label (key
            "label", "labels", "y" or "cls"). Images are tensors or arrays [C, H, W], or pictures of
            Pillow. Floats are used unchanged, whatever their range; uint8 is divided by 255.
        name: name of the set.
        most: number of images after which reading stops, if the data have no length. Default: all.

    Returns:
        The images and labels.

    Raises:
        InputError: other data, no image, or images of different shapes.

    >>> as_image_set([(torch.zeros(1, 8, 8), 3), (torch.ones(1, 8, 8), 1)], "two")
    ImageSet(name='two', images=2, shape=(1, 8, 8), classes=4)
    """
    if _has_length(data):
        most = None
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    missing = most
    for x, y in _batches(data, name):
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
    return ImageSet(name, torch.cat(xs), torch.cat(ys))


def _batches(data: Any, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches ([N, C, H, W], [N]) from data of any form."""
    if isinstance(data, tuple | list) and len(data) == 2 and all(_is_array(part) for part in data):
        yield as_batch(data, name)
        return
    if not isinstance(data, Iterable) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        data = map(data.__getitem__, range(len(data)))  # a map-style torch Dataset
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | dict | Tensor | np.ndarray):
        raise InputError("data", "(x, y) or an iterable of (x, y)", type(data).__name__, where=name)
    for row in data:
        yield as_batch(row, name)


def _has_length(data: object) -> bool:
    try:
        len(data)  # type: ignore[arg-type]  # the question is whether it has one
    except TypeError:  # also raised by a loader of an iterable data set
        return False
    return True


def _is_array(part: object) -> bool:
    return isinstance(part, Tensor | np.ndarray) and part.ndim > 0
