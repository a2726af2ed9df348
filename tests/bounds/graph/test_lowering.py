"""Lowering of constants, interpolation, sums and writes at constant places, and sorting.

Constants are enclosed, or evaluated and taken as parameters; coefficients of an interpolation have exact properties; a
sum may be taken in any order, and what has no defined result is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from support.bounds.engines import NAMES
from support.bounds.layers import Bjorck, Called
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils import parametrizations, prune

from pyrobust.bounds import BoundedModel, DifferentiableBounds
from pyrobust.bounds.graph.capture import capture
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.registry import Lowering
from pyrobust.bounds.graph.lowering.resampling import _axis
from pyrobust.bounds.graph.lowering.sorting import sorting_network
from pyrobust.bounds.graph.nodes import Linear, Sort, in_order
from pyrobust.errors import ModelError

aten = torch.ops.aten


def weight_of(model: nn.Module) -> Constant:
    """The weight of the only linear layer of a captured model."""
    graph = capture(model.eval(), torch.zeros(1, 6))
    return next(node.weight for node in in_order(graph) if isinstance(node, Linear))


@pytest.mark.parametrize(
    "layer",
    [
        parametrizations.weight_norm(nn.Linear(6, 6)),
        parametrizations.spectral_norm(nn.Linear(6, 6)),
        parametrizations.orthogonal(nn.Linear(6, 6)),
        Bjorck.of(nn.Linear(6, 6)),
    ],
)
def test_a_parametrized_weight_is_the_one_that_the_module_computes(layer: nn.Module) -> None:
    weight, expected = weight_of(layer), layer.eval().weight.detach()
    lower, upper = weight.enclosure()
    assert torch.equal(lower, upper)
    assert torch.equal(lower, expected.double())
    assert torch.equal(weight.exact(), expected)
    assert len(weight._schedule) < 100  # Björck's steps read the last one four times


def test_arithmetic_of_parameters_is_enclosed_and_keeps_exact_zeros() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(50, generator=generator) for _ in range(2))
    mask = (torch.rand(50, generator=generator) > 0.5).float()
    lower, upper = ((Constant.of(a) / Constant.of(b) + Constant.of(a)) * Constant.of(mask)).enclosure()
    for i in range(50):
        exact = (Fraction(float(a[i])) / Fraction(float(b[i])) + Fraction(float(a[i]))) * int(mask[i])
        assert Fraction(float(lower[i])) <= exact <= Fraction(float(upper[i]))
    assert bool((lower[mask == 0] == 0).all())
    assert bool((upper[mask == 0] == 0).all())
    assert bool((lower[mask == 1] < upper[mask == 1]).all())


def test_pruned_layers_are_bounded() -> None:
    layer = prune.random_unstructured(nn.Linear(6, 3), "weight", 0.5).eval()
    bounds = BoundedModel(layer, torch.zeros(1, 6)).bounds(torch.zeros(1, 6), 0.1)
    radius = 0.1 * layer.weight.detach().abs().sum(1).double()
    torch.testing.assert_close(bounds.upper - bounds.lower, 2 * radius[None], rtol=1e-5, atol=1e-6)


def test_training_follows_a_parametrization() -> None:
    layer = parametrizations.weight_norm(nn.Linear(6, 3)).eval()
    bounds = DifferentiableBounds(layer, torch.zeros(1, 6))
    x = torch.rand(2, 6)
    for _ in range(2):
        lower, upper = bounds.bounds(x, 0.1)
        torch.testing.assert_close(lower / 2 + upper / 2, layer(x))
        (upper - lower).sum().backward()
        gradient = layer.parametrizations.weight.original0.grad
        assert gradient is not None
        assert bool((gradient != 0).all())
        with torch.no_grad():
            layer.parametrizations.weight.original0.mul_(1.5)


def test_constants_have_to_be_finite() -> None:
    with pytest.raises(ModelError, match="finite parameters"):
        Constant.evaluated(torch.log, [Constant.of(torch.zeros(2))]).enclosure()


def deployed(n: int, outputs: int, dtype: torch.dtype, *, aligned: bool, cubic: bool) -> Tensor:
    """The coefficients [outputs, n] that the operator itself uses."""
    unit = torch.eye(n, dtype=dtype).view(1, n, n)
    if cubic:
        return aten.upsample_bicubic2d.vec(unit.unsqueeze(3), [outputs, 1], aligned, None)[0, ..., 0].T
    return aten.upsample_linear1d.vec(unit, [outputs], aligned, None)[0].T


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("cubic", [False, True])
def test_coefficients_are_enclosed(aligned: bool, cubic: bool) -> None:
    """They sum to 1; linear ones reproduce positions between elements; both are those of a float64 operator."""
    strays = 0
    for n, outputs in [(4, 12), (5, 7), (8, 3), (6, 30), (9, 31), (15, 29), (6, 12)]:
        floats = deployed(n, outputs, torch.float32, aligned=aligned, cubic=cubic)
        doubles = deployed(n, outputs, torch.float64, aligned=aligned, cubic=cubic)
        spacing = None if aligned else Fraction(n, outputs)
        axis = _axis(Lowering(torch.float32), n, outputs, spacing, floats, cubic)
        for coefficients, side in ((axis.lower, -1), (axis.upper, 1)):
            dense = torch.zeros(outputs, n, dtype=torch.float64).scatter_add_(1, axis.element, coefficients)
            assert bool((side * (dense - doubles) >= -1e-13).all())
            assert bool((side * (dense - floats.double()) >= 0).all())
            assert float((dense - doubles).abs().max()) < 1e-5
        for i in range(outputs):
            position = Fraction(i * (n - 1), outputs - 1) if spacing is None else (i + Fraction(1, 2)) * spacing
            position = position if spacing is None else position - Fraction(1, 2)
            ends = [[Fraction(float(c)) for c in coefficients[i]] for coefficients in (axis.lower, axis.upper)]
            assert sum(ends[0]) <= 1 <= sum(ends[1])
            if not cubic and 0 <= position <= n - 1:
                moments = [sum(c * int(k) for c, k in zip(row, axis.element[i], strict=True)) for row in ends]
                assert moments[0] <= position <= moments[1]
            strays += sum(bool(low <= 0 < high) for low, high in zip(*ends, strict=True))
    assert aligned or strays > 0  # a position on an element, which floats miss


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {"size": (7, 13), "mode": "bicubic", "align_corners": True},
        {"scale_factor": 1.7, "mode": "bilinear"},
    ],
    ids=str,
)
def test_bounds_at_a_point_hold_exactly_and_as_deployed(name: str, options: dict[str, Any]) -> None:
    model = Called(lambda x: f.interpolate(x, **options).flatten(1))
    x = torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    bounded, deployed = BoundedModel(model, x, engine=name), model(x).double()
    for method in ("ibp", "crown"):
        bounds = bounded.bounds(x, 0.0, method=method, semantics="float32")
        assert bool(((bounds.lower <= deployed) & (deployed <= bounds.upper)).all())
        assert float((bounds.upper - bounds.lower).max()) < 1e-3
        real = bounded.bounds(x, 0.0, method=method)
        assert bool((real.upper - real.lower <= bounds.upper - bounds.lower).all())


TWICE = torch.tensor([1, 1, 4])


def test_a_sum_may_be_taken_in_any_order(both_engines: str) -> None:
    """Three numbers and the one that they are added to: with cancellation, float32 sums differ by more than one."""
    net = Called(lambda z: z[:, :1].index_add(1, torch.zeros(3, dtype=torch.int64), z[:, 1:])).eval()
    terms = (2.0**25, 1.5, -(2.0**25), 1.5)
    sums = {float(sum(torch.tensor(order), torch.zeros(()))) for order in itertools.permutations(terms)}
    assert len(sums) > 2
    x = torch.tensor([terms])
    bounded = BoundedModel(net, x)
    for method in ("ibp", "crown"):
        deployed = bounded.bounds(x, 0.0, method=method, semantics="float32")
        assert float(deployed.lower) <= min(sums)
        assert max(sums) <= float(deployed.upper)
        exact = bounded.bounds(x, 0.0, method=method, semantics="real")
        assert float(exact.lower) <= 3.0 <= float(exact.upper)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda z: z.index_add(0, torch.tensor([1, 0]), z[:2]), "it mixes the examples of a batch"),
        (lambda z: z.scatter(1, torch.tensor([[1, 1]]).expand(len(z), -1), z.relu()), "names no place twice"),
        (lambda z: z.index_copy(1, TWICE, z[:, :3]), "names no place twice"),
        (lambda z: torch.ops.aten.index_put(z, [None, TWICE], z[:, :3].relu(), False), "names no place twice"),
        (
            lambda z: z.scatter_add(1, z.argsort(1), z),
            "no bound rule for .*; express it with supported operators",
        ),
    ],
)
def test_what_has_no_bounds_is_refused_by_name(call: Callable[[Tensor], Tensor], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        capture(Called(call).eval(), torch.rand(2, 12))


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
        assert len({index for pair in stage for index in pair}) == 2 * len(stage)
        i, j = np.array(stage).T
        rows[:, i], rows[:, j] = np.minimum(rows[:, i], rows[:, j]), np.maximum(rows[:, i], rows[:, j])
    assert (np.diff(rows, axis=1) >= 0).all()


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


@pytest.mark.parametrize("name", ["triples", "max_min", "smallest"])
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
