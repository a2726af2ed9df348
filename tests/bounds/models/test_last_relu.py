"""Nets that end in a ReLU, whose ranges no layer consumes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pyrobust.bounds import BoundedModel

METHODS = ("ibp", "crown-ibp", "crown")


@pytest.mark.parametrize("last", [[], [nn.Flatten()]], ids=["", "flatten"])
@pytest.mark.parametrize("examples", [1, 3, 17])
def test_a_net_that_ends_in_a_relu(both_engines: str, examples: int, last: list[nn.Module]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 5), nn.ReLU(), *last).eval()
    x = torch.rand(examples, 4)
    for method in METHODS:
        bounds = BoundedModel(net, x).bounds(x, 0.1, method=method)
        for shift in (-0.1, 0, 0.1):
            values = net(x + shift)
            assert (bounds.lower <= values + 1e-6).all()
            assert (values - 1e-6 <= bounds.upper).all()
        assert (bounds.upper - bounds.lower < 3).all()
        assert BoundedModel(net, x).margins(x, net(x).argmax(1), 0.1, method=method).lower.shape == (examples, 4)
