"""A classifier whose distance to the boundary is known, for tests of robustness curves."""

from __future__ import annotations

import torch
from torch import Tensor


def sign_model(batch: Tensor) -> Tensor:
    """Class 1 where the first coordinate is above one half."""
    shifted = batch.flatten(1)[:, :1] - 0.5
    return torch.cat([-shifted, shifted], 1)


def images(margins):
    """Examples of class 1 at given distances from the boundary; class 0's side where negative."""
    return torch.tensor([[0.5 + m, 0.5] for m in margins]), torch.ones(len(margins), dtype=torch.int64)
