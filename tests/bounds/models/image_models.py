"""Common image classifiers at any width, with random weights, written from their papers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    padding = kernel // 2
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """x + body(x), or shortcut(x) + body(x)."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut, self.last = body, shortcut or nn.Identity(), last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.shortcut(x) + self.body(x))


def resnet(width: int, blocks: tuple[int, ...]) -> nn.Sequential:
    """ResNet-18 has blocks (2, 2, 2, 2) (He et al., 2016)."""
    layers = [*conv_bn(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, count in enumerate(blocks):
        for i in range(count):
            outputs, stride = width * 2**stage, 2 if stage > 0 and i == 0 else 1
            body = [*conv_bn(inputs, outputs, 3, stride), nn.ReLU(inplace=True), *conv_bn(outputs, outputs, 3)]
            changed = stride != 1 or inputs != outputs
            shortcut = nn.Sequential(*conv_bn(inputs, outputs, 1, stride)) if changed else None
            layers.append(Residual(nn.Sequential(*body), shortcut, nn.ReLU(inplace=True)))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class Excitation(nn.Module):
    """Squeeze and excitation (Hu et al., 2018)."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.fc2(f.silu(self.fc1(f.adaptive_avg_pool2d(x, 1)))).sigmoid()


def inverted(
    inputs: int, outputs: int, stride: int, expansion: int, function: type[nn.Module], squeeze: bool
) -> nn.Module:
    """An inverted residual block (Sandler et al., 2018)."""
    inner = inputs * expansion
    body = [*conv_bn(inputs, inner, 1), function()] if expansion > 1 else []
    body += [*conv_bn(inner, inner, 3, stride, inner), function()]
    body += [Excitation(inner, max(1, inputs // 4))] if squeeze else []
    layers = nn.Sequential(*body, *conv_bn(inner, outputs, 1))
    return Residual(layers) if stride == 1 and inputs == outputs else layers


def mobile(width: int, function: type[nn.Module], squeeze: bool) -> nn.Sequential:
    """MobileNetV2 with ReLU6; with SiLU and squeeze and excitation like EfficientNet (Tan and Le, 2019)."""
    layers = [*conv_bn(3, width, 3, 2), function()]
    inputs = width
    for expansion, outputs, count, stride in ((1, width // 2, 1, 1), (6, width, 2, 2), (6, 2 * width, 2, 2)):
        for i in range(count):
            layers.append(inverted(inputs, outputs, stride if i == 0 else 1, expansion, function, squeeze))
            inputs = outputs
    layers += [*conv_bn(inputs, 8 * width, 1), function(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(8 * width, 10))


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Scale(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((channels, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def convnext(width: int, blocks: tuple[int, ...]) -> nn.Sequential:
    """ConvNeXt-T has width 96 and blocks (3, 3, 9, 3) (Liu et al., 2022)."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), ChannelNorm(width)]
    for stage, count in enumerate(blocks):
        n = width * 2**stage
        if stage > 0:
            layers += [ChannelNorm(n // 2), nn.Conv2d(n // 2, n, 2, 2)]
        for _ in range(count):
            body = [nn.Conv2d(n, n, 7, 1, 3, groups=n), ChannelNorm(n), nn.Conv2d(n, 4 * n, 1), nn.GELU()]
            layers.append(Residual(nn.Sequential(*body, nn.Conv2d(4 * n, n, 1), Scale(n))))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(n), nn.Linear(n, 10))


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(f.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))


class VisionTransformer(nn.Module):
    """ViT-S/16 has width 384, depth 12 and 6 heads (Dosovitskiy et al., 2021)."""

    def __init__(self, width: int, depth: int, heads: int, patch: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width))
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers.append(Residual(nn.Sequential(nn.LayerNorm(width), SelfAttention(width, heads))))
            mlp = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
            layers.append(Residual(nn.Sequential(nn.LayerNorm(width), *mlp)))
        self.blocks = nn.Sequential(*layers, nn.LayerNorm(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.blocks(x)[:, 0])


#: Name → (the model at a small width, side of its images).
SMALL: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "ResNet-18": (lambda: resnet(2, (2, 2, 2, 2)), 32),
    "MobileNetV2": (lambda: mobile(4, nn.ReLU6, False), 16),
    "EfficientNet": (lambda: mobile(4, nn.SiLU, True), 16),
    "ConvNeXt": (lambda: convnext(4, (1, 1)), 16),
    "ViT": (lambda: VisionTransformer(8, 1, 2, 4, 8), 8),
}
