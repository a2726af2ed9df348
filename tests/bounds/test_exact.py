"""Bounds against exact arithmetic, of all layers and layouts: sound ones enclose every value, unsound ones do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from support.bounds import nets as bound_nets
from support.bounds.blocks import AnyEngine, Tally
from support.bounds.engines import LIBRARY, PATHS, engine_of
from support.bounds.graphs import graph_of
from support.bounds.sets import KINDS, Sets, extreme_values, random_sets, violated
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.tensor import engine as tensor_engine

METHODS = ("ibp", "crown-ibp", "crown")
Engines = Mapping[str, AnyEngine]


def asked_rows(rng: np.random.Generator, count: int, outputs: int) -> Tensor:
    """Draw specification rows: the outputs, or combinations with coefficients that are not float32 numbers."""
    if rng.random() < 0.5:
        return torch.eye(outputs, dtype=torch.float64).expand(count, -1, -1)
    return torch.from_numpy(rng.standard_normal((count, 2, outputs)) * 10.0 ** rng.integers(-3, 4))


def compare(
    engines: Engines,
    net: nn.Module,
    sets: Sets,
    rng: np.random.Generator,
    outputs: int,
    tallies: dict[str, Tally],
    methods: Sequence[str] = METHODS,
) -> None:
    """Compare bounds of every engine and method, sound and unsound, to values at extreme points."""
    rows = asked_rows(rng, len(sets.x), outputs)
    values = extreme_values(net, sets, rows, rng)
    identity = rows.shape[1] == outputs and bool((rows == torch.eye(outputs)).all())
    inputs = sets.of_engine()
    for (name, engine), method, sound in itertools.product(engines.items(), methods, (True, False)):
        tally, query = tallies[name], Query(method, sound, "real", None, iterations=4)
        lower, upper = engine.run(inputs, None if identity else rows, query)
        violations = violated(values, lower, upper)
        if sound:
            tally.add(lower, upper, violations)
            assert violations == 0, (name, net, sets, method, rows)
        else:
            tally.outside_unsound += violations
    for name in engines:
        tallies[name].nets += len(sets.x)


def dense_cases(
    seed: int,
    nets: int,
    count: int,
    names: Sequence[str] = PATHS,
    methods: Sequence[str] = METHODS,
    *,
    kinked: bool = False,
) -> dict[str, Tally]:
    rng = np.random.default_rng(seed)
    tallies = {name: Tally() for name in names}
    for i in range(nets):
        dtype = torch.float64 if rng.random() < 0.15 else torch.float32
        net = bound_nets.dense(rng, bound_nets.STYLES[i % len(bound_nets.STYLES)], dtype)
        net = bound_nets.kinked(net, rng) if kinked else net
        features = next(m for m in net.modules() if isinstance(m, nn.Linear)).in_features
        engines = {name: engine_of(graph_of(net, features), dtype, name) for name in names}
        sets = random_sets(str(rng.choice(KINDS)), count, (features,), dtype, rng)
        compare(engines, net, sets, rng, net[-1].out_features, tallies, methods)
    return tallies


def layered_cases(
    seed: int,
    nets: int,
    count: int,
    methods: Sequence[str] = METHODS,
    *,
    names: Sequence[str] = PATHS,
    draw: Callable[..., tuple[nn.Sequential, tuple[int, ...]]] = bound_nets.convolutional,
    kinked: bool = False,
) -> dict[str, Tally]:
    rng = np.random.default_rng(seed)
    tallies = {name: Tally() for name in names}
    for i in range(nets):
        dtype = torch.float64 if rng.random() < 0.15 else torch.float32
        net, shape = draw(rng, bound_nets.STYLES[i % len(bound_nets.STYLES)], dtype)
        net = bound_nets.kinked(net, rng) if kinked else net
        graph = BoundedModel(net, torch.zeros(1, *shape, dtype=dtype)).output
        engines = {name: engine_of(graph, dtype, name) for name in names}
        outputs = net(torch.zeros(1, *shape, dtype=dtype)).shape[1]
        for kind in KINDS:
            compare(engines, net, random_sets(kind, count, shape, dtype, rng), rng, outputs, tallies, methods)
    return tallies


def check(tallies: dict[str, Tally], cases: int) -> None:
    print(tallies)  # shown by pytest -rP
    for tally in tallies.values():
        assert tally.nets >= cases
        assert tally.outside == 0
        assert tally.finite >= 0.8 * tally.bounds
        assert tally.outside_unsound > 0  # otherwise these tests could not fail


def test_dense_nets() -> None:
    check(dense_cases(1, nets=25, count=8), 200)


def test_dense_nets_at_every_level(simd_level: str) -> None:
    check(dense_cases(2, nets=20, count=6, names=["native", LIBRARY]), 120)


def test_nets_of_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tensor_engine._TILE_ROWS, "cpu", 4)  # forces windows on these small nets
    check(layered_cases(3, nets=5, count=4), 80)


@pytest.mark.full
def test_dense_nets_at_length() -> None:
    check(dense_cases(4, nets=30_000, count=32), 900_000)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_a_million_dense_nets(seed: int) -> None:
    """Check 25,000 nets per seed, with one input set each."""
    check(dense_cases(seed, nets=25_000, count=1), 25_000)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5, 15))
def test_nets_of_every_layer_at_length(seed: int) -> None:
    check(layered_cases(seed, nets=100, count=32), 12_800)


def convolution(rng: np.random.Generator, channels: int, size: tuple[int, int]) -> nn.Conv2d:
    """Draw kernel, stride, padding, dilation and groups with a non-empty output."""
    groups = int(rng.choice([g for g in (1, 1, channels) if channels % g == 0]))
    kernel, dilation, padding = [], [], []
    for length in size:
        padding.append(int(rng.integers(0, 4)))
        dilation.append(int(rng.integers(1, 4)))
        kernel.append(int(rng.integers(1, max(1, min(4, (length + 2 * padding[-1] - 1) // dilation[-1] + 1)) + 1)))
    stride = [int(s) for s in rng.integers(1, 4, size=2)]
    outputs = groups * int(rng.choice([1, 2, 3, 5]))
    return nn.Conv2d(channels, outputs, tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), groups)


def strided(rng: np.random.Generator, style: str, dtype: torch.dtype) -> tuple[nn.Sequential, tuple[int, ...]]:
    """Draw two convolutions with ReLU and a linear layer; return them with the input shape."""
    shape = (int(rng.choice([1, 2, 3, 4, 9])), int(rng.integers(2, 7)), int(rng.integers(2, 7)))
    layers: list[nn.Module] = []
    z = torch.zeros(1, *shape)
    for _ in range(2):
        layers += [convolution(rng, z.shape[1], (z.shape[2], z.shape[3])), nn.ReLU()]
        z = layers[-2](z)
    layers += [nn.Flatten(), nn.Linear(z.numel(), 3)]
    return bound_nets.fill(nn.Sequential(*layers).to(dtype), style, rng), shape


def test_convolutions_of_every_stride() -> None:
    check(layered_cases(11, nets=8, count=1, draw=strided), 32)


def test_convolutions_of_every_stride_at_every_level(simd_level: str) -> None:
    check(layered_cases(12, nets=8, count=1, names=["native"], draw=strided), 32)


def cancelling(rng: np.random.Generator, width: int, dtype: torch.dtype) -> nn.Sequential:
    """Build a net of large sums that nearly cancel, with a ReLU after each."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(width, 2)).to(dtype)
    with torch.no_grad():
        for layer in net[::2]:
            half = torch.from_numpy(rng.standard_normal((layer.out_features, width // 2)) * 10.0 ** rng.integers(-3, 4))
            layer.weight.copy_(torch.cat([half, -half], 1))
            layer.weight[:, 0] *= 1 + 2.0**-20
            layer.bias.copy_(torch.from_numpy(np.abs(rng.standard_normal(layer.out_features))))
        # Equal halves of a layer's outputs make the next sums cancel, too.
        for layer in net[:-1:2]:
            layer.weight[width // 2 :] = layer.weight[: width // 2]
            layer.bias[width // 2 :] = layer.bias[: width // 2]
    return net


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_intervals_of_sums_that_cancel(dtype: torch.dtype, simd_level: str) -> None:
    rng = np.random.default_rng(14)
    outside = 0
    for i in range(24):
        width = int(rng.choice([2, 4, 34, 70]))
        net = cancelling(rng, width, dtype)
        sets = random_sets("box", 3, (width,), dtype, rng)
        if i % 2 == 0:  # boxes of width 0, with inputs that cancel
            x = sets.x[:, : width // 2].repeat(1, 2)
            sets = Sets("box", x, x, sets.epsilon, None)
        values = extreme_values(net, sets, torch.eye(2, dtype=torch.float64).expand(3, -1, -1), rng)
        engine = Engine(graph_of(net, width), dtype)
        for sound in (True, False):
            violations = violated(values, *engine.run(sets.of_engine(), None, Query("ibp", sound, "real", None)))
            assert not (sound and violations)
            outside += violations
    assert outside > 0  # otherwise the test could not fail


def large(dtype: torch.dtype, scale: float) -> tuple[BoundedModel, Tensor]:
    """Build a net whose second layer multiplies by scale^2 and whose last layer by scale^-2."""
    layers = [m for outputs in (2, 2, 2, 1) for m in (nn.Linear(2, outputs), nn.ReLU())]
    net = nn.Sequential(*layers[:-1]).to(dtype).eval().requires_grad_(False)
    with torch.no_grad():
        for layer, size in zip(net[::2], (scale, scale, 1 / scale, 1 / scale), strict=True):
            layer.weight.fill_(size)
            layer.bias.zero_()
    return BoundedModel(net, torch.zeros(1, 2, dtype=dtype)), torch.ones(17, 2, dtype=dtype)


@pytest.mark.parametrize("method", METHODS)
def test_overflow_in_float32_is_repeated_in_float64(method: str) -> None:
    model, x = large(torch.float32, 2.0**70)
    bounds = model.bounds(x, 0.5, method=method)
    # four sums of two equal numbers, and the powers of two cancel: 16 * [0.5, 1.5]
    assert bool(((bounds.lower <= 8) & (bounds.lower >= 7.99)).all())
    assert bool(((bounds.upper >= 24) & (bounds.upper <= 24.01)).all())


@pytest.mark.parametrize("method", METHODS)
def test_overflow_proves_nothing(method: str, both_engines: str) -> None:
    model, x = large(torch.float64, 2.0**600)
    bounds = model.bounds(x, 0.5, method=method)
    assert bool((bounds.lower == -torch.inf).all())
    assert bool((bounds.upper == torch.inf).all())
