"""alpha-CROWN: sound for any slopes, never looser than CROWN, and climbing along the true gradient."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import pytest
import torch
from bounds.test_exact import check, dense_cases, layered_cases
from support.bounds.data import attacked
from support.bounds.engines import PATHS
from torch import Tensor, nn

from pyrobust import BoundedModel
from pyrobust.bounds.engines.engine_bounds import EngineBounds
from pyrobust.bounds.engines.improved import improved
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.input_set import CPU, ball
from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo import load_data, load_model

METHOD = "alpha-crown"
ALPHA = (METHOD,)


def test_nets_against_exact_values() -> None:
    check(dense_cases(11, nets=16, count=4, methods=ALPHA), 64)
    check(layered_cases(12, nets=3, count=2, methods=ALPHA), 18)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20, 30))
def test_a_million_nets_against_exact_values(seed: int) -> None:
    check(dense_cases(seed, nets=10_000, count=8, names=PATHS[:1], methods=ALPHA), 80_000)
    check(layered_cases(seed, nets=100, count=8, methods=ALPHA), 2_400)


def test_a_search_that_ends_worse_changes_nothing() -> None:
    """The rows are one that the search improves, one that it makes worse, and one that it leaves without a bound."""
    lower_bounds = {"crown": [0.5, -1.0, -2.0], METHOD: [0.75, -1.5, torch.nan]}

    def run(inputs: object, rows: object, query: Query, with_upper: bool) -> EngineBounds:
        lower = torch.tensor([lower_bounds[query.method]], dtype=torch.float64)
        return EngineBounds.by(query.method, lower, -lower)

    inputs = ball(torch.zeros(1, 2), 0.1, "linf", None, (2,), CPU)
    bounds = improved(run, inputs, None, Query(METHOD, True, "real", None), True)
    assert bounds.lower.tolist() == [[0.75, -1.0, -2.0]]
    assert bounds.upper.tolist() == [[-0.75, 1.0, 2.0]]
    assert [list(by[0]) for by in bounds.names()] == 2 * [[METHOD, "crown", "crown"]]


def sloped(*slopes: float) -> nn.Module:
    """Leaky ReLUs with a slope for each neuron."""
    layer = nn.PReLU(6)
    layer.weight.data.copy_(torch.tensor(slopes).repeat(6)[:6])
    return layer


FUNCTIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky relu": lambda: nn.LeakyReLU(0.2),
    "of each neuron": lambda: sloped(0.3, -1.0, 1.5),
}


@pytest.mark.parametrize(
    ("function", "engine"), [("relu", "native"), ("of each neuron", "native"), ("leaky relu", "torch")]
)
def test_wide_sets_of_two_inputs_where_bounds_are_almost_attained(function: str, engine: str) -> None:
    """Slopes outside their interval, or a wrong intercept, would make some of these bounds false."""
    torch.manual_seed(0)
    axis = torch.linspace(-1, 1, 61, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    close = gained = 0
    for _ in range(4 if engine == "native" else 2):
        layers = [nn.Linear(2, 6), FUNCTIONS[function](), nn.Linear(6, 6), FUNCTIONS[function](), nn.Linear(6, 8)]
        net = nn.Sequential(*layers).double().eval().requires_grad_(False)
        x = torch.randn(8, 2, dtype=torch.float64)
        bounded = BoundedModel(net, x, engine=engine)
        crown, bounds = bounded.bounds(x, 1.0), bounded.bounds(x, 1.0, method=METHOD)
        values = net((x[:, None] + grid).flatten(0, 1)).view(8, len(grid), 8)
        lowest, highest = values.amin(1), values.amax(1)
        assert (bounds.lower <= lowest + 1e-12).all()
        assert (bounds.upper >= highest - 1e-12).all()
        assert (bounds.lower >= crown.lower).all()
        close += int((lowest - bounds.lower < 0.02 * (highest - lowest)).sum())
        gained += int((bounds.lower - crown.lower > 0.01 * (highest - lowest)).sum())
    assert close > 20
    assert gained > 20


def random_net(seed: int, last: int = 3) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Unflatten(1, (2, 4, 4)),
        nn.Conv2d(2, 6, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(6, 8, 2),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        nn.Linear(8, 12),
        nn.ReLU(),
        nn.Linear(12, last),
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5)
    return net.eval(), torch.randn(3, 32)


@functools.cache
def bounded_net(engine: str) -> BoundedModel:
    return BoundedModel(*random_net(0), engine=engine)


EPSILON = {"linf": 0.1, "l2": 0.4, "l1": 1.0}


@pytest.mark.parametrize(("norm", "semantics"), [("linf", "float32"), ("l2", "real"), ("l1", "real")])
def test_both_engines_find_nearly_the_same_never_looser_than_crown_and_often_tighter(norm: str, semantics: str) -> None:
    net, x = random_net(0)
    points = x + 0.01 * EPSILON[norm] * torch.nn.functional.normalize(torch.randn_like(x), dim=1)
    with torch.no_grad():
        values = net(points).double()
    gains = []
    for engine in ("native", "torch"):
        bounded = bounded_net(engine)
        crown, bounds = (
            bounded.bounds(x, EPSILON[norm], norm=norm, semantics=semantics, method=method, iterations=8)
            for method in ("crown", METHOD)
        )
        assert (bounds.lower >= crown.lower).all()
        assert (bounds.upper <= crown.upper).all()
        assert ((bounds.lower - crown.lower) / (crown.upper - crown.lower)).mean() > 0.01
        assert ((values >= bounds.lower) & (values <= bounds.upper)).all()
        gains.append(float((bounds.lower - crown.lower).mean()))
    assert gains[0] == pytest.approx(gains[1], rel=0.05)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_slopes_that_are_no_numbers_prove_nothing(engine: str) -> None:
    net, x = random_net(4)
    with torch.no_grad():
        net[6].weight.mul_(1e15)
        net[8].weight.mul_(1e15)
    bounded = BoundedModel(net, x, engine=engine)
    for scale in (0.1, 1e20):
        bounds = bounded.bounds(x * scale, 0.1 * scale, method=METHOD, iterations=3)
        assert not bounds.lower.isnan().any()
        assert not bounds.upper.isnan().any()
    with torch.no_grad():
        net.double()[8].weight.mul_(1e150)
    bounded = BoundedModel(net, x.double() * 1e280, engine=engine)
    y = torch.zeros(3, dtype=torch.int64)
    assert not bounded.certify(x.double() * 1e280, y, 1e280, method=METHOD).any()
    assert (bounded.certified_radius(x.double() * 1e280, y, method=METHOD, largest=1e280) <= 1e280).all()


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_iterations_and_time(engine: str) -> None:
    bounded, (_, x) = bounded_net(engine), random_net(0)
    widths = []
    for iterations in (0, 1, 20):
        bounds = bounded.bounds(x, 0.1, method=METHOD, iterations=iterations)
        widths.append(float((bounds.upper - bounds.lower).sum()))
    assert widths[0] > widths[1] > widths[2]
    for name, value in itertools.product(("iterations", "time_limit"), (-1, "many")):
        with pytest.raises((InputError, InputTypeError), match=name):
            bounded.bounds(x, 0.1, method=METHOD, **{name: value})


def test_verification_ends_with_what_is_decided() -> None:
    net, x = random_net(6)
    with torch.no_grad():
        y = net(x).argmax(1)
    bounded = BoundedModel(net, x)
    margins = bounded.margins(x, y, 0.03, method=METHOD)
    assert torch.equal(bounded.certify(x, y, 0.03, method=METHOD), margins.positive())
    verdicts = bounded.verify(x, y, 0.03, methods=("crown", METHOD))
    assert torch.equal(verdicts.verified, margins.positive())
    radius = bounded.certified_radius(x, y, method=METHOD)
    assert (radius >= bounded.certified_radius(x, y, method="crown") * (1 - 1e-3)).all()
    for i in range(len(x)):
        assert bounded.certify(x[i : i + 1], y[i : i + 1], float(radius[i]), method=METHOD).all() or radius[i] == 0
    assert bounded.intermediate_bounds(x, 0.03, method=METHOD)
    with pytest.raises(InputError, match="alpha-crown"):
        bounded.linear_bounds(x, 0.03, method=METHOD)


def test_each_undecided_example_is_improved_by_bounds_of_its_own() -> None:
    """Examples that CROWN decides stand between others; all have rows and radii of their own."""
    net, x = random_net(7)
    x = torch.cat([x, -x, x + 1])
    epsilon = torch.tensor([0.03, 0.001, 0.05] * 3, dtype=torch.float64)
    rows = torch.randn(9, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        rows *= (net(x).double()[:, None] * rows).sum(2, keepdim=True).sign()
    engine, query = BoundedModel(net, x)._engine, Query(METHOD, True, "real", None, decides=True)
    inputs = ball(x, epsilon[:, None], "linf", None, (32,))
    together = engine.run(inputs, rows, query, with_upper=False).lower
    crown = engine.run(inputs, rows, Query("crown", True, "real", None), with_upper=False).lower
    assert (crown > 0).all(1).tolist() != (crown > 0).all(1).roll(1).tolist()
    for i in range(9):
        alone = engine.run(inputs.rows(slice(i, i + 1)), rows[i : i + 1], query, with_upper=False).lower
        assert torch.equal(together[i : i + 1], alone)
    assert (together > crown).any()


def test_attacks_within_certified_radii() -> None:
    data, net = load_data("digits"), load_model("zoo:digits-smooth-0.25").eval()
    assert attacked(net, data.x[:1], data.y[:1], "l2", METHOD, 2.0, "float32", 0, 10) >= 1
