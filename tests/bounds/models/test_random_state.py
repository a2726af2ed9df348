from __future__ import annotations

import torch
from torch import nn

from pyrobust.bounds import BoundedModel, DifferentiableBounds


def test_bounds_leave_the_random_state_unchanged() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), torch.zeros(2, 3)
    before = torch.random.get_rng_state()
    BoundedModel(model, x).certify(x, torch.tensor([0, 1]), 0.1)
    DifferentiableBounds(model, x).bounds(x, 0.1)
    assert torch.equal(torch.random.get_rng_state(), before)
