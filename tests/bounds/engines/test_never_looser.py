"""CROWN and CROWN-IBP are never looser than intervals of the same semantics and input set."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import nn

from pyrobust import BoundedModel
from pyrobust.bounds import BoundOptions

NETS = {
    "dense": lambda: nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 4)),
    "curved": lambda: nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.Sigmoid(), nn.Linear(20, 4)),
    "pooled": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 8, 2),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(1, 2),
        nn.Flatten(),
        nn.Linear(8, 3),
    ),
}


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("name", NETS)
def test_backward_passes_are_intersected_with_intervals(name: str, engine: str) -> None:
    torch.manual_seed(3)
    net = NETS[name]().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(3)
        net[-1].weight.abs_()
    x = torch.randn(3, 6)
    bounded = BoundedModel(net, x, engine=engine)
    semantics = itertools.cycle(("real", "float32"))
    for norm, epsilon in itertools.product(("linf", "l2", "l1"), (0.1, 1.0, 5.0)):
        options = BoundOptions(norm=norm, semantics=next(semantics), iterations=2)
        intervals = bounded.bounds(x, epsilon, options=dataclasses.replace(options, method="ibp"))
        for method in ("crown-ibp", "crown", "alpha-crown"):
            bounds = bounded.bounds(x, epsilon, options=dataclasses.replace(options, method=method))
            rounding = 1e-6 * (1 + torch.maximum(intervals.lower.abs(), intervals.upper.abs()))
            assert (bounds.lower >= intervals.lower - rounding).all()
            assert (bounds.upper <= intervals.upper + rounding).all()


def test_plain_floating_point_bounds_stay_those_of_one_method() -> None:
    torch.manual_seed(3)
    net = NETS["dense"]().eval()
    with torch.no_grad():
        net[-1].weight.abs_()
    x = torch.randn(3, 6)
    bounded = BoundedModel(net, x)
    intervals, plain = (bounded.bounds(x, 5.0, method=m, sound=False).lower for m in ("ibp", "crown-ibp"))
    assert (plain < intervals - 0.1).any()
