"""Constants that a forward pass computes from parameters alone: enclosed, or evaluated and taken as parameters."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from bound_layers import Bjorck
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from pyrobust.bounds import BoundedModel, DifferentiableBounds
from pyrobust.bounds.graph.capture import capture
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import Linear, in_order
from pyrobust.errors import ModelError


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


class Steps(nn.Module):
    """A parametrization of many steps that read the last one three times each."""

    def forward(self, w: Tensor) -> Tensor:
        for _ in range(40):
            w = (w @ w.mT + w.tanh()) / 8
        return w


def test_every_step_of_a_constant_is_computed_once() -> None:
    """Forty steps that read the last one three times would take 3^40 evaluations otherwise."""
    layer = nn.Linear(6, 6)
    nn.utils.parametrize.register_parametrization(layer, "weight", Steps())
    assert len(weight_of(layer)._schedule) < 300


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
