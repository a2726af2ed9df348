"""Cases worked out by hand in which a bound was found to be wrong: each says what is true, and why it is hard."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.input_set import ball
from pyrobust.errors import ModelError

METHODS = ("ibp", "crown-ibp", "crown")


def gap(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, reason=reason)


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    layer.weight.data = torch.tensor(weight)
    if bias is not None:
        layer.bias.data = torch.tensor(bias)
    return layer.eval()


class Computed(nn.Module):
    """A function of x and of parameters w0, w1, ..."""

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


@gap("torch.as_tensor makes a float32 number of a Python float")
@pytest.mark.parametrize("epsilon", [0.7, 0.1, 8 / 255, [0.7]])
def test_epsilon_is_not_rounded_to_float32(epsilon: float | list[float]) -> None:
    """The box around 0 ends at epsilon, or a step of float64 above it."""
    exact = epsilon[0] if isinstance(epsilon, list) else epsilon
    upper = float(ball(torch.zeros(1, 1), epsilon, "linf", None, (1,)).upper)
    assert exact <= upper <= math.nextafter(exact, math.inf)


@gap("radii() rounds largest to float32")
def test_largest_radius_is_not_rounded_to_float32() -> None:
    model = BoundedModel(linear([[1.0, 0.0], [0.0, 0.0]], [10.0, 0.0]), torch.zeros(1, 2))
    for largest in (0.3, 0.7):
        assert float(model.certified_radius(torch.zeros(1, 2), torch.tensor([0]), largest=largest)) == largest


@gap("a·slope underflows, and the error times the bias is paid by nobody when the layer is fused")
@pytest.mark.parametrize("method", METHODS[1:])
def test_a_coefficient_that_underflows_before_a_large_bias(method: str) -> None:
    for k in range(71300, 71440, 7):
        model = nn.Sequential(linear([[-1e30]], [9.999e29]), nn.LeakyReLU(2.0**-7), linear([[k * 2.0**-149]]))
        first, last = model[0], model[2]
        z = Fraction(first.weight.item()) + Fraction(first.bias.item())
        value = z / 128 * Fraction(last.weight.item())
        lower, upper = bounds_of(model, torch.ones(1, 1), method)
        assert Fraction(lower) <= value <= Fraction(upper)


@gap("a slope below 2^-126 loses more than a unit roundoff when it is rounded to float32")
@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("x", [-100.0, -99.5, -98.7, -101.1])
def test_a_slope_that_underflows(method: str, x: float) -> None:
    """sigmoid(x)·1e38; to double's accuracy e^x, for e^x is below 2^-100."""
    model = nn.Sequential(linear([[1.0]]), nn.Sigmoid(), linear([[1e38]]))
    lower, upper = bounds_of(model, torch.tensor([[x]]), method)
    value = model[2].weight.item() * math.exp(float(torch.tensor(x)))
    assert lower <= value * (1 + 1e-12)
    assert value * (1 - 1e-12) <= upper


@gap("an error relative to a bias of 0 is 0")
@pytest.mark.parametrize("method", METHODS)
def test_a_bias_whose_enclosure_is_centered_at_zero(method: str) -> None:
    """1.5 + 2^-60 − 1.5 = 2^-60, of which float64 knows only that it is within 2^-52 of 0."""
    model = Computed(lambda x, w, a, b, c: functional.linear(x, w, ((a + b) - c)[0]), 1.0, 1.5, 2.0**-60, 1.5)
    lower, upper = bounds_of(model, torch.zeros(1, 1), method)
    assert lower <= 2.0**-60 <= upper


@gap("the float64 network is read at its first use, not when the model is given")
def test_parameters_are_read_once() -> None:
    model = nn.Sequential(linear([[1e30]]), linear([[1e30]]), linear([[1e-30]])).eval()
    bounded = BoundedModel(model, torch.zeros(1, 1))  # float32 overflows: bounds come from float64
    model[0].weight.data.fill_(2e30)
    bounds = bounded.bounds(torch.ones(1, 1), 0.0)
    assert float(bounds.lower) <= 1.00001e30
    assert float(bounds.upper) >= 0.99999e30


@pytest.fixture
def flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


@gap("torch and numpy, too, compute with denormals flushed: parameters and inputs below 2^-126 become 0")
@pytest.mark.parametrize("where", ["weight", "input"])
def test_denormals_are_numbers_where_torch_flushes_them(flushing: None, where: str) -> None:
    tiny = torch.tensor([[1000]], dtype=torch.int32).view(torch.float32)  # 1000·2^-149
    model = linear([[1.0]])
    model.weight.data = tiny if where == "weight" else torch.full((1, 1), 2.0**120)
    x = tiny if where == "input" else torch.full((1, 1), 2.0**120)
    for method in METHODS:
        lower, upper = bounds_of(model, x, method)
        assert lower <= 1000 * 2.0**-29 <= upper


@gap("the graph is not compared with the module, and a call without tensors is run once, while tracing")
@pytest.mark.parametrize(
    "f", [lambda x: x + torch.randn(1), lambda x: x * x.shape[0], lambda x: x / len(x) + torch.rand(1)]
)
def test_a_module_that_its_graph_does_not_say(f) -> None:
    """Random numbers, and a batch size that became a constant of two."""
    with pytest.raises(ModelError):
        BoundedModel(Computed(f), torch.zeros(1, 1))


@gap("a network of an input alone is not finished by the engine")
def test_a_network_that_only_reshapes() -> None:
    x = torch.zeros(1, 3, 2)
    bounds = BoundedModel(nn.Flatten().eval(), x).bounds(x, 0.5, method="ibp")
    assert (bounds.upper >= 0.5).all()
    assert (bounds.upper <= 0.500001).all()


@gap("other errors than ModelError")
@pytest.mark.parametrize(
    "f",
    [lambda x, w: functional.linear(x, torch.cat([w, w])), lambda x, w: (x * w).mean(-1, True, dtype=torch.float64)],
)
def test_what_has_no_rule_names_operator_and_module(f) -> None:
    with pytest.raises(ModelError, match=r"aten\."):
        BoundedModel(Computed(f, 1.0), torch.zeros(1, 1))


def deployed_inside(model: nn.Module, x: Tensor, method: str) -> bool:
    bounds = BoundedModel(model.eval(), torch.zeros_like(x[:1])).bounds(x, 0.0, method=method, semantics="float32")
    with torch.no_grad():
        value = model(x).double()
    return bool(((bounds.lower <= value) & (value <= bounds.upper)).all())


def spread(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, 2_001)[:, None]


def batch_norm() -> nn.Module:
    """Its shift is the difference of two large numbers: mean·γ/σ and β."""
    layer = nn.BatchNorm1d(1)
    layer.running_mean.fill_(1e6 + 0.125)
    layer.running_var.fill_(0.37)
    layer.bias.data.fill_(1e6 / 0.37**0.5)
    return layer


DEPLOYED = [
    pytest.param(nn.Sigmoid(), spread(-5, 5), "ibp", id="sigmoid", marks=gap("no rounding of a rule's function")),
    pytest.param(nn.Tanh(), spread(-5, 5), "ibp", id="tanh", marks=gap("no rounding of a rule's function")),
    pytest.param(
        nn.Hardtanh(-0.1, 0.1), spread(-1, 1), "ibp", id="limits", marks=gap("the model rounds the limits of clamp")
    ),
    pytest.param(
        nn.LeakyReLU(0.01), spread(-9, 0), "ibp", id="slope", marks=gap("the model rounds the slope, and the product")
    ),
    *(pytest.param(batch_norm(), spread(-2, 2), m, id=f"norm-{m}", marks=gap("shift cancels")) for m in METHODS),
    *(
        pytest.param(
            nn.Sequential(linear([[2e38, 2e38, -2e38, -2e38]]), linear([[1e-38]])),
            torch.ones(1, 4),
            m,
            id=f"overflow-{m}",
            marks=gap("the float64 network proves what the model's floats overflow in"),
        )
        for m in METHODS
    ),
    *(
        pytest.param(
            Computed(lambda x, w, a: functional.linear(x, (w + a) - a), 0.1, 1e6),
            torch.ones(1, 1),
            m,
            id=f"constants-{m}",
            marks=gap("parameters computed in the forward pass are rounded there"),
        )
        for m in METHODS
    ),
    *(
        pytest.param(
            linear([[1e-3, 1e-3]]).half(),
            torch.full((1, 2), 1e-3).half(),
            m,
            id=f"half-underflow-{m}",
            marks=gap("float16 has no number below 2^-24"),
        )
        for m in METHODS
    ),
    *(
        pytest.param(
            linear([[100.0, 100.0]]).half(),
            torch.full((1, 2), 1e3).half(),
            m,
            id=f"half-overflow-{m}",
            marks=gap("float16 ends at 65504"),
        )
        for m in METHODS
    ),
    pytest.param(
        Computed(lambda x: x * 1e-30), torch.full((1, 1), 1e-20), "ibp", id="underflow", marks=gap("of a Scale")
    ),
]


@pytest.mark.parametrize(("model", "x", "method"), DEPLOYED)
def test_deployed_value_lies_inside(model: nn.Module, x: Tensor, method: str) -> None:
    assert deployed_inside(model, x, method)
