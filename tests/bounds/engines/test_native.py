"""The native engine: its second try in float64, and its bits at each SIMD level, of an example in any batch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.bounds import nets as bound_nets
from support.bounds.engines import engine_of
from support.bounds.graphs import graph_of
from support.bounds.sets import KINDS, extreme_values, random_sets, violated
from torch import Tensor, nn

from pyrobust import _C
from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.specification import margins

METHODS = ("ibp", "crown-ibp", "crown")


def deep_net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(7) for layer in (nn.Linear(48, 48), nn.ReLU())]
    return nn.Sequential(nn.Linear(6, 48), nn.ReLU(), *layers, nn.Linear(48, 2)).eval().requires_grad_(False)


class Spied:
    """A bounded net that lists the networks which bound it: (in float64, number of sets)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.net = deep_net()
        self.model = BoundedModel(self.net, torch.zeros(1, 6))
        self.calls: list[tuple[bool, int]] = []
        engine = self.model._engine
        assert isinstance(engine, Engine)
        plain = engine._call

        def call(native: Any, inputs: Any, rows: Any, query: Query, *arguments: Any, **keywords: Any) -> Any:
            if query.sound:
                self.calls.append((type(native.network).__name__ == "BoundNetwork64", len(inputs)))
            return plain(native, inputs, rows, query, *arguments, **keywords)

        monkeypatch.setattr(engine, "_call", call)

    def near_zero(self, method: str, **options: Any) -> tuple[Tensor, Tensor, float]:
        """Return an example, its label, and the largest radius that bounds of the net in float64 certify."""
        wide = BoundedModel(copy.deepcopy(self.net).double(), torch.zeros(1, 6, dtype=torch.float64))
        x = torch.linspace(-1, 1, 6)[None]
        label = self.net(x).argmax(1)
        certified, failed = 0.0, 1.0
        for _ in range(50):
            epsilon = (certified + failed) / 2
            if bool(wide.certify(x.double(), label, epsilon, method=method, **options)):
                certified = epsilon
            else:
                failed = epsilon
        return x, label, certified


@pytest.fixture
def spied(monkeypatch: pytest.MonkeyPatch) -> Spied:
    return Spied(monkeypatch)


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_float64_decides_what_float32_does_not(spied: Spied, method: str, norm: Any) -> None:
    x, label, epsilon = spied.near_zero(method, norm=norm)
    narrow = spied.model.bounds(x, epsilon, C=margins(label, 2), method=method, norm=norm)
    assert float(narrow.lower) <= 0  # bounds ask for no sign
    assert spied.calls == [(False, 1)]
    spied.calls.clear()
    assert bool(spied.model.certify(x, label, epsilon, method=method, norm=norm))
    assert spied.calls == [(False, 1), (True, 1)]
    spied.calls.clear()
    spied.model.margins(x, label, epsilon, method=method, norm=norm, sound=False)
    assert spied.calls == []


def test_only_sets_near_zero_are_tried_again_with_the_same_bits_in_any_batch(spied: Spied) -> None:
    x, label, epsilon = spied.near_zero("crown")
    batch, labels = x.expand(4, -1), label.expand(4).clone()
    labels[3] = 1 - label[0]  # far below zero
    sizes = torch.tensor([epsilon / 2, epsilon, 100 * epsilon, epsilon], dtype=torch.float64)
    together = spied.model.margins(batch, labels, sizes).lower
    assert spied.calls == [(False, 4), (True, 1)]
    assert (together[:, 0] > 0).tolist() == [True, True, False, False]
    for i in range(4):
        alone = spied.model.margins(batch[i : i + 1], labels[i : i + 1], sizes[i : i + 1]).lower
        assert torch.equal(alone, together[i : i + 1])


def test_radii_and_verdicts_are_those_of_float64(spied: Spied) -> None:
    x, label, epsilon = spied.near_zero("crown")
    radius = float(spied.model.certified_radius(x, label, method="crown", largest=1.0))
    assert radius == pytest.approx(epsilon, abs=2.0**-20)
    assert spied.model.verify(x, label, epsilon, method="crown").status == ["verified"]


@pytest.fixture
def every_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def undecided(self: Engine, inputs: Any, rows: Any, query: Query, lower: Tensor) -> Tensor:
        return torch.ones(len(lower), dtype=torch.bool)

    monkeypatch.setattr(Engine, "_undecided", undecided)


@pytest.mark.usefixtures("every_set_again")
def test_second_tries_are_below_every_value() -> None:
    rng = np.random.default_rng(21)
    for i in range(30):
        net = bound_nets.dense(rng, bound_nets.STYLES[i % len(bound_nets.STYLES)], torch.float32)
        features = next(m for m in net.modules() if isinstance(m, nn.Linear)).in_features
        engine = engine_of(graph_of(net, features), torch.float32)
        sets = random_sets(str(rng.choice(KINDS)), 8, (features,), torch.float32, rng)
        rows = torch.eye(net[-1].out_features, dtype=torch.float64).expand(8, -1, -1)
        values = extreme_values(net, sets, rows, rng)
        for method in METHODS:
            query = Query(method, True, "real", None)
            assert violated(values, *engine.run(sets.of_engine(), rows, query, with_upper=False)) == 0


@pytest.fixture
def levels() -> Iterator[list[str]]:
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


@pytest.mark.parametrize("method", METHODS)
def test_rounding_to_float32_is_the_same(levels: list[str], method: str) -> None:
    """A compiler that drops a rounding to float32 gives ranges around a number that is not the one kept."""
    generator = torch.Generator().manual_seed(0)
    sizes = [13, 37, 23, 10]
    linear = [one_weight_linear(*pair, generator) for pair in pairwise(sizes)]
    model = BoundedModel(
        nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2]).eval(), torch.zeros(1, 13)
    )
    x = torch.rand(40, 13, generator=generator)
    results = []
    for level in levels:
        _C.set_simd_level(level)
        bounds = model.bounds(x, 0.3, method=method)
        results.append(torch.stack([bounds.lower, bounds.upper]))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0)


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
def test_an_example_has_the_same_bits_alone_and_among_others(
    levels: list[str], build: Callable[[], nn.Sequential], dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """Alone, neurons fill the lanes of a vector in place of examples."""
    torch.set_num_threads(1)
    model, x = bounded(build, dtype)
    for level in levels:
        _C.set_simd_level(level)
        every = model.bounds(x, 0.02, **options)
        for rows in PARTS:
            some = model.bounds(x[rows], 0.02, **options)
            assert torch.equal(some.lower, every.lower[rows]), level
            assert torch.equal(some.upper, every.upper[rows]), level
        assert bool((every.lower < every.upper).all())


GIVEN = {
    "consumers": [1, 1, 0],
    "fused": [False, True, False],
    "affine_in_input": [True, True, False],
    "ends_affine_part": [False, True, False],
    "repeats": [[], [2], [1]],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consumers", [1, 2, 0]),
        ("fused", [False, False, False]),
        ("affine_in_input", [True, True, True]),
        ("ends_affine_part", [False, False, False]),
        ("repeats", [[], [0], [1]]),
        ("repeats", [[], [1], [1]]),  # too few: the bounds would be too tight
        ("repeats", [[], [2, 2], [1]]),
        ("repeats", [[], [2]]),
    ],
)
def test_the_native_engine_refuses_an_analysis_of_other_layers(name: str, value: Any) -> None:
    def network() -> _C.BoundNetwork32:
        layers = _C.BoundNetwork32()
        layers.input([3, 1, 1])
        layers.gather([0], np.array([0, 0, 1]), [3, 1, 1])
        layers.activation(1, "leaky_relu", 0.0, 0.0, 0.0, 2, None)
        return layers

    network().finish(**GIVEN)
    with pytest.raises(ValueError, match="expected an analysis of these layers"):
        network().finish(**{**GIVEN, name: value})
