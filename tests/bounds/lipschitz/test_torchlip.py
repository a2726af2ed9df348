"""Networks of deel-torchlip: proved constants near 1, and certificates beside CROWN's and an attack's distances."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pyrobust import PGD
from pyrobust.bounds import BoundedModel, lipschitz_bound
from pyrobust.zoo import load_digits

torchlip = pytest.importorskip("deel.torchlip")

LAYERS = {
    "GroupSort2": (torchlip.GroupSort2, 1.0),
    "GroupSort": (lambda: torchlip.GroupSort(4), 1.0),
    "FullSort": (torchlip.FullSort, 1.0),
    "MaxMin": (torchlip.MaxMin, 1.0),
    "ScaledAvgPool2d": (lambda: torchlip.ScaledAvgPool2d(2), 1.0),
    "ScaledAdaptiveAvgPool2d": (lambda: torchlip.ScaledAdaptiveAvgPool2d((1, 1)), 1.0),
    "ScaledL2NormPool2d": (lambda: torchlip.ScaledL2NormPool2d(2), 1.0),
    "ScaledAdaptativeL2NormPool2d": (torchlip.ScaledAdaptativeL2NormPool2d, 1.0),
    "InvertibleDownSampling": (lambda: torchlip.InvertibleDownSampling(2), 1.0),
    "InvertibleUpSampling": (lambda: torchlip.InvertibleUpSampling(2), 1.0),
    "LPReLU": (torchlip.LPReLU, 1.0),
    "SpectralConv2d": (lambda: torchlip.SpectralConv2d(4, 4, 3, padding=1), 1.01),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_proved_to_have_constant_1(name: str) -> None:
    torch.manual_seed(0)
    make, largest = LAYERS[name]
    constant = lipschitz_bound(make().eval(), torch.randn(2, 4, 4, 4))
    assert constant.lower <= constant.value <= largest + 1e-6


def trained(steps: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a net trained on digits, with 30 other digits and their labels."""
    torch.manual_seed(0)
    net = torchlip.Sequential(
        torchlip.SpectralConv2d(1, 8, 3, padding=1),
        torchlip.GroupSort2(),
        torchlip.ScaledL2NormPool2d(2),
        nn.Flatten(),
        torchlip.SpectralLinear(128, 32),
        torchlip.GroupSort(4),
        torchlip.FrobeniusLinear(32, 10, disjoint_neurons=False),
    )
    digits, held_out = load_digits("train"), load_digits("test")
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(steps):
        batch = torch.randint(0, len(digits.y), (128,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(20 * net(digits.x[batch]), digits.y[batch]).backward()
        optimizer.step()
    return net.eval(), held_out.x[:30], held_out.y[:30]


def attacked_distance(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the smallest l2 distance of a misclassified input that PGD finds: inf where it finds none."""
    distance = torch.full((len(x),), torch.inf, dtype=torch.float64)
    for epsilon in torch.arange(0.2, 3.0, 0.2).tolist():
        moved = PGD(model, epsilon=epsilon, norm="l2", steps=10).generate(x, y)
        with torch.no_grad():
            wrong = model(moved).argmax(1) != y
        length = (moved - x).double().flatten(1).norm(dim=1)
        distance = torch.where(wrong, torch.minimum(distance, length), distance)
    return distance


@pytest.mark.parametrize("steps", [100, pytest.param(3000, marks=pytest.mark.full)])
def test_certificates_lie_below_the_distances_of_an_attack(steps: int) -> None:
    net, x, y = trained(steps)
    model = net.vanilla_export().eval()
    for module in (net, model):
        constant = lipschitz_bound(module, x)
        assert constant.lower <= constant.value <= 1.01
    bounded, distance = BoundedModel(model, x), attacked_distance(model, x, y)
    radii = {method: bounded.certified_radius(x, y, norm="l2", method=method) for method in ("lipschitz", "crown")}
    for radius in radii.values():
        assert (radius <= distance).all()
    assert 0.1 < radii["lipschitz"].median() < distance.median()
