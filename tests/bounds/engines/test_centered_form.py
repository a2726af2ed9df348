"""The centered form of CROWN in float32: sound far from zero and in tiny sets, where it loses next to nothing.

And leaky ReLUs with slopes of any sign, one or one for each channel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from bounds.test_exact import check, dense_cases, layered_cases
from support.bounds import nets as bound_nets
from support.bounds.engines import LIBRARY, engine_of
from support.bounds.graphs import elements, less_multiple
from support.bounds.layers import Called
from support.bounds.sets import KINDS, Sets, extreme_values, violated
from torch import Tensor, nn

from pyrobust import _C
from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.native import Engine
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import Activation, Input, Sum
from pyrobust.bounds.input_set import ball, box
from pyrobust.bounds.specification import margins

METHODS = ("crown-ibp", "crown")


def native(net: nn.Module, shape: tuple[int, ...]) -> Engine:
    engine = engine_of(BoundedModel(net, torch.zeros(1, *shape)).output, torch.float32)
    assert isinstance(engine, Engine)
    return engine


def far_sets(kind: str, count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Sets:
    """Draw points and sets of radius 1e-9 to 1e-2, with centers of size 1 to 1e6."""
    x = rng.uniform(0.5, 1, (count, *shape)) * rng.choice([-1, 1], (count, *shape))
    center = torch.from_numpy(x * 10.0 ** rng.integers(0, 7, (count, *[1] * len(shape)))).float()
    epsilon = 10.0 ** rng.uniform(-9, -2, count) * (rng.random(count) > 0.3)
    width = torch.from_numpy(rng.random(x.shape) * epsilon.reshape(count, *[1] * len(shape)))
    upper = torch.maximum(center, (center + width).float())
    return Sets(kind, center, upper, torch.from_numpy(epsilon), None)


def wide(rng: np.random.Generator, style: str) -> nn.Sequential:
    """Draw a net whose sums have enough terms to cancel; its ReLUs are mostly stable on a tiny set."""
    widths = [int(n) for n in rng.integers(5, 30, 3)]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), bound_nets.function(rng)]
        if rng.random() < 0.5:
            layers += [bound_nets.Residual(nn.Sequential(nn.Linear(b, b), nn.ReLU()), int(rng.choice([1, -1])))]
    net = nn.Sequential(*layers, nn.Linear(widths[-1], 3)).float()
    return bound_nets.fill(net, style, rng)


def count_violations(net: nn.Module, shape: tuple[int, ...], rng: np.random.Generator) -> int:
    engine, outside = native(net, shape), 0
    outputs = net(torch.zeros(1, *shape)).shape[1]
    for kind, norm_rows in itertools.product(KINDS, (False, True)):
        sets = far_sets(kind, 4, shape, rng)
        rows = torch.eye(outputs, dtype=torch.float64).expand(4, -1, -1)
        if norm_rows:
            rows = torch.from_numpy(rng.standard_normal((4, 2, outputs))).float().double()
        values = extreme_values(net, sets, rows, rng)
        for method in METHODS:
            lower, upper = engine._call(
                engine._native, sets.of_engine(), rows, Query(method, True, "real", None), with_upper=True
            )
            outside += violated(values, lower, upper)
    return outside


@pytest.mark.parametrize(
    ("seed", "nets"), [(0, 4), *(pytest.param(seed, 150, marks=pytest.mark.full) for seed in range(10, 20))]
)
def test_nets_far_from_zero(seed: int, nets: int) -> None:
    rng = np.random.default_rng(seed)
    for i in range(nets):
        net = wide(rng, ("normal", "cancel")[i % 2])
        assert count_violations(net, (net[0].in_features,), rng) == 0, net
        net, shape = bound_nets.convolutional(rng, ("normal", "cancel")[i % 2], torch.float32)
        assert count_violations(net, shape, rng) == 0, net


def absorbing(fan_in: int) -> nn.Sequential:
    """Build a net in whose backward sums 1 + d + d + ... of ``fan_in`` terms every d is rounded away.

    Each hidden neuron is 4 + w·x[0], w = 1 for the first and d = 0.49·2^-23 for the others; the output is their sum.
    """
    net = nn.Sequential(nn.Linear(8, fan_in), nn.ReLU(), nn.Linear(fan_in, 1, bias=False)).eval().requires_grad_(False)
    net[0].weight.fill_(0)
    net[0].weight[:, 0] = 0.49 * 2.0**-23
    net[0].weight[0, 0] = 1
    net[0].bias.fill_(4)
    net[2].weight.fill_(1)
    return net


@pytest.mark.parametrize("fan_in", [4, 6, 8])
def test_coefficients_that_lose_every_term(fan_in: int, simd_level: str) -> None:
    """On the unit l2 ball the minimum is 4 fan_in - (1 + (fan_in - 1) d); no dot product hides an error."""
    net = absorbing(fan_in)
    lower, upper = native(net, (8,)).run(
        ball(torch.zeros(1, 8), torch.tensor([1.0]).double(), "l2", None, (8,)),
        None,
        Query("crown", True, "real", None),
    )
    reach = float(net[0].weight.double()[:, 0].sum())
    assert float(lower) <= 4 * fan_in - reach
    assert float(upper) >= 4 * fan_in + reach


@pytest.mark.parametrize("method", ["crown-ibp", "crown", "alpha-crown"])
def test_rounded_coefficients_of_chords_are_paid_for(method: str, simd_level: str) -> None:
    """A chain of relu(z - drop) whose chords all round down, less what they round to times x, in [0, top].

    The chords meet every ReLU at its largest value: at x = top nothing but the rounding error is lost.
    """
    rng, steps = np.random.default_rng(0), 64
    rounded, top, drops = np.float32(1), 1.0, []
    for _ in range(steps):  # from the output on, as coefficients are multiplied
        candidates = rng.integers(1, 2**16, 256) / 2**20
        slopes = (top / (top + candidates)).astype(np.float32)
        worst = int((rounded * slopes / (float(rounded) * slopes.astype(np.float64))).argmin())
        rounded, top = rounded * slopes[worst], top + float(candidates[worst])
        drops.insert(0, float(candidates[worst]))
    node = Input(name="x", shape=(1 + steps,), inputs=())
    z = x = elements(node, 0)
    drop_inputs = elements(node, *range(1, 1 + steps))
    for k in range(steps):
        z = Sum(name="z", shape=(1,), inputs=(z, elements(drop_inputs, k)), signs=(1, -1))
        z = Activation(name="relu", shape=(1,), inputs=(z,), function="leaky_relu")
    engine = engine_of(less_multiple(z, x, float(rounded)), torch.float32)
    inputs = box(torch.tensor([[0.0, *drops]]), torch.tensor([[top, *drops]]), (1 + steps,))
    _, upper = engine.run(inputs, None, Query(method, True, "real", None, iterations=0))
    assert Fraction(upper.item()) >= 1 - Fraction(float(rounded)) * Fraction(top)


@pytest.mark.parametrize("method", METHODS)
def test_slopes_of_curves_are_rounded_before_their_intercepts(method: str) -> None:
    """The square around 750, less 1500 times x: chords end, and tangents touch, where the bounds do."""
    rng = np.random.default_rng(0)
    ends = np.sort(750 + rng.integers(-(2**14), 2**14, (64, 2)) / 2**14, axis=1)
    x = Input(name="x", shape=(1,), inputs=())
    square = Activation(name="square", shape=(1,), inputs=(x,), function="square")
    engine = engine_of(less_multiple(square, x, 1500.0), torch.float32)
    sets = box(*(torch.from_numpy(bound[:, None]).float() for bound in ends.T), (1,))
    lower, upper = (bound[:, 0].tolist() for bound in engine.run(sets, None, Query(method, True, "real", None)))
    for low, high, begin, end in zip(lower, upper, *ends.T.tolist(), strict=True):
        points = [Fraction(begin), Fraction(end), (Fraction(begin) + Fraction(end)) / 2]
        values = [point * (point - 1500) for point in points]
        assert Fraction(low) <= min(values)
        assert Fraction(high) >= max(values)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_values_at_the_origins_lose_terms(relu: bool, method: str) -> None:
    """The sum 2^60 + 1 + ... + 1 - 2^60 = 6 is 0 in float64."""
    net = nn.Sequential(nn.Linear(8, 1), *([nn.ReLU()] if relu else [])).eval().requires_grad_(False)
    net[0].weight.fill_(1)
    net[0].bias.fill_(-3)
    x = torch.tensor([[2.0**60, 1, 1, 1, 1, 1, 1, -(2.0**60)]])
    engine = native(net, (8,))
    lower, upper = engine._call(
        engine._native, ball(x, 0.0, "linf", None, (8,)), None, Query(method, True, "real", None), with_upper=True
    )
    assert float(lower) <= 3 <= float(upper)


def loss(net: nn.Module, x: Tensor, epsilon: float, method: str) -> Tensor:
    """Return how far float32 margins are below those in float64."""
    engine = native(net, tuple(x.shape[1:]))
    rows, inputs = margins(net(x).argmax(1), 10), ball(x, epsilon, "linf", None, tuple(x.shape[1:]))
    query = Query(method, True, "real", None)
    narrow, _ = engine._call(engine._native, inputs, rows, query, with_upper=False)
    exact, _ = engine._call(engine._wide, inputs, rows, query, with_upper=False)
    assert bool((narrow <= exact + 1e-9 * exact.abs()).all())
    return exact - narrow


@pytest.mark.parametrize("method", METHODS)
def test_rounding_errors_shrink_with_the_set(method: str) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())]
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), *layers, nn.Linear(64, 10)).eval().requires_grad_(False)
    x = torch.rand(4, 20)
    assert float(loss(net, x, 1e-6, method).max()) < 2e-7
    assert float(loss(net, x, 1e-9, method).max()) < 5e-9  # at a point only products of two roundings are left


class _OnePlace(nn.Module):
    """Adds 1, then 4,096 shares of 2^-25 to the coefficient of a, which has been -1: float32 loses all of them."""

    def __init__(self, *, product: bool) -> None:
        super().__init__()
        self.product = product
        self.weights = torch.full((4097,), 2.0**-25)
        self.weights[0] = 1

    def forward(self, x: Tensor) -> Tensor:
        a, b = x[:, :1], x[:, 1:]
        before, after = a.expand(-1, 2), a.expand(-1, 4097)
        if self.product:  # of activations, though b is one point
            return (before * (b - 1.5)).sum(1, keepdim=True) + (after * (b - 1 + self.weights)).sum(1, keepdim=True)
        return (before + b).sum(1, keepdim=True) * -0.5 + (after + b) @ self.weights.unsqueeze(1)


@pytest.mark.parametrize("product", [True, False])
def test_additions_at_one_place_are_charged(product: bool) -> None:
    bounded = BoundedModel(_OnePlace(product=product), torch.zeros(1, 2), engine="native")
    low, high = torch.tensor([[3.0, 1.0]]), torch.tensor([[3.5, 1.0]])
    slope = Fraction(1, 2**13)  # of a
    constant = Fraction(0) if product else slope
    for method in ("crown-ibp", "crown", "alpha-crown"):
        bounds = bounded.bounds(x_lower=low, x_upper=high, method=method)
        assert Fraction(bounds.lower.item()) <= 3 * slope + constant
        assert Fraction(bounds.upper.item()) >= Fraction(7, 2) * slope + constant
        assert bounds.upper.item() - bounds.lower.item() < 0.01


ALL = ("ibp", *METHODS, "alpha-crown")


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
        *(column.tolist() for column in (least, most, lower, upper, *relax(least, most, lower, upper))), strict=True
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
    for method in ALL[:3]:
        native, tensor, third = (model.bounds(x, 0.3, method=method) for model in engines)
        torch.testing.assert_close(native.lower, tensor.lower, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(native.upper, third.upper, rtol=1e-12, atol=1e-12)
