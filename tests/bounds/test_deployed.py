"""Bounds with semantics="float32" contain the model's float32 outputs for any order of its sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.bounds import nets as bound_nets
from support.bounds.engines import LIBRARY, NAMES, engine_of
from support.bounds.graphs import graph_of
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.input_set import ball

METHODS = ("ibp", "crown-ibp", "crown")
Floats = npt.NDArray[np.float32]


def _forwards(terms: list[Floats]) -> Floats:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _backwards(terms: list[Floats]) -> Floats:
    return _forwards(terms[::-1])


def _pairwise(terms: list[Floats]) -> Floats:
    if len(terms) == 1:
        return terms[0]
    return _pairwise(terms[: len(terms) // 2]) + _pairwise(terms[len(terms) // 2 :])


#: Sums of a list of terms, each [P].
SUMS: dict[str, Callable[[list[Floats]], Floats]] = {
    "forwards": _forwards,
    "backwards": _backwards,
    "pairwise": _pairwise,
}


def deployed(net: nn.Sequential, x: Floats, order: str, rng: np.random.Generator) -> Floats:
    """Return outputs [P, K] for inputs [P, n], summing shuffled terms, bias included, in the given order."""
    for module in net:
        x = _value(module, x, order, rng)
        assert x.dtype == np.float32
    return x


def _value(module: nn.Module, x: Floats, order: str, rng: np.random.Generator) -> Floats:
    if isinstance(module, bound_nets.Residual):
        body = _value(module.body, x, order, rng)
        return x + body if module.sign > 0 else x - body
    if not isinstance(module, nn.Linear):
        return module(torch.from_numpy(x)).numpy()
    weight = module.weight.numpy()
    shuffled = rng.permutation(weight.shape[1])
    columns = []
    for i, row in enumerate(weight):
        terms = [x[:, k] * row[k] for k in shuffled]
        if module.bias is not None:
            terms.insert(int(rng.integers(len(terms) + 1)), np.full(len(x), module.bias[i].item(), dtype=np.float32))
        columns.append(SUMS[order](terms))
    return np.stack(columns, 1)


def float_points(x: Tensor, epsilon: float, norm: str, rng: np.random.Generator) -> Tensor:
    """Return float32 points [P, B, ...] of the balls, some on the surface; x and epsilon are multiples of 2^-10."""
    n = x[0].numel()
    steps = [torch.zeros_like(x)]
    for _ in range(4):
        sign = torch.from_numpy(rng.choice([-1.0, 1.0], size=tuple(x.shape))).float()
        if norm == "linf":
            steps += [sign * epsilon, torch.from_numpy(rng.uniform(-1, 1, tuple(x.shape))).float() * epsilon * 0.999]
            continue
        coordinate = torch.zeros_like(x).flatten(1)
        coordinate[:, int(rng.integers(n))] = 1
        steps += [coordinate.view_as(x) * sign * epsilon, sign * (epsilon * 0.999 / (n if norm == "l1" else n**0.5))]
    return torch.stack([x + step for step in steps])


def grid(rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(rng.integers(-2048, 2049, size=shape) / 1024).float()


def outside_of_dense(kinked: bool, nets: int, semantics: str, name: str) -> tuple[int, int, int]:
    """Return (cases, violated bounds, finite bounds) over random dense nets."""
    rng = np.random.default_rng(11)
    cases = outside = finite = 0
    for i in range(nets):
        style = ("normal", "cancel", "stable", "one")[i % 4]
        net = bound_nets.dense(rng, style, torch.float32)
        net = bound_nets.kinked(net, rng) if kinked else net
        n = next(m for m in net.modules() if isinstance(m, nn.Linear)).in_features
        engine = engine_of(graph_of(net, n), torch.float32, name)
        norm, epsilon = str(rng.choice(["linf", "l2", "l1"])), float(rng.choice([0.0, 2.0**-10, 0.25]))
        x = grid(rng, (8, n))
        inputs = ball(x, epsilon, norm, None, (n,))
        points = float_points(x, epsilon, norm, rng)
        orders = [
            torch.from_numpy(deployed(net, points.flatten(0, 1).numpy(), order, rng)).double().view(len(points), 8, -1)
            for order in SUMS
        ]
        values = torch.cat([*orders, net(points.flatten(0, 1)).double().view(len(points), 8, -1)])
        cases += 8
        for method in METHODS:
            lower, upper = engine.run(inputs, None, Query(method, True, semantics, None))
            outside += int(((values < lower) | (values > upper)).any(0).sum())
            finite += int((lower.isfinite() & upper.isfinite()).all(1).sum())
    return cases, outside, finite


@pytest.mark.parametrize(("name", "nets"), [("native", 60), ("torch", 20), (LIBRARY, 30)])
@pytest.mark.parametrize("kinked", [False, True])
def test_dense_nets_in_any_order(kinked: bool, name: str, nets: int) -> None:
    cases, outside, finite = outside_of_dense(kinked, nets, "float32", name)
    assert outside == 0
    assert finite >= 0.8 * 3 * cases


@pytest.mark.parametrize("name", NAMES)
def test_real_semantics_do_not_enclose_the_deployed_pass(name: str) -> None:
    """Check that the test above can fail."""
    _, outside, _ = outside_of_dense(False, 40, "real", name)
    assert outside > 0


@pytest.mark.parametrize("name", NAMES)
def test_layers_as_torch_computes_them(name: str) -> None:
    """Check convolutions, normalisation and pooling."""
    rng = np.random.default_rng(12)
    for i in range(3):
        net, shape = bound_nets.convolutional(rng, ("normal", "cancel", "stable")[i % 3], torch.float32)
        model = BoundedModel(net, torch.zeros(1, *shape), engine=name)
        for norm in ("linf", "l2", "l1"):
            x, epsilon = grid(rng, (8, *shape)), 2.0**-6
            points = float_points(x, epsilon, norm, rng)
            values = net(points.flatten(0, 1)).double().view(len(points), 8, -1)
            for method in METHODS:
                bounds = model.bounds(x, epsilon, norm=norm, method=method, semantics="float32")
                assert ((bounds.lower <= values) & (values <= bounds.upper)).all(), (net, norm, method)


def test_settings_and_formats_stay_inside_but_products_in_bf16() -> None:
    """Check the center of thin balls, where rounding is most of the width, with layers of 32 to 288 neurons."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Conv2d(64, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()
    x = torch.rand(3, 3, 12, 12)
    model = BoundedModel(net, x)
    bounds = [model.bounds(x, 1e-7, method=method, semantics="float32") for method in METHODS]
    for setting in ({"enabled": False}, {"enabled": True, "deterministic": True}):
        for form in (torch.contiguous_format, torch.channels_last):
            with torch.backends.mkldnn.flags(**setting), torch.no_grad():
                outputs = torch.stack([net(x.to(memory_format=form)), torch.cat([net(row[None]) for row in x])])
            for bound in bounds:
                assert ((bound.lower <= outputs) & (outputs <= bound.upper)).all(), setting
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        outputs = net(x).float()
    assert ((outputs < bounds[-1].lower) | (outputs > bounds[-1].upper)).any()


@pytest.mark.parametrize("sound", [True, False])
def test_deployed_errors_of_second_tries_are_those_of_the_model(sound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the second try pays for a deployed pass in float32, and that the check fails if it does not."""
    monkeypatch.setattr(Engine, "_undecided", lambda self, *arguments: torch.ones(len(arguments[-1]), dtype=torch.bool))
    rng = np.random.default_rng(22)
    outside = 0
    for i in range(25):
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
