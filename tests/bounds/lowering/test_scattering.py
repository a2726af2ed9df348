"""Sums and writes at constant places: what torch computes, in any order of a sum, and what has no defined result."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from bound_layers import Called
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.graph.capture import capture
from pyrobust.bounds.graph.evaluate import forward
from pyrobust.errors import ModelError

GROUPS, TWICE = torch.tensor([0, 2, 0, 1]), torch.tensor([1, 1, 4])


def rows(z: Tensor, *places: int) -> Tensor:
    """The same indices for each example."""
    return torch.tensor([places]).expand(len(z), -1)


def index_put(z: Tensor, index: Tensor, values: Tensor, *, accumulate: bool) -> Tensor:
    written: Tensor = torch.ops.aten.index_put(z, [None, index], values, accumulate)
    return written


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "pooled groups": lambda z: torch.zeros(len(z), 3, 3).to(z).index_add(1, GROUPS, z.view(-1, 4, 3)),
    "pooled onto ones, in place": lambda z: z.new_ones(len(z), 3, 3).index_add_(1, GROUPS, z.view(-1, 4, 3)),
    "times alpha": lambda z: z.view(-1, 4, 3).index_add(2, TWICE[:2], z.view(-1, 4, 3)[:, :, :2], alpha=-0.7),
    "scatter_add": lambda z: (2 * z).scatter_add(1, rows(z, 0, 5, 5, 11, 2), z.relu()),
    "scatter": lambda z: z.scatter(1, rows(z, 3, 1), z.relu()),
    "scatter a number": lambda z: z.scatter(1, rows(z, 3, 3), 5.0),
    "index_copy": lambda z: torch.zeros_like(z).index_copy(1, TWICE[1:], z[:, :2]),
    "index_put": lambda z: index_put(z, TWICE[1:], z[:, :2].relu(), accumulate=False),
    "index_put, one number twice": lambda z: index_put(z, TWICE, torch.tensor(0.5).to(z), accumulate=False),
    "index_put, added": lambda z: index_put(z, TWICE, z[:, :3].relu(), accumulate=True),
    "index_put, one number added": lambda z: index_put(z, TWICE, z[:, :1].relu(), accumulate=True),
}


@pytest.mark.parametrize("name", CASES)
def test_graphs_and_bounds_are_of_what_torch_computes(name: str, both_engines: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 12), Called(CASES[name]), nn.Flatten()).double().eval()
    x = torch.rand(3, 12).double()
    torch.testing.assert_close(forward(capture(net, x), x), net(x), rtol=1e-14, atol=1e-14)
    corners = x + 0.05 * (1 - 1e-12) * (torch.randint(2, (50, *x.shape)) * 2 - 1).double()
    values = net(corners.flatten(0, 1)).view(50, 3, -1)
    bounded = BoundedModel(net, x)
    for method in ("ibp", "crown"):
        bounds = bounded.bounds(x, 0.05, method=method)
        assert ((values >= bounds.lower - 1e-12) & (values <= bounds.upper + 1e-12)).all()
        assert ((bounds.upper - bounds.lower).mean(1) <= 2.5 * (values.amax(0) - values.amin(0)).mean(1)).all()


def test_a_sum_may_be_taken_in_any_order(both_engines: str) -> None:
    """Three numbers and the one that they are added to: with cancellation, float32 sums differ by more than one."""
    net = Called(lambda z: z[:, :1].index_add(1, torch.zeros(3, dtype=torch.int64), z[:, 1:])).eval()
    terms = (2.0**25, 1.5, -(2.0**25), 1.5)
    sums = {float(sum(torch.tensor(order), torch.zeros(()))) for order in itertools.permutations(terms)}
    assert len(sums) > 2
    x = torch.tensor([terms])
    for method in ("ibp", "crown"):
        deployed = BoundedModel(net, x).bounds(x, 0.0, method=method, semantics="float32")
        assert float(deployed.lower) <= min(sums)
        assert max(sums) <= float(deployed.upper)
        exact = BoundedModel(net, x).bounds(x, 0.0, method=method, semantics="real")
        assert float(exact.lower) <= 3.0 <= float(exact.upper)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda z: z.index_add(0, torch.tensor([1, 0]), z[:2]), "it mixes the examples of a batch"),
        (lambda z: z.scatter(1, rows(z, 1, 1), z.relu()), "names no place twice"),
        (lambda z: z.index_copy(1, TWICE, z[:, :3]), "names no place twice"),
        (lambda z: index_put(z, TWICE, z[:, :3].relu(), accumulate=False), "names no place twice"),
        (lambda z: z.scatter_add(1, z.argsort(1), z), "depends on the input|no bound rule"),
    ],
)
def test_what_has_no_bounds_is_refused_by_name(call: Callable[[Tensor], Tensor], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        capture(Called(call).eval(), torch.rand(2, 12))
