"""Shared inputs and checks of the grid-noise tests."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

BYTE, SIXTEENTH = Fraction(1, 255), Fraction(1, 16)


def integers(*shape: int, high: int = 256, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def bits(batch: Tensor) -> Tensor:
    """Reinterpret every float as an integer."""
    return batch.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[batch.element_size()]).long()


def with_several_floats(sums: Tensor, batch: Tensor) -> float:
    """Return the share of (integer, channel) pairs that have more than one float in the batch [N, C, H, W]."""
    channel = torch.arange(batch.shape[1]).reshape(1, -1, 1, 1).expand(batch.shape)
    integer = sums.reshape(batch.shape).long()
    least = int(integer.min())
    pair = ((integer - least) * batch.shape[1] + channel).flatten()
    ends = [
        torch.full((int(pair.max()) + 1,), start).scatter_reduce(0, pair, bits(batch).flatten(), reduce)
        for start, reduce in ((2**63 - 1, "amin"), (-(2**63), "amax"))
    ]
    met = ends[0] <= ends[1]
    return (ends[0] < ends[1])[met].double().mean().item()
