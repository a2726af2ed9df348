"""Defenses that mask gradients, around a net that is not robust."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Scaled(nn.Module):
    """Logits times a factor."""

    def __init__(self, net: nn.Module, factor: float = 1e4) -> None:
        super().__init__()
        self.net, self.factor = net, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.net(x)


class Quantized(nn.Module):
    """Pixels rounded to a few levels (Guo et al., 2018)."""

    def __init__(self, net: nn.Module, levels: int = 8) -> None:
        super().__init__()
        self.net, self.levels = net, levels

    def forward(self, x: Tensor) -> Tensor:
        return self.net((self.levels * x).round() / self.levels)


class WinnersTakeAll(nn.Module):
    """The k largest activations of an example; the others become zero (Xiao, Zhong and Zheng, 2020)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        k = max(1, int(self.share * flat.shape[1]))
        return (flat * (flat >= flat.topk(k, 1).values[:, -1:])).view(x.shape)


def winners_take_all(net: nn.Sequential, share: float = 0.15) -> nn.Sequential:
    """The net with its ReLUs replaced."""
    net = copy.deepcopy(net)
    for index, module in enumerate(net):
        if isinstance(module, nn.ReLU):
            net[index] = WinnersTakeAll(share)
    return net


class Thermometer(nn.Module):
    """A code of levels (Buckman et al., 2018), decoded by its mean."""

    def __init__(self, net: nn.Module, levels: int = 12) -> None:
        super().__init__()
        self.net, self.levels = net, levels

    def forward(self, x: Tensor) -> Tensor:
        thresholds = (torch.arange(self.levels, device=x.device) + 0.5) / self.levels
        return self.net((x.unsqueeze(-1) > thresholds).to(x.dtype).mean(-1))


class RandomResize(nn.Module):
    """A random size and place in each forward pass (Xie et al., 2018)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        side = x.shape[-1]
        new = int(torch.randint(side - 2, side + 1, ()))
        top, left = (int(torch.randint(0, side - new + 1, ())) for _ in range(2))
        small = functional.interpolate(x, (new, new), mode="bilinear", align_corners=False)
        return self.net(functional.pad(small, (left, side - new - left, top, side - new - top)))


class Noisy(nn.Module):
    """Gaussian noise in every forward pass."""

    def __init__(self, net: nn.Module, sigma: float = 0.1) -> None:
        super().__init__()
        self.net, self.sigma = net, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + self.sigma * torch.randn_like(x))


class _Zeroed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-1e-3, 1e-3)


class Through(nn.Module):
    """A net behind an autograd function."""

    def __init__(self, net: nn.Module, function: Any) -> None:
        super().__init__()
        self.net, self.function = net, function

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.function.apply(x))


class HardDecision(nn.Module):
    """The predicted class, as a one-hot vector."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        logits = self.net(x)
        return functional.one_hot(logits.argmax(1), logits.shape[1]).to(x.dtype)


class AlwaysDropping(nn.Module):
    """Dropout that evaluation mode does not switch off."""

    def __init__(self, net: nn.Sequential, layer: int = 5) -> None:
        super().__init__()
        self.features, self.head = net[:layer], net[layer:]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.dropout(self.features(x), 0.3, training=True))


def planted(net: nn.Sequential) -> dict[str, tuple[nn.Module, str, str | None]]:
    """Defense → the model, the finding that names it, and its cause."""
    return {
        "logits times 10^4": (Scaled(net), "saturated-loss", None),
        "quantized input": (Quantized(net), "zero-gradient", "piecewise constant"),
        "k winners take all": (winners_take_all(net), "gradient-mismatch", "discontinuous"),
        "thermometer code": (Thermometer(net), "no-gradient", "piecewise constant"),
        "random resize": (RandomResize(net), "randomized", None),
        "added noise": (Noisy(net), "randomized", None),
        "zeroed gradients": (Through(net, _Zeroed), "zero-gradient", "replaced"),
        "clipped gradients": (Through(net, _Clipped), "gradient-mismatch", "replaced"),
        "arg-max output": (HardDecision(net), "arg-max", None),
        "dropout left on": (AlwaysDropping(net), "randomized", None),
    }
