"""Nets and images of PYROBUST_DATA for bench/, on raw images in [0, 1]: normalisation is the first layer."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pyrobust.zoo import load_data, load_model


class Normalize(nn.Module):
    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.shortcut = nn.Sequential(
            *([nn.Conv2d(inputs, outputs, 1, stride)] if (inputs, stride) != (outputs, 1) else [])
        )

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


class ResNet4b(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 2, 1)
        self.layer1 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1))
        self.layer2 = nn.Sequential(Block(32, 32, 2), Block(32, 32, 1))
        self.linear1 = nn.Linear(512, 100)
        self.linear2 = nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(torch.relu(self.conv1(x)))).flatten(1)
        return self.linear2(torch.relu(self.linear1(x)))


def convolutional(channels: tuple[int, int, int], features: int) -> nn.Sequential:
    """Two convolutions and two linear layers: oval_base with (3, 8, 16) and mnist_cnn_a_adv with (1, 16, 32)."""
    return nn.Sequential(
        nn.Conv2d(channels[0], channels[1], 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(channels[1], channels[2], 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def conv_small_sigmoid() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 2),
        nn.Sigmoid(),
        nn.Conv2d(16, 32, 4, 2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(1152, 100),
        nn.Sigmoid(),
        nn.Linear(100, 10),
    )


def mnist_6_100() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(784, 100), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(100, 100), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(100, 10))


@contextmanager
def counted(net: nn.Module) -> Iterator[Callable[[], int]]:
    """Count the rows that pass through a net."""
    rows = 0

    def count(module: nn.Module, arguments: object, output: Tensor) -> None:
        nonlocal rows
        rows += len(output)

    handle = net.register_forward_hook(count)
    try:
        yield lambda: rows
    finally:
        handle.remove()


@functools.cache
def _warn_random() -> None:
    """Warn once, on standard error: the figures go to standard output."""
    print("PYROBUST_DATA is not set: nets with random weights, on random images", file=sys.stderr)


def folder() -> Path:
    """The folder PYROBUST_DATA of nets, images, logs and texts."""
    if not os.environ.get("PYROBUST_DATA"):
        raise SystemExit("PYROBUST_DATA: expected the folder of nets, images, logs and texts, got nothing")
    return Path(os.environ["PYROBUST_DATA"])


def load(name: str, data: Path | None = None) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A net in evaluation mode with its images and labels: Sequential(normalisation, net on normalised images).

    Where PYROBUST_DATA is not set either, the net has random weights and 200 random images, and its predictions are the
    labels. "digits-..." is a bundled net, all of it on digits. Nets are frozen, so that no library computes gradients
    of parameters.
    """
    net: nn.Module
    if name.startswith("digits"):
        digits = load_data("digits")
        return load_model(f"zoo:{name}").eval().requires_grad_(False), digits.x, digits.y
    if data is None and os.environ.get("PYROBUST_DATA"):
        data = folder()
    before: nn.Module = nn.Identity()
    shape = (1, 28, 28) if name.startswith("mnist") else (3, 32, 32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "mnist_6_100":
            net, images = mnist_6_100(), "mnist_eran"
        elif name == "mnist_cnn_a_adv":
            net, images = convolutional((1, 16, 32), 1568), "mnist_sdp"
        elif name in ("cifar_resnet2b", "cifar_resnet4b"):
            net = ResNet2b() if name == "cifar_resnet2b" else ResNet4b()
            before = Normalize((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
            images = "cifar_sdp"
        elif name == "cifar_conv_small_sigmoid":
            net, before = conv_small_sigmoid(), Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
            images = "cifar_sdp"
        elif name == "oval_base":
            net, before = convolutional((3, 8, 16), 1024), Normalize((0.485, 0.456, 0.406), (0.225, 0.225, 0.225))
            images = "cifar_sdp"
        else:
            raise ValueError(f"name: expected a net of bench/nets.py, got {name!r}")
        x = torch.rand(200, *shape)
    model = nn.Sequential(before, net).eval().requires_grad_(False)
    if data is None:
        _warn_random()
        return model, x, model(x).argmax(1)
    net.load_state_dict(torch.load(data / f"nets/{name}.pt", weights_only=True))
    with np.load(data / f"images/{images}.npz") as file:
        x, y = torch.from_numpy(file["X"]), torch.from_numpy(file["y"])
    return model, x, y
