"""Layers and networks of deel-torchlip have proved constants near 1."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pyrobust.bounds import lipschitz_bound

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


def test_a_network_and_its_export_are_proved_to_have_constant_1() -> None:
    torch.manual_seed(0)
    net = torchlip.Sequential(
        torchlip.SpectralConv2d(1, 8, 3, padding=1),
        torchlip.GroupSort2(),
        torchlip.ScaledL2NormPool2d(2),
        nn.Flatten(),
        torchlip.SpectralLinear(128, 32),
        torchlip.GroupSort(4),
        torchlip.FrobeniusLinear(32, 10, disjoint_neurons=False),
    ).eval()
    x = torch.rand(2, 1, 8, 8)
    net(x)
    for module in (net, net.vanilla_export().eval()):
        constant = lipschitz_bound(module, x)
        assert constant.lower <= constant.value <= 1.01
