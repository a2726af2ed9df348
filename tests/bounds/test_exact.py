"""Bounds against exact arithmetic: sound ones enclose every value, unsound ones do not."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import bound_nets
import numpy as np
import pytest
import torch
from bound_engines import LIBRARY, PATHS, engine_of
from bound_graphs import graph_of
from bound_sets import KINDS, Sets, extreme_values, random_sets, violated
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.tensor import engine as tensor_engine
from pyrobust.bounds.engines.tensor.engine import TensorEngine

METHODS = ("ibp", "crown-ibp", "crown")
Engines = Mapping[str, Engine | TensorEngine]


@dataclasses.dataclass
class Tally:
    cases: int = 0
    bounds: int = 0
    finite: int = 0
    outside: int = 0
    outside_unsound: int = 0

    def check(self, cases: int) -> None:
        print(self)  # shown by pytest -rP
        assert self.cases >= cases
        assert self.outside == 0
        assert self.finite >= 0.8 * self.bounds
        assert self.outside_unsound > 0  # otherwise these tests could not fail


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
            tally.outside += violations
            tally.bounds += 2 * lower.numel()
            tally.finite += int(lower.isfinite().sum() + upper.isfinite().sum())
            assert violations == 0, (name, net, sets, method, rows)
        else:
            tally.outside_unsound += violations
    for name in engines:
        tallies[name].cases += len(sets.x)


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
    seed: int, nets: int, count: int, methods: Sequence[str] = METHODS, *, kinked: bool = False
) -> dict[str, Tally]:
    rng = np.random.default_rng(seed)
    tallies = {name: Tally() for name in PATHS}
    for i in range(nets):
        dtype = torch.float64 if rng.random() < 0.15 else torch.float32
        net, shape = bound_nets.convolutional(rng, bound_nets.STYLES[i % len(bound_nets.STYLES)], dtype)
        net = bound_nets.kinked(net, rng) if kinked else net
        graph = BoundedModel(net, torch.zeros(1, *shape, dtype=dtype)).output
        engines = {name: engine_of(graph, dtype, name) for name in PATHS}
        outputs = net(torch.zeros(1, *shape, dtype=dtype)).shape[1]
        for kind in KINDS:
            compare(engines, net, random_sets(kind, count, shape, dtype, rng), rng, outputs, tallies, methods)
    return tallies


def check(tallies: dict[str, Tally], cases: int) -> None:
    for tally in tallies.values():
        tally.check(cases)


def test_dense_nets() -> None:
    check(dense_cases(1, nets=35, count=12), 420)


def test_dense_nets_at_every_level(simd_level: str) -> None:
    check(dense_cases(2, nets=30, count=8, names=["native", LIBRARY]), 240)


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
