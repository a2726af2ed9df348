"""Layers whose ranges bounds by intervals are concretized on, as global average poolings: nothing is lost by that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bound_engines import PATHS, engine_of
from torch import Tensor, nn

from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.graph.capture import capture
from pyrobust.bounds.input_set import box
from pyrobust.bounds.specification import Margins, margins

_RADIUS = 0.05


class Net(nn.Module):
    """Functions of a convolution, pooled, and logits of what is pooled; ``also`` reads the functions a second time."""

    def __init__(self, pool: Callable[[Tensor], Tensor], function: nn.Module | None, *, also: bool = False) -> None:
        super().__init__()
        self.conv, self.function, self.pool, self.also = nn.Conv2d(2, 4, 3), function, pool, also
        self.head = nn.LazyLinear(5)

    def values(self, x: Tensor) -> Tensor:
        """Return what bounds by intervals know the ranges of: of functions, or of the input."""
        return x if self.function is None else self.function(self.conv(x))

    def ranges(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.function is None:
            return x - _RADIUS, x + _RADIUS
        center, radius = self.conv(x), nn.functional.conv2d(torch.full_like(x, _RADIUS), self.conv.weight.abs())
        return self.function(center - radius), self.function(center + radius)

    def logits(self, z: Tensor) -> Tensor:
        """Return the logits, affine in those values."""
        pooled = self.pool(self.conv(z) if self.function is None else z).flatten(1)
        return self.head(torch.cat([pooled, z.flatten(1)], 1) if self.also else pooled)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.values(x))


NETS: dict[str, Callable[[], Net]] = {
    "global": lambda: Net(nn.AdaptiveAvgPool2d(1), nn.ReLU()),
    "mean": lambda: Net(lambda z: z.mean((2, 3)), nn.Tanh()),
    "squares": lambda: Net(nn.AvgPool2d(2), nn.LeakyReLU(0.3)),
    "depthwise": lambda: Net(nn.Conv2d(4, 4, 4, groups=4), nn.ReLU()),
    "overlapping": lambda: Net(nn.AvgPool2d(2, 1), nn.ReLU()),
    "across channels": lambda: Net(nn.Conv2d(4, 3, 4), nn.ReLU()),
    "read twice": lambda: Net(nn.AdaptiveAvgPool2d(1), nn.ReLU(), also=True),
    "no function": lambda: Net(nn.AdaptiveAvgPool2d(1), None),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", NETS)
def test_bounds_by_intervals_are_those_on_the_ranges_of_the_functions(name: str, path: str) -> None:
    torch.manual_seed(0)
    x, net = torch.rand(3, 2, 6, 6), NETS[name]().eval()
    y = net(x).argmax(1)
    engine = engine_of(capture(net.requires_grad_(False), x[:1]), torch.float32, path)
    rows, inputs = margins(y, 5), box(x - _RADIUS, x + _RADIUS, tuple(x.shape[1:]))
    low, high = net.ranges(x)
    middle = (low + high) / 2
    slopes = torch.stack([torch.autograd.functional.jacobian(lambda z: net.logits(z[None])[0], z) for z in middle])
    lost = (rows.float() @ slopes.flatten(2)).abs() @ ((high - low) / 2).flatten(1).unsqueeze(2)
    expected = rows @ net.logits(middle).unsqueeze(2).double() - lost
    for given in (rows, Margins(y, 5)):
        plain, sound = (engine.run(inputs, given, Query("ibp", s, "real", None)).lower for s in (False, True))
        torch.testing.assert_close(plain, expected.squeeze(2), atol=2e-5, rtol=0)
        assert bool((sound <= plain + 1e-6).all())
        assert bool((sound >= plain - 1e-4).all())
