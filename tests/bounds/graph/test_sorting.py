"""Sorted activations: bounds against samples and exact ranges, networks that sort, deployed forward passes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from bound_engines import NAMES
from bound_layers import Called
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.differentiable import DifferentiableBounds
from pyrobust.bounds.graph.capture import capture
from pyrobust.bounds.graph.lowering.sorting import sorting_network
from pyrobust.bounds.graph.nodes import Sort, in_order


def group_sort(size: int) -> Called:
    return Called(lambda z: z.unflatten(1, (-1, size)).sort(2)[0].flatten(1))


def max_min(z: Tensor) -> Tensor:
    a, b = z.chunk(2, 1)
    return torch.cat([torch.max(a, b), torch.min(b, a)], 1)


ACTIVATIONS = {
    "pairs": lambda: group_sort(2),
    "triples": lambda: group_sort(3),
    "all": lambda: Called(lambda z: z.sort(1, descending=True).values),
    "max_min": lambda: Called(max_min),
    "smallest": lambda: Called(
        lambda z: torch.cat([z.unflatten(1, (4, 3)).amin(2), z.unflatten(1, (6, 2)).amax(2)], 1)
    ),
}


def net(name: str, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    after = 10 if name == "smallest" else 12
    layers = (nn.Linear(5, 12), ACTIVATIONS[name](), nn.Linear(after, 12), ACTIVATIONS[name](), nn.Linear(after, 4))
    return nn.Sequential(*layers).eval().to(dtype)


@pytest.mark.parametrize("n", range(1, 10))
def test_a_network_sorts_all_rows_of_zeros_and_ones(n: int) -> None:
    # and therefore every row (Knuth, 5.3.4, theorem Z)
    rows = np.array(list(itertools.product([0, 1], repeat=n)))
    for stage in sorting_network(n):
        assert len({place for pair in stage for place in pair}) == 2 * len(stage)
        i, j = np.array(stage).T
        rows[:, i], rows[:, j] = np.minimum(rows[:, i], rows[:, j]), np.maximum(rows[:, i], rows[:, j])
    assert (np.diff(rows, axis=1) >= 0).all()


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_bounds_hold_at_samples(name: str, engine: str) -> None:
    model, generator = net(name), torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, generator=generator)
    bounded, widths = BoundedModel(model, x, engine=engine), {}
    for method, norm, semantics in (
        ("ibp", "linf", "real"),
        ("crown-ibp", "linf", "float32"),
        ("crown", "linf", "real"),
        ("crown", "l2", "float32"),
    ):
        epsilon = 0.3
        bounds = bounded.bounds(x, epsilon, method=method, norm=norm, semantics=semantics)
        delta = torch.randn(200, *x.shape, generator=generator).sign() * (epsilon - 1e-6)
        delta[100:] *= torch.rand(100, *x.shape, generator=generator)
        if norm == "l2":
            delta = delta / delta.norm(dim=2, keepdim=True) * epsilon * (1 - 1e-6)
        with torch.no_grad():
            values = model((x + delta).flatten(0, 1)).view(200, 3, 4)
        assert (values >= bounds.lower).all()
        assert (values <= bounds.upper).all()
        widths[method, norm] = (bounds.upper - bounds.lower).mean().item()
    assert name == "all" or widths["crown", "linf"] <= widths["crown-ibp", "linf"] < widths["ibp", "linf"]


@pytest.mark.parametrize("engine", NAMES)
def test_the_range_of_sorted_numbers_is_that_of_their_sorted_ends(engine: str) -> None:
    model, generator = ACTIVATIONS["all"]().double(), torch.Generator().manual_seed(1)
    x = torch.randn(20, 9, dtype=torch.float64, generator=generator)
    upper = x + torch.rand(20, 9, dtype=torch.float64, generator=generator)
    bounds = BoundedModel(model, x, engine=engine).bounds(x_lower=x, x_upper=upper, method="ibp")
    assert torch.equal(bounds.lower, model(x))
    assert torch.equal(bounds.upper, model(upper))


@pytest.mark.parametrize("engine", NAMES)
def test_ranges_of_large_and_equal_numbers(engine: str) -> None:
    model = ACTIVATIONS["pairs"]()
    ends = torch.tensor([[3e38, -3e38, 0.0, 0.0], [1e-45, 0.0, -1e-45, 2e38]])
    bounds = BoundedModel(model, ends, engine=engine).bounds(x_lower=ends, x_upper=ends, method="crown")
    assert (bounds.lower <= model(ends)).all()
    assert (bounds.upper >= model(ends)).all()
    unsound = BoundedModel(model, ends, engine=engine).bounds(x_lower=ends, x_upper=ends, method="ibp", sound=False)
    assert torch.equal(unsound.lower.float(), model(ends))


def test_the_larger_and_the_smaller_of_the_same_two_are_one_sort() -> None:
    for name, count in (("max_min", 2), ("pairs", 2), ("triples", 6)):
        nodes = in_order(capture(net(name), torch.zeros(1, 5)))
        assert sum(isinstance(node, Sort) for node in nodes) == count


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_differentiable_bounds_agree_with_the_engine(name: str) -> None:
    model = net(name, torch.float64)
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    differentiable, bounded = DifferentiableBounds(model, x), BoundedModel(model, x)
    least, most = differentiable.bounds(x, 0.1, method="ibp")
    for method in ("ibp", "crown-ibp"):
        expected = bounded.bounds(x, 0.1, method=method)
        lower, upper = differentiable.bounds(x, 0.1, method=method)
        # the engine intersects both methods
        assert torch.allclose(lower.maximum(least), expected.lower, atol=1e-9)
        assert torch.allclose(upper.minimum(most), expected.upper, atol=1e-9)
