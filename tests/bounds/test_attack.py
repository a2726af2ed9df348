"""Attacks within certified radii find no counterexample."""

from __future__ import annotations

import pytest
import torch
from bound_data import NETS, attacked, on_images
from torch import Tensor, nn

from pyrobust.attacks import APGD
from pyrobust.bounds import BoundedModel
from pyrobust.zoo import load_data, load_model


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
