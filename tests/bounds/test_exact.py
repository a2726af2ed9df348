"""Bounds against exact arithmetic: no value of the network lies outside, and without soundness some do."""

from __future__ import annotations

import dataclasses

import bound_nets
import numpy as np
import pytest
import torch
from bound_graphs import graph_of
from bound_sets import KINDS, Sets, extreme_values, missed, random_sets
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engine import Engine, Query

METHODS = ("ibp", "crown-ibp", "crown")


@dataclasses.dataclass
class Tally:
    cases: int = 0
    bounds: int = 0
    finite: int = 0
    outside: int = 0
    outside_unsound: int = 0

    def check(self, cases: int) -> None:
        print(self)  # pytest -rP shows it
        assert self.cases >= cases
        assert self.outside == 0
        assert self.finite >= 0.8 * self.bounds
        assert self.outside_unsound > 0  # else the suite could not fail


def asked_rows(rng: np.random.Generator, count: int, outputs: int) -> Tensor:
    """The outputs themselves, or differences and combinations of them that are no float32 numbers."""
    if rng.random() < 0.5:
        return torch.eye(outputs, dtype=torch.float64).expand(count, -1, -1)
    return torch.from_numpy(rng.standard_normal((count, 2, outputs)) * 10.0 ** rng.integers(-3, 4))


def compare(engine: Engine, net: nn.Module, sets: Sets, rng: np.random.Generator, outputs: int, tally: Tally) -> None:
    """Bounds by every method, sound and not, against values at extreme points."""
    rows = asked_rows(rng, len(sets.x), outputs)
    values = extreme_values(net, sets, rows, rng)
    identity = rows.shape[1] == outputs and bool((rows == torch.eye(outputs)).all())
    inputs = sets.of_engine()
    tally.cases += len(sets.x)
    for method in METHODS:
        for sound in (True, False):
            query = Query(method, sound, "real", None)
            lower, upper = engine.run(inputs, None if identity else rows, query)
            found = missed(values, lower, upper)
            if sound:
                tally.outside += found
                tally.bounds += 2 * lower.numel()
                tally.finite += int(lower.isfinite().sum() + upper.isfinite().sum())
                assert found == 0, (net, sets, method, rows)
            else:
                tally.outside_unsound += found


def dense_cases(seed: int, nets: int, count: int) -> Tally:
    rng = np.random.default_rng(seed)
    tally = Tally()
    for i in range(nets):
        dtype = torch.float64 if rng.random() < 0.15 else torch.float32
        net = bound_nets.dense(rng, bound_nets.STYLES[i % len(bound_nets.STYLES)], dtype)
        features = next(m for m in net.modules() if isinstance(m, nn.Linear)).in_features
        engine = Engine(graph_of(net, features), dtype)
        sets = random_sets(str(rng.choice(KINDS)), count, (features,), dtype, rng)
        compare(engine, net, sets, rng, net[-1].out_features, tally)
    return tally


def layered_cases(seed: int, nets: int, count: int) -> Tally:
    rng = np.random.default_rng(seed)
    tally = Tally()
    for i in range(nets):
        dtype = torch.float64 if rng.random() < 0.15 else torch.float32
        net, shape = bound_nets.convolutional(rng, bound_nets.STYLES[i % len(bound_nets.STYLES)], dtype)
        engine = BoundedModel(net, torch.zeros(1, *shape, dtype=dtype))._engine
        outputs = net(torch.zeros(1, *shape, dtype=dtype)).shape[1]
        for kind in KINDS:
            compare(engine, net, random_sets(kind, count, shape, dtype, rng), rng, outputs, tally)
    return tally


def test_dense_nets() -> None:
    dense_cases(1, nets=1000, count=16).check(16_000)


def test_dense_nets_at_every_level(simd_level: str) -> None:
    dense_cases(2, nets=50, count=8).check(400)


def test_nets_of_every_layer() -> None:
    layered_cases(3, nets=45, count=8).check(1400)


@pytest.mark.full
def test_dense_nets_at_length() -> None:
    dense_cases(4, nets=30_000, count=32).check(900_000)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_a_million_dense_nets(seed: int) -> None:
    """25,000 nets for each seed, with one set each."""
    dense_cases(seed, nets=25_000, count=1).check(25_000)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5, 15))
def test_nets_of_every_layer_at_length(seed: int) -> None:
    layered_cases(seed, nets=100, count=32).check(12_800)
