"""Maxima of what a monotone function returns: they choose by ranges of backward passes, not by intervals alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel


class Rotated(nn.Module):
    """The larger of 2·x0 + 14 and 2·x1 + 8, whose intervals are twice as wide, after functions that keep both."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.turn, self.back = nn.Linear(2, 2), nn.Linear(2, 2)
        self.turn.weight.data = self.back.weight.data = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        self.turn.bias.data, self.back.bias.data = torch.tensor([5.0, 5.0]), torch.tensor([4.0, 8.0])

    def forward(self, x: Tensor) -> Tensor:
        z = self.function(self.back(self.function(self.turn(x))))
        return nn.functional.max_pool1d(z.unsqueeze(1), 2).squeeze(1)


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("function", [nn.ReLU(), nn.LeakyReLU(0.1), nn.Hardtanh(-100, 100)], ids=str)
def test_a_decided_maximum_is_exact(engine: str, function: nn.Module) -> None:
    x = torch.zeros(1, 2)
    bounded = BoundedModel(Rotated(function).eval(), x, engine=engine)
    # Of 14 ± 2.8 and 8 ± 2.8 the first is the larger; intervals are twice as wide and overlap.
    bounds = bounded.bounds(x, 1.4, method="crown")
    assert bounds.lower.item() == pytest.approx(14 - 2.8, abs=1e-4)
    assert bounds.upper.item() == pytest.approx(14 + 2.8, abs=1e-4)
    interval = bounded.bounds(x, 1.4, method="ibp")
    assert interval.lower.item() < 9
