"""Certified radii: proved, within the resolution of a radius that fails, with few engine calls."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from bound_data import on_images
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.radius_search import LARGEST_RADIUS, RESOLUTION, search_radius
from pyrobust.zoo import load_data, load_model


def digits() -> tuple[nn.Module, Tensor, Tensor]:
    data = load_data("digits")
    return load_model("zoo:digits-smooth-0.25").eval(), data.x[:40], data.y[:40]


def mnist() -> tuple[nn.Module, Tensor, Tensor]:
    net, x, y = on_images("mnist_cnn_a_adv")
    return net, x[:24], y[:24]


class Counted:
    """An engine wrapper that counts bounded examples."""

    def __init__(self, engine) -> None:
        self.engine, self.examples = engine, 0

    def run(self, inputs, *args, **options):
        self.examples += len(inputs)
        return self.engine.run(inputs, *args, **options)


@pytest.mark.parametrize("source", [digits, mnist])
@pytest.mark.parametrize(
    ("norm", "method", "largest"),
    [
        ("linf", "ibp", 0.25),
        ("linf", "crown-ibp", 0.5),
        ("linf", "crown", 0.25),
        ("l2", "crown-ibp", 2.0),
        ("l1", "ibp", 4.0),
    ],
)
def test_radii(source, norm: str, method: str, largest: float) -> None:
    net, x, y = source()
    y = y.clone()
    y[:3] = (net(x[:3]).argmax(1) + 1) % 10  # misclassified
    model = BoundedModel(net, x)
    model._engine = counted = Counted(model._engine)
    options = {"norm": norm, "method": method, "clip": (0.0, 1.0)}
    radius = model.certified_radius(x, y, largest=largest, **options)
    assert radius.dtype == torch.float64
    assert ((radius >= 0) & (radius <= largest)).all()
    assert (radius[:3] == 0).all()
    assert (radius > 0).sum() >= len(x) // 2
    assert counted.examples <= 12 * len(x)
    proved = radius > 0
    assert model.margins(x[proved], y[proved], radius[proved], **options).positive().all()
    open_ = radius < largest
    above = (radius + RESOLUTION * largest).clamp(max=largest)
    assert open_.any()
    # Bounds are not monotone: a slightly larger radius may be proved again for a few examples.
    again = model.margins(x[open_], y[open_], above[open_], **options).positive()
    assert again.double().mean() <= 0.05


def counted_margin(root: Tensor, curve):
    def margin(chosen: Tensor, epsilon: Tensor) -> Tensor:
        margin.calls += len(chosen)
        return curve(root[chosen], epsilon)

    margin.calls = 0
    return margin


@pytest.mark.parametrize(
    "curve",
    [
        lambda root, e: root - e,
        lambda root, e: (root - e) * 1e-9,
        lambda root, e: root**3 - e**3,
        lambda root, e: torch.expm1(40 * (root - e)),
        lambda root, e: torch.where(e < root, 1.0, -torch.inf),
        lambda root, e: torch.where(e < root, root - e, torch.nan),
        lambda root, e: torch.where(e < root, 1.0, 0.0),
    ],
)
def test_the_search_ends_within_its_resolution(curve) -> None:
    rng = np.random.default_rng(0)
    root = torch.from_numpy(
        np.concatenate([[0.0, -1.0, 1.0, 5.0, 2e-7, 0.999], rng.random(200), 2.0 ** -rng.uniform(1, 25, 200)])
    )
    margin = counted_margin(root, curve)
    radii = search_radius(margin, *[torch.ones(len(root), dtype=torch.float64)] * 2)
    inside = (root > 0) & (root < 1)
    assert (radii[root <= 0] == 0).all()
    assert (radii[root > 1] == 1).all()
    assert (radii[inside] < root[inside]).all()
    assert (root[inside] - radii[inside] <= RESOLUTION).all()
    assert margin.calls <= 40 * len(root)


def test_nothing_is_inferred_between_radii() -> None:
    """Search a margin that is positive on separate intervals: every returned radius was evaluated as positive."""
    seen: list[tuple[int, float]] = []

    def margin(chosen: Tensor, epsilon: Tensor) -> Tensor:
        value = torch.sin(40 * epsilon + 1)
        seen.extend((int(i), float(e)) for i, e, v in zip(chosen, epsilon, value, strict=True) if v > 0)
        return value

    radii = search_radius(margin, *[torch.ones(5, dtype=torch.float64)] * 2)
    assert all((i, float(radius)) in seen for i, radius in enumerate(radii))


def test_ends_of_the_range() -> None:
    ones = counted_margin(torch.ones(3, dtype=torch.float64), lambda root, e: root)
    for largest in ([0.0] * 3, [], [0.3] * 3):
        ends = torch.tensor(largest, dtype=torch.float64)
        assert search_radius(ones, ends, ends).tolist() == largest
    calls = ones.calls
    ends = torch.full((3,), 1000.0, dtype=torch.float64)
    assert search_radius(ones, ends, ends / 1000, lambda: False).tolist() == [1 / 64] * 3  # interrupted
    assert ones.calls == calls + 6  # at 0 and at the first radius


@pytest.mark.parametrize(("norm", "rate"), [("linf", 2.0), ("l2", 2**0.5), ("l1", 1.0)])
def test_the_default_has_no_limit_but_the_clip_range(norm: str, rate: float) -> None:
    """Bound z₁ + z₂ + 100 > 0: the radius is 100 / rate, unless no input in the clip range is that far away."""
    net = nn.Linear(2, 2, bias=True).double().eval()
    net.load_state_dict({"weight": torch.tensor([[1.0, 1.0], [0.0, 0.0]]), "bias": torch.tensor([100.0, 0.0])})
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    model = BoundedModel(net, x)
    for clip in (None, (-200.0, 200.0), (-51.0, 51.0), (-49.0, 49.0)):
        radius = float(model.certified_radius(x, y, norm=norm, clip=clip, method="crown"))
        exact = 100 / rate if clip is None or clip[1] > 50 else np.inf  # the corner at -50, -50 has the margin 0
        assert exact * (1 - 2 * RESOLUTION) <= radius <= exact
        lipschitz = float(model.certified_radius(x, y, norm=norm, clip=clip, method="lipschitz"))
        assert lipschitz == np.inf if exact == np.inf else lipschitz == pytest.approx(100 / rate, rel=1e-6)
    assert float(model.certified_radius(x, y, norm=norm, largest=3)) == 3.0


def test_a_margin_that_stays_positive_reaches_the_largest_radius_in_few_steps() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        net[2].bias.copy_(torch.tensor([50.0, 0.0]))
    model = BoundedModel(net, torch.zeros(1, 2))
    model._engine = counted = Counted(model._engine)
    assert float(model.certified_radius(torch.zeros(1, 2), torch.zeros(1).long())) == LARGEST_RADIUS
    assert counted.examples < 25


def test_the_default_limit_is_where_all_elements_have_reached_their_farthest_value() -> None:
    """The margin of class 0 is 1.6 - x₀ - x₁, at least 0.02 on [0, 0.79]² and negative at its corner in [0, 1]²."""
    model = nn.Linear(2, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
        model.bias.copy_(torch.tensor([1.6, 0.0]))
    x = torch.full((2, 2), 0.5)
    bounded, labels = BoundedModel(model, x), torch.tensor([0, 1])
    for box, radius in [((1.0, 1.0), 0.3), ((0.1, 0.2), 2.0), ((0.0, 0.5), 1.2)]:
        radii = torch.tensor(box, dtype=torch.float64)
        found = bounded.certified_radius(x, labels, clip=(0, 1), box=radii)
        expected = math.inf if box[0] == 0 else radius  # one element alone stays in the class
        assert float(found[0]) == pytest.approx(expected, rel=1e-5)
        assert found[1] == 0
        assert bounded.certified_radius(x, labels, clip=(0, 0.79), box=radii).tolist() == [math.inf, 0]
    # a range that is a point proves nothing of a wrong prediction
    point = torch.full((2,), 0.5)
    assert bounded.certified_radius(x, labels, clip=(point, point))[1] == 0
