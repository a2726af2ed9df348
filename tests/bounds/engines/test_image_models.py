"""Common image classifiers at small widths, written from their papers, and settings that change torch's arithmetic."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pyrobust.bounds import BoundedModel

METHODS = ("ibp", "crown-ibp", "crown")


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


def inverted(inputs: int, outputs: int, stride: int, expansion: int) -> nn.Module:
    """An inverted residual block (Sandler et al., 2018)."""
    inner = inputs * expansion
    body = [*conv_bn(inputs, inner, 1), nn.SiLU()] if expansion > 1 else []
    body += [*conv_bn(inner, inner, 3, stride, inner), nn.SiLU(), Excitation(inner, max(1, inputs // 4))]
    layers = nn.Sequential(*body, *conv_bn(inner, outputs, 1))
    return Residual(layers) if stride == 1 and inputs == outputs else layers


def efficient(width: int) -> nn.Sequential:
    """Like EfficientNet (Tan and Le, 2019)."""
    layers = [*conv_bn(3, width, 3, 2), nn.SiLU()]
    inputs = width
    for expansion, outputs, count, stride in ((1, width // 2, 1, 1), (6, width, 2, 2), (6, 2 * width, 2, 2)):
        for i in range(count):
            layers.append(inverted(inputs, outputs, stride if i == 0 else 1, expansion))
            inputs = outputs
    layers += [*conv_bn(inputs, 8 * width, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout()]
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


#: Name → (the model at a small width, side of its images).
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "ResNet-18": (lambda: resnet(2, (2, 2, 2, 2)), 32),
    "EfficientNet": (lambda: efficient(4), 16),
    "ConvNeXt": (lambda: convnext(4, (1, 1)), 16),
}


@pytest.mark.parametrize("name", MODELS)
def test_values_around_random_images_are_inside(name: str) -> None:
    torch.manual_seed(0)
    make, side = MODELS[name]
    model, x, epsilon = make().eval(), torch.rand(2, 3, side, side), 1 / 255
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
    bounded = BoundedModel(model, x)
    signs = torch.rand(32, *x.shape) * 2 - 1
    signs[::2] = signs[::2].sign()
    with torch.no_grad():
        values = torch.stack([model(x + epsilon * sign) for sign in signs])
    tolerance = 1e-5 * (1 + values.abs())
    for method in ("ibp", "crown-ibp"):
        bounds = bounded.bounds(x, epsilon * (1 + 1e-6), method=method)
        assert bounds.lower.isfinite().all()
        assert bounds.upper.isfinite().all()
        assert ((bounds.lower <= values + tolerance) & (values - tolerance <= bounds.upper)).all()
    point = bounded.bounds(x, 1e-7)
    assert (point.upper - point.lower < 1e-2).all()


@contextlib.contextmanager
def changed(get: Callable[[], Any], change: Callable[[Any], object], value: Any) -> Iterator[None]:
    before = get()
    try:
        change(value)
        yield
    finally:
        change(before)


ONEDNN: Any = (torch.backends.mkldnn.conv, torch.backends.mkldnn.matmul)


def set_onednn_precisions(values: list[str]) -> None:
    for backend, value in zip(ONEDNN, values, strict=True):
        backend.fp32_precision = value


#: Settings under which bounds are computed; the last three also leave the deployed forward pass in strict floats.
SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "matmul precision medium": lambda: changed(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "oneDNN bf16": lambda: changed(
        lambda: [backend.fp32_precision for backend in ONEDNN], set_onednn_precisions, ["bf16", "bf16"]
    ),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "oneDNN off": lambda: torch.backends.mkldnn.flags(enabled=False),
    "deterministic": lambda: torch.backends.mkldnn.flags(enabled=True, deterministic=True),
    "two threads": lambda: changed(torch.get_num_threads, torch.set_num_threads, 2),
}


@pytest.fixture(scope="module")
def wide() -> tuple[nn.Module, Tensor]:
    """A net with layers of 32 to 64 channels and of 288 features, and images."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Conv2d(64, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    return net.eval(), torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def test_settings_change_bounds_by_few_roundings(wide: tuple[nn.Module, Tensor]) -> None:
    """Sums may run in another order."""
    bounded, x = BoundedModel(*wide), wide[1]
    for method in METHODS:
        plain = bounded.bounds(x, 1e-3, method=method)
        tolerance = 2e-5 * (1 + plain.lower.abs())  # bf16 products would differ by 4e-3
        for name, setting in SETTINGS.items():
            with setting():
                under = bounded.bounds(x, 1e-3, method=method)
            assert ((plain.lower - under.lower).abs() <= tolerance).all(), name
            assert ((plain.upper - under.upper).abs() <= tolerance).all(), name


def test_deployed_outputs_are_inside_unless_products_are_in_bf16(wide: tuple[nn.Module, Tensor]) -> None:
    """Check float32 forward passes at the center of thin balls, where rounding is most of the width."""
    x = wide[1]
    torch.manual_seed(0)
    for model in (wide[0], resnet(8, (1, 1)).eval()):
        bounded = BoundedModel(model, x)
        bounds = [bounded.bounds(x, 1e-7, method=method, semantics="float32") for method in METHODS]
        for name in list(SETTINGS)[-3:]:
            for form in (torch.contiguous_format, torch.channels_last):
                with SETTINGS[name](), torch.no_grad():
                    outputs = torch.stack([model(x.to(memory_format=form)), torch.cat([model(row[None]) for row in x])])
                for bound in bounds:
                    assert ((bound.lower <= outputs) & (outputs <= bound.upper)).all(), name
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            outputs = model(x).float()
        assert ((outputs < bounds[-1].lower) | (outputs > bounds[-1].upper)).any()
