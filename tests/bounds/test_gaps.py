"""Regression tests of bounds that were wrong, worked by hand: the true value and the difficulty of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.bounds import BoundedModel
from pyrobust.errors import InputError, ModelError

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


def test_parameters_are_read_once() -> None:
    model = nn.Sequential(linear([[1e30]]), linear([[1e30]]), linear([[1e-30]])).eval()
    bounded = BoundedModel(model, torch.zeros(1, 1))  # float32 overflows: bounds come from float64
    weight = model[0].weight.detach().clone()
    model[0].weight.data.fill_(2e30)
    with pytest.raises(ModelError, match=r"0\.weight has changed since its capture; call refresh"):
        bounded.bounds(torch.ones(1, 1), 0.0)
    model[0].weight.data.copy_(weight)
    bounds = bounded.bounds(torch.ones(1, 1), 0.0)
    assert float(bounds.lower) <= 1.00001e30
    assert float(bounds.upper) >= 0.99999e30


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


def test_a_batch_size_that_is_part_of_the_values_is_refused() -> None:
    """It is captured as the constant 2."""
    with pytest.raises(ModelError):
        BoundedModel(Computed(lambda x: x * x.shape[0]), torch.zeros(1, 1))


@pytest.mark.parametrize("last", [[], [nn.Flatten()]], ids=["", "flatten"])
@pytest.mark.parametrize("examples", [1, 17])
def test_a_net_that_ends_in_a_relu(examples: int, last: list[nn.Module]) -> None:
    """No layer consumes its ranges."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 5), nn.ReLU(), *last).eval()
    x = torch.rand(examples, 4)
    bounded = BoundedModel(net, x)
    for method in METHODS:
        bounds = bounded.bounds(x, 0.1, method=method)
        for shift in (-0.1, 0, 0.1):
            values = net(x + shift)
            assert (bounds.lower <= values + 1e-6).all()
            assert (values - 1e-6 <= bounds.upper).all()
        assert (bounds.upper - bounds.lower < 3).all()
        assert bounded.margins(x, net(x).argmax(1), 0.1, method=method).lower.shape == (examples, 4)


def test_a_network_that_only_reshapes() -> None:
    x = torch.zeros(1, 3, 2)
    bounds = BoundedModel(nn.Flatten().eval(), x).bounds(x, 0.5, method="ibp")
    assert (bounds.upper >= 0.5).all()
    assert (bounds.upper <= 0.500001).all()


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
