"""Regression tests of bounds that were wrong, worked by hand: the true value and the difficulty of each.

Networks that may have no value on a set, NaN, are never certified, whatever bounds that follow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.bounds import BoundedModel
from pyrobust.errors import InputError

METHODS = ("ibp", "crown-ibp", "crown")

pytestmark = pytest.mark.usefixtures("both_engines")


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    layer.weight.data = torch.tensor(weight)
    if bias is not None:
        layer.bias.data = torch.tensor(bias)
    return layer.eval()


class Computed(nn.Module):
    """A module that computes a function of x and parameters w0, w1, ..."""

    def __init__(self, f, *values: float) -> None:
        super().__init__()
        self.f = f
        self.w = nn.ParameterList([nn.Parameter(torch.tensor([[value]]), requires_grad=False) for value in values])
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x, *self.w)


def bounds_of(model: nn.Module, x: Tensor, method: str, **options) -> tuple[float, float]:
    example = torch.zeros_like(x)
    bounds = BoundedModel(model.eval(), example).bounds(x, options.pop("epsilon", 0.0), method=method, **options)
    return float(bounds.lower), float(bounds.upper)


def test_largest_radius_is_not_rounded_to_float32() -> None:
    model = BoundedModel(linear([[1.0, 0.0], [0.0, 0.0]], [10.0, 0.0]), torch.zeros(1, 2))
    for largest in (0.3, 0.7):
        assert float(model.certified_radius(torch.zeros(1, 2), torch.tensor([0]), largest=largest)) == largest


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_coefficient_that_underflows_before_a_large_bias(method: str) -> None:
    weights = [[k * 2.0**-149] for k in range(71300, 71440, 7)]
    model = nn.Sequential(linear([[-1e30]], [9.999e29]), nn.LeakyReLU(2.0**-7), linear(weights))
    z = Fraction(model[0].weight.item()) + Fraction(model[0].bias.item())
    bounds = BoundedModel(model.eval(), torch.zeros(1, 1)).bounds(torch.ones(1, 1), 0.0, method=method)
    for weight, lower, upper in zip(weights, bounds.lower[0].tolist(), bounds.upper[0].tolist(), strict=True):
        assert Fraction(lower) <= z / 128 * Fraction(weight[0]) <= Fraction(upper)


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_coefficient_that_underflows_before_a_large_input(method: str) -> None:
    """The coefficient 2^-200 is 0 in float32; values are between 2^-81 and 2^-80."""
    model = nn.Sequential(linear([[2.0**-100]]), linear([[2.0**-100]]))
    lower, upper = bounds_of(model, torch.tensor([[1.5 * 2.0**119]]), method, epsilon=2.0**118)
    assert lower <= 2.0**-81
    assert upper >= 2.0**-80


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("x", [-100.0, -99.5, -98.7, -101.1])
def test_a_slope_that_underflows(method: str, x: float) -> None:
    """Bound sigmoid(x)·1e38, where sigmoid(x) = e^x to float64 accuracy since e^x is below 2^-100."""
    model = nn.Sequential(linear([[1.0]]), nn.Sigmoid(), linear([[1e38]]))
    lower, upper = bounds_of(model, torch.tensor([[x]]), method)
    value = model[2].weight.item() * math.exp(float(torch.tensor(x)))
    assert lower <= value * (1 + 1e-12)
    assert value * (1 - 1e-12) <= upper


@pytest.mark.parametrize("method", METHODS)
def test_a_bias_whose_enclosure_is_centered_at_zero(method: str) -> None:
    """Bound 1.5 + 2^-60 − 1.5 = 2^-60, which float64 only encloses within 2^-52 of 0."""
    model = Computed(lambda x, w, a, b, c: functional.linear(x, w, ((a + b) - c)[0]), 1.0, 1.5, 2.0**-60, 1.5)
    lower, upper = bounds_of(model, torch.zeros(1, 1), method)
    assert lower <= 2.0**-60 <= upper


@pytest.fixture
def flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("where", ["weight", "input"])
def test_denormals_are_numbers_where_torch_flushes_them(flushing: None, where: str) -> None:
    tiny = torch.tensor([[1000]], dtype=torch.int32).view(torch.float32)  # 1000·2^-149
    model = linear([[1.0]])
    model.weight.data = tiny if where == "weight" else torch.full((1, 1), 2.0**120)
    x = tiny if where == "input" else torch.full((1, 1), 2.0**120)
    for method in METHODS:
        lower, upper = bounds_of(model, x, method)
        assert lower <= 1000 * 2.0**-29 <= upper


def test_a_net_that_ends_in_a_relu() -> None:
    """No layer consumes its ranges."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 5), nn.ReLU()).eval()
    x = torch.rand(17, 4)
    bounded = BoundedModel(net, x)
    for method in METHODS:
        bounds = bounded.bounds(x, 0.1, method=method)
        for shift in (-0.1, 0, 0.1):
            values = net(x + shift)
            assert (bounds.lower <= values + 1e-6).all()
            assert (values - 1e-6 <= bounds.upper).all()
        assert (bounds.upper - bounds.lower < 3).all()
        assert bounded.margins(x, net(x).argmax(1), 0.1, method=method).lower.shape == (17, 4)


def deployed_inside(model: nn.Module, x: Tensor, method: str) -> bool:
    bounds = BoundedModel(model.eval(), torch.zeros_like(x[:1])).bounds(x, 0.0, method=method, semantics="float32")
    with torch.no_grad():
        value = model(x).double()
    return bool(((bounds.lower <= value) & (value <= bounds.upper)).all())


def spread(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, 2_001)[:, None]


def batch_norm() -> nn.Module:
    """Return a batch norm whose shift is the difference of two large numbers, mean·γ/σ and β."""
    layer = nn.BatchNorm1d(1)
    layer.running_mean.fill_(1e6 + 0.125)
    layer.running_var.fill_(0.37)
    layer.bias.data.fill_(1e6 / 0.37**0.5)
    return layer


DEPLOYED = [
    pytest.param(nn.Sigmoid(), spread(-5, 5), "ibp", id="sigmoid"),
    pytest.param(nn.Tanh(), spread(-5, 5), "ibp", id="tanh"),
    pytest.param(nn.Hardtanh(-0.1, 0.1), spread(-1, 1), "ibp", id="limits"),
    pytest.param(nn.LeakyReLU(0.01), spread(-9, 0), "ibp", id="slope"),
    *(pytest.param(batch_norm(), spread(-2, 2), m, id=f"norm-{m}") for m in METHODS),
    *(
        pytest.param(
            nn.Sequential(linear([[2e38, 2e38, -2e38, -2e38]]), linear([[1e-38]])),
            torch.ones(1, 4),
            m,
            id=f"overflow-{m}",
        )
        for m in METHODS
    ),
    *(
        pytest.param(
            Computed(lambda x, w, a: functional.linear(x, (w + a) - a), 0.1, 1e6),
            torch.ones(1, 1),
            m,
            id=f"constants-{m}",
        )
        for m in METHODS
    ),
    pytest.param(Computed(lambda x: x * 1e-30), torch.full((1, 1), 1e-20), "ibp", id="underflow"),
]


@pytest.mark.parametrize(("model", "x", "method"), DEPLOYED)
def test_deployed_value_lies_inside(model: nn.Module, x: Tensor, method: str) -> None:
    assert deployed_inside(model, x, method)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deployed_passes_in_16_bits_are_not_modelled(dtype: torch.dtype) -> None:
    """Return no bound rather than a wrong one: float16 underflows below 2^-24 and overflows above 65504."""
    x = torch.full((1, 2), 1e-3).to(dtype)
    with pytest.raises(InputError, match="semantics"):
        BoundedModel(linear([[1e-3, 1e-3]]).to(dtype), x).bounds(x, 0.0, semantics="float32")


BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda z: z.clamp(0, 1),
    "sigmoid": torch.sigmoid,
    "tanh of relu": lambda z: torch.relu(z).tanh(),
    "relu6": nn.functional.relu6,
    "two relus": lambda z: 1 - torch.relu(1 - torch.relu(z)),
    "cos": torch.cos,
    "clamped maximum": lambda z: torch.maximum(z, torch.zeros(1)).clamp(max=1),
    "max pool": lambda z: nn.functional.max_pool1d(z.unsqueeze(1), 2).squeeze(1).repeat(1, 2).clamp(-1, 1),
}
PARTIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrt": torch.sqrt,
    "log": torch.log,
    "log2": torch.log2,
    "log1p": lambda z: torch.log1p(z - 1),
    "rsqrt": torch.rsqrt,
    "power": lambda z: z**1.5,
    "reciprocal": lambda z: (1 / z) * z,
}


class Net(nn.Module):
    """Class 0 wins by far, unless the logits are NaN."""

    def __init__(self, first: Callable[[Tensor], Tensor], bounded: Callable[[Tensor], Tensor], weight: Tensor) -> None:
        super().__init__()
        self.first, self.bounded = first, bounded
        self.linear, self.head = nn.Linear(weight.shape[1], len(weight), bias=False), nn.Linear(2, 2)
        with torch.no_grad():
            self.linear.weight.copy_(weight)
            self.head.weight.copy_(torch.tensor([[0.0, 0.0], [0.1, 0.1]]))
            self.head.bias.copy_(torch.tensor([9.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bounded(self.first(self.linear(x))))


def certified(bounded: BoundedModel, x: Tensor, epsilon: float, semantics: str = "float32") -> list[bool]:
    y = torch.zeros(len(x), dtype=torch.int64)
    verdicts = []
    for method in METHODS:
        verdicts.append(bool(bounded.certify(x, y, epsilon, method=method, semantics=semantics)))
        bounds = bounded.bounds(x, epsilon, method=method, semantics=semantics)
        assert verdicts[-1] == bool((bounds.lower[:, 0] > bounds.upper[:, 1]).all())
    return verdicts


@pytest.mark.parametrize(
    ("partial", "bounded"),
    [*((name, "sigmoid") for name in PARTIAL), *(("log", name) for name in ("clamp", "cos", "max pool", "two relus"))],
)
def test_a_function_without_a_value(partial: str, bounded: str) -> None:
    net, x = Net(PARTIAL[partial], BOUNDED[bounded], torch.full((2, 4), 0.25)), torch.full((1, 4), 0.25)
    if partial not in {"log", "log2"}:  # whose value at 0 is infinite
        assert net(torch.zeros(1, 4) - (partial != "reciprocal") * 0.01).isnan().all()
    model = BoundedModel(net.eval(), x)
    for semantics in ("real", "float32"):
        assert certified(model, x, 0.26, semantics) == [False] * 3
        assert certified(model, x, 0.2, semantics) == [True] * 3


@pytest.mark.parametrize("bounded", ["clamp", "max pool", "sigmoid", "two relus"])
def test_a_deployed_pass_that_overflows(bounded: str) -> None:
    weight = torch.tensor([[3e38, -3e38, 3e38, -3e38]] * 2)
    net, x = Net(lambda z: z, BOUNDED[bounded], weight), torch.full((1, 4), 2.5)
    assert net(x).isnan().all()
    assert certified(BoundedModel(net.eval(), x), x, 0.1) == [False] * 3
    net, x = Net(lambda z: z, BOUNDED[bounded], weight / 3e38), torch.full((1, 4), 2.5)
    assert certified(BoundedModel(net.eval(), x), x, 0.1) == [True] * 3


def test_a_difference_of_exponentials_that_overflow() -> None:
    class Difference(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            z = torch.sigmoid(torch.exp(x[:, :1]) - torch.exp(x[:, 1:]))
            return torch.cat([9 + 0.1 * z, z], 1)

    x = torch.full((1, 2), 88.0)
    assert Difference()(x + 2).isnan().all()
    model = BoundedModel(Difference().eval(), x)
    assert certified(model, x, 3.0) == [False] * 3
    assert all(certified(model, x - 80, 3.0))


def test_linear_bounds_of_a_network_without_a_value() -> None:
    net, x = Net(torch.sqrt, torch.sigmoid, torch.full((2, 4), 0.25)), torch.full((2, 4), 0.25)
    lines = BoundedModel(net.eval(), x).linear_bounds(x, torch.tensor([0.26, 0.2]))
    assert lines.lower_b[0].tolist() == [-torch.inf] * 2
    assert lines.upper_b[0].tolist() == [torch.inf] * 2
    assert bool(lines.lower_b[1].isfinite().all())


@pytest.mark.parametrize("first", [nn.Identity(), nn.ReLU()])
def test_an_output_that_overflows(first: nn.Module) -> None:
    last = nn.Linear(4, 2)
    with torch.no_grad():
        last.weight.copy_(torch.tensor([[3e38, -3e38, 3e38, -3e38], [0.0, 0.0, 0.0, 0.0]]))
        last.bias.copy_(torch.tensor([3e38, 0.0]))
    net, x = nn.Sequential(first, last), torch.full((1, 4), 2.5)
    assert net(x)[0, 0].isnan()
    assert certified(BoundedModel(net.eval(), x), x, 0.01) == [False] * 3
