"""Movements one after another: one node reads what the first of them read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.graph.nodes import Gather, Input, Node, Reshape, in_order


class Moved(nn.Module):
    """Movements between a function and a sum of pairs."""

    def __init__(self, movement: str) -> None:
        super().__init__()
        self.movement = movement

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(x)
        if self.movement == "there and back":
            z = z.transpose(1, 2).contiguous().transpose(1, 2)
        elif self.movement == "several":
            z = torch.cat([z.transpose(1, 2), z.flip(1, 2).transpose(1, 2)], 1)[:, ::2].repeat(1, 1, 2)
        elif self.movement == "padded":
            z = nn.functional.pad(z.transpose(1, 2), (1, 0)).transpose(1, 2)
        return torch.relu(z.flatten(1) - 1)


def nodes(movement: str, x: Tensor) -> list[type[Node]]:
    bounded = BoundedModel(Moved(movement).eval(), x)
    return [type(node) for node in in_order(bounded.output) if issubclass(type(node), Gather | Reshape | Input)]


@pytest.mark.parametrize("movement", ["there and back", "several", "padded"])
def test_one_movement_is_left(movement: str) -> None:
    moved = [Input, Reshape] if movement == "there and back" else [Input, Gather, Reshape]  # the last flattens
    assert nodes(movement, torch.zeros(1, 3, 2)) == moved


@pytest.mark.parametrize("movement", ["there and back", "several", "padded"])
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_bounds_of_a_point_are_its_outputs(movement: str, engine: str) -> None:
    net, x = Moved(movement).eval(), torch.arange(12.0).view(2, 3, 2) - 4
    for method in ("ibp", "crown"):
        bounds = BoundedModel(net, x, engine=engine).bounds(x, 0.0, method=method)
        assert torch.allclose(bounds.lower, net(x).double(), atol=1e-5)
        assert torch.allclose(bounds.upper, net(x).double(), atol=1e-5)
