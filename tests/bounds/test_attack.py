"""Both sides: PGD finds nothing at a radius that is certified."""

from __future__ import annotations

import pytest
import torch
from bound_data import on_images

from pyrobust.attacks import PGD
from pyrobust.bounds import BoundedModel
from pyrobust.zoo import load_data, load_model


def attacked(net, x, y, norm: str, method: str, largest: float, semantics: str, seed: int, steps: int) -> int:
    """How many examples were certified and then attacked at their own radius; none may fall."""
    model = BoundedModel(net, x)
    radius = model.certified_radius(
        x, y, norm=norm, method=method, clip=(0.0, 1.0), largest=largest, semantics=semantics
    )
    held = radius > 0
    x, y, radius = x[held], y[held], radius[held]
    for loss in ("ce", "margin"):
        attack = PGD(net, radius.float() * (1 - 2.0**-20), norm, steps=steps, loss=loss, seed=seed)
        with torch.no_grad():
            wrong = net(attack.generate(x, y)).argmax(1) != y
        assert not wrong.any(), f"{int(wrong.sum())} of {len(x)} certified examples fell to PGD"
    return len(x)


def test_bundled_digits() -> None:
    data, net = load_data("digits"), load_model("zoo:digits-smooth-0.25").eval()
    x, y = data.x[:150], data.y[:150]
    for norm, largest in (("linf", 0.25), ("l2", 2.0), ("l1", 8.0)):
        assert attacked(net, x, y, norm, "crown-ibp", largest, "float32", 0, 20) >= 100


@pytest.mark.parametrize("name", ["oval_base", "mnist_cnn_a_adv"])
@pytest.mark.parametrize(("norm", "method", "largest"), [("linf", "crown", 0.3), ("l2", "crown-ibp", 3.0)])
def test_trained_nets(name: str, norm: str, method: str, largest: float) -> None:
    net, x, y = on_images(name)
    count = 32 if method == "crown" else 100
    assert attacked(net, x[:count], y[:count], norm, method, largest, "float32", 0, 20) >= count // 3


@pytest.mark.full
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["oval_base", "mnist_cnn_a_adv"])
@pytest.mark.parametrize(("norm", "largest"), [("linf", 0.3), ("l2", 3.0)])
def test_trained_nets_at_length(name: str, norm: str, largest: float, seed: int) -> None:
    """12 · 2 · 2 · 200 examples, of which noise makes others each time."""
    net, x, y = on_images(name)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)) * 0.02
    x = (x + noise).clamp(0, 1)
    assert attacked(net, x, y, norm, "crown", largest, "float32", seed, 100) >= 60
