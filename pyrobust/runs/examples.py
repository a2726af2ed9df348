"""Adversarial examples as bytes in a file."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobust.runs.reader import reading

_DTYPE = np.dtype("<f4")


def encode_examples(x_adv: Tensor) -> list[bytes]:
    r"""The little-endian bytes of each float32 image, in the order of its indices.

    Args:
        x_adv: float32 [B, C, H, W].

    >>> encode_examples(torch.ones(1, 1, 1, 1))
    [b'\x00\x00\x80?']
    """
    return [image.tobytes() for image in x_adv.detach().cpu().numpy().astype(_DTYPE, order="C")]


def read_examples(
    connection: sqlite3.Connection, path: Path, parameters: dict[str, Any], indices: Sequence[int]
) -> Tensor:
    """The inverse of `encode_examples`, for images of a run.

    Args:
        connection: to the file; untrusted.
        path: for messages.
        parameters: of the run: shape and clip range of the images.
        indices: of images that the run has.

    Returns:
        float32 [n, C, H, W].

    Raises:
        FileFormatError: an example of another length or type, or with a number that is NaN, infinite or outside the
            clip range.
    """
    shape = parameters["shape"]
    length = math.prod(shape) * _DTYPE.itemsize
    lower, upper = map(np.float64, parameters["clip"])  # which float32 numbers are not rounded to
    with reading(path):
        # Lengths are known without reading what may be too long.
        other = "typeof(x_adv) != 'blob' OR length(x_adv) != ?"
        wrong = connection.execute(f"SELECT count(*) FROM result WHERE {other}", (length,)).fetchone()[0]
        if wrong:
            raise ValueError(f"column x_adv: expected {length} bytes for each image, found other in {wrong}")
        found = np.empty((len(indices), *shape), dtype=_DTYPE)
        for image, index in zip(found, indices, strict=True):
            (content,) = connection.execute("SELECT x_adv FROM result WHERE idx = ?", (index,)).fetchone()
            image[...] = np.frombuffer(content, dtype=_DTYPE).reshape(shape)
            if not ((image >= lower) & (image <= upper)).all():  # NaN is in no range
                raise ValueError(f"column x_adv: image {index} has a number that is NaN or outside the clip range")
    return torch.from_numpy(found.astype(np.float32, copy=False))
