"""Rows times a factor each. Work: every element is read and written once; the floor is a clone."""

from __future__ import annotations

from functools import partial

import torch

from pyrobust import ops, reference
from pyrobust.microbench.timing import Case


def cases(device: torch.device) -> list[Case]:
    x, scale = torch.randn(1000, 3072, device=device), torch.randn(1000, device=device)
    return [
        Case(
            "scale_rows (1000, 3072)",
            {
                "native": partial(ops.scale_rows, x, scale),
                "reference": partial(reference.scale_rows, x, scale),
                "clone": x.clone,
            },
            {"bytes": 2 * 4 * x.numel()},
        )
    ]
