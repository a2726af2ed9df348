"""Bits of the engine: the same at each SIMD level where products are exact, and of an example in any batch."""

import functools
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

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


def grouped() -> nn.Sequential:
    """Convolutions of 1, 3 and 35 outputs a group, each number modulo a panel of which sums differently."""
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4),
        nn.LeakyReLU(0.1),
        nn.Conv2d(4, 70, (1, 3), stride=(2, 1), groups=2),
        nn.BatchNorm2d(70),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(70 * 2, 3),
    )


def narrow() -> nn.Sequential:
    """Layers of 1 to 9, 75 and 130 neurons, and sums of more than one block."""
    sizes = [144, 1, 2, 75, 3, 4, 130, 6, 7, 9, 5]
    layers = [
        layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh() if pair[1] == 2 else nn.ReLU())
    ]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


@functools.cache
def bounded(build: Callable[[], nn.Sequential], dtype: torch.dtype) -> tuple[BoundedModel, Tensor]:
    """A net of these layers, and 21 examples."""
    torch.manual_seed(0)
    net = build().to(dtype)
    for layer in net:
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(), layer.running_var.uniform_(0.5, 2)
    x = torch.rand(21, 4, 6, 6, dtype=dtype)
    return BoundedModel(net.eval(), x[:1]), x


#: Rows of a batch of 21: alone, and in blocks that fill the lanes of a vector or do not.
PARTS = [slice(0, 1), slice(4, 5), slice(20, 21), slice(0, 2), slice(3, 14), slice(0, 16)]


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("build", "options"),
    [
        (grouped, {"method": "ibp"}),
        (narrow, {"method": "ibp", "semantics": "float32"}),
        (narrow, {"method": "ibp", "sound": False}),
        (grouped, {"method": "crown-ibp"}),
        (narrow, {"method": "crown-ibp"}),
        (grouped, {"method": "crown", "norm": "l2"}),
        (narrow, {"method": "crown"}),
    ],
)
def test_an_example_has_the_same_bits_alone_and_among_others(levels, build, dtype, options):
    """Alone, neurons fill the lanes of a vector in place of examples."""
    torch.set_num_threads(1)
    model, x = bounded(build, dtype)
    for level in levels:
        _C.set_simd_level(level)
        every = model.bounds(x, 0.02, **options)
        for part in PARTS:
            some = model.bounds(x[part], 0.02, **options)
            assert torch.equal(some.lower, every.lower[part]), level
            assert torch.equal(some.upper, every.upper[part]), level
        assert bool((every.lower < every.upper).all())
