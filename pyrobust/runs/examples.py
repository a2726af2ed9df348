"""Adversarial examples as bytes in a run file."""

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
_LARGEST = float(np.finfo(_DTYPE).max)


def encode_examples(x_adv: Tensor) -> list[bytes]:
    r"""Encode float32 images [B, C, H, W] as little-endian bytes, one item per image.

    >>> encode_examples(torch.ones(1, 1, 1, 1))
    [b'\x00\x00\x80?']
    """
    return [image.tobytes() for image in x_adv.detach().cpu().numpy().astype(_DTYPE, order="C")]


def read_examples(
    connection: sqlite3.Connection, path: Path, parameters: dict[str, Any], indices: Sequence[int]
) -> Tensor:
    """Read the examples float32 [n, C, H, W] from an untrusted run file; refuse NaN and values outside the clip range.

    Without a clip range, values must be finite.
    """
    shape = parameters["shape"]
    length = math.prod(shape) * _DTYPE.itemsize
    clip = parameters["clip"] or (-_LARGEST, _LARGEST)
    # float64: as float32, an end of the clip range could be rounded outward
    lower, upper = (np.asarray(limit, dtype=np.float64) for limit in clip)
    with reading(path):
        # SQLite tells the lengths without loading blobs, which may be huge.
        mismatch = "typeof(x_adv) != 'blob' OR length(x_adv) != ?"
        wrong = connection.execute(f"SELECT count(*) FROM result WHERE {mismatch}", (length,)).fetchone()[0]
        if wrong:
            raise ValueError(f"column x_adv: expected {length} bytes an image, got another length for {wrong} images")
        images = np.empty((len(indices), *shape), dtype=_DTYPE)
        for image, index in zip(images, indices, strict=True):
            (content,) = connection.execute("SELECT x_adv FROM result WHERE idx = ?", (index,)).fetchone()
            image[...] = np.frombuffer(content, dtype=_DTYPE).reshape(shape)
            if not ((image >= lower) & (image <= upper)).all():  # false for NaN
                raise ValueError(f"column x_adv: image {index} has a value that is NaN or outside the clip range")
    return torch.from_numpy(images.astype(np.float32, copy=False))
