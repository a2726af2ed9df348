"""Leaky ReLUs with slopes of any sign, one or one for each channel: exact values, relaxations, search for slopes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from bound_engines import LIBRARY, engine_of
from bound_graphs import elements, less_multiple
from bound_layers import Called
from test_exact import METHODS, check, dense_cases, layered_cases
from torch import Tensor, nn

from pyrobust import _C, BoundedModel
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import Activation, Input, Sum
from pyrobust.bounds.input_set import box

ALL = (*METHODS, "alpha-crown")


def test_nets_against_exact_values() -> None:
    check(dense_cases(31, nets=40, count=4, names=["native", LIBRARY], methods=ALL, kinked=True), 160)
    check(layered_cases(32, nets=2, count=1, methods=("ibp", "crown"), kinked=True), 6)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(40, 50))
def test_a_million_nets_against_exact_values(seed: int) -> None:
    check(dense_cases(seed, nets=100_000, count=1, names=["native"], methods=ALL, kinked=True), 100_000)
    check(layered_cases(seed, nets=50, count=8, methods=ALL, kinked=True), 1_200)


@pytest.mark.parametrize("relax", [_C.prelu_relaxation32, _C.prelu_relaxation64])
def test_relaxations_in_rationals(relax: Callable[..., tuple[np.ndarray, ...]]) -> None:
    """Lines and ranges hold at both ends and at the kink, for both ends of the slope; many are attained."""
    rng = np.random.default_rng(0)
    count = 2000
    lower = rng.standard_normal(count) * 10.0 ** rng.integers(-12, 12, count)
    upper = lower + np.abs(rng.standard_normal(count)) * 10.0 ** rng.integers(-12, 12, count)
    lower[::7], upper[1::7] = np.minimum(0, upper[::7]), np.maximum(0, lower[1::7])
    least = rng.choice([-3.0, -1.0, -0.1, 0.0, 0.3, 1.0, 1.0 + 2.0**-52, 2.7], count)
    least = np.where(rng.random(count) < 0.5, rng.standard_normal(count), least)
    most = np.where(rng.random(count) < 0.5, least, least + np.abs(rng.standard_normal(count)) * 1e-7)
    attained = 0
    for s, t, l, u, a, b, c, d, low, high in zip(  # noqa: E741 - the field's names
        *(part.tolist() for part in (least, most, lower, upper, *relax(least, most, lower, upper))), strict=True
    ):
        for slope in {s, t}:
            for z in {l, u, min(max(l, 0.0), u)}:
                value = Fraction(z) * (1 if z >= 0 else Fraction(slope))
                assert Fraction(a) * Fraction(z) + Fraction(b) <= value <= Fraction(c) * Fraction(z) + Fraction(d)
                assert Fraction(low) <= value <= Fraction(high)
                attained += float(value) in (low, high)
    assert attained > count


def test_not_a_number_and_infinite_ranges() -> None:
    slopes = np.array([-1.0, 0.0, 0.5, 2.0])
    for low, high in ((np.nan, 1.0), (-1.0, np.nan), (-np.inf, 1.0), (-1.0, np.inf), (-np.inf, np.inf)):
        parts = _C.prelu_relaxation32(slopes, slopes, np.full(4, low), np.full(4, high))
        if np.isnan(low + high) and not np.isinf([low, high]).any():
            assert np.isnan(parts[4]).all()
            assert np.isnan(parts[5]).all()
        else:
            assert not (parts[4] > 0).any()
        assert (parts[1] == -np.inf).all() or np.isnan(low + high)


def random_net(seed: int, slopes: list[float]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(2, 6), nn.PReLU(6), nn.Linear(6, 5), nn.LeakyReLU(slopes[0]), nn.Linear(5, 8)
    ).double()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor(slopes, dtype=torch.float64).repeat(6)[:6])
    return net.eval(), torch.randn(8, 2, dtype=torch.float64)


@pytest.mark.parametrize("method", ["crown", "alpha-crown"])
@pytest.mark.parametrize(("least", "most"), [(0.75, 1.0), (-1.0, -0.75), (1.0, 1.25)])
def test_rounded_coefficients_of_slopes_are_paid_for(least: float, most: float, method: str) -> None:
    """A chain of slopes that all round to the wrong side, and what they round to times x: the error is all there is."""
    rng, steps, side = np.random.default_rng(0), 40, -1 if least > 0 else 1
    worst = np.argmin if least == 0.75 else np.argmax
    rounded, exact, slopes = 1.0, Fraction(1), []
    for _ in range(steps):  # from the output on, as coefficients are multiplied
        candidates = rng.uniform(least, most, 64).tolist()
        errors = [abs(Fraction(rounded * c)) - abs(Fraction(rounded) * Fraction(c)) for c in candidates]
        slopes.append(candidates[int(worst([float(error / abs(Fraction(rounded))) for error in errors]))])
        rounded, exact = rounded * slopes[-1], exact * Fraction(slopes[-1])
    node = Input(name="x", shape=(2,), inputs=())
    z = x = elements(node, 0)
    zeros = elements(node, *[1] * steps)
    for k, slope in enumerate(reversed(slopes)):
        if slope < 0 and k > 0:  # z is positive: below zero again, and unstable
            z = Sum(name="-z", shape=(1,), inputs=(z, elements(zeros, k)), signs=(-1, 1))
        weight = Constant.of(torch.tensor([slope], dtype=torch.float64))
        z = Activation(name="f", shape=(1,), inputs=(z,), function="prelu", weight=weight)
    engine = engine_of(less_multiple(z, x, -side * abs(rounded)), torch.float64)
    lower, upper = torch.tensor([[-1.0, 0.0]]).double(), torch.full((1, 2), 2.0**-60).double()
    low, high = engine.run(box(lower, upper, (2,)), None, Query(method, True, "real", None, iterations=0))
    value = side * (abs(exact) - abs(Fraction(rounded)))  # at x = -1
    assert Fraction(low.item()) <= value <= Fraction(high.item())


def test_both_engines_and_the_absolute_value_agree() -> None:
    """|z| is the leaky ReLU of slope −1; the torch engine has the relaxations of its own."""
    net, x = random_net(0, [-1.0])
    absolute = Called(lambda z: z.abs()).double()
    engines = [BoundedModel(net, x, engine=engine) for engine in ("native", "torch")]
    engines.append(BoundedModel(nn.Sequential(net[0], absolute, net[2], absolute, net[4]), x))
    for method in METHODS:
        native, tensor, third = (model.bounds(x, 0.3, method=method) for model in engines)
        torch.testing.assert_close(native.lower, tensor.lower, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(native.upper, third.upper, rtol=1e-12, atol=1e-12)
