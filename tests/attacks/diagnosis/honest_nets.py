"""Nets without a defense, with images and an epsilon at which they are evaluated."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.zoo import load_data, load_model

#: Net → (images, epsilon of l∞).
NETS = {
    "mnist_cnn_a_adv": ("mnist_sdp", 0.3),
    "mnist_6_100": ("mnist_eran", 0.03),
    "cifar_resnet2b": ("cifar_sdp", 2 / 255),
    "cifar_resnet4b": ("cifar_sdp", 2 / 255),
    "oval_base": ("cifar_sdp", 2 / 255),
    "zoo:digits-smooth-0.25": ("digits", 0.1),
}


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.shortcut = nn.Sequential(*([nn.Conv2d(inputs, outputs, 1, stride)] if stride > 1 else []))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.conv2(functional.relu(self.conv1(x))) + self.shortcut(x))


class Normalized(nn.Module):
    """A net behind the normalization of its inputs."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], net: nn.Module) -> None:
        super().__init__()
        self.mean, self.std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / self.std)


def _convolutional(inputs: int, first: int, flat: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, first, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(first, 2 * first, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def _residual(first: int, blocks: list[Block], flat: int) -> nn.Sequential:
    head = [nn.Flatten(), nn.Linear(flat, 100), nn.ReLU(), nn.Linear(100, 10)]
    return nn.Sequential(nn.Conv2d(3, first, 3, 2, 1), nn.ReLU(), *blocks, *head)


def _architecture(name: str) -> nn.Sequential:
    if name == "mnist_cnn_a_adv":
        return _convolutional(1, 16, 1568)
    if name == "oval_base":
        return _convolutional(3, 8, 1024)
    if name == "mnist_6_100":
        hidden = [layer for _ in range(4) for layer in (nn.Linear(100, 100), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), *hidden, nn.Linear(100, 10))
    if name == "cifar_resnet2b":
        return _residual(8, [Block(8, 16, 2), Block(16, 16, 1)], 1024)
    return _residual(16, [Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 2), Block(32, 32, 1)], 512)


def load_net(name: str) -> tuple[nn.Module, Tensor, Tensor, float]:
    """The net, all its images, their labels, and epsilon."""
    images, epsilon = NETS[name]
    if name.startswith("zoo:"):
        data = load_data(images)
        return load_model(name), data.x, data.y, epsilon
    folder = os.environ.get("PYROBUST_DATA")
    if not folder:
        pytest.skip("PYROBUST_DATA is not set")
    net = _architecture(name)
    weights = torch.load(Path(folder) / "nets" / f"{name}.pt", weights_only=True)
    net.load_state_dict(dict(zip(net.state_dict(), weights.values(), strict=True)))
    model: nn.Module = net
    if name.startswith("cifar"):
        model = Normalized((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616), net)
    elif name == "oval_base":
        model = Normalized((0.485, 0.456, 0.406), (0.225, 0.225, 0.225), net)
    with np.load(Path(folder) / "images" / f"{images}.npz") as arrays:
        x, y = torch.from_numpy(arrays["X"]).float(), torch.from_numpy(arrays["y"]).long()
    return model.eval(), x, y, epsilon
