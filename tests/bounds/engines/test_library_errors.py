"""The worst products that a library may compute: bounds pay for all of their errors, and for hardly more.

A library's sum of n products is right up to gamma(n) times the sum of magnitudes, with operands and results below the
smallest normal number taken for zero. The products injected here err by just that, against the bounds.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from support.bounds.engines import LIBRARY, engine_of, forced
from torch import Tensor, nn
from torch.nn import functional as F

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.library_products import LayerProduct, LibraryProducts
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.nodes import Gather, Input, Linear, Sum
from pyrobust.bounds.input_set import ball, box

_U = 2.0**-24
_SMALLEST = 2.0**-126
_BELOW_ONE, _TIMES = 1 - _U, 100
_INF = torch.tensor(math.inf)
Inject = Callable[..., None]


def gamma(n: int) -> float:
    return n * _U / (1 - n * _U)


def _fan_in(layer: Any, product: int, weight: Tensor) -> int:
    if product != LayerProduct.BACKWARD:
        return weight[0].numel()
    return weight[:, 0].numel() // (1 if isinstance(layer.node, Linear) else layer.node.groups)


def _exact(layer: Any, product: int, z: Tensor, weight: Tensor) -> Tensor:
    """Compute the products in float64, right to the precision of these tests."""
    node, z, w = layer.node, z.double(), weight.double()
    if isinstance(node, Linear):
        return z @ w if product == LayerProduct.BACKWARD else z @ w.mT
    options = node.stride, node.padding, node.dilation, node.groups
    if product == LayerProduct.BACKWARD:
        a = z.view(-1, *node.shape)
        return torch.nn.grad.conv2d_input((len(a), *node.inputs[0].shape), w, a, *options).flatten(1)
    return F.conv2d(z.view(len(z), -1, *node.inputs[0].shape[1:]), w, None, *options).flatten(1)


def _flushed(z: Tensor) -> Tensor:
    return z.where(z.abs() >= _SMALLEST, 0.0)


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch) -> Inject:
    """Replace the library's products by the worst ones, their errors of this sign and multiplied by this factor."""

    def start(sign: float, factor: float = 1.0, *, flushes: bool = False) -> None:
        def worst(self: LibraryProducts, i: int, product: int, operand: Any, *channels: int) -> Any:
            layer, z = self._layers[i], torch.from_numpy(operand)
            weight = layer.weight.abs() if product == LayerProduct.MAGNITUDE else layer.weight
            if channels:
                z = z.view(len(z), weight.shape[1], -1)[:, slice(*channels)].flatten(1)
                weight = weight[:, slice(*channels)]
            exact = _exact(layer, product, z, weight)
            if flushes:
                return _flushed(_exact(layer, product, _flushed(z), _flushed(weight))).float().numpy()
            # lower bounds are sums of coefficients times positive numbers; radii are least where they are too small
            toward = {LayerProduct.MAGNITUDE: -1.0, LayerProduct.BACKWARD: 1.0}.get(product, sign)
            error = factor * gamma(_fan_in(layer, product, weight)) * _exact(layer, product, z.abs(), weight.abs())
            result = (exact + toward * error).float()
            beyond = (result - exact) * toward > error
            return torch.where(beyond, torch.nextafter(result, -toward * _INF), result).numpy()

        monkeypatch.setattr(LibraryProducts, "__call__", worst)

    return start


def net(seed: int) -> nn.Sequential:
    """A net whose neurons are active on inputs between 0.5 and 1, with errors that add up from layer to layer."""
    torch.manual_seed(seed)
    layers = nn.Sequential(
        nn.Conv2d(4, 6, 3, 2, 1, groups=2), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )
    for module in layers:
        for parameter in module.parameters():
            nn.init.normal_(parameter)
    nn.init.constant_(layers[0].bias, 30.0)
    for layer in (layers[2], layers[5]):
        layer.weight.data.abs_()
    return layers.eval().requires_grad_(False)


def intervals(layers: nn.Sequential, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Compute exact interval bounds, up to float64: beyond the first layer all weights are positive."""
    first, *others = copy.deepcopy(layers).double()
    options = first.stride, first.padding, first.dilation, first.groups
    center = first((lower.double() + upper.double()) / 2)
    radius = F.conv2d((upper.double() - lower.double()) / 2, first.weight.abs(), None, *options)
    after = nn.Sequential(*others)
    return after(center - radius), after(center + radius)


def _bounds(layers: nn.Module, lower: Tensor, upper: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    with forced(True):
        bounds = BoundedModel(layers, lower[:1]).bounds(x_lower=lower, x_upper=upper, **options)
    return bounds.lower, bounds.upper


@functools.cache
def _bounded(seed: int) -> tuple[nn.Sequential, BoundedModel, Tensor]:
    layers = net(seed)
    x = 0.6 + torch.rand(4, 4, 6, 6) / 4
    return layers, BoundedModel(layers, x), x


def _holds(inject: Inject, method: str, factor: float, width: float, *, box: bool = False) -> bool:
    """Whether bounds of several nets enclose what they have to, with errors of a sign, and of the other one."""
    held = True
    for seed, sign in ((0, 1.0), (1, -1.0), (2, 1.0)):
        inject(sign, factor)
        layers, bounded, x = _bounded(seed)
        lower, upper = x.double() - width, x.double() + width
        with forced(True):
            if box:
                lower, upper = lower.float(), upper.float()
                bounds = bounded.bounds(x_lower=lower, x_upper=upper, method=method)
            else:
                bounds = bounded.bounds(x, width, method=method)
        low, high = intervals(layers, lower, upper)
        slack = 1e-13 * (1 + low.abs() + high.abs())
        held &= bool((bounds.lower <= low + slack).all() and (bounds.upper >= high - slack).all())
    return held


@pytest.mark.parametrize("box", [False, True])
@pytest.mark.parametrize("width", [0.0, 1e-6, 0.1])
def test_intervals_pay_for_the_worst_products(inject: Inject, width: float, box: bool, simd_level: str) -> None:
    assert _holds(inject, "ibp", 1.0, width, box=box)


def test_backward_passes_pay_for_the_worst_products(inject: Inject) -> None:
    assert _holds(inject, "crown-ibp", 1.0, 0.0)


@pytest.mark.parametrize("method", ["ibp", "crown-ibp"])
def test_halving_what_is_paid_would_be_seen(inject: Inject, method: str) -> None:
    """Errors twice as large are to the bounds what half of gamma would be to those that are possible."""
    assert not _holds(inject, method, 2.0, 0.0)


@pytest.mark.parametrize("width", [0.0, 2.0])
def test_long_sums_of_radii_may_be_too_small(inject: Inject, width: float) -> None:
    """A sum of 2^16 products is so far off that the error of the error counts."""
    inject(1.0)
    layer = nn.Sequential(nn.Linear(2**16, 1, bias=False)).eval()
    nn.init.constant_(layer[0].weight, 1 / 3)
    lower = torch.full((1, 2**16), 1.0 - width)
    bounds = _bounds(layer, lower, lower + width, method="ibp")
    exact = 2**16 * layer[0].weight[0, 0].double()
    assert bounds[0] <= exact * (1 - width)
    assert bounds[1] >= exact


@pytest.mark.parametrize("layer", [nn.Linear(1300, 3), nn.Conv2d(130, 3, (3, 4))], ids=["linear", "conv"])
@pytest.mark.parametrize("method", ["ibp", "crown-ibp"])
def test_sums_in_blocks_pay_for_each_block(inject: Inject, layer: nn.Module, method: str) -> None:
    """A sum of 1300 or more products is taken in two or more blocks, whose errors are those of shorter sums."""
    layers = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)).eval()
    x = torch.rand(2, *([1300] if isinstance(layer, nn.Linear) else [130, 4, 5]))
    layers(x)
    for parameter in layers.parameters():
        parameter.data.abs_()
    with torch.no_grad():
        exact = copy.deepcopy(layers).double()(x.double())
    for sign in (1.0, -1.0):
        for factor in (1.0, 3.0):
            inject(sign, factor)
            lower, upper = _bounds(layers, x, x, method=method)
            held = bool((lower <= exact + 1e-12).all() and (upper >= exact - 1e-12).all())
            assert held == (factor == 1.0)


def test_what_a_library_flushes_is_paid_for(inject: Inject) -> None:
    """An operand, a result, and coefficients."""
    inject(0.0, flushes=True)
    layer = nn.Sequential(nn.Linear(2, 1, bias=False)).eval()
    for weight, x in ((2.0**30, 2.0**-127), (2.0**-70, 2.0**-60)):
        nn.init.constant_(layer[0].weight, weight)
        point = torch.full((1, 2), x)
        for method in ("ibp", "crown-ibp"):
            lower, upper = _bounds(layer, point, point, method=method)
            assert lower <= 2 * weight * x <= upper
    layers = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).eval()
    nn.init.constant_(layers[0].weight, 2.0**-60)
    nn.init.constant_(layers[2].weight, 2.0**-80)
    point = torch.full((1, 1), 2.0**100)
    lower, upper = _bounds(layers, point, point, method="crown-ibp")
    assert lower <= 2.0**-40 <= upper


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_a_product_that_is_not_finite_says_nothing(
    monkeypatch: pytest.MonkeyPatch, value: float, semantics: str
) -> None:
    original = LibraryProducts.__call__

    def fails(self: LibraryProducts, i: int, product: int, operand: Any, *channels: int) -> Any:
        result = original(self, i, product, operand, *channels)
        if i == min(self._layers):
            result[:, 0] = value
        return result

    monkeypatch.setattr(LibraryProducts, "__call__", fails)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)).eval()
    x = torch.rand(2, 3)
    for method in ("ibp", "crown-ibp"):
        lower, upper = _bounds(layers, x, x + 0.1, method=method, semantics=semantics)
        if semantics == "float32":
            assert not lower.isfinite().any()
            assert not upper.isfinite().any()
        else:  # decided in float64
            assert (lower <= layers(x)).all()
            assert (upper >= layers(x)).all()


@pytest.mark.parametrize("method", ["ibp", "crown-ibp"])
def test_overflow_is_not_lost(method: str) -> None:
    """Below a ReLU, and in a deployed sum that cancels afterwards."""
    layers = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).eval()
    nn.init.constant_(layers[0].weight, 3e38)
    nn.init.constant_(layers[2].weight, 1e-38)
    x = torch.ones(1, 2)
    lower, upper = _bounds(layers, x, x, method=method)
    assert lower <= 6
    assert upper >= 5.99
    assert not _bounds(layers, x, x, method=method, semantics="float32")[1].isfinite()
    layer = nn.Sequential(nn.Linear(4, 1, bias=False)).eval()
    layer[0].weight.data = torch.tensor([[3e38, 3e38, -3e38, -3e38]])
    ends = torch.cat(_bounds(layer, torch.ones(1, 4), torch.ones(1, 4), method=method, semantics="float32"))
    assert not ends.isfinite().any()


@pytest.mark.parametrize("method", ["ibp", "crown-ibp"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_deployed_sums_err_beside_the_products(inject: Inject, method: str, sign: float) -> None:
    inject(sign)
    for seed in range(3):
        torch.manual_seed(seed)
        layer = nn.Sequential(nn.Linear(200, 3)).eval()
        x = torch.rand(2, 200)
        weight, bias = layer[0].weight.double(), layer[0].bias.double()
        exact, size = F.linear(x.double(), weight, bias), F.linear(x.double(), weight.abs(), bias.abs())
        lower, upper = _bounds(layer, x, x, method=method, semantics="float32")
        deployed = exact - sign * gamma(201) * size
        assert (lower <= deployed).all()
        assert (deployed <= upper).all()


def _product(first: Tensor) -> Constant:
    """Multiply a constant by 1 - 2^-24 many times: each time the model's own float loses two of that instead."""
    factor = Constant.of(torch.full_like(first, _BELOW_ONE))
    return functools.reduce(operator.mul, [factor] * _TIMES, Constant.of(first))


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("method", ["ibp", "crown-ibp"])
def test_errors_of_constants_are_paid_for(inject: Inject, name: str, method: str) -> None:
    for seed in range(4):
        inject((-1.0) ** seed)
        torch.manual_seed(seed)
        weight, bias, x = 1 + torch.rand(2, 3) / 10, 1 + torch.rand(2), torch.rand(3, 3)
        point = Input(name="x", shape=(3,), inputs=())
        if name == "weight":
            constants = _product(weight), None
        else:
            constants = Constant.of(weight * 2.0**-60), _product(bias)
        node = Linear(name="l", shape=(2,), inputs=(point,), weight=constants[0], bias=constants[1])
        lower, upper = engine_of(node, torch.float32, LIBRARY).run(
            box(x, x, (3,)), None, Query(method, True, "real", None)
        )
        below = _BELOW_ONE**_TIMES
        exact = x.double() @ weight.double().mT * below if name == "weight" else bias.double().expand(3, -1) * below
        assert (lower <= exact + 1e-12).all()
        assert (exact - 1e-12 <= upper).all()


@pytest.fixture
def operands(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Records the operands of the library's products."""
    recorded_operands: list[Tensor] = []
    original = LibraryProducts.__call__

    def recorded(self: LibraryProducts, i: int, product: int, operand: Any, *channels: int) -> Any:
        recorded_operands.append(torch.from_numpy(operand).double())
        return original(self, i, product, operand, *channels)

    monkeypatch.setattr(LibraryProducts, "__call__", recorded)
    return recorded_operands


def _fractions(values: Tensor) -> Any:
    return np.array([Fraction(value) for value in values.flatten().tolist()], dtype=object)


@pytest.mark.parametrize(("method", "semantics"), [("crown-ibp", "real"), ("ibp", "real"), ("ibp", "float32")])
@pytest.mark.parametrize("clipped", [False, True])
def test_operands_enclose_the_input(
    operands: list[Tensor], method: str, semantics: str, clipped: bool, simd_level: str
) -> None:
    """Centers and radii contain the ball, and magnitudes its largest number: later errors would hide a failure."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 33, generator=generator) * 10.0 ** torch.randint(-3, 4, (16, 33), generator=generator)
    clip = (float(x.min()), float(x.max()) + 0.1) if clipped else None
    bounded = BoundedModel(nn.Sequential(nn.Linear(33, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), x)
    for epsilon in (0.0, 1e-9, 1e-3, 0.3):
        operands.clear()
        with forced(True):
            bounded.bounds(x, epsilon, method=method, semantics=semantics, clip=clip)
        center, *sizes = (_fractions(operand) for operand in (operands[0], *operands[1].view(-1, 16 * 33)))
        low, high = _fractions(x) - Fraction(epsilon), _fractions(x) + Fraction(epsilon)
        if clip is not None:
            low, high = np.maximum(low, Fraction(clip[0])), np.minimum(high, Fraction(clip[1]))
        assert (center - sizes[0] <= low).all()
        assert (center + sizes[0] >= high).all()
        assert len(sizes) == (1 if (method, semantics) == ("ibp", "real") else 2)
        if len(sizes) == 2:
            assert (sizes[1] >= np.maximum(np.maximum(abs(low), abs(high)), abs(center))).all()


def test_boxes_are_read_without_rounding_inward(operands: list[Tensor], simd_level: str) -> None:
    generator = torch.Generator().manual_seed(0)
    lower = torch.randn(16, 33, generator=generator)
    upper = lower + torch.rand(16, 33, generator=generator) * 10.0 ** torch.randint(
        -7, 3, (16, 33), generator=generator
    )
    layers = nn.Sequential(nn.Linear(33, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    _bounds(layers, lower, upper, method="crown-ibp")
    center, (radius, magnitude) = operands[0], operands[1].view(2, 16, 33)
    assert (center - radius <= lower.double()).all()  # exact in float64
    assert (center + radius >= upper.double()).all()
    assert (magnitude >= torch.maximum(lower.abs(), upper.abs())).all()
    assert (magnitude >= center.abs()).all()


class _Last(nn.Module):
    """A net whose output is more than a sum of products, whose errors would hide those of the rest."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layer = nn.Linear(3, 3, bias=kind == "bias")
        nn.init.normal_(self.layer.weight, std=2.0**-14)
        self.norm = nn.BatchNorm1d(3)
        for parameter in (self.norm.weight, self.norm.bias, self.norm.running_var):
            nn.init.uniform_(parameter, 0.5, 1.0)
        nn.init.constant_(self.norm.running_mean, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        z = self.layer(x)
        if self.kind == "bias":
            return z
        return torch.cat([x + z if self.kind == "sum" else self.norm(x), z], 1)

    def real(self, x: Tensor) -> Tensor:
        """Compute what comes before the layer's own outputs, or these, in float64."""
        z = x.double() @ self.layer.weight.double().mT
        if self.kind == "bias":
            return z + self.layer.bias.double()
        if self.kind == "sum":
            return z + x.double()
        mean, variance, weight, bias = (
            t.double() for t in (self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias)
        )
        return (x.double() - mean) / (variance + self.norm.eps).sqrt() * weight + bias


@pytest.mark.parametrize("kind", ["bias", "sum", "scale", "cancelling scale"])
def test_ends_are_rounded_outward(kind: str, simd_level: str) -> None:
    torch.manual_seed(0)
    module = _Last(kind).eval().requires_grad_(False)
    x = torch.rand(200, 3) + (0.5 if kind == "cancelling scale" else 0.0)
    if kind == "cancelling scale":  # of the mean, the bias
        module.norm.bias.copy_(-((x[0] - 1) / (module.norm.running_var + module.norm.eps).sqrt() * module.norm.weight))
        x = x[:1] * (1 + 1e-6 * torch.rand(200, 3))
    with forced(True):
        bounds = BoundedModel(module, x).bounds(x, 0.0, method="ibp")
    exact, lower, upper = module.real(x), bounds.lower[:, :3], bounds.upper[:, :3]
    assert (lower <= exact + 1e-15).all()
    assert (exact - 1e-15 <= upper).all()
    assert (upper - lower < 2.0**-20 * (1 + exact.abs())).all()


def test_deployed_sums_of_nodes_in_any_order() -> None:
    """Terms that cancel one by one, summed in an order where they first add up."""
    count = 128
    x = Input(name="x", shape=(count,), inputs=())
    terms = [Gather(name="g", shape=(1,), inputs=(x,), index=torch.tensor([k])) for k in range(count)]
    total = Sum(name="s", shape=(1,), inputs=tuple(terms), signs=(1, -1) * (count // 2))
    layer = Linear(name="l", shape=(1,), inputs=(x,), weight=Constant.of(torch.ones(1, count)), bias=None)
    output = Gather(name="o", shape=(2,), inputs=(total, layer), index=torch.arange(2))
    points = 1 + torch.rand(16, count, generator=torch.Generator().manual_seed(0))
    points[:, 1::2] = points[:, ::2] * (1 + 1e-6)
    sets = ball(points, 0.0, "linf", None, (count,))
    lower, upper = engine_of(output, torch.float32, LIBRARY).run(sets, None, Query("ibp", True, "float32", None))
    sums = np.zeros(16, np.float32)
    for k in (*range(0, count, 2), *range(1, count, 2)):
        sums += (-1) ** k * points[:, k].numpy()
    assert (lower[:, 0].numpy() <= sums).all()
    assert (sums <= upper[:, 0].numpy()).all()
