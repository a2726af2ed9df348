"""Bounds with semantics="float32" contain the model's float32 outputs for any order of its sums."""

from __future__ import annotations

import bound_nets
import numpy as np
import pytest
import torch
from bound_deployed import SUMS, deployed
from bound_engines import LIBRARY, NAMES, engine_of
from bound_graphs import graph_of
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.input_set import ball

METHODS = ("ibp", "crown-ibp", "crown")


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


def limited(net: nn.Sequential, kind: str, rng: np.random.Generator) -> nn.Sequential:
    """Replace all activations by those of one kind."""

    def activation() -> nn.Module:
        if kind == "leaky_relu":
            return nn.LeakyReLU(float(rng.choice([0.01, 0.1, 0.3])))
        return nn.Hardtanh(-0.3, 0.7) if kind == "hardtanh" else nn.ReLU()

    if kind == "prelu":
        return bound_nets.kinked(net, rng)
    functions = (nn.ReLU, nn.LeakyReLU, nn.Hardtanh)
    return nn.Sequential(*(activation() if isinstance(m, functions) else m for m in net)).eval()


def outside_of_dense(kind: str, nets: int, seed: int, semantics: str, name: str) -> tuple[int, int, int]:
    """Return (cases, violated bounds, finite bounds) over random dense nets."""
    rng = np.random.default_rng(seed)
    cases = outside = finite = 0
    for i in range(nets):
        style = ("normal", "cancel", "stable", "one")[i % 4]
        net = limited(bound_nets.dense(rng, style, torch.float32), kind, rng)
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


@pytest.mark.parametrize(("name", "nets"), [("native", 40), ("torch", 16), (LIBRARY, 20)])
@pytest.mark.parametrize("kind", ["relu", "leaky_relu", "hardtanh", "prelu"])
def test_dense_nets_in_any_order(kind: str, name: str, nets: int) -> None:
    cases, outside, finite = outside_of_dense(kind, nets, 11, "float32", name)
    assert outside == 0
    assert finite >= 0.8 * 3 * cases


@pytest.mark.parametrize("name", NAMES)
def test_real_semantics_do_not_enclose_the_deployed_pass(name: str) -> None:
    """Check that the test above can fail."""
    _, outside, _ = outside_of_dense("relu", 40, 11, "real", name)
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
