"""Small nets and images for tests on fake GPUs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def small_net() -> nn.Sequential:
    """Four classes of images [1, 6, 6]."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        net[3].weight *= 2
    return net.eval()


def labelled(count: int = 4) -> tuple[Tensor, Tensor]:
    """Images on the grid of 1/255 and their classes by ``small_net``."""
    x = torch.randint(256, (count, 1, 6, 6), generator=torch.Generator().manual_seed(1)) / 255
    return x, small_net()(x).argmax(1)
