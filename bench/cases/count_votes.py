"""Vote histograms against arg-max and bincount.

Work: the logits are read once. The floor is a sum over them.
"""

from __future__ import annotations

from functools import partial

import torch

from pyrobust import reference
from pyrobust.microbench.smoothing import votes
from pyrobust.microbench.timing import Case


def cases(device: torch.device) -> list[Case]:
    return [_case(*sizes, device) for sizes in ((1000, 10, 1), (100_000, 10, 16), (1000, 1000, 1), (20_000, 1000, 8))]


def _case(rows: int, classes: int, images: int, device: torch.device) -> Case:
    case = votes(rows, classes, images, device)
    logits = torch.randn(rows, classes, device=device)
    image = torch.arange(rows, device=device) * images // rows
    counts = torch.zeros(images, classes + 1, dtype=torch.int64, device=device)
    case.name = f"count_votes ({rows}, {classes}), {images} images"
    case.variants["reference"] = partial(reference.count_votes, logits, image, counts)
    return case
