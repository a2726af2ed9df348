"""The native engine's second try: what float32 leaves undecided near zero is decided in float64."""

from __future__ import annotations

import copy
from typing import Any

import bound_nets
import numpy as np
import pytest
import torch
from bound_deployed import SUMS, deployed
from bound_engines import engine_of
from bound_graphs import graph_of
from bound_sets import KINDS, extreme_values, random_sets, violated
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.input_set import ball
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


def test_plain_bounds_and_decided_sets_are_computed_once(spied: Spied) -> None:
    x, label, epsilon = spied.near_zero("crown")
    spied.model.margins(x, label, epsilon / 2)
    spied.model.margins(x, label, epsilon * 4)
    assert spied.calls == [(False, 1), (False, 1)]
    spied.calls.clear()
    spied.model.margins(x, label, epsilon, sound=False)
    assert spied.calls == []


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
    for i in range(60):
        net = bound_nets.dense(rng, bound_nets.STYLES[i % len(bound_nets.STYLES)], torch.float32)
        features = next(m for m in net.modules() if isinstance(m, nn.Linear)).in_features
        engine = engine_of(graph_of(net, features), torch.float32)
        sets = random_sets(str(rng.choice(KINDS)), 8, (features,), torch.float32, rng)
        rows = torch.eye(net[-1].out_features, dtype=torch.float64).expand(8, -1, -1)
        values = extreme_values(net, sets, rows, rng)
        for method in METHODS:
            query = Query(method, True, "real", None)
            assert violated(values, *engine.run(sets.of_engine(), rows, query, with_upper=False)) == 0


@pytest.mark.usefixtures("every_set_again")
@pytest.mark.parametrize("sound", [True, False])
def test_deployed_errors_are_those_of_the_model(sound: bool) -> None:
    """Check that the second try pays for a deployed pass in float32, and that the check fails if it does not."""
    rng = np.random.default_rng(22)
    outside = 0
    for i in range(100):
        net = bound_nets.dense(rng, ("normal", "cancel")[i % 2], torch.float32)
        features = next(m for m in net.modules() if isinstance(m, nn.Linear)).in_features
        engine = engine_of(graph_of(net, features), torch.float32)
        if not sound:
            engine._floats = torch.finfo(torch.float64)
        x = torch.from_numpy(rng.integers(-2048, 2049, size=(8, features)) / 1024).float()
        rows = torch.eye(net[-1].out_features, dtype=torch.float64)
        values = torch.stack([torch.from_numpy(deployed(net, x.numpy(), order, rng)).double() for order in SUMS])
        for method in METHODS:
            query = Query(method, True, "float32", None)
            lower, _ = engine.run(ball(x, 0.0, "linf", None, (features,)), rows, query, with_upper=False)
            outside += int((values < lower).any(0).sum())
    assert (outside == 0) == sound
