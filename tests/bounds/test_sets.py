"""Input sets: radii of elements, clip ranges of channels, boxes of every dtype or without an end; other spellings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.bounds.exact import evaluate, exact_of
from support.bounds.nets import fill
from support.bounds.sets import violated
from torch import Tensor, nn

from pyrobust import _C, PGD
from pyrobust.attacks.certified_first import proved_robust
from pyrobust.bounds import BoundedModel, BoundOptions, Bounds
from pyrobust.bounds.input_set import ball
from pyrobust.errors import InputError

METHODS = ("ibp", "crown-ibp", "crown")


def images() -> tuple[nn.Module, Tensor]:
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    return fill(net, "normal", rng), torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=["native", "torch"])
def bounded(request: pytest.FixtureRequest) -> BoundedModel:
    net, x = images()
    return BoundedModel(net, x, engine=request.param)


X = images()[1]


def assert_same(a: Bounds, b: Bounds) -> None:
    assert torch.equal(a.lower, b.lower)
    assert torch.equal(a.upper, b.upper)


def test_norms_and_methods_in_other_spellings() -> None:
    for norm, spelled in (
        ("l2", [2, "L2", 2.0, np.float32(2), torch.tensor(2), "l_2"]),
        ("l1", [1, "L1"]),
        ("linf", [math.inf, torch.inf, "inf", "Linf", "l_inf", "L-INF"]),
    ):
        assert all(BoundOptions(norm=name) == BoundOptions(norm=norm) for name in spelled)
        assert all(PGD(nn.Identity(), 0.1, norm=name).norm == norm for name in spelled)
    assert [BoundOptions(method=name).method for name in ("Crown-IBP", "CROWN_IBP")] == ["crown-ibp"] * 2


@pytest.mark.parametrize("method", METHODS)
def test_radii_of_elements_are_those_of_boxes(bounded: BoundedModel, method: str) -> None:
    generator = torch.Generator().manual_seed(1)
    for shape in ((2, 3, 4, 4), (1, 3, 1, 1), (2, 1, 1, 4), (3, 1, 1), (3, 4, 4)):
        epsilon = torch.rand(shape, generator=generator, dtype=torch.float64) / 10
        result = bounded.bounds(X, epsilon, method=method)
        box = bounded.bounds(x_lower=X.double() - epsilon, x_upper=X.double() + epsilon, method=method)
        torch.testing.assert_close(result.lower, box.lower, rtol=0, atol=1e-6)
        assert (result.lower <= box.lower).all()
        assert (result.upper >= box.upper).all()
        assert_same(bounded.bounds(X, epsilon.tolist(), method=method), result)
    for same in (torch.full((2, 3, 4, 4), 0.125), torch.tensor([0.125]), 0.125, np.full((1, 1, 1, 1), 0.125)):
        assert_same(bounded.bounds(X, same, method=method), bounded.bounds(X, [0.125, 0.125], method=method))
    radii = torch.tensor([0.125, 0.25])
    for norm in ("linf", "l2"):  # one radius an example in the dimensions of x
        spread = bounded.bounds(X, radii.view(2, 1, 1, 1), method=method, norm=norm)
        assert_same(spread, bounded.bounds(X, radii, method=method, norm=norm))


def test_radii_of_elements_elsewhere(bounded: BoundedModel) -> None:
    epsilon = torch.zeros(1, 3, 1, 1)
    epsilon[:, 1] = 0.125
    right = bounded.model(X).argmax(1)
    assert torch.equal(
        bounded.certify(X, right, epsilon), bounded.margins(X, right, epsilon.expand(2, 3, 4, 4)).positive()
    )
    outer = bounded.bounds(X, epsilon, method="lipschitz")
    assert_same(outer, bounded.bounds(X, 0.125, method="lipschitz"))

    def attack(x: Tensor, y: Tensor) -> Tensor:
        return x + 0.0625 * torch.tensor([0.0, 2.0, 0.0]).view(3, 1, 1)

    def too_far(x: Tensor, y: Tensor) -> Tensor:
        return attack(x, y) + 1e-4

    assert len(bounded.verify(X, right, epsilon + 1e-6, methods=["ibp"], attack=attack).status) == 2
    with pytest.raises(InputError, match="within epsilon of every element"):
        bounded.verify(X, right, epsilon, methods=["ibp"], attack=too_far)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_clip_ranges_of_channels(bounded: BoundedModel, method: str, norm: str) -> None:
    """Compare with the raw input of a network that normalises: the box of the normalised one is its image."""
    low, high = torch.tensor([-0.5, 0.0, -0.25]).view(3, 1, 1), torch.tensor([1.0, 1.5, 1.25]).view(3, 1, 1)
    result = bounded.bounds(X, torch.inf, norm=norm, clip=(low, high), method=method)
    box = bounded.bounds(x_lower=low.expand(2, 3, 4, 4), x_upper=high.expand(2, 3, 4, 4), method=method)
    torch.testing.assert_close(result.lower, box.lower, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result.upper, box.upper, rtol=1e-4, atol=1e-4)
    options = BoundOptions(norm=norm, clip=(low, high), method=method)
    for clip in ((low.tolist(), high.numpy()), [low.double(), high.expand(3, 4, 4)]):
        assert_same(bounded.bounds(X, torch.inf, norm=norm, clip=clip, method=method), result)
    assert options == BoundOptions(norm=norm, clip=(low.numpy(), high.tolist()), method=method)
    right = bounded.model(X).argmax(1)
    radius = bounded.certified_radius(X, right, options=options)
    assert bounded.margins(X, right, radius, options=options).positive()[radius > 0].all()
    one_sided = bounded.bounds(X, 0.25, norm=norm, clip=(low, 1.5), method=method)
    assert_same(one_sided, bounded.bounds(X, 0.25, norm=norm, clip=(low, torch.tensor(1.5)), method=method))
    with pytest.raises(InputError, match="x: expected values in the clip range of its element, got"):
        bounded.bounds(X, 0.1, clip=(low, torch.full((3, 1, 1), 0.01)), norm=norm)


def test_a_balls_bounds_are_within_those_of_an_infinite_one(bounded: BoundedModel) -> None:
    whole = bounded.bounds(X, torch.tensor([torch.inf, 0.125]), norm="l2", clip=(0, 1))
    assert_same(bounded.bounds(X, [torch.inf, 0.125], norm="l2", clip=(0, 1)), whole)
    alone = bounded.bounds(X[1:], 0.125, norm="l2", clip=(0, 1))
    assert torch.equal(whole.lower[1:], alone.lower)
    lipschitz = bounded.bounds(X, torch.inf, clip=(0, 1), method="lipschitz")
    reach = torch.maximum(X, 1 - X).flatten(1).amax(1).double() * (1 + 1e-12)
    assert (lipschitz.lower <= bounded.bounds(X, reach, clip=(0, 1), method="lipschitz").lower + 1e-9).all()


def saturating(kind: str, rng: np.random.Generator) -> nn.Module:
    """Draw a net that maps some unbounded inputs to bounded sums."""
    first = {"relu": nn.ReLU(), "clamp": nn.Hardtanh(-1, 2), "sigmoid": nn.Sigmoid(), "linear": nn.Identity()}[kind]
    layers = [] if kind == "linear" else [first]
    net = fill(
        nn.Sequential(*layers, nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), "normal", rng
    )
    with torch.no_grad():
        net[len(layers)].weight[:, 3:] = 0
    return net


@pytest.mark.parametrize("semantics", ["real", "float32"])
@pytest.mark.parametrize("kind", ["relu", "clamp", "sigmoid", "linear"])
def test_boxes_without_an_end(kind: str, semantics: str) -> None:
    rng = np.random.default_rng(7)
    net = saturating(kind, rng)
    low = torch.from_numpy(rng.standard_normal((16, 5))).float()
    high = low + torch.from_numpy(rng.random((16, 5))).float()
    no_low, no_high = (torch.from_numpy(rng.random((16, 5)) < 0.2) for _ in range(2))
    if kind == "linear":
        no_low[::2, :3] = no_high[::2, :3] = False
    # points far outside of the finite box, in both directions
    far = torch.from_numpy(10.0 ** rng.uniform(0, 20, size=(24, 16, 5)))
    points = low + (high - low) * torch.from_numpy(rng.random((24, 16, 5)))
    sides = torch.from_numpy(rng.random((24, 16, 5)) < 0.5)
    points = torch.where(no_low & (sides | ~no_high), low - far, points)
    points = torch.where(no_high & (~sides | ~no_low), high + far, points)
    values = evaluate(net, exact_of(points.flatten(0, 1))).map(lambda v: v.reshape(24, 16, 2))
    x_lower, x_upper = low.where(~no_low, -torch.inf), high.where(~no_high, torch.inf)
    results = []
    model = BoundedModel(net, low)
    for method in METHODS:
        bounds = model.bounds(x_lower=x_lower, x_upper=x_upper, method=method, semantics=semantics)
        assert violated(values, bounds.lower, bounds.upper) == 0
        results.append(bounds)
    known_sets = {
        "relu": ~no_high[:, :3].any(1),
        "clamp": torch.ones(16, dtype=torch.bool),
        "sigmoid": torch.ones(16, dtype=torch.bool),
        "linear": ~(no_low | no_high)[:, :3].any(1),
    }[kind]
    assert known_sets.any()
    if semantics == "real":
        for bounds in results:
            assert bounds.lower[known_sets].isfinite().all()
            assert bounds.upper[known_sets].isfinite().all()


def test_one_end_of_a_sum_is_known_where_the_other_is_not() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
        net[2].weight.copy_(torch.eye(2))
    low, high = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, torch.inf]])
    for engine in ("native", "torch"):
        model = BoundedModel(net, low, engine=engine)
        for method in METHODS:
            bounds = model.bounds(x_lower=low, x_upper=high, method=method)
            assert bounds.lower[0].tolist() == pytest.approx([1.0, 0.0])
            assert bounds.upper[0, 0] == torch.inf
            assert bounds.upper[0, 1] == pytest.approx(0.0)


def test_every_element_without_an_end(bounded: BoundedModel) -> None:
    for method in METHODS:
        bounds = bounded.bounds(x_lower=X - torch.inf, x_upper=X + torch.inf, method=method, C=torch.zeros(1, 3))
        assert not bounds.lower.isnan().any()
        bounds = bounded.bounds(x_lower=X - torch.inf, x_upper=X + torch.inf, method=method)
        assert (bounds.lower == -torch.inf).all()
        assert (bounds.upper == torch.inf).all()
    with pytest.raises(InputError, match="x_lower: expected finite values, got inf"):
        bounded.bounds(x_lower=X + torch.inf, x_upper=X + torch.inf)
    with pytest.raises(InputError, match='x_lower, x_upper: expected x and epsilon with method "lipschitz"'):
        bounded.bounds(x_lower=X - torch.inf, x_upper=X, method="lipschitz")


LOW = torch.rand(40, 6, generator=torch.Generator().manual_seed(0))
HIGH = LOW + 0.1
# Subnormal corners must survive the widening to another dtype.
LOW[0, 0], HIGH[0, 0] = 1e-40, 3e-40


def bounds_of(lower: Tensor, upper: Tensor, method: str, engine: str) -> Bounds:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3)).eval()
    return BoundedModel(model, LOW[:1], engine=engine).bounds(x_lower=lower, x_upper=upper, method=method)


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("method", METHODS)
def test_narrow_boxes_have_the_bits_of_wide_ones(method: str, engine: str) -> None:
    pairs = [(LOW, HIGH), (LOW.double(), HIGH)]
    if engine == "native":  # its bits do not depend on the memory layout of a box
        pairs.append((LOW.t().contiguous().t(), HIGH))
    pairs += [(LOW.to(dtype), (HIGH + 0.1).to(dtype)) for dtype in (torch.float16, torch.bfloat16)]
    for lower, upper in pairs:
        wide = bounds_of(lower.double().contiguous(), upper.double(), method, engine)
        assert_same(bounds_of(lower, upper, method, engine), wide)


def test_wide_boxes_are_not_rounded_wherever_they_lie() -> None:
    network = _C.BoundNetwork64()
    network.input([1, 1, 1])
    network.linear(0, np.full((1, 1), 2.0**20, np.float64), np.full(1, -(2.0**20)), 0.0, 0.0)
    network.finish([1, 0], [0, 0], [1, 1], [0, 1], [[], [1]])
    # Strided corners; rounded to float32 the box would be the point 1.
    corners = np.full((3, 2), 1 + 2.0**-30)[:, :1]
    lower, upper, *_ = network.propagate(
        corners, corners, None, None, None, False, False, "linf", True, 0.0, float(np.finfo(np.float64).max), True, 8
    )
    assert (lower <= 2.0**-10).all()
    assert (upper >= 2.0**-10).all()
    assert (upper >= lower).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_non_finite_element_is_refused(value: float, dtype: torch.dtype) -> None:
    bad = LOW.to(dtype, copy=True)
    bad[-1, -1] = value
    bounded = BoundedModel(nn.Linear(6, 2).to(dtype).eval(), LOW[:1].to(dtype))
    for name, call, allowed in (
        ("x", lambda: bounded.bounds(bad, 0.1), None),
        ("x_lower", lambda: bounded.bounds(x_lower=bad, x_upper=HIGH.to(dtype)), -torch.inf),
        ("x_upper", lambda: bounded.bounds(x_lower=LOW.to(dtype), x_upper=bad), torch.inf),
    ):
        if value == allowed:
            call()
            continue
        with pytest.raises(InputError, match=f"^{name}: expected finite values"):
            call()


# 0.02 and 8/255 lie above the nearest float32, 0.1 and 0.3 below.
@pytest.mark.parametrize("epsilon", [0.02, 8 / 255, 0.1, 0.3])
def test_the_ball_has_the_given_radius(epsilon: float) -> None:
    identity = nn.Linear(1, 1, bias=False).double().eval()
    nn.init.ones_(identity.weight)
    x = torch.zeros(1, 1, dtype=torch.float64)
    for method in ("ibp", "crown"):
        bounds = BoundedModel(identity, x).bounds(x, epsilon, method=method)
        assert bounds.upper.item() >= epsilon
        assert bounds.upper.item() == pytest.approx(epsilon, rel=1e-12)
    for radius in (epsilon, [epsilon]):
        assert epsilon <= float(ball(x.float(), radius, "linf", None, (1,)).upper) <= math.nextafter(epsilon, math.inf)


def test_radii_of_vectors_that_may_be_of_examples_or_elements() -> None:
    net, x = nn.Sequential(nn.Linear(3, 3)).eval(), torch.rand(3, 3)
    bounded, radius, y = BoundedModel(net, x), torch.tensor([0.0, 0.1, 0.2]), torch.tensor([0, 1, 2])
    for call in (
        lambda: bounded.bounds(x, radius),
        lambda: bounded.certify(x, y, radius.tolist()),
        lambda: bounded.verify(x, y, radius.numpy()),
    ):
        with pytest.raises(InputError, match=r"expected shape \(3, 1\) for one radius for each example or \(1, 3\)"):
            call()
    examples, elements = bounded.bounds(x, radius[:, None]), bounded.bounds(x, radius[None])
    for i in range(3):
        alone = bounded.bounds(x[i : i + 1], float(radius[i]))
        assert torch.equal(examples.lower[i], alone.lower[0])
    boxes = bounded.bounds(x_lower=x - radius, x_upper=x + radius)
    assert torch.allclose(elements.lower, boxes.lower, atol=1e-6)
    with pytest.raises(
        InputError, match=r"each of the 2 examples \(radii of elements have the shape \(1, 3\)\), got 3"
    ):
        bounded.bounds(x[:2], radius)
    # Searches and cascades take radii apart themselves.
    radii = bounded.certified_radius(x, y, largest=torch.tensor([0.1, 0.2, 0.3]))
    assert radii.shape == (3,)
    assert bounded.verify(x, y, radius[:, None]).status == bounded.verify(x, y, radius[:, None].expand(3, 3)).status
    assert len(proved_robust(net, x, y, radius).proved) == 3
