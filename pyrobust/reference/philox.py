"""Philox4x32-10, the counter-based random number generator that all noise uses."""

from __future__ import annotations

import torch
from torch import Tensor

#: The 32 low bits of an int64.
MASK = 0xFFFFFFFF

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # the golden ratio and sqrt(3) - 1, in 32-bit fractions
_ROUNDS = 10


def philox4x32(key: Tensor, counter: Tensor) -> Tensor:
    """Return four random words for each counter: Philox4x32 with ten rounds.

    The source is Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Each key gives
    a bijection of the counters: distinct counters never give the same four words.

    Args:
        key: [..., 2], int64, 32-bit words in [0, 2**32), the low word first.
        counter: [..., 4], int64, 32-bit words as in the key. The leading dimensions of key and counter are broadcast.

    Returns:
        [..., 4], int64, words in [0, 2**32).

    >>> zero = torch.zeros(4, dtype=torch.int64)
    >>> [f"{word:08x}" for word in philox4x32(zero[:2], zero).tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    key0, key1 = key.unbind(-1)
    c0, c1, c2, c3 = counter.unbind(-1)
    for _ in range(_ROUNDS):
        # A product of two words wraps in signed 64 bits; its bits are nevertheless correct.
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & MASK) ^ c1 ^ key0,
            product1 & MASK,
            ((product0 >> 32) & MASK) ^ c3 ^ key1,
            product0 & MASK,
        )
        key0 = (key0 + _KEY_STEPS[0]) & MASK
        key1 = (key1 + _KEY_STEPS[1]) & MASK
    return torch.stack([c0, c1, c2, c3], dim=-1)
