"""Nets of usual widths, with random weights: a ResNet-18, a VGG with batch norm, and others that bounds are slow on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(z)) + self.shortcut(x))


def resnet18(width: int = 64) -> nn.Sequential:
    """ResNet-18 for 3x32x32 images (He et al., 2016), with 11.2 million parameters at width 64."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for i in range(4):
        inputs, outputs = width * 2 ** max(0, i - 1), width * 2**i
        layers += [BasicBlock(inputs, outputs, 1 if i == 0 else 2), BasicBlock(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


def vgg(width: int = 32) -> nn.Sequential:
    """Six convolutions with batch norm and three max-poolings on 3x32x32 images (Simonyan and Zisserman, 2015)."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (width, 2 * width, 4 * width):
        for _ in range(2):
            layers += [nn.Conv2d(inputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * inputs, 128), nn.ReLU(), nn.Linear(128, 10))


def vgg11() -> nn.Sequential:
    """VGG-11 for 3x32x32 images (Simonyan and Zisserman, 2015), without batch norm."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for size in outputs:
            layers += [nn.Conv2d(inputs, size, 3, 1, 1), nn.ReLU()]
            inputs = size
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def image_224() -> nn.Sequential:
    """Three strided convolutions on 3x224x224 images."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 4, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


#: Name → (function that makes the net, shape of one input).
WIDE_NETS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "ResNet-18 of width 64": (resnet18, (3, 32, 32)),
    "VGG with batch norm and max-pool": (vgg, (3, 32, 32)),
    "3x224x224 net": (image_224, (3, 224, 224)),
}


def wide_net(name: str) -> nn.Sequential:
    """Make a net in evaluation mode and without gradients, with random running statistics."""
    make, _ = WIDE_NETS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = make().eval().requires_grad_(False)
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.normal_(0, 0.1)
                layer.running_var.uniform_(0.5, 2)
    return net
