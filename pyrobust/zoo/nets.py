"""Architecture of the bundled nets."""

from __future__ import annotations

import math

import torch
from torch import nn


def digits_convnet(seed: int = 0) -> nn.Sequential:
    """Convolutional net for 8x8 grey images and ten classes: two convolutions, two linear layers, 34,682 parameters.

    It has no batch norm, pooling or dropout, so every bound propagation method supports it. Initial weights and biases
    are uniform in ±1/√(fan-in) (LeCun et al., Efficient BackProp, 1998). They are drawn from a separate generator, so
    that the global generator does not change.

    Args:
        seed: random seed of the initial weights.

    Returns:
        The net in train mode, float32, on the CPU. It maps [N, 1, 8, 8] to logits [N, 10].

    >>> net = digits_convnet()
    >>> net(torch.zeros(5, 1, 8, 8)).shape, sum(p.numel() for p in net.parameters())
    (torch.Size([5, 10]), 34682)
    """
    # On the meta device the constructors draw no random numbers, so the global generator is not advanced.
    with torch.device("meta"):
        net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, dtype=torch.float32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1, dtype=torch.float32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 48, dtype=torch.float32),
            nn.ReLU(),
            nn.Linear(48, 10, dtype=torch.float32),
        )
    net.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                bound = 1 / math.sqrt(layer.weight[0].numel())
                for parameter in layer.parameters():
                    parameter.uniform_(-bound, bound, generator=generator)
    return net
