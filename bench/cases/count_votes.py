"""Vote histograms against arg-max and bincount.

Work: the logits are read once. The floor is a sum over them.
"""

from __future__ import annotations

from functools import partial

import torch
from timing import Case

from pyrobust import reference
from pyrobust.ops import count_votes


def cases(device: torch.device) -> list[Case]:
    return [_case(*sizes, device) for sizes in ((1000, 10, 1), (100_000, 10, 16), (1000, 1000, 1), (20_000, 1000, 8))]


def _case(rows: int, classes: int, images: int, device: torch.device) -> Case:
    logits = torch.randn(rows, classes, device=device)
    image = torch.arange(rows, device=device) * images // rows
    counts = torch.zeros(images, classes + 1, dtype=torch.int64, device=device)

    def plain() -> torch.Tensor:
        votes = image * (classes + 1) + logits.argmax(1)
        return counts.view(-1).add_(torch.bincount(votes, minlength=counts.numel()))

    return Case(
        f"count_votes ({rows}, {classes}), {images} images",
        {
            "native": partial(count_votes, logits, image, counts),
            "argmax + bincount": plain,
            "reference": partial(reference.count_votes, logits, image, counts),
            "sum of the same bytes": logits.sum,
        },
        {"bytes_read": logits.numel() * 4},
    )
