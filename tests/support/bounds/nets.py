"""Random nets of every kind of layer, with weights that make rounding visible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Affine(nn.Module):
    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Residual(nn.Module):
    def __init__(self, body: nn.Module, sign: int) -> None:
        super().__init__()
        self.body, self.sign = body, sign

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.sign > 0 else x - self.body(x)


class Concat(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.parts], 1)


class Moved(nn.Module):
    """A function that only moves elements."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class TimesMatrix(nn.Module):
    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


#: Distributions of a net's weights: sums of "cancel" nearly cancel, "scales" gives magnitudes from 1e-30 to 1e30,
#: "stable" makes all inputs of an activation positive, or all negative.
STYLES = ("normal", "cancel", "scales", "stable", "one")


def fill(net: nn.Module, style: str, rng: np.random.Generator) -> nn.Module:
    """Draw all parameters and running statistics, and return the net in evaluation mode without gradients."""
    for module in net.modules():
        scale = 10.0 ** rng.integers(-30, 31) if style == "scales" and rng.random() < 0.6 else 1.0
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if not tensor.dtype.is_floating_point:
                continue
            values = rng.standard_normal(tuple(tensor.shape))
            if name in ("running_var", "std"):
                values = np.abs(values) + 0.01
            elif style == "stable":
                values = np.abs(values) if name == "weight" else values * 0.1
            elif style == "cancel" and values.ndim > 1 and values.shape[1] > 1:
                # pairs w, -w but for the last bits
                twin = -values * (1 + rng.standard_normal(values.shape) * 1e-6)
                values[:, 1::2] = twin[:, : 2 * (values.shape[1] // 2) : 2]
                values *= 10.0 ** rng.integers(0, 6)
            if name in ("weight", "bias", "matrix"):
                values = values * scale
            tensor.data.copy_(torch.from_numpy(values))
    return net.eval().requires_grad_(False)


def function(rng: np.random.Generator, *, smooth: bool = False) -> nn.Module:
    kind = rng.integers(12 if smooth else 4)
    if kind < 2:
        return nn.ReLU()
    if kind == 2:
        return nn.LeakyReLU(float(rng.choice([0.01, 0.1, 0.5, 0.3, 1.0])))
    if kind == 3:
        low = float(rng.choice([-1.0, -0.3, 0.0]))
        return nn.Hardtanh(low, low + float(rng.choice([0.7, 1.0, 6.0])))
    if kind == 4:
        return nn.PReLU()
    return (nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Softsign)[kind - 5]()


def kinked(net: nn.Sequential, rng: np.random.Generator) -> nn.Sequential:
    """Replace the activations by PReLU with slopes of any size and sign, one or one for each channel."""
    layers, channels = [], 1
    for module in net:
        if isinstance(module, nn.ReLU | nn.LeakyReLU | nn.Hardtanh):
            slopes = rng.choice([-2.5, -1, -0.3, 0, 0.1, 0.7, 1, 1.0001, 1.7, 1e-9], size=rng.choice([1, channels]))
            slopes = np.where(rng.random(len(slopes)) < 0.3, rng.standard_normal(len(slopes)), slopes)
            module = nn.PReLU(len(slopes)).to(next(net.parameters()).dtype)
            module.weight.data.copy_(torch.from_numpy(slopes))
        channels = getattr(module, "out_features", getattr(module, "out_channels", channels))
        layers.append(module)
    return nn.Sequential(*layers).eval().requires_grad_(False)


def dense(rng: np.random.Generator, style: str, dtype: torch.dtype) -> nn.Sequential:
    """Draw a net of linear layers and activations, sometimes with a residual connection."""
    if style == "one":
        return fill(nn.Sequential(nn.Linear(1, 1), function(rng), nn.Linear(1, 1)).to(dtype), "normal", rng)
    widths = [int(n) for n in rng.integers(1, 7, size=rng.integers(2, 5))]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        stable = nn.ReLU() if style == "stable" else function(rng)
        if rng.random() < 0.25 and style != "stable":
            layers.append(Residual(nn.Linear(a, a, bias=bool(rng.random() < 0.5)), int(rng.choice([1, -1]))))
        layers += [nn.Linear(a, b, bias=bool(rng.random() < 0.8)), stable]
    layers.append(nn.Linear(widths[-1], int(rng.integers(1, 4))))
    net = nn.Sequential(*layers).to(dtype)
    fill(net, style, rng)
    if style == "stable":
        for module in net[:-1]:
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.data.abs_()
        if rng.random() < 0.3:  # dead neurons from the first layer on
            net[0].weight.data.neg_()
            if net[0].bias is not None:
                net[0].bias.data.neg_()
    return net


def convolutional(rng: np.random.Generator, style: str, dtype: torch.dtype) -> tuple[nn.Sequential, tuple[int, ...]]:
    """Draw a net of images [C, H, W] or sequences [C, L] with all kinds of layers; return it with its input shape."""
    smooth = bool(rng.random() < 0.15)
    if rng.random() < 0.2:
        channels, length = 2, int(rng.integers(4, 8))
        layers: list[nn.Module] = [
            nn.Conv1d(2, 4, int(rng.integers(1, 4)), int(rng.integers(1, 3)), 1, groups=int(rng.integers(1, 3))),
            nn.BatchNorm1d(4),
            function(rng, smooth=smooth),
        ]
        shape: tuple[int, ...] = (channels, length)
    else:
        channels, side = 2, int(rng.integers(5, 7))
        shape = (channels, side, side)
        first = nn.Conv2d(
            channels,
            4,
            (int(rng.integers(1, 4)), int(rng.integers(1, 4))),
            int(rng.integers(1, 3)),
            (int(rng.integers(0, 2)), 1),
            dilation=(1, int(rng.integers(1, 3))),
            groups=int(rng.choice([1, 2])),
        )
        options = [
            [nn.MaxPool2d(2, 1)],
            [nn.MaxPool2d(3, 2, 1)],
            [nn.AvgPool2d(2, 1)],
            [nn.AvgPool2d(3, 2, 1, count_include_pad=bool(rng.random() < 0.5))],
            [nn.AdaptiveAvgPool2d((2, 3))],
            [
                nn.ConvTranspose2d(
                    4, 2, 2, int(rng.integers(1, 3)), int(rng.integers(0, 2)), groups=int(rng.choice([1, 2]))
                )
            ],
            [Moved(lambda z: z.permute(0, 2, 3, 1))],
            [Concat(nn.Conv2d(4, 2, 1), nn.Conv2d(4, 3, 1)), Moved(lambda z: z[:, 1:4])],
            [Residual(nn.Conv2d(4, 4, 3, padding=1), int(rng.choice([1, -1])))],
            [nn.Conv2d(4, 3, 2, padding=1), nn.BatchNorm2d(3), nn.ReLU()],
        ]
        layers = [first, function(rng, smooth=smooth), *options[rng.integers(len(options))]]
        if rng.random() < 0.5:
            layers.insert(1, nn.BatchNorm2d(4))
        if rng.random() < 0.4:
            layers.insert(0, Normalize(torch.zeros(channels, 1, 1), torch.zeros(channels, 1, 1)))
        elif rng.random() < 0.4:
            layers.insert(0, Affine(torch.zeros(channels, 1, 1), torch.zeros(channels, side, side)))
    layers.append(nn.Flatten())
    with torch.no_grad():
        features = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1]
    if rng.random() < 0.3:
        layers.append(TimesMatrix(torch.zeros(features, 3)))
    else:
        layers.append(nn.Linear(features, int(rng.integers(1, 4))))
    if math.prod(shape) > 40 and rng.random() < 0.5:
        layers += [function(rng), nn.Linear(layers[-1](torch.zeros(1, features)).shape[1], 2)]
    return fill(nn.Sequential(*layers).to(dtype), "normal" if style == "one" else style, rng), shape
