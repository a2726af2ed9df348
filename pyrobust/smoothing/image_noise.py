"""Choice of the noise of an image, by the image's index in the data set or by its values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageNoise:
    """The part of the noise's Philox keys and counters that belongs to each of B images.

    docs/decisions/noise-contract.md defines keys and counters.

    Attributes:
        words: for each image, the third word of the Philox counter. Without keys, this word is the image's index in the
            data set. With keys, it is the number of the draw of noise for this image, starting with 0.
        keys: Philox key of each image, used in place of the seed; None if the words are indices.

    >>> ImageNoise([4, 2]).indices, ImageNoise([0, 0], [7, 9]).indices
    (array([4, 2]), array([0, 1]))
    """

    words: list[int]
    keys: list[int] | None = None

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """Indices in the data set, [B]; if the noise is keyed by values, positions in the call."""
        return np.asarray(self.words if self.keys is None else range(len(self.words)), dtype=np.int64)

    @property
    def reported_keys(self) -> npt.NDArray[np.uint64] | None:
        """Return the keys of the images as stored in results, [B]; None if the words are indices."""
        return None if self.keys is None else np.asarray(self.keys, dtype=np.uint64)


def noise_by_values(seed: int, x: Tensor, step: Fraction | None) -> ImageNoise:
    """Derive the noise of images x [B, ...] from their values; with ``step``, x holds int32 multiples of this step.

    >>> noise = noise_by_values(0, torch.tensor([[0.5, -0.0], [0.5, 0.0]]), None)
    >>> noise.keys is not None and noise.keys[0] == noise.keys[1]
    True
    """
    sizes = ",".join(map(str, x.shape[1:]))
    digest = hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "little"))
    digest.update(f"{sizes} {'values' if step is None else f'{step.numerator}/{step.denominator}'}\n".encode())
    form = "<f8" if step is None else "<i4"
    keys = []
    x = x.double() if x.dtype == torch.bfloat16 else x  # NumPy lacks bfloat16
    for image in x.detach().cpu().resolve_neg().numpy():
        state = digest.copy()
        # Adding 0 turns -0 into 0, since the two are equal.
        state.update((image + 0).astype(form, order="C", copy=False).data)
        keys.append(int.from_bytes(state.digest(), "little"))
    return ImageNoise([0] * len(x), keys)


def value_key(seed: int, x: Tensor, step: Fraction | None = None) -> int:
    """Hash seed, step, shape and values of one image to the 64-bit key that docs/decisions/noise-contract.md defines.

    >>> value_key(0, torch.zeros(4)) == value_key(0, torch.zeros(2, 2))
    False
    """
    keys = noise_by_values(seed, x[None], step).keys
    assert keys is not None
    return keys[0]
