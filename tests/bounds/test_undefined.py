"""Networks that may have no value on a set, NaN, are never certified, whatever bounds that follow it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel

METHODS = ("ibp", "crown-ibp", "crown")
BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda z: z.clamp(0, 1),
    "sigmoid": torch.sigmoid,
    "tanh of relu": lambda z: torch.relu(z).tanh(),
    "relu6": nn.functional.relu6,
    "two relus": lambda z: 1 - torch.relu(1 - torch.relu(z)),
    "cos": torch.cos,
    "clamped maximum": lambda z: torch.maximum(z, torch.zeros(1)).clamp(max=1),
    "max pool": lambda z: nn.functional.max_pool1d(z.unsqueeze(1), 2).squeeze(1).repeat(1, 2).clamp(-1, 1),
}
PARTIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrt": torch.sqrt,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": lambda z: torch.log1p(z - 1),
    "rsqrt": torch.rsqrt,
    "power": lambda z: z**1.5,
    "reciprocal": lambda z: (1 / z) * z,
}


class Net(nn.Module):
    """Class 0 wins by far, unless the logits are NaN."""

    def __init__(self, first: Callable[[Tensor], Tensor], bounded: Callable[[Tensor], Tensor], weight: Tensor) -> None:
        super().__init__()
        self.first, self.bounded = first, bounded
        self.linear, self.head = nn.Linear(weight.shape[1], len(weight), bias=False), nn.Linear(2, 2)
        with torch.no_grad():
            self.linear.weight.copy_(weight)
            self.head.weight.copy_(torch.tensor([[0.0, 0.0], [0.1, 0.1]]))
            self.head.bias.copy_(torch.tensor([9.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bounded(self.first(self.linear(x))))


def certified(bounded: BoundedModel, x: Tensor, epsilon: float, semantics: str = "float32") -> list[bool]:
    y = torch.zeros(len(x), dtype=torch.int64)
    found = []
    for method in METHODS:
        found.append(bool(bounded.certify(x, y, epsilon, method=method, semantics=semantics)))
        bounds = bounded.bounds(x, epsilon, method=method, semantics=semantics)
        assert found[-1] == bool((bounds.lower[:, 0] > bounds.upper[:, 1]).all())
    return found


@pytest.mark.parametrize("bounded", sorted(BOUNDED))
@pytest.mark.parametrize("partial", sorted(PARTIAL))
def test_a_function_without_a_value(partial: str, bounded: str) -> None:
    net, x = Net(PARTIAL[partial], BOUNDED[bounded], torch.full((2, 4), 0.25)), torch.full((1, 4), 0.25)
    if partial not in {"log", "log2"}:  # whose value at 0 is infinite
        assert net(torch.zeros(1, 4) - (partial != "reciprocal") * 0.01).isnan().all()
    model = BoundedModel(net.eval(), x)
    for semantics in ("real", "float32"):
        assert certified(model, x, 0.26, semantics) == [False] * 3
        assert certified(model, x, 0.2, semantics) == [True] * 3


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("bounded", sorted(BOUNDED))
def test_a_deployed_pass_that_overflows(bounded: str, engine: str) -> None:
    weight = torch.tensor([[3e38, -3e38, 3e38, -3e38]] * 2)
    net, x = Net(lambda z: z, BOUNDED[bounded], weight), torch.full((1, 4), 2.5)
    assert net(x).isnan().all()
    assert certified(BoundedModel(net.eval(), x, engine=engine), x, 0.1) == [False] * 3
    net, x = Net(lambda z: z, BOUNDED[bounded], weight / 3e38), torch.full((1, 4), 2.5)
    assert certified(BoundedModel(net.eval(), x, engine=engine), x, 0.1) == [True] * 3


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_difference_of_exponentials_that_overflow(engine: str) -> None:
    class Difference(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = torch.sigmoid(torch.exp(x[:, :1]) - torch.exp(x[:, 1:]))
            return torch.cat([9 + 0.1 * z, z], 1)

    x = torch.full((1, 2), 88.0)
    assert Difference()(x + 2).isnan().all()
    model = BoundedModel(Difference().eval(), x, engine=engine)
    assert certified(model, x, 3.0) == [False] * 3
    assert all(certified(model, x - 80, 3.0))


def test_linear_bounds_of_a_network_without_a_value() -> None:
    net, x = Net(torch.sqrt, torch.sigmoid, torch.full((2, 4), 0.25)), torch.full((2, 4), 0.25)
    lines = BoundedModel(net.eval(), x).linear_bounds(x, torch.tensor([0.26, 0.2]))
    assert lines.lower_b[0].tolist() == [-torch.inf] * 2
    assert lines.upper_b[0].tolist() == [torch.inf] * 2
    assert bool(lines.lower_b[1].isfinite().all())


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("first", [nn.Identity(), nn.ReLU()])
def test_an_output_that_overflows(engine: str, first: nn.Module) -> None:
    last = nn.Linear(4, 2)
    with torch.no_grad():
        last.weight.copy_(torch.tensor([[3e38, -3e38, 3e38, -3e38], [0.0, 0.0, 0.0, 0.0]]))
        last.bias.copy_(torch.tensor([3e38, 0.0]))
    net, x = nn.Sequential(first, last), torch.full((1, 4), 2.5)
    assert net(x)[0, 0].isnan()
    assert certified(BoundedModel(net.eval(), x, engine=engine), x, 0.01) == [False] * 3
