"""Vote histograms of a packed batch."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError

from . import native
from .transforms import refuse_tangents

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def count_votes(logits: Tensor, image: Tensor, counts: Tensor) -> Tensor:
    """Add each row's arg-max to its image's histogram, in place and without host synchronisation.

    ``counts[image[n], argmaxₖ logits[n, k]] += 1`` for every n; ties go to the lowest index.
    A row that contains NaN or +inf, or only -inf, has no winner: it is counted in column K and never for a class.

    Args:
        logits: [N, K], float32, float64, bfloat16 or float16, K ≥ 1.
        image: [N], int64, the row of ``counts`` for each row of logits, in [0, B). On the CPU, an index out of range is
            an error and nothing is counted; on a GPU, a row with such an index is not counted, so the totals are too
            small.
        counts: [B, K + 1], int64, contiguous; updated.

    Returns:
        counts.

    Raises:
        InputError: mismatched shapes or devices, or an image index out of range (CPU).
        InputTypeError: an unsupported dtype.

    >>> logits = torch.tensor([[0.1, 0.9], [0.8, 0.2], [float("nan"), 1.0]])
    >>> count_votes(logits, torch.tensor([0, 0, 1]), torch.zeros(2, 3, dtype=torch.int64))
    tensor([[1, 1, 0],
            [0, 0, 1]])
    """
    for name, value in (("logits", logits), ("image", image), ("counts", counts)):
        if not isinstance(value, Tensor):
            raise InputTypeError(f"count_votes: {name}", "a tensor", type(value).__name__)
    if logits.dtype not in _DTYPES:
        raise InputTypeError("count_votes: logits", "a float tensor", logits.dtype)
    if image.dtype != torch.int64:
        raise InputTypeError("count_votes: image", "int64", image.dtype)
    if counts.dtype != torch.int64:
        raise InputTypeError("count_votes: counts", "int64", counts.dtype)
    if logits.dim() != 2 or logits.shape[1] < 1:
        raise InputError("count_votes: logits", "[N, K] with K >= 1", tuple(logits.shape))
    if image.shape != logits.shape[:1]:
        raise InputError("count_votes: image", f"shape ({logits.shape[0]},)", tuple(image.shape))
    if counts.dim() != 2 or counts.shape[1] != logits.shape[1] + 1:
        raise InputError("count_votes: counts", f"[B, {logits.shape[1] + 1}]", tuple(counts.shape))
    if not counts.is_contiguous():
        raise InputError("count_votes: counts", "a contiguous tensor, since it is updated in place")
    if not logits.device == image.device == counts.device:
        raise InputError(
            "count_votes",
            "one device",
            f"logits on {logits.device}, image on {image.device}, counts on {counts.device}",
        )
    refuse_tangents("count_votes", logits)
    native.call(torch.ops.pyrobust.count_votes, logits.detach().contiguous(), image.contiguous(), counts)
    return counts


native.fake("count_votes")
