"""Products of two tensors: planes against rational numbers, networks against samples, errors."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb
from hypothesis import example, given
from hypothesis import strategies as st
from support.bounds.engines import ENGINES, engine_of
from support.bounds.graphs import elements, less_multiple
from support.bounds.layers import Recurrent, Steps
from torch import Tensor, nn
from torch.nn import functional as f

from pyrobust import _C
from pyrobust.bounds import BoundedModel, DifferentiableBounds
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.tensor.directed_rounding import Outward
from pyrobust.bounds.engines.tensor.intervals import LayerRange
from pyrobust.bounds.engines.tensor.relaxations import Plane, product_planes
from pyrobust.bounds.graph.nodes import Gather, Input, Product, in_order
from pyrobust.bounds.input_set import box
from pyrobust.errors import InputError, ModelError
from pyrobust.runner import logits_of

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-3, 3) | st.sampled_from([0.0, 5e-324, -1e-310])
METHODS = ("ibp", "crown-ibp", "crown")


def of_torch(x: tuple[float, float], y: tuple[float, float]) -> tuple[Plane, Plane]:
    ends = [torch.tensor([[bound]], dtype=torch.float64) for bound in (*x, *y)]
    return product_planes(LayerRange(*ends[:2]), LayerRange(*ends[2:]), Outward(True))


def bits(native: Callable[..., tuple[np.ndarray, ...]], x: tuple[float, float], y: tuple[float, float]) -> list[float]:
    """Return planes and range of one product, the same at every level and in every lane."""
    level, results = _C.simd_level(), set()
    for name in _C.simd_levels():
        _C.set_simd_level(name)
        parts = np.stack(native(*(np.full(9, bound) for bound in (*x, *y))))
        results.update(lane.tobytes() for lane in parts.T)
    _C.set_simd_level(level)
    assert len(results) == 1
    return np.frombuffer(results.pop()).tolist()


def of_native(
    native: Callable[..., tuple[np.ndarray, ...]], x: tuple[float, float], y: tuple[float, float]
) -> tuple[Plane, Plane]:
    parts = [torch.tensor([[number]], dtype=torch.float64) for number in bits(native, x, y)]
    return Plane(*parts[:3]), Plane(*parts[3:6])


PLANES = {
    "torch": of_torch,
    "float32": functools.partial(of_native, _C.product_bounds32),
    "float64": functools.partial(of_native, _C.product_bounds64),
}
made_by = pytest.mark.parametrize("planes", PLANES.values(), ids=PLANES)
Planes = Callable[[tuple[float, float], tuple[float, float]], tuple[Plane, Plane]]


def outside(below: Plane, above: Plane, x: tuple[float, float], y: tuple[float, float]) -> bool:
    """Return whether a plane is on the wrong side of the product in a corner or the middle."""
    for share in (Fraction(0), Fraction(1, 2), Fraction(1)):
        for other in (Fraction(0), Fraction(1, 3), Fraction(1)):
            a = Fraction(x[0]) + share * (Fraction(x[1]) - Fraction(x[0]))
            b = Fraction(y[0]) + other * (Fraction(y[1]) - Fraction(y[0]))
            for plane, sign in ((below, 1), (above, -1)):
                p, q, c = (float(coefficient) for coefficient in plane)
                if c != -sign * float("inf") and sign * (Fraction(p) * a + Fraction(q) * b + Fraction(c) - a * b) > 0:
                    return True
    return False


@made_by
@given(*[NUMBERS] * 4)
@example(0.0, float("inf"), -1e300, 1e300)
@example(0.0, 1e300, -1e300, 1e300)
def test_planes_enclose_the_product_and_reach_its_range(planes: Planes, a: float, b: float, c: float, d: float) -> None:
    x, y = (min(a, b), max(a, b)), (min(c, d), max(c, d))
    below, above = planes(x, y)
    corners = [s * t for s in x for t in y]
    if not all(map(math.isfinite, corners)):
        assert (float(below.c), float(above.c)) == (-math.inf, math.inf)
        return
    assert not outside(below, above, x, y)
    if max(map(abs, (*x, *y))) > 3:
        return
    lowest = float(below.c) + sum(min(float(s) * e for e in z) for s, z in ((below.p, x), (below.q, y)))
    highest = float(above.c) + sum(max(float(s) * e for e in z) for s, z in ((above.p, x), (above.q, y)))
    error = 1e-5 if planes is PLANES["float32"] else 1e-12
    assert lowest >= min(corners) - error
    assert highest <= max(corners) + error


@made_by
def test_faults_in_planes_are_seen(planes: Planes) -> None:
    x, y = (-1.0, 3.0), (2.0, 5.0)
    below, above = planes(x, y)
    assert outside(above, below, x, y)
    assert outside(below._replace(c=below.c + 1e-12), above, x, y)
    assert outside(below, above._replace(p=below.p, q=above.q), x, y)


def violations(method: str, name: str) -> int:
    """Return how many bounds of x·y, the output itself, exclude a corner of the box of x and y."""
    x = torch.randn(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    node = Input(name="x", shape=(2,), inputs=())
    turned = Gather(name="g", shape=(2,), inputs=(node,), index=torch.tensor([1, 0]))
    engine = engine_of(Product(name="p", shape=(2,), inputs=(node, turned)), torch.float64, name)
    upper = x + x.abs() / 3
    lower, greatest = engine.run(box(x, upper, (2,)), None, Query(method, True, "real", None))
    corners = zip(*(torch.stack([x, upper], 2).tolist(), lower[:, 0].tolist(), greatest[:, 0].tolist()), strict=True)
    values = [([Fraction(a) * Fraction(b) for a in pair[0] for b in pair[1]], low, high) for pair, low, high in corners]
    return sum(min(products) < low or max(products) > high for products, low, high in values)


def test_products_at_the_output_are_enclosed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [violations(method, name) for method in METHODS for name in ENGINES] == [0] * 6
    monkeypatch.setattr(Outward, "down", lambda self, a: a)
    assert violations("ibp", "torch") > 0  # the test can fail


@pytest.mark.parametrize("factor_first", [True, False])
def test_rounded_coefficients_of_products_are_paid_for(factor_first: bool) -> None:
    """A chain of factors that all round down, less what they round to, times x: the error is the whole coefficient."""
    generator, steps = torch.Generator().manual_seed(0), 40
    rounded, exact, factors = torch.ones(()), Fraction(1), []
    for _ in range(steps):  # from the output on, as coefficients are multiplied
        candidates = 1 + torch.rand(4096, generator=generator) / 4
        products = rounded * candidates
        best = int((products.double() / (rounded.double() * candidates.double())).argmin())
        factors.append(float(candidates[best]))
        rounded, exact = products[best], exact * Fraction(factors[-1])
    node = Input(name="x", shape=(1 + steps,), inputs=())
    z = x = elements(node, 0)
    factor_inputs = elements(node, *range(1, 1 + steps))
    for k in reversed(range(steps)):
        factor = elements(factor_inputs, k)
        z = Product(name="z", shape=(1,), inputs=(factor, z) if factor_first else (z, factor))
    engine = engine_of(less_multiple(z, x, float(rounded)), torch.float32)
    inputs = box(torch.tensor([[1.0, *factors]]), torch.tensor([[3.0, *factors]]), (1 + steps,))
    slope = exact - Fraction(float(rounded))
    for method in METHODS:
        lower, upper = engine.run(inputs, None, Query(method, True, "real", None))
        assert Fraction(lower.item()) <= slope
        assert Fraction(upper.item()) >= 3 * slope


ENDS = NUMBERS | st.sampled_from([float("inf"), float("-inf")])


@given(*[ENDS] * 4)
@example(0.0, float("inf"), -1.0, 0.0)
@example(0.0, 0.0, -1e300, 1e300)
@example(1e300, 1e301, 1e300, float("inf"))
def test_ranges_enclose_the_product(a: float, b: float, c: float, d: float) -> None:
    x, y = (min(a, b), max(a, b)), (min(c, d), max(c, d))
    for native in (_C.product_bounds32, _C.product_bounds64):
        low, high = bits(native, x, y)[6:]
        corners = [s * t for s in x for t in y]
        if not all(map(math.isfinite, corners)):
            assert math.isnan(low)
            assert math.isnan(high)
            continue
        assert all(Fraction(low) <= Fraction(s) * Fraction(t) <= Fraction(high) for s in x for t in y)
        if (0, 0) in (x, y):
            assert low == high == 0


class Gate(nn.Module):
    """Squeeze and excitation (Hu et al., 2018): channels times a gate computed from their means."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.up(f.relu(self.down(x.mean((2, 3))))))
        return x * gate[:, :, None, None]


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.attention(x, x[:, 1:], x[:, 1:]), 2).flatten(1)


class MaskedAttention(SelfAttention):
    def forward(self, x: Tensor) -> Tensor:
        later = torch.ones(3, 3, dtype=torch.bool).triu(1)
        mixed: Tensor = self.attention(x, x, x, need_weights=False, attn_mask=later)[0]
        return mixed.flatten(1)


class Causal(nn.Module):
    """Attention to earlier tokens, its mask filled into the scores; queries and keys of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = f.normalize(self.query(x), dim=-1), f.normalize(self.key(x), dim=-1)
        later = torch.ones(3, 3, dtype=torch.bool).triu(1)
        weights = (4 * q @ k.mT).masked_fill(later, -torch.inf).softmax(-1)
        return (weights @ self.value(x)).flatten(1)


def norm_net(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def hugging_face() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.ViTConfig(image_size=6, patch_size=3, num_channels=1, num_labels=3, **sizes)
    return transformers.ViTForImageClassification(config)


NETS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "group norm": (lambda: norm_net(nn.GroupNorm(2, 4)), (1, 6, 6)),
    "gate": (lambda: norm_net(Gate()), (1, 6, 6)),
    "attention weights": (SelfAttention, (3, 6)),
    "masked attention": (MaskedAttention, (3, 6)),
    "causal attention": (Causal, (3, 6)),
    "vision transformer": (hugging_face, (1, 6, 6)),
    "long short-term memory": (lambda: Recurrent(nn.LSTM(4, 3, num_layers=2, batch_first=True), last=True), (3, 4)),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = NETS[name]
    return make().eval().requires_grad_(False), torch.rand(2, *shape)


def check(net: nn.Module, x: Tensor, epsilon: float, engine: str) -> None:
    """Compare bounds with the values at random points and corners, in float64.

    By the native engine also bounds in float32; torch's has float64 alone.
    """
    narrow = BoundedModel(net, x, engine=engine) if engine == "native" else None
    net = copy.deepcopy(net).double()
    wide = BoundedModel(net, x.double(), engine=engine)
    x = x.double()
    signs = [torch.randint(2, x.shape) * 2 - 1 for _ in range(12)]
    chosen = [x + sign * epsilon * (1 - 1e-12) for sign in signs] + [
        x + sign * torch.rand_like(x) * epsilon for sign in signs
    ]
    values = torch.stack([logits_of(net(point)).detach() for point in chosen])
    widths = []
    for method in METHODS:
        results = [wide.bounds(x, epsilon, method=method)]
        if narrow is not None:
            results.append(narrow.bounds(x.float(), epsilon, method=method))
        for bounds in results:
            assert (bounds.lower <= values + 1e-9).all(), method
            assert (bounds.upper >= values - 1e-9).all(), method
        sizes = [float((bounds.upper - bounds.lower).mean()) for bounds in results]
        assert sizes[-1] <= sizes[0] * 1.05 + 1e-5
        widths.append(sizes[0])
    assert widths[2] <= widths[1] <= widths[0] * (1 + 1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NETS)
def test_networks_are_enclosed(name: str, engine: str) -> None:
    net, x = made(name)
    check(net, x, 0.01, engine)


class Quotient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] / x[:, 1:]


def test_a_quotient_of_a_range_around_zero_is_unknown() -> None:
    bounded = BoundedModel(Quotient().eval(), torch.zeros(1, 2))
    for method in METHODS:
        bounds = bounded.bounds(torch.tensor([[1.0, 0.5], [1.0, 2.0]]), 1.0, method=method)
        assert (bounds.lower[0], bounds.upper[0]) == (-torch.inf, torch.inf)
        assert bounds.lower[1] <= 0
        assert 2 <= bounds.upper[1] < 3.6


def test_what_cannot_be_bounded_is_named() -> None:
    net, x = made("group norm")
    with pytest.raises(ModelError, match=r"1 \(aten.group_norm\) has no differentiable bounds"):
        DifferentiableBounds(net, x)
    with pytest.raises(ModelError, match=r"1 \(aten.group_norm\) has no known Lipschitz constant"):
        BoundedModel(net, x).bounds(x, 0.1, method="lipschitz")
    with pytest.raises(InputError, match=r"the rounding of 1 \(aten.group_norm\) in a forward pass is not bounded"):
        BoundedModel(net, x).bounds(x, 0.1, semantics="float32")


class Squares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.flip(1) * x.roll(1, 1)


def test_deployed_products_are_enclosed() -> None:
    x = torch.rand(50, 6, generator=torch.Generator().manual_seed(0)) * 10 - 5
    bounded = BoundedModel(Squares().eval(), x)
    assert sum(isinstance(node, Product) for node in in_order(bounded.output)) == 2
    for method in METHODS:
        bounds = bounded.bounds(x, 0.0, method=method, semantics="float32")
        assert ((bounds.lower <= Squares()(x)) & (Squares()(x) <= bounds.upper)).all()
        real = bounded.bounds(x, 0.0, method=method)
        assert not ((real.lower <= Squares()(x)) & (Squares()(x) <= real.upper)).all()  # the test can fail


def test_attention_modules_are_left_as_they_were() -> None:
    net, x = made("attention weights")
    before = net(x)
    BoundedModel(net, x)
    assert "forward" not in net.attention.__dict__
    assert torch.equal(net(x), before)


class Weights(nn.Module):
    """Softmax of what a mask keeps."""

    def __init__(self, keep: list[bool]) -> None:
        super().__init__()
        self.register_buffer("drop", ~torch.tensor(keep))

    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(self.drop, -torch.inf).softmax(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("keep", [[True, True], [True, False, True, True], [True] * 5], ids=str)
def test_softmax_in_ball_arithmetic(keep: list[bool], dtype: torch.dtype) -> None:
    """An element is largest where it is and the others are not; bounds of points and boxes reach that, and no less."""
    generator, rows = torch.Generator().manual_seed(0), 18
    bounded = BoundedModel(Weights(keep).eval(), torch.zeros(1, len(keep), dtype=dtype))
    low = 4 * torch.randn(rows, len(keep), generator=generator, dtype=dtype)
    high = low + torch.rand(rows, 1, generator=generator, dtype=dtype) * 2 * (torch.arange(rows) % 3)[:, None]
    kept = [i for i, flag in enumerate(keep) if flag]

    def value(row: int, i: int, element: Tensor, others: Tensor) -> arb:
        return 1 / sum(
            (arb(others[row, j].item()) - arb(element[row, i].item())).exp() if j != i else arb(1) for j in kept
        )

    for method in METHODS:
        bounds = bounded.bounds(x_lower=low, x_upper=high, method=method)
        for row, i in itertools.product(range(rows), range(len(keep))):
            below, above = (bound[row, i].item() for bound in (bounds.lower, bounds.upper))
            if i not in kept:
                assert below <= 0 <= above
                continue
            least, most = value(row, i, low, high), value(row, i, high, low)
            assert not least < below
            assert not most > above
            assert method != "ibp" or (least - below < 1e-3 and above - most < 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", [nn.LayerNorm(4, 0.01, False), nn.RMSNorm(4, 0.01, False)], ids=str)
def test_norms_in_ball_arithmetic(norm: nn.Module, dtype: torch.dtype) -> None:
    """Of nearly equal and of very unequal elements: what is known of variances and values is almost attained."""
    x = torch.tensor([[1, 1, 1, 1 + 2.0**-9], [2.0**-9, 0, 0, 0], [1e4, 0, 0, 0], [-3, 1, 1, 1], [0.3, -2, 5, 0.7]])
    bounded, x = BoundedModel(norm.eval(), x.to(dtype)), x.to(dtype)
    mean = sum if isinstance(norm, nn.LayerNorm) else lambda row: arb(0)
    for method in METHODS:
        bounds = bounded.bounds(x, 0.0, method=method)
        for row, low, high in zip(x.tolist(), bounds.lower.tolist(), bounds.upper.tolist(), strict=True):
            centered = [arb(z) - mean(map(arb, row)) / 4 for z in row]
            root = (sum(z * z for z in centered) / 4 + arb(norm.eps)).sqrt()
            for z, least, most in zip(centered, low, high, strict=True):
                assert not z / root < least
                assert not z / root > most


def test_a_softmax_of_too_many_elements_is_refused() -> None:
    with pytest.raises(ModelError, match="a softmax of 5000 elements in 1 rows needs 25000000 differences"):
        BoundedModel(nn.Softmax(1).eval(), torch.zeros(1, 5000))


class Mixed(nn.Module):
    """Products above two layers of ReLUs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(12, 3)
        self.a, self.b = nn.Linear(16, 12), nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        z = f.relu(self.first(x))
        return self.last(f.relu(self.a(z)) * self.b(z))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_slopes_are_sought_through_products(norm: str) -> None:
    torch.manual_seed(0)
    net, x = Mixed().eval().double(), torch.randn(4, 6, dtype=torch.float64)
    bounded = BoundedModel(net, x)
    crown, alpha = (bounded.bounds(x, 0.3, norm=norm, method=method) for method in ("crown", "alpha-crown"))
    steps = torch.randn(500, *x.shape, dtype=torch.float64)
    steps = steps.sign() if norm == "linf" else steps / steps.norm(dim=2, keepdim=True)
    values = net(x + steps * (0.3 * (1 - 1e-12))).detach()
    assert ((alpha.lower <= values) & (values <= alpha.upper)).all()
    assert float((alpha.upper - alpha.lower).sum()) < 0.99 * float((crown.upper - crown.lower).sum())


def test_what_is_known_of_the_output_bounds_it() -> None:
    torch.manual_seed(0)
    net = Recurrent(nn.GRU(4, 3, num_layers=2), last=True).eval()
    bounded, x = BoundedModel(net, torch.zeros(1, 5, 4)), torch.randn(2, 5, 4)
    values = net((x + torch.randn(200, *x.shape).sign()).flatten(0, 1)).view(200, 2, -1).detach()
    for method in METHODS:
        bounds = bounded.bounds(x, 1.0, method=method)
        assert -1 <= bounds.lower.min() <= bounds.upper.max() <= 1
        assert ((bounds.lower - 1e-6 <= values) & (values <= bounds.upper + 1e-6)).all()


def test_a_first_state_beyond_one_is_kept() -> None:
    torch.manual_seed(0)
    net = Steps(nn.GRUCell(4, 3), torch.tensor([[3.0, -2.0, 1.5]])).double().eval()
    bounded, x = BoundedModel(net, torch.zeros(1, 1, 4).double()), torch.randn(8, 1, 4).double() * 3
    values = net((x + torch.randn(200, *x.shape).sign()).flatten(0, 1)).view(200, 8, -1).detach()
    assert values.abs().max() > 1
    for method in METHODS:
        bounds = bounded.bounds(x, 1 + 1e-12, method=method)
        assert ((bounds.lower <= values) & (values <= bounds.upper)).all()


def test_coefficients_that_cancel_in_float64_alone() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "relu", norm_first=True, batch_first=True)
    blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    net, x = nn.Sequential(blocks, nn.Flatten(), nn.Linear(64, 3)).eval(), torch.randn(1, 4, 16)
    bounded = BoundedModel(net, x)
    bounds = bounded.bounds(x, 0.01, method="crown-ibp")
    intervals = bounded.bounds(x, 0.01, method="ibp")
    assert float((bounds.upper - bounds.lower).mean()) < 0.5 * float((intervals.upper - intervals.lower).mean())
    wide = BoundedModel(net.double(), x.double()).bounds(x.double(), 0.01, method="crown-ibp")
    assert float((bounds.upper - bounds.lower).mean()) < 1.01 * float((wide.upper - wide.lower).mean())


def test_wrong_facts_about_layers_are_refused() -> None:
    network = _C.BoundNetwork32()
    network.input([2, 1, 1])
    other = network.gather([0], np.array([0]), [1, 1, 1])
    with pytest.raises(RuntimeError, match="second: expected the shape of the first"):
        network.product(0, other)
    with pytest.raises(RuntimeError, match="know: expected low <= high"):
        network.know(0, 1.0, 0.0)
    for first, sign in (([0, 2], [1.0, 1.0]), ([1, 1], [1.0, 1.0]), ([0, 0], [1.0, 2.0])):
        with pytest.raises(RuntimeError, match="relate: expected first neurons and signs"):
            network.relate(0, np.array(first), np.array(sign))
