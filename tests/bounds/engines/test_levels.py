"""Test that the engine rounds alike at each SIMD level."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from pyrobust import _C, BoundedModel


@pytest.fixture
def levels():
    before = _C.simd_level()
    yield _C.simd_levels()
    _C.set_simd_level(before)


def one_weight_linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A layer with one weight, a power of two, for each output: fused products and others are equally exact."""
    layer = nn.Linear(inputs, outputs)
    exponents = torch.randint(-2, 3, (outputs,), generator=generator)
    signs = torch.randint(0, 2, (outputs,), generator=generator) * 2 - 1
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[range(outputs), [k % inputs for k in range(outputs)]] = signs * torch.exp2(exponents)
        layer.bias.copy_(torch.rand(outputs, generator=generator) - 0.5)
    return layer


@pytest.mark.parametrize("method", ["ibp", "crown-ibp", "crown"])
def test_rounding_to_float32_is_the_same(levels, method):
    """A compiler that drops a rounding to float32 gives ranges around a number that is not the one kept."""
    generator = torch.Generator().manual_seed(0)
    sizes = [13, 37, 23, 10]
    linear = [one_weight_linear(*pair, generator) for pair in pairwise(sizes)]
    model = BoundedModel(
        nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2]).eval(), torch.zeros(1, 13)
    )
    x = torch.rand(40, 13, generator=generator)
    found = []
    for level in levels:
        _C.set_simd_level(level)
        bounds = model.bounds(x, 0.3, method=method)
        found.append(torch.stack([bounds.lower, bounds.upper]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)
