"""Bounds against those of auto_LiRPA (Xu et al., 2020) on the same boxes, and attacks within certified radii."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from support.bounds.data import NETS, attacked, on_images, published, trained
from torch import Tensor, nn

from pyrobust.attacks import APGD
from pyrobust.bounds import BoundedModel
from pyrobust.zoo import load_data, load_model

METHODS = ("ibp", "crown-ibp", "crown")


@functools.cache
def bounded(name: str, example: tuple[int, ...], engine: str = "native") -> BoundedModel:
    return BoundedModel(trained(name), torch.zeros(1, *example), engine=engine)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", METHODS)
def test_lower_bounds_of_margins(name: str, method: str) -> None:
    data = published(name)
    radii = sorted({key.split("/")[0] for key in data if key.startswith("eps")})
    assert radii
    for radius in radii:
        stem = f"{radius}/{method.upper()}/lb_margin"
        expected = data[f"{stem}_f64"] if f"{stem}_f64" in data else data[stem]
        count = len(expected)
        lower, upper = (torch.from_numpy(data[f"{radius}/{key}"][:count]) for key in ("x_L", "x_U"))
        y = torch.from_numpy(data["y"][:count])
        model = bounded(name, tuple(lower.shape[1:]))
        plain = model.margins(y=y, x_lower=lower, x_upper=upper, method=method, sound=False).lower.numpy()
        sound = model.margins(y=y, x_lower=lower, x_upper=upper, method=method).lower.numpy()
        size = 1 + np.abs(expected)
        assert ((expected - plain) / size).max() <= 1e-4
        # above the plain ones where a lower slope has flipped, or where intervals were better for a neuron
        assert np.median((expected - sound) / size) <= 5e-3
        assert int((sound.min(1) > 0).sum()) >= int((expected.min(1) > 0).sum())


@pytest.mark.parametrize("name", NETS)
def test_bounds_of_logits(name: str) -> None:
    data = published(name)
    radius = min({key.split("/")[0] for key in data if key.startswith("eps")}, key=lambda key: float(key[3:]))
    for method in METHODS:
        low, high = (data.get(f"logits/{method.upper()}/{bound}") for bound in ("lb", "ub"))
        assert low is not None
        assert high is not None
        x_lower, x_upper = (torch.from_numpy(data[f"{radius}/{key}"][: len(low)]) for key in ("x_L", "x_U"))
        model = bounded(name, tuple(x_lower.shape[1:]))
        plain = model.bounds(x_lower=x_lower, x_upper=x_upper, method=method, sound=False)
        # the published bounds are single precision
        assert ((low - plain.lower.numpy()) / (1 + np.abs(low))).max() <= 1e-3
        assert ((plain.upper.numpy() - high) / (1 + np.abs(high))).max() <= 1e-3


def test_bundled_digits() -> None:
    data, net = load_data("digits"), load_model("zoo:digits-smooth-0.25").eval()
    x, y = data.x[:75], data.y[:75]
    for norm, largest in (("linf", 0.25), ("l2", 2.0), ("l1", 8.0)):
        assert attacked(net, x, y, norm, "crown-ibp", largest, "float32", 0, 20) >= 50


@pytest.mark.full
@pytest.mark.parametrize("seed", range(17))
@pytest.mark.parametrize("name", ["oval_base", "mnist_cnn_a_adv"])
@pytest.mark.parametrize(("norm", "largest"), [("linf", 0.3), ("l2", 3.0)])
def test_trained_nets_at_length(name: str, norm: str, largest: float, seed: int) -> None:
    """Attack 17 · 2 · 2 · 200 examples with fresh noise; more than 10,000 of them are certified."""
    net, x, y = on_images(name)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)) * 0.02
    x = (x + noise).clamp(0, 1)
    held = attacked(net, x, y, norm, "crown", largest, "float32", seed, 100)
    print(f"{held} of {len(x)} examples certified, none fell")
    assert held >= 60


LARGEST = {"linf": 0.25, "l2": 3.0, "l1": 12.0}


def fallen(net: nn.Module, x: Tensor, y: Tensor, radius: Tensor, norm: str, **options: int) -> Tensor:
    """Run AutoAttack's first two attacks within each example's radius; return which examples they fool: bool [B]."""
    wrong = torch.zeros(len(x), dtype=torch.bool)
    for loss in ("ce", "dlr-targeted"):
        x_adv = APGD(net, radius, norm, loss=loss, multi_epsilon=norm == "l1", **options).generate(x, y)
        with torch.no_grad():
            wrong |= net(x_adv).argmax(1) != y
    return wrong


def attacked_by_apgd(name: str, norm: str, begin: int, count: int, factors: tuple[int, ...], **options: int) -> None:
    """Check that APGD fools no example at its certified radius, and some examples far beyond it."""
    net, x, y = on_images(name)
    x, y = x[begin : begin + count], y[begin : begin + count]
    radius = BoundedModel(net, x).certified_radius(
        x, y, norm=norm, clip=(0.0, 1.0), largest=LARGEST[norm], semantics="float32"
    )
    held = radius > 0
    x, y, radius = x[held], y[held], radius[held]
    fooled = {factor: int(fallen(net, x, y, factor * radius, norm, **options).sum()) for factor in factors}
    print(f"{name}, {norm}: {len(x)} certified; factor of the radius: examples that fell there: {fooled}")
    assert len(x) >= count // 3
    assert fooled[1] == 0
    assert fooled[factors[-1]] > 0


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", NETS)
def test_apgd_at_the_certified_radius(name: str, norm: str) -> None:
    attacked_by_apgd(name, norm, 0, 6, (1, 64), steps=30, targets=3)


@pytest.mark.full
@pytest.mark.parametrize("begin", range(0, 100, 20))
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("name", NETS)
def test_apgd_at_the_certified_radius_at_length(name: str, norm: str, begin: int) -> None:
    """Run APGD like AutoAttack: 100 steps and nine targets, with three restarts each."""
    attacked_by_apgd(name, norm, begin, 20, (1, 2, 64), steps=100, targets=9, restarts=3)
