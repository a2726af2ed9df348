"""The nets, images and reference bounds of PYROBUST_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from bound_nets import Normalize
from torch import Tensor, nn

NETS = ("mnist_6_100", "mnist_cnn_a_adv", "oval_base", "cifar_resnet2b")


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.shortcut = nn.Sequential(*([nn.Conv2d(inputs, outputs, 1, stride)] if inputs != outputs else []))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv2(torch.relu(self.conv1(x))) + self.shortcut(x))


class ResNet2b(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1)
        self.layer1 = nn.Sequential(Block(8, 16, 2), Block(16, 16, 1))
        self.linear1 = nn.Linear(1024, 100)
        self.linear2 = nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(torch.relu(self.conv1(x))).flatten(1)
        return self.linear2(torch.relu(self.linear1(x)))


def _convolutions(channels: tuple[int, int, int], features: int) -> nn.Sequential:
    first, second = nn.Conv2d(channels[0], channels[1], 4, 2, 1), nn.Conv2d(channels[1], channels[2], 4, 2, 1)
    last = [nn.Linear(features, 100), nn.ReLU(), nn.Linear(100, 10)]
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), *last)


def folder() -> Path:
    """PYROBUST_DATA; the test is skipped where it is not set."""
    found = os.environ.get("PYROBUST_DATA")
    if not found:
        pytest.skip("PYROBUST_DATA is not set")
    return Path(found)


def trained(name: str) -> nn.Module:
    """A net that takes images already normalised."""
    net: nn.Module
    if name == "mnist_6_100":
        hidden = [m for _ in range(4) for m in (nn.Linear(100, 100), nn.ReLU())]
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), *hidden, nn.Linear(100, 10))
    elif name == "cifar_resnet2b":
        net = ResNet2b()
    else:
        net = _convolutions((3, 8, 16), 1024) if name == "oval_base" else _convolutions((1, 16, 32), 1568)
    net.load_state_dict(torch.load(folder() / "nets" / f"{name}.pt", weights_only=True))
    return net.eval().requires_grad_(False)


def on_images(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A net of raw images, with the 200 images that it is measured on and their labels."""
    net, images = trained(name), "mnist_sdp"
    if name == "oval_base":
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.full((3,), 0.225)
        net, images = nn.Sequential(Normalize(mean.view(3, 1, 1), std.view(3, 1, 1)), net).eval(), "cifar_sdp"
    with np.load(folder() / "images" / f"{images}.npz") as file:
        return net, torch.from_numpy(file["X"]), torch.from_numpy(file["y"])


def published(name: str) -> dict[str, np.ndarray]:
    """Reference bounds of a net, by key."""
    with np.load(folder() / "bounds" / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}
