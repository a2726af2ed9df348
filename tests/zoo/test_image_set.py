from __future__ import annotations

import hashlib
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo import ImageSet
from pyrobust.zoo.hashing import hash_tensors

X = torch.zeros(3, 1, 2, 2)
Y = torch.tensor([0, 2, 1])


def test_hash_is_sha256_of_length_prefixed_parts() -> None:
    x = torch.where(torch.arange(12).view(X.shape) < 6, -X, X + 0.5)  # minus zero is another number
    parts = [b"x torch.float32 [3, 1, 2, 2]", b"\0\0\0\x80" * 6 + b"\0\0\0\x3f" * 6, b"y torch.int64 [3]", b"".join(
        int(label).to_bytes(8, "little") for label in Y
    )]  # fmt: skip
    expected = hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()
    assert ImageSet("a", x, Y).sha256 == expected
    assert ImageSet("b", x.clone().to(memory_format=torch.channels_last), Y).sha256 == expected


def test_hash_separates_names_and_bytes() -> None:
    one = torch.zeros(1, dtype=torch.uint8)
    assert hash_tensors({"a": one, "b": one}) != hash_tensors({"a": one})
    assert hash_tensors({"s": torch.tensor(1.0, dtype=torch.bfloat16)}) != hash_tensors({"s": torch.tensor(1.0)})


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (X.double(), Y, InputTypeError, "float32"),
        (X, Y.int(), InputTypeError, "int64"),
        (X[0], Y, InputError, r"\[N, C, H, W\]"),
        (X, Y[:2], InputError, "same N"),
        (X[:0], Y[:0], InputError, "at least one"),
        (X / 0, Y, InputError, r"got (nan|inf) at \[0, 0, 0\] of image 0"),
        (torch.cat([X[:2], X[:1] + torch.inf]), Y, InputError, r"got inf at \[0, 0, 0\] of image 2"),
        (X, Y - 1, InputError, "got -1 for image 0"),
    ],
)
def test_invalid_arguments_are_rejected(x: Tensor, y: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ImageSet("bad", x, y)


def test_images_are_read_by_index_in_the_given_order() -> None:
    x = torch.arange(12).reshape(3, 1, 2, 2) / 16
    data = ImageSet("a", x, Y)
    pixels, labels = data.read([2, 0, 2])
    assert torch.equal(pixels, x[[2, 0, 2]])
    assert labels.tolist() == [1, 0, 1]
    assert data.read(range(0))[0].shape == (0, 1, 2, 2)
    assert (data.shape, data.grid, data.extremes) == ((1, 2, 2), Fraction(1, 16), (0.0, 0.6875))
    for index in (-1, 3):
        with pytest.raises(InputError, match="indices: expected 0 to 2"):
            data.read([index])
