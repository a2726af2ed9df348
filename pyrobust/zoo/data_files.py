"""Loading data sets from files of all formats."""

from __future__ import annotations

import re
from pathlib import Path

from pyrobust.zoo.folder import load_folder
from pyrobust.zoo.idx import load_mnist
from pyrobust.zoo.image_set import LabelledImages
from pyrobust.zoo.lazy import load_hugging_face, load_parquet, load_tar
from pyrobust.zoo.lazy.tar import is_image_extension
from pyrobust.zoo.npz import load_npz
from pyrobust.zoo.saved_images import is_saved, load_saved


def _npz_arrays(rest: str) -> tuple[str, str | None, str | None]:
    """The file and the names of its arrays in FILE or FILE:IMAGES,LABELS.

    >>> _npz_arrays("a.npz"), _npz_arrays("a.npz:x_test,y_test")
    (('a.npz', None, None), ('a.npz', 'x_test', 'y_test'))
    """
    match = None if Path(rest).exists() else re.fullmatch(r"(.+):([^/:,]+),([^/:,]+)", rest, re.DOTALL)
    return (rest, None, None) if match is None else (match[1], match[2], match[3])


def load_files(form: str, rest: str, spec: str) -> LabelledImages:
    """Load the images of a spec "form:rest" whose form is among ``pyrobust.zoo.data.FILE_FORMS``."""
    if form == "mnist":
        folder, _, split = rest.rpartition(":")
        if not folder or split not in ("train", "test"):
            folder, split = rest, "test"
        return load_mnist(folder, split, spec)
    if form == "npz":
        path, image, label = _npz_arrays(rest)
        return load_npz(path, spec, image=image, label=label)
    if form == "folder":
        return load_saved(rest, spec) if is_saved(rest) else load_folder(rest, spec)
    if form == "parquet":
        return load_parquet(rest, spec)
    if form == "hf":
        folder, _, split = rest.rpartition(":")
        return load_hugging_face(folder or rest, split if folder else None, spec)
    pattern, _, image = rest.rpartition(":")
    chosen = bool(pattern) and is_image_extension(image)
    return load_tar(pattern, spec, image=image) if chosen else load_tar(rest, spec)
