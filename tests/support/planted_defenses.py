"""Defenses that mask gradients, around a net that is not robust."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Defended(nn.Module):
    """A function of a net and of its input."""

    def __init__(self, net: nn.Module, defense: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.defense = net, defense

    def forward(self, x: Tensor) -> Tensor:
        return self.defense(self.net, x)


def quantized(net: nn.Module, levels: int = 8) -> nn.Module:
    """Pixels rounded to a few levels (Guo et al., 2018)."""
    return Defended(net, lambda net, x: net((levels * x).round() / levels))


def noisy(net: nn.Module, sigma: float = 0.1) -> nn.Module:
    """Gaussian noise in every forward pass."""
    return Defended(net, lambda net, x: net(x + sigma * torch.randn_like(x)))


def through(net: nn.Module, function: Any) -> nn.Module:
    """A net behind an autograd function."""
    return Defended(net, lambda net, x: net(function.apply(x)))


def thermometer(net: nn.Module, x: Tensor) -> Tensor:
    """A code of 12 levels (Buckman et al., 2018), decoded by its mean."""
    thresholds = (torch.arange(12, device=x.device) + 0.5) / 12
    return net((x.unsqueeze(-1) > thresholds).to(x.dtype).mean(-1))


def random_resize(net: nn.Module, x: Tensor) -> Tensor:
    """A random size and place in each forward pass (Xie et al., 2018)."""
    side = x.shape[-1]
    new = int(torch.randint(side - 2, side + 1, ()))
    top, left = (int(torch.randint(0, side - new + 1, ())) for _ in range(2))
    small = functional.interpolate(x, (new, new), mode="bilinear", align_corners=False)
    return net(functional.pad(small, (left, side - new - left, top, side - new - top)))


def hard_decision(net: nn.Module, x: Tensor) -> Tensor:
    """The predicted class, as a one-hot vector."""
    logits = net(x)
    return functional.one_hot(logits.argmax(1), logits.shape[1]).to(x.dtype)


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
        "logits times 10^4": (Defended(net, lambda net, x: 1e4 * net(x)), "saturated-loss", None),
        "quantized input": (quantized(net), "zero-gradient", "piecewise constant"),
        "k winners take all": (winners_take_all(net), "gradient-mismatch", "discontinuous"),
        "thermometer code": (Defended(net, thermometer), "no-gradient", "piecewise constant"),
        "random resize": (Defended(net, random_resize), "randomized", None),
        "added noise": (noisy(net), "randomized", None),
        "zeroed gradients": (through(net, _Zeroed), "zero-gradient", "replaced"),
        "clipped gradients": (through(net, _Clipped), "gradient-mismatch", "replaced"),
        "arg-max output": (Defended(net, hard_decision), "arg-max", None),
        "dropout left on": (AlwaysDropping(net), "randomized", None),
    }
