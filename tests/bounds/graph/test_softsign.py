"""Softsign z / (1 + |z|) against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import bound_nets
import numpy as np
import pytest
import torch
from bound_engines import NAMES, engine_of
from bound_graphs import graph_of
from bound_sets import KINDS, random_sets
from test_exact import Tally, compare
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.bounds import BoundedModel, DifferentiableBounds, lipschitz_bound
from pyrobust.bounds.graph.activations import ACTIVATIONS, curves
from pyrobust.bounds.graph.nodes import Activation, in_order


def softsign(z: Fraction) -> Fraction:
    return z / (1 + abs(z))


def softsign_rule(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, ...]:
    rule = ACTIVATIONS["softsign"].rule
    assert rule is not None
    return rule(Activation(name="softsign", shape=(), inputs=(), function="softsign"))(low, high)


def smallest_excess(slope: Fraction, intercept: Fraction, low: Fraction, high: Fraction) -> Fraction:
    """Return a number with the sign of min slope·z + intercept − f(z) over [low, high], 0 where that is 0; slope ≥ 0.

    Multiplied by 1 + |z| it is (slope·z + intercept)·(1 + |z|) − z: concave for z ≤ 0, minimal at an end, and a convex
    parabola for z ≥ 0, with its vertex at (1 − slope − intercept) / (2·slope).
    """
    points = [low, high, *([Fraction(0)] if low < 0 < high else [])]
    if slope > 0:
        vertex = (1 - slope - intercept) / (2 * slope)
        points += [vertex] if max(low, 0) < vertex < high else []
    return min((slope * z + intercept) * (1 + abs(z)) - z for z in points)


def intervals(count: int) -> np.ndarray:
    """Draw intervals [count, 2] of either sign or both, from 1e-9 to 1e9, narrow intervals and points."""
    rng = np.random.default_rng(0)
    ends = rng.standard_normal((count, 2)) * 10.0 ** rng.uniform(-9, 9, (count, 1))
    ends[::3, 1] = ends[::3, 0] * (1 + 10.0 ** rng.uniform(-16, 0, len(ends[::3])))
    ends[::7, 1] = ends[::7, 0]
    return np.sort(ends, 1)


def violations() -> tuple[int, int, Fraction]:
    """Count unsound relaxations and intervals; also return the largest excess where a relaxation should touch."""
    ends = intervals(1000)
    relaxed, ranged, largest = 0, 0, Fraction(0)
    for low, high, *rule in zip(*ends.T, *softsign_rule(*ends.T), strict=True):
        a, b = Fraction(float(low)), Fraction(float(high))
        lower_slope, lower, upper_slope, upper, least, most = (Fraction(float(part)) for part in rule)
        below, above = smallest_excess(lower_slope, -lower, -b, -a), smallest_excess(upper_slope, upper, a, b)
        relaxed += (below < 0) + (above < 0)
        ranged += (least > softsign(a)) + (most < softsign(b))
        largest = max(largest, below / (1 + abs(a) + abs(b)), above / (1 + abs(a) + abs(b)))
    return relaxed, ranged, largest


def test_the_rule_encloses_exact_values_and_touches_them() -> None:
    relaxed, ranged, largest = violations()
    assert relaxed == 0
    assert ranged == 0
    assert largest <= Fraction(2) ** -40  # attained up to the margin and the error of a point of contact


def test_without_the_margin_the_rule_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the test above can fail: rounding to nearest alone is unsound."""
    monkeypatch.setattr(curves, "ERROR", 0.0)
    monkeypatch.setattr(curves, "ROUNDED", 0.0)
    monkeypatch.setattr(curves, "TINY", 0.0)
    relaxed, ranged, _ = violations()
    assert relaxed > 30
    assert ranged > 30


def test_ranges_without_an_end() -> None:
    infinity = np.inf
    low, high = np.array([-infinity, -infinity, 3.0, -infinity, 0.0]), np.array([infinity, -3.0, infinity, 0.0, 0.0])
    lower_slope, lower, upper_slope, upper, least, most = softsign_rule(low, high)
    assert (lower_slope[:4] == 0).all()
    assert (upper_slope[:4] == 0).all()
    assert lower[0] == lower[1] == least[0] == least[1] == -1
    assert upper[0] == upper[2] == most[0] == most[2] == 1
    np.testing.assert_allclose([most[1], least[2], least[4], most[4]], [-0.75, 0.75, 0, 0], atol=1e-15)
    assert np.isnan(softsign_rule(np.array([np.nan]), np.array([np.nan]))[4])


def test_nets_with_softsign_enclose_exact_values() -> None:
    """Check IBP, CROWN-IBP and CROWN in both engines, over balls and boxes."""
    rng = np.random.default_rng(1)
    tallies = {name: Tally() for name in NAMES}
    for i in range(12):
        dtype = torch.float64 if i % 5 == 0 else torch.float32
        net = nn.Sequential(nn.Linear(3, 4), nn.Softsign(), nn.Linear(4, 4), nn.Softsign(), nn.Linear(4, 2)).to(dtype)
        bound_nets.fill(net, bound_nets.STYLES[i % 3], rng)
        engines = {name: engine_of(graph_of(net, 3), dtype, name) for name in NAMES}
        sets = random_sets(KINDS[i % 4], 4, (3,), dtype, rng)
        compare(engines, net, sets, rng, 2, tallies)
    for tally in tallies.values():
        tally.check(48)


class Variants(nn.Module):
    """Softsign as torch decomposes it, written by hand, and with its parts used elsewhere."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.scale = kind, nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "function":
            return functional.softsign(x)
        if self.kind == "by hand":
            return x / (1 + x.abs())
        if self.kind == "of a parameter":
            return x * functional.softsign(self.scale)
        size = x.abs() + 1
        return x / size + size if self.kind == "parts used" else x / (x.abs() + 2)


def test_softsign_is_recognised() -> None:
    x = torch.zeros(1, 2)
    for kind in ("function", "by hand"):
        output = BoundedModel(Variants(kind).eval(), x).output
        assert isinstance(output, Activation)
        assert output.function == "softsign"
    for kind in ("parts used", "another", "of a parameter"):  # by other nodes
        output = BoundedModel(Variants(kind).eval(), x).output
        assert not any(isinstance(node, Activation) and node.function == "softsign" for node in in_order(output))


def test_training_and_lipschitz_bounds() -> None:
    """Compare differentiable bounds to the engines' without directed rounding; their gradients are finite."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Softsign(), nn.Linear(8, 8), nn.Softsign(), nn.Linear(8, 3)).double().eval()
    x = torch.randn(20, 3, dtype=torch.float64)
    trained, bounded = DifferentiableBounds(net, x), BoundedModel(net, x)
    for method in ("ibp", "crown-ibp"):
        for epsilon in (0.0, 3.0):
            lower, upper = trained.bounds(x, epsilon, method=method)
            expected = bounded.bounds(x, epsilon, method=method, sound=False)
            torch.testing.assert_close(lower, expected.lower, rtol=1e-7, atol=1e-7)
            torch.testing.assert_close(upper, expected.upper, rtol=1e-7, atol=1e-7)
            net.zero_grad()
            (upper - lower).sum().backward()
            assert all(bool(p.grad.isfinite().all()) for p in net.parameters() if p.grad is not None)
    weights = [layer.weight for layer in net if isinstance(layer, nn.Linear)]
    product = float(np.prod([float(torch.linalg.matrix_norm(w.detach(), 2)) for w in weights]))
    bound = lipschitz_bound(net, x)
    assert bound.lower <= bound.value <= product * 1.01
