"""Lipschitz constants of networks, above every slope and as tight as composition allows, and their certificates."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from bounds.test_exact_graphs import Maker, evaluate
from support.bounds import nets as bound_nets
from support.bounds.data import attacked
from support.bounds.exact import Exact, exact_of
from support.bounds.layers import Called
from support.bounds.nets import Concat, Normalize, Residual
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel, LipschitzBound, lipschitz_bound
from pyrobust.bounds.graph.capture import capture
from pyrobust.bounds.graph.evaluate import forward
from pyrobust.bounds.graph.nodes import Gather, Input, MaxPool, Node, Reshape, Sum, in_order
from pyrobust.bounds.lipschitz import bound as bound_module
from pyrobust.bounds.lipschitz.composition import Constants
from pyrobust.bounds.lipschitz.observed import _attaining
from pyrobust.zoo import load_data, load_model

NORMS = ("l2", "linf", "l1")
ORDERS = {"l2": 2.0, "linf": torch.inf, "l1": 1.0}


def exact_size(z: Exact, norm: str) -> list[Fraction]:
    """Return the norm of each row, squared for l2."""
    rows = [[Fraction(abs(int(n)), z.divisor) for n in row] for row in z.lower]
    if norm == "l2":
        return [sum((n * n for n in row), Fraction(0)) for row in rows]
    return [max(row, default=Fraction(0)) if norm == "linf" else sum(row, Fraction(0)) for row in rows]


def holds(output: Node, x: Tensor, other: Tensor, norm: str, bound: float) -> bool:
    """Return whether ‖f(x) − f(x′)‖ ≤ L·‖x − x′‖ for rows of x and x′, in rationals."""
    change = exact_size(evaluate(output, exact_of(x)) + -evaluate(output, exact_of(other)), norm)
    distance = exact_size(exact_of(x) + -exact_of(other), norm)
    factor = Fraction(bound) ** (2 if norm == "l2" else 1)
    return all(c <= factor * d for c, d in zip(change, distance, strict=True))


def graph(seed: int) -> tuple[Node, int, np.random.Generator]:
    rng = np.random.default_rng(seed)
    maker = Maker(rng)
    for _ in range(rng.integers(1, 9)):
        maker.add()
    output = maker.output() if rng.random() < 0.6 else maker.nodes[-1]
    return output, maker.nodes[0].size, rng


def steepest(output: Node, x: Tensor, norm: str) -> Tensor:
    """Return x moved along a direction of fast change of the output."""
    x = x.requires_grad_(True)
    value = forward(output, x)
    if not value.requires_grad:
        return x.detach() + 1
    (w,) = torch.autograd.grad((value * torch.randn_like(value).sign()).sum(), x)
    return x.detach() + _attaining(w, {"l2": "l2", "linf": "l1", "l1": "linf"}[norm])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(1000, 4000), marks=pytest.mark.full)])
def test_random_graphs_in_exact_arithmetic(seeds: range, norm: str) -> None:
    plain = 0
    for seed in seeds:
        output, size, rng = graph(seed)
        bound = Constants(output, norm).of(output)
        assert bound >= 0
        x = torch.from_numpy(rng.standard_normal((8, size)) * 10.0 ** float(rng.integers(-2, 3)))
        other = torch.from_numpy(rng.standard_normal((8, size)))
        for step in (other, x + other * 1e-3, steepest(output, x.clone(), norm)):
            assert holds(output, x.detach(), step, norm, bound), (seed, [type(n).__name__ for n in in_order(output)])
            plain += not holds(output, x.detach(), step, norm, bound * 0.5)
    assert plain > 8  # half the constant is often violated


def dense(net: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Return the Jacobian matrix of an affine net."""
    net = net.double()
    jacobian = torch.func.jacrev(lambda x: net(x[None])[0].flatten())(torch.zeros(shape, dtype=torch.float64))
    return jacobian.detach().flatten(1)


def matrix_norm(matrix: Tensor, norm: str) -> float:
    return float(torch.linalg.matrix_norm(matrix, ORDERS[norm]))


def filled(*layers: nn.Module, seed: int = 0) -> nn.Sequential:
    net = nn.Sequential(*layers)
    bound_nets.fill(net, "normal", np.random.default_rng(seed))
    return net


AFFINE: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: filled(nn.Flatten(), nn.Linear(24, 20)), (2, 3, 4)),
    "conv": (lambda: filled(nn.Conv2d(3, 4, 3, 2, 1)), (3, 9, 8)),
    "dilated": (lambda: filled(nn.Conv2d(2, 6, 3, 1, 2, dilation=2, groups=2)), (2, 7, 7)),
    "norm, conv, norm": (
        lambda: filled(Normalize(torch.zeros(3, 1, 1), torch.zeros(3, 1, 1)), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
        (3, 6, 6),
    ),
    "global average": (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), (3, 5, 5)),
}


@pytest.fixture
def captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A net is captured once, for all norms."""
    graphs: dict[nn.Module, Node] = {}

    def once(model: nn.Module, x: Tensor) -> Node:
        if model not in graphs:
            graphs[model] = capture(model, x)
        return graphs[model]

    monkeypatch.setattr(bound_module, "capture", once)


@pytest.mark.usefixtures("captured_once")
@pytest.mark.parametrize("name", list(AFFINE))
def test_affine_nets_of_one_layer(name: str) -> None:
    """Fold normalisation before and after into the layer."""
    make, shape = AFFINE[name]
    net = make().double().eval()
    for norm in NORMS:
        exact = matrix_norm(dense(net, shape), norm)
        bound = lipschitz_bound(net, torch.rand(2, *shape, dtype=torch.float64), norm)
        assert isinstance(bound, LipschitzBound)
        assert exact * (1 - 1e-12) <= bound.value <= exact * (1.0005 if norm == "l2" else 1 + 1e-9), norm
        assert bound.lower <= exact * (1 + 1e-12)
        assert bound.lower >= exact * 0.7
        assert list(bound.to_dict()["layers"]) == [
            {"name": layer.name, "kind": layer.kind, "value": layer.value} for layer in bound.layers
        ]


@pytest.mark.usefixtures("captured_once")
def test_compositions_by_hand() -> None:
    double = nn.Linear(2, 2, bias=False)
    double.weight.data = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    expected: dict[nn.Module, tuple[float, float, float]] = {
        nn.Sequential(double, nn.Sigmoid()): (0.5, 0.5, 0.5),
        nn.Sequential(double, nn.Tanh(), double): (4, 4, 4),
        nn.Sequential(Residual(double, 1)): (3, 3, 3),
        nn.Sequential(Residual(double, -1)): (3, 3, 3),  # triangle inequality
        Concat(nn.Identity(), double): (5**0.5, 2, 3),
    }
    for net, constants in expected.items():
        values = [lipschitz_bound(net.eval(), torch.ones(1, 2), norm).value for norm in NORMS]
        assert values == pytest.approx(constants, rel=1e-3)


@pytest.mark.usefixtures("captured_once")
def test_a_scale_between_two_layers_is_folded_once() -> None:
    for net, shape in (
        (filled(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 2)), (2, 4, 4)),
        (filled(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), (6,)),
    ):
        net = net.double().eval()
        x = torch.rand(2, *shape, dtype=torch.float64)
        inner = tuple(net[:2](x).shape[1:])
        for norm in NORMS:
            exact = matrix_norm(dense(net, shape), norm)
            product = matrix_norm(dense(net[:2], shape), norm) * matrix_norm(dense(net[2:], inner), norm)
            bound = lipschitz_bound(net, x, norm)
            assert exact * (1 - 1e-12) <= bound.value <= product * 1.001
            assert [layer.kind for layer in bound.layers].count("scale") == 0


@pytest.mark.parametrize("norm", NORMS)
def test_elements_that_are_read_more_than_once(norm: str) -> None:
    x = Input(name="x", shape=(3,), inputs=())
    y = Reshape(name="y", shape=(1, 3), inputs=(x,))
    index = torch.tensor([0, 0, 4, 1, -1])  # element 0 twice; element 1 once from x and once from y
    twice = Gather(name="g", shape=(5,), inputs=(x, y), index=index)
    constant = Constants(twice, norm).of(twice)
    assert constant >= {"l2": 2**0.5, "linf": 1.0, "l1": 2.0}[norm]
    assert constant <= {"l2": 3**0.5, "linf": 1.0, "l1": 3.0}[norm] * (1 + 1e-12)
    same = Gather(name="g", shape=(4,), inputs=(x, x), index=torch.tensor([0, 3, 1, 2]))
    assert Constants(same, norm).of(same) == pytest.approx({"l2": 2**0.5, "linf": 1.0, "l1": 2.0}[norm], rel=1e-12)
    # An element repeated within a window counts once; one in two windows counts twice.
    pool = MaxPool(name="m", shape=(2,), inputs=(x,), windows=torch.tensor([[0, 0, 1], [1, 2, -1]]))
    constant = Constants(pool, norm).of(pool)
    assert constant == pytest.approx({"l2": 2**0.5, "linf": 1.0, "l1": 2.0}[norm], rel=1e-12)
    once = MaxPool(name="m", shape=(2,), inputs=(x,), windows=torch.tensor([[0, 0, 0], [1, 2, -1]]))
    assert Constants(once, norm).of(once) == 1
    nothing = Gather(name="g", shape=(2,), inputs=(x,), index=torch.tensor([-1, -1]))
    assert Constants(nothing, norm).of(nothing) == 0
    signs = Sum(name="s", shape=(3,), inputs=(x, x, x), signs=(1, -1, 1))
    assert Constants(signs, norm).of(signs) == pytest.approx(3, rel=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_numbers_too_large_or_too_small(norm: str) -> None:
    net = filled(*(nn.Linear(3, 3, bias=False) for _ in range(5)), nn.Linear(3, 2)).double()
    x = torch.zeros(2, 3, dtype=torch.float64)
    for weight, bound in ((1e120, torch.inf), (1e-120, 0)):
        for layer in net[:5]:
            layer.weight.data.fill_(weight)
        value = lipschitz_bound(net, x, norm).value
        assert value == bound or 0 == bound < value
        if weight > 1:
            radii = BoundedModel(net, x).certified_radius(x, torch.tensor([0, 1]), norm=norm, method="lipschitz")
            assert radii.tolist() == [0, 0]


NORMED: dict[str, tuple[Any, tuple[float, float, float]]] = {  # function, and its constants in l2, l∞, l1
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=(2, 3)), (1, 4, 1)),
    "pool": (lambda x: nn.functional.lp_pool2d(x, 2, 2), (1, 2, 1)),
    "overlapping": (lambda x: nn.functional.lp_pool2d(x, 2, 2, 1), (2, 2, 4)),
    "shifted": (lambda x: (nn.functional.avg_pool2d(x**2, 2) * 4 + 1e-3).sqrt(), (1, 2, 1)),
    "opposite": (lambda x: torch.cat([x.relu(), (-x).relu()], 1), (1, 1, 1)),
    "equal": (lambda x: torch.cat([x.relu(), (-x * -1).relu()], 1), (2**0.5, 1, 2)),
    "opposite of another": (lambda x: torch.cat([x.relu(), (x.neg().tanh() * -1).relu()], 1), (2**0.5, 1, 2)),
    "number": (lambda x: x.flatten(1).sum(1), (32**0.5, 32, 1)),
    "split": (lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1), (1, 1, 1)),
    "sorted": (lambda x: torch.cat([x[:, 0, 0].sort(1)[0], x.flatten(1)], 1), (2**0.5, 1, 2)),
}


@pytest.mark.usefixtures("captured_once")
@pytest.mark.parametrize("name", NORMED)
def test_norms_sorting_and_parts_have_their_constants(name: str) -> None:
    function, expected = NORMED[name]
    net = Called(function)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, 4, 4, generator=generator).double()
    other = torch.cat([x[:20] + 1e-3 * torch.randn(20, 2, 4, 4, generator=generator), x[20:] * -0.5])
    for norm, constant in zip(NORMS, expected, strict=True):
        bound = lipschitz_bound(net, x[:2], norm=norm)
        assert bound.lower <= bound.value <= constant * (1 + 1e-9)
        differences = (net(x) - net(other), x - other)
        change, distance = (difference.view(len(x), -1).norm(ORDERS[norm], 1) for difference in differences)
        assert (change <= distance * bound.value * (1 + 1e-12)).all()


@functools.cache
def digits() -> tuple[BoundedModel, nn.Module, Tensor, Tensor]:
    data, net = load_data("digits"), load_model("zoo:digits-smooth-0.25").eval()
    return BoundedModel(net, data.x[:40]), net, data.x[:40], data.y[:40]


def dual(row: list[Fraction], norm: str) -> Fraction:
    """Return the dual norm, squared for l2."""
    sizes = [abs(value) for value in row]
    if norm == "l2":
        return sum((s * s for s in sizes), Fraction(0))
    return sum(sizes, Fraction(0)) if norm == "linf" else max(sizes)


@pytest.mark.parametrize("norm", NORMS)
def test_radii_of_an_affine_net_are_the_exact_distances(norm: str) -> None:
    """Compare to min_j m_j / ‖w_y − w_j‖* in rationals: each radius is below it by at most a millionth."""
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4)).double().eval().requires_grad_(False)
    for _ in range(5):
        net[1].weight.data = torch.from_numpy(rng.standard_normal((4, 6)) * 10.0 ** float(rng.integers(-3, 4)))
        net[1].bias.data = torch.from_numpy(rng.standard_normal(4))
        x = torch.from_numpy(rng.standard_normal((12, 2, 3)))
        y = net(x).argmax(1)
        y[:2] = (y[:2] + 1) % 4
        radii = BoundedModel(net, x).certified_radius(x, y, norm=norm, method="lipschitz", largest=1e9)
        weight, bias = net[1].weight.tolist(), net[1].bias.tolist()
        for point, label, radius in zip(x.flatten(1).tolist(), y.tolist(), radii.tolist(), strict=True):
            best = None
            for j in set(range(4)) - {label}:
                row = [Fraction(a) - Fraction(b) for a, b in zip(weight[label], weight[j], strict=True)]
                margin = Fraction(bias[label]) - Fraction(bias[j])
                margin += sum((a * Fraction(b) for a, b in zip(row, point, strict=True)), Fraction(0))
                square = margin * abs(margin) / dual(row, norm) if norm == "l2" else margin / dual(row, norm)
                best = square if best is None else min(best, square)
            assert best is not None
            exact = Fraction(radius) ** 2 if norm == "l2" else Fraction(radius)
            if best <= 0:
                assert radius == 0
            else:
                # in l2 the Gram iteration of the layer before, the identity here, is exact
                assert best * (1 - Fraction(1, 10**6)) <= exact < best


@pytest.mark.parametrize("norm", NORMS)
def test_radii_are_proved_by_margins(norm: str) -> None:
    model, net, x, y = digits()
    y = y.clone()
    y[:3] = (net(x[:3]).argmax(1) + 1) % 10
    radius = model.certified_radius(x, y, norm=norm, method="lipschitz")
    assert radius.dtype == torch.float64
    assert (radius[:3] == 0).all()
    proved = radius > 0
    assert proved.sum() > 25
    options: dict[str, Any] = {"norm": norm, "method": "lipschitz"}
    assert model.certify(x[proved], y[proved], radius[proved], **options).all()
    assert not model.certify(x[proved], y[proved], radius[proved] * 1.0001, **options).any()
    assert torch.equal(model.certified_radius(x, y, clip=(0.0, 1.0), **options), radius)
    small = float(radius[proved].median())
    assert torch.equal(model.certified_radius(x, y, largest=small, **options), radius.clamp(max=small))
    # CROWN proves larger radii here, and the two methods do not contradict each other.
    crown = model.certified_radius(x, y, norm=norm, method="crown", largest=4.0)
    assert (radius[proved] <= crown[proved]).all()
    verdicts = model.verify(x, y, small, norm=norm, methods=("lipschitz", "crown"))
    assert {stage for stage, r in zip(verdicts.stage, radius.tolist(), strict=True) if r > small} == {"lipschitz"}


@pytest.mark.parametrize("norm", NORMS)
def test_bounds_hold_in_the_ball(norm: str) -> None:
    model, _, x, _ = digits()
    rows = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    order = {"l2": 2.0, "linf": torch.inf, "l1": 1.0}[norm]
    bounds = model.bounds(x, 0.3, norm=norm, method="lipschitz")
    mixed = model.bounds(x, 0.3, norm=norm, method="lipschitz", C=rows)
    double, generator = load_model("zoo:digits-smooth-0.25").eval().double(), torch.Generator().manual_seed(1)
    for _ in range(20):
        step = torch.randn(x.shape, dtype=torch.float64, generator=generator)
        sizes = torch.linalg.vector_norm(step.flatten(1), order, dim=1).view(-1, 1, 1, 1)
        with torch.no_grad():
            logits = double(x.double() + step / sizes * 0.2999)
        assert ((bounds.lower <= logits) & (logits <= bounds.upper)).all()
        values = logits @ rows.double().T
        assert ((mixed.lower <= values) & (values <= mixed.upper)).all()
    at_zero = model.bounds(x, 0.0, norm=norm, method="lipschitz")
    assert (at_zero.upper - at_zero.lower).max() < 1e-9


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_attacks_within_the_radius_find_nothing(norm: str) -> None:
    _, net, x, y = digits()
    assert attacked(net, x[::4], y[::4], norm, "lipschitz", 9.0, "real", 0, 20) > 5
