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


def _npz_arrays(location: str) -> tuple[str, str | None, str | None]:
    """Split FILE or FILE:IMAGES,LABELS into the file and the names of its arrays.

    >>> _npz_arrays("a.npz"), _npz_arrays("a.npz:x_test,y_test")
    (('a.npz', None, None), ('a.npz', 'x_test', 'y_test'))
    """
    match = None if Path(location).exists() else re.fullmatch(r"(.+):([^/:,]+),([^/:,]+)", location, re.DOTALL)
    return (location, None, None) if match is None else (match[1], match[2], match[3])


def load_files(form: str, location: str, spec: str) -> LabelledImages:
    """Load the images of a spec "form:location", where the form is one of ``pyrobust.zoo.data.FILE_FORMS``."""
    if form == "mnist":
        folder, _, split = location.rpartition(":")
        if not folder or split not in ("train", "test"):
            folder, split = location, "test"
        return load_mnist(folder, split, spec)
    if form == "npz":
        path, image, label = _npz_arrays(location)
        return load_npz(path, spec, image=image, label=label)
    if form == "folder":
        return load_saved(location, spec) if is_saved(location) else load_folder(location, spec)
    if form == "parquet":
        return load_parquet(location, spec)
    if form == "hf":
        folder, _, split = location.rpartition(":")
        return load_hugging_face(folder or location, split if folder else None, spec)
    pattern, _, image = location.rpartition(":")
    chosen = bool(pattern) and is_image_extension(image)
    return load_tar(pattern, spec, image=image) if chosen else load_tar(location, spec)
