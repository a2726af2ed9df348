"""CROWN is never looser than intervals, which are concretized only where that loses nothing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import torch
from support.bounds.engines import PATHS, engine_of
from torch import Tensor, nn

from pyrobust import BoundedModel
from pyrobust.bounds import BoundOptions
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.graph.capture import capture
from pyrobust.bounds.input_set import box
from pyrobust.bounds.specification import Margins, margins

RADIUS = 0.05

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


class Pooled(nn.Module):
    """Functions of a convolution, pooled, and logits of what is pooled; ``also`` reads the functions a second time."""

    def __init__(self, pool: Callable[[Tensor], Tensor], function: nn.Module, *, also: bool = False) -> None:
        super().__init__()
        self.conv, self.function, self.pool, self.also = nn.Conv2d(2, 4, 3), function, pool, also
        self.head = nn.LazyLinear(5)

    def ranges(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ranges of the functions."""
        center, radius = self.conv(x), nn.functional.conv2d(torch.full_like(x, RADIUS), self.conv.weight.abs())
        return self.function(center - radius), self.function(center + radius)

    def logits(self, z: Tensor) -> Tensor:
        """Return the logits, affine in the values of the functions."""
        pooled = self.pool(z).flatten(1)
        return self.head(torch.cat([pooled, z.flatten(1)], 1) if self.also else pooled)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.function(self.conv(x)))


POOLED: dict[str, Callable[[], Pooled]] = {
    "global": lambda: Pooled(nn.AdaptiveAvgPool2d(1), nn.ReLU()),
    "squares": lambda: Pooled(nn.AvgPool2d(2), nn.LeakyReLU(0.3)),
    "overlapping": lambda: Pooled(nn.AvgPool2d(2, 1), nn.ReLU()),
    "across channels": lambda: Pooled(nn.Conv2d(4, 3, 4), nn.ReLU()),
    "read twice": lambda: Pooled(nn.AdaptiveAvgPool2d(1), nn.ReLU(), also=True),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", POOLED)
def test_intervals_of_what_is_pooled_are_those_on_the_ranges_of_the_functions(name: str, path: str) -> None:
    torch.manual_seed(0)
    x, net = torch.rand(3, 2, 6, 6), POOLED[name]().eval()
    y = net(x).argmax(1)
    engine = engine_of(capture(net.requires_grad_(False), x[:1]), torch.float32, path)
    rows, inputs = margins(y, 5), box(x - RADIUS, x + RADIUS, tuple(x.shape[1:]))
    low, high = net.ranges(x)
    middle = (low + high) / 2
    slopes = torch.stack([torch.autograd.functional.jacobian(lambda z: net.logits(z[None])[0], z) for z in middle])
    lost = (rows.float() @ slopes.flatten(2)).abs() @ ((high - low) / 2).flatten(1).unsqueeze(2)
    expected = rows @ net.logits(middle).unsqueeze(2).double() - lost
    for specification in (rows, Margins(y, 5)):
        plain, sound = (engine.run(inputs, specification, Query("ibp", s, "real", None)).lower for s in (False, True))
        torch.testing.assert_close(plain, expected.squeeze(2), atol=2e-5, rtol=0)
        assert bool((sound <= plain + 1e-6).all())
        assert bool((sound >= plain - 1e-4).all())
