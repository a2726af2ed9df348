"""The bundled data: 1,797 handwritten digits."""

from __future__ import annotations

from pathlib import Path

import torch

from pyrobust.errors import InputError
from pyrobust.zoo.image_set import ImageSet
from pyrobust.zoo.npz import read_npz_arrays

DATA = Path(__file__).parent / "data"
#: First row of the test split, at the beginning of one of the fourteen forms in the file.
FIRST_TEST = 1415

_SPLITS = {"train": slice(0, FIRST_TEST), "test": slice(FIRST_TEST, None), "all": slice(None)}


def load_digits(split: str = "test") -> ImageSet:
    """Load the UCI optical handwritten digits: 8x8 pixels of 17 grey levels, ten classes.

    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998, CC BY
    4.0 (only the 1,797 images of the original test set, written by 13 people). Each pixel stands for a 4x4 block of
    cells. If k of the 16 cells are inked, the value of the pixel is k/16, which is exact in float32.

    The file contains fourteen filled-in forms, one after the other. The labels show this: their sequence repeats every
    130 rows or slightly fewer. The last three forms, rows 1415 to 1796, are the test split. The two splits therefore
    share no form. They share at most one writer, because 13 people wrote the fourteen forms. In a shuffled split, the
    same people would have written the training and the test images.

    Args:
        split: "test" (382 images), "train" (1,415) or "all" (1,797, in the order of the file).

    Returns:
        The images, x float32 [N, 1, 8, 8] in [0, 1].

    Raises:
        InputError: the split is unknown.

    >>> load_digits("train").x.shape
    torch.Size([1415, 1, 8, 8])
    """
    if split not in _SPLITS:
        raise InputError("load_digits: split", f"one of {', '.join(_SPLITS)}", repr(split))
    arrays = read_npz_arrays(DATA / "optdigits.npz", ("x", "y"))
    rows = _SPLITS[split]
    x = torch.from_numpy(arrays["x"][rows]).unsqueeze(1).float() / 16
    y = torch.from_numpy(arrays["y"][rows]).long()
    return ImageSet("digits" if split == "test" else f"digits:{split}", x, y)
