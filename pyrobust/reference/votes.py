"""Vote histograms."""

from __future__ import annotations

import torch
from torch import Tensor


def count_votes(logits: Tensor, image: Tensor, counts: Tensor) -> Tensor:
    """Add each row's arg-max to its image's histogram, in place: reference of ``pyrobust.ops.count_votes``.

    Ties go to the lowest index. A row has no winner if it contains NaN or +inf, or if all its values are -inf. Such a
    row is counted in column K.

    Args:
        logits: [N, K], float.
        image: [N], int64; for each row of logits, the row of counts to which its vote is added.
        counts: [B, K + 1], int64; updated.

    Returns:
        counts.

    >>> logits = torch.tensor([[2.0, 2.0], [0.0, float("inf")]])
    >>> count_votes(logits, torch.tensor([0, 1]), torch.zeros(2, 3, dtype=torch.int64))
    tensor([[1, 0, 0],
            [0, 0, 1]])
    """
    classes = logits.shape[1]
    largest = logits.amax(dim=1, keepdim=True)  # NaN if the row holds one
    index = torch.arange(classes, device=logits.device)
    winner = torch.where(logits == largest, index, classes).amin(dim=1)
    winner = torch.where(largest[:, 0].isfinite(), winner, classes)
    return counts.index_put_((image, winner), torch.ones_like(image), accumulate=True)
